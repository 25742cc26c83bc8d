"""What stands still: the road and its markings, pavements, houses, trees, posts and small things."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from rvtssm.contrib.worlds.rendered.assets import Assets
from rvtssm.contrib.worlds.rendered.raster import GLOWING, GROUND
from rvtssm.contrib.worlds.rendered.scene_kinds import CITY, OPEN, SUBURB
from rvtssm.contrib.worlds.rendered.stage import Mesh, Stage, block, joined, pose, quad

STOREY_M = 3.0
KERB_M = 0.12
_FAR_M = 400.0
_FACADE_PX = 256
_LONGEST_SIGHT_M = 200.0

Texture = tuple[np.ndarray, np.ndarray | None]


@dataclass(frozen=True)
class Street:
    """A straight street in coordinates of its own: u across, v along."""

    matrix: np.ndarray  # (4, 4) from the street to the world
    lane_m: float
    lanes: int  # per direction
    strip_m: float  # width of the places for parked cars on each side
    pavement_m: float
    setback_m: float  # from the pavement to the houses
    roadside: str
    start_m: float
    end_m: float
    gap_m: tuple[float, float]  # where another street crosses; equal: none does

    @property
    def half_m(self) -> float:
        """From the middle of the road to the kerb."""
        return self.lanes * self.lane_m + self.strip_m

    @property
    def pieces(self) -> list[tuple[float, float]]:
        """The parts beside the street that another one does not interrupt."""
        first, last = self.gap_m
        if last <= first:
            return [(self.start_m, self.end_m)]
        return [(self.start_m, first), (last, self.end_m)]

    def lane_u(self, lane: int) -> float:
        """Return the middle of a lane: 0, 1, ... from the middle of the road along v, and -1, -2, ... against v."""
        return (lane + 0.5) * self.lane_m

    def is_in_gap(self, v: float, margin_m: float = 0.0) -> bool:
        """Return whether another street crosses there."""
        first, last = self.gap_m
        return last > first and first - margin_m < v < last + margin_m


class Roadside:
    """Puts what stands beside streets on a stage."""

    def __init__(self, stage: Stage, assets: Assets, is_dusk: bool, rng: np.random.Generator) -> None:
        self._stage = stage
        self._is_dusk = is_dusk
        self._assets = assets
        self._rng = rng
        # Real roads are nearly silent, so that the contrast of their texture is low.
        road = self._drawn("road")[0].astype(float)
        contrast = rng.uniform(0.15, 0.8)
        road = (road.mean() + contrast * (road - road.mean())).astype(np.uint8)
        self._road = stage.material(stage.texture(road), rng.uniform(0.8, 1.8), 0, GROUND)
        self._pavement = self._ground_material("pavement", rng.uniform(0.35, 0.7))
        self._soil = self._ground_material("ground", rng.uniform(0.5, 1.1))
        self._paint = stage.material(-1, rng.uniform(0.25, 0.6), 0, GROUND)
        self._patch = stage.material(-1, rng.uniform(0.04, 0.12), 0, GROUND)
        self._walls = [self._facade() for _ in range(6)]
        self._roof = stage.material(stage.texture(self._drawn("roof")[0]), 1.3)
        self._metal = stage.material(stage.texture(self._drawn("metal")[0]), 0.8)

    def _drawn(self, role: str) -> Texture:
        """Return one of the textures of a role, mirrored by chance."""
        choices = self._assets.textures[role]
        grey, opacity = choices[self._rng.integers(len(choices))]
        if self._rng.random() < 0.5:
            grey = np.ascontiguousarray(grey[:, ::-1])
            opacity = None if opacity is None else np.ascontiguousarray(opacity[:, ::-1])
        return grey, opacity

    def _ground_material(self, role: str, grey: float) -> int:
        return self._stage.material(self._stage.texture(self._drawn(role)[0]), grey, 0, GROUND)

    def _facade(self) -> int:
        """Return a material of one storey with a window, 3 x 3 m, with curtains, shutters or a railing by chance."""
        rng = self._rng
        cell = cv2.resize(self._drawn("wall")[0], (_FACADE_PX, _FACADE_PX), interpolation=cv2.INTER_AREA)
        w, h = int(rng.uniform(70, 150)), int(rng.uniform(100, 190))
        left, top = (_FACADE_PX - w) // 2, int(230 - h - rng.uniform(0, 25))
        cell[top : top + h, left : left + w] = cv2.resize(self._drawn("window")[0], (w, h))
        if rng.random() < 0.5:  # a curtain, or the sky in the glass
            cv2.rectangle(cell, (left + 8, top + 6), (left + w - 8, top + h // 2), int(rng.uniform(90, 200)), -1)
        if rng.random() < 0.4:
            shutter = int(rng.uniform(50, 220))
            width = min(38, left - 2)
            cv2.rectangle(cell, (left - width, top), (left - 2, top + h), shutter, -1)
            cv2.rectangle(cell, (left + w + 2, top), (left + w + width, top + h), shutter, -1)
        if rng.random() < 0.4:
            for x in range(20, 236, 9):
                cv2.line(cell, (x, 200), (x, 246), 30, 3)
            cv2.line(cell, (20, 200), (236, 200), 25, 4)
        if rng.random() < 0.6:
            cv2.rectangle(cell, (0, 248), (255, 255), int(rng.uniform(60, 240)), -1)
        return self._stage.material(self._stage.texture(cell), rng.uniform(0.4, 1.0), 0.01)

    def ground(self, way_m: float) -> None:
        """Add the soil, below all streets, as far as it is seen along the way of the camera in metres."""
        corner = (-_FAR_M, -0.06, -_FAR_M)
        long = _FAR_M + max(_FAR_M, way_m + _LONGEST_SIGHT_M)
        self._stage.place(quad(corner, (2 * _FAR_M, 0, 0), (0, 0, long), (200, long / 4), self._soil))

    def street(self, street: Street, height_m: float) -> None:
        """Add a road with markings, and its pavements.

        Args:
            street: The street.
            height_m: Height of the road, which differs a little between streets that cross.
        """
        half = street.half_m
        first, length = street.start_m, street.end_m - street.start_m
        parts = [
            quad((-half, height_m, first), (2 * half, 0, 0), (0, 0, length), (2 * half / 3, length / 3), self._road)
        ]
        for start, end in street.pieces:
            long = end - start
            for side in (-1, 1):
                kerb = side * half
                wide = side * street.pavement_m
                if street.roadside == OPEN:
                    continue
                tiles = (street.pavement_m / 2.4, long / 2.4)
                parts.append(quad((kerb, KERB_M, start), (wide, 0, 0), (0, 0, long), tiles, self._pavement))
                parts.append(quad((kerb, 0, start), (0, 0, long), (0, KERB_M, 0), (long / 2, 0.2), self._pavement))
        parts += [*self._markings(street, height_m + 0.004), *self._patches(street, height_m)]
        self._stage.place(joined(*parts), street.matrix)

    def _stripe(self, u: float, v: float, width: float, length: float, y: float) -> Mesh:
        return quad((u - width / 2, y, v), (width, 0, 0), (0, 0, length), (1, 1), self._paint)

    def _markings(self, street: Street, y: float) -> list[Mesh]:
        rng = self._rng
        stripes = []
        dash_m, period_m = [(3, 9), (6, 18), (1.5, 4.5)][rng.integers(3)]
        lines = [lane * street.lane_m for lane in range(1 - street.lanes, street.lanes)]
        if street.roadside == SUBURB and rng.random() < 0.4:
            lines = []  # many small streets have none
        for start, end in street.pieces:
            for u in lines:
                stripes += [self._stripe(u, v, 0.14, dash_m, y) for v in np.arange(start, end - dash_m, period_m)]
            if street.roadside == OPEN or rng.random() < 0.4:
                edge = street.lanes * street.lane_m - 0.15
                stripes += [self._stripe(side * edge, start, 0.12, end - start, y) for side in (-1, 1)]
        if street.gap_m[1] > street.gap_m[0]:  # zebra crossings and lines where cars stop
            for v in (street.gap_m[0] - 3.5, street.gap_m[1] + 0.5):
                stripes += [self._stripe(u, v, 0.5, 3.0, y) for u in np.arange(0.5 - street.half_m, street.half_m, 1.0)]
            stripes.append(self._stripe(street.half_m / 2, street.gap_m[0] - 5.0, street.half_m * 0.9, 0.4, y))
        return stripes

    def _patches(self, street: Street, y: float) -> list[Mesh]:
        rng, half = self._rng, street.half_m
        patches = []
        for _ in range(rng.integers(0, 15)):
            u, v = rng.uniform(-half, half - 0.8), rng.uniform(street.start_m, street.end_m - 5)
            wide, long = rng.uniform(0.2, 0.8), rng.uniform(0.4, 4.5)
            patches.append(quad((u, y + 0.003, v), (wide, 0, 0), (0, 0, long), (1, 1), self._patch))
        return patches

    def houses(self, street: Street) -> None:
        """Add rows of houses, or what bounds an open road."""
        if street.roadside == OPEN:
            self._barriers(street)
            return
        rng = self._rng
        flats_share = {CITY: rng.uniform(0.75, 1.0), SUBURB: rng.uniform(0.1, 0.5)}[street.roadside]
        for side in (-1, 1):
            front = street.half_m + street.pavement_m + street.setback_m
            if rng.random() < 0.12:
                continue  # a park or a field on this side
            for start, end in street.pieces:
                v = start
                while v < end - 8:
                    if rng.random() < flats_share or not self._assets.buildings:
                        v += self._flats(street, side, front, v, end)
                    else:
                        v += self._house(street, side, front, v, end)
                    if street.roadside == SUBURB:
                        v += rng.uniform(1, 10)
                    elif rng.random() < 0.12:
                        v += rng.uniform(2, 12)

    def _flats(self, street: Street, side: int, front: float, v: float, end: float) -> float:
        rng = self._rng
        wide, deep = min(rng.uniform(8, 22), end - v), 12.0
        storeys = rng.integers(4, 9) if street.roadside == CITY else rng.integers(1, 4)
        high = STOREY_M * float(storeys)
        front += rng.uniform(0, 0.8)
        low, top = min(side * front, side * (front + deep)), max(side * front, side * (front + deep))
        wall = self._walls[rng.integers(len(self._walls))]
        body = block((low, 0, v), (top, high, v + wide), wall, STOREY_M)
        roof = quad((low, high + 0.02, v), (top - low, 0, 0), (0, 0, wide), (4, wide / 3), self._roof)
        self._stage.place(joined(body, roof), street.matrix, casts_shadow=True, tint=rng.uniform(0.7, 1.15))
        x = side * (front - 0.03)
        if self._is_dusk:
            self._light_windows(street, x, v, (int(storeys), int(wide / STOREY_M)))
        if rng.random() < 0.5:  # a door and a shop window with an awning
            door = self._stage.material(self._stage.texture(self._drawn("door")[0]), rng.uniform(0.4, 1.0), 0.02)
            at = v + rng.uniform(0.5, max(0.6, wide - 3))
            self._stage.place(quad((x, KERB_M, at), (0, 0, 1.2), (0, 2.2, 0), (1, 1), door), street.matrix)
            if street.roadside == CITY and rng.random() < 0.4:
                awning = quad((x, 2.9, v + 0.5), (0, 0, wide - 1), (-side * 1.2, -0.5, 0), (wide, 1), self._metal)
                self._stage.place(awning, street.matrix, casts_shadow=True, tint=rng.uniform(0.4, 1.4))
        return wide

    def _light_windows(self, street: Street, u: float, v: float, cells: tuple[int, int]) -> None:
        """Add light in some of the windows of a front of `cells` storeys and windows per storey."""
        rng = self._rng
        is_lit = rng.random(cells) < rng.uniform(0.05, 0.5)
        wide, high = rng.uniform(0.7, 1.5), rng.uniform(1.0, 1.8)
        lights = []
        for storey, place in np.argwhere(is_lit):
            glow = self._stage.material(-1, rng.uniform(0.1, 0.9), 0, GLOWING)
            corner = (u, (storey + 0.3) * STOREY_M, v + (place + 0.5) * STOREY_M - wide / 2)
            lights.append(quad(corner, (0, 0, wide), (0, high, 0), (1, 1), glow))
        if lights:
            self._stage.place(joined(*lights), street.matrix)

    def _house(self, street: Street, side: int, front: float, v: float, end: float) -> float:
        model = self._assets.buildings[self._rng.integers(len(self._assets.buildings))]
        mesh = self._stage.model_mesh(model)
        wide, _, deep = mesh.size_m
        if v + wide > end:
            return float(end - v)
        place = pose(side * (front + deep / 2), v + wide / 2, -side * np.pi / 2)
        self._stage.place(mesh, street.matrix @ place, 0, True, self._rng.uniform(0.7, 1.1))
        return float(wide)

    def _barriers(self, street: Street) -> None:
        rng, half = self._rng, street.half_m
        metal = self._stage.material(self._stage.texture(self._drawn("metal")[0]), rng.uniform(0.5, 1.0), 0.05)
        length = street.end_m - street.start_m
        rails = [
            quad((u, 0.45, street.start_m), (0, 0, length), (0, 0.32, 0), (length, 1), metal)
            for u in (0.0, half + 1.5, -half - 1.5)
        ]
        for v in np.arange(street.start_m, street.end_m, 4.0):
            rails += [quad((u, 0, v), (0.12, 0, 0), (0, 0.75, 0), (1, 1), metal) for u in (half + 1.5, -half - 1.6)]
        self._stage.place(joined(*rails), street.matrix)
        if rng.random() < 0.4:  # a wall against noise
            side = rng.choice((-1, 1))
            wall = self._walls[rng.integers(len(self._walls))]
            sheet = quad((side * (half + 6), 0, street.start_m), (0, 0, length), (0, 4.0, 0), (length / 4, 1), wall)
            self._stage.place(sheet, street.matrix)
        for v in np.arange(street.start_m + 40, street.end_m, rng.uniform(60, 120)):
            if rng.random() < 0.3:  # a bridge across the road, or a sign
                deck = block((-half - 12, 5.5, v), (half + 12, 6.8, v + rng.uniform(1, 9)), self._metal, 3.0)
                self._stage.place(deck, street.matrix, casts_shadow=True, tint=rng.uniform(0.4, 1.0))

    def furniture(self, street: Street) -> None:
        """Add trees, posts and small things."""
        rng = self._rng
        trees = self._trees()
        is_open = street.roadside == OPEN
        spacing = rng.uniform(9, 30) if not is_open else rng.uniform(6, 14)
        has_trees = rng.random() < (0.5 if street.roadside == CITY else 0.9)
        inner, outer = street.half_m + 0.5, street.half_m + max(street.pavement_m - 0.4, 0.8)
        for side in (-1, 1):
            posts_at = np.arange(street.start_m, street.end_m, rng.uniform(20, 40)) + rng.uniform(0, 20)
            post = self._one_of(self._assets.posts)
            for v in posts_at:
                if post is not None and not street.is_in_gap(v, 1.0):
                    place = pose(side * inner, v, side * np.pi / 2)
                    self._stage.place(post, street.matrix @ place, 0, True)
            for v in np.arange(street.start_m, street.end_m, spacing) + rng.uniform(0, spacing):
                if has_trees and not street.is_in_gap(v, 2.0):
                    mesh, low, high = trees[rng.integers(len(trees))]
                    u = rng.uniform(outer, outer + 1) if not is_open else street.half_m + rng.uniform(5, 45)
                    place = pose(side * u, v, rng.uniform(0, 6.3), 0.0, rng.uniform(low, high))
                    self._stage.place(mesh, street.matrix @ place, 0, True, rng.uniform(0.5, 1.2))
            for v in rng.uniform(street.start_m, min(street.end_m, _LONGEST_SIGHT_M), rng.integers(0, 12)):
                thing = self._one_of(self._assets.small)
                if thing is not None and not is_open and not street.is_in_gap(v, 0.5):
                    place = pose(side * rng.uniform(inner, outer), v, rng.uniform(-3, 3), KERB_M)
                    self._stage.place(thing, street.matrix @ place, 0, True, rng.uniform(0.6, 1.2))

    def _one_of(self, models: tuple) -> Mesh | None:  # type: ignore[type-arg]
        if not models:
            return None
        return self._stage.model_mesh(models[self._rng.integers(len(models))])

    def _trees(self) -> list[tuple[Mesh, float, float]]:
        """Return meshes of trees with the limits of their scale: models, and crossed pictures 1 m high."""
        rng = self._rng
        found = [(self._stage.model_mesh(model), 0.7, 1.2) for model in self._assets.trees]
        grey, opacity = self._drawn("tree")
        material = self._stage.material(self._stage.texture(grey, opacity), rng.uniform(0.9, 1.8))
        half = grey.shape[1] / grey.shape[0] / 2
        sheets = [
            quad((-half * c, 0, -half * s), (2 * half * c, 0, 2 * half * s), (0, 1, 0), (1, 1), material)
            for c, s in ((1.0, 0.0), (0.0, 1.0), (0.7, 0.7))
        ]
        return [*found, (joined(*sheets), 4.0, 9.0)]

    def screen(self, street: Street, v: float, side: int) -> int:
        """Add a glowing screen beside a street and return its instance."""
        rng = self._rng
        picture = self._drawn("window" if rng.random() < 0.5 else "wall")[0]
        material = self._stage.material(self._stage.texture(picture), rng.uniform(0.4, 1.3), 0, GLOWING)
        wide, high = rng.uniform(0.8, 4.0), rng.uniform(0.8, 3.0)
        corner = (side * (street.half_m + 0.3), rng.uniform(0.3, 2.0), v)
        sheet = quad(corner, (side * wide * 0.8, 0, wide * 0.6), (0, high, 0), (1, 1), material)
        return self._stage.place(sheet, street.matrix)
