"""Draw a rendered scene at random: its streets, its light, who moves in it and where, and the camera."""

from __future__ import annotations

import math

import numpy as np

from rvtssm.contrib.worlds.rendered.assets import Assets
from rvtssm.contrib.worlds.rendered.motion import CameraTrip, Path, halting, line, shaking, steady, turned
from rvtssm.contrib.worlds.rendered.roadside import KERB_M, Roadside, Street
from rvtssm.contrib.worlds.rendered.scene import Flicker, RenderedScene
from rvtssm.contrib.worlds.rendered.scene_kinds import (
    AIR,
    CAR,
    EMPTY,
    HAND,
    KINDS,
    OPEN,
    REST,
    SUBURB,
    Range,
    SceneKind,
)
from rvtssm.contrib.worlds.rendered.scene_light import drawn_light, drawn_veil
from rvtssm.contrib.worlds.rendered.stage import Stage, pose
from rvtssm.contrib.worlds.rendered.traffic import Actor, Cast, keep_apart, standing
from rvtssm.contrib.worlds.rules import drawn_sensor
from rvtssm.contrib.worlds.worlds_config import WorldConfig

_SIGHT_M = 160.0
_MOTORWAY_SIGHT_M = 300.0
_BONNET_M = 1.0  # the farthest that a camera is ahead of the middle of its car


def drawn_kind(names: list[str] | None, camera_moves: bool, rng: np.random.Generator) -> tuple[SceneKind, str]:
    """Return a kind of scene and how its camera is carried.

    Args:
        names: The kinds to choose from; None means all.
        camera_moves: Whether the camera moves.
        rng: Random generator.
    """
    choices = []
    for name in names or list(KINDS):
        kind = KINDS[name]
        manners = [manner for manner in kind.cameras if (manner != REST) == camera_moves]
        if manners:
            choices.append((kind, manners))
    if not choices:  # none of the kinds has a camera that moves, or rests, as it should
        choices = [(KINDS[name], list(KINDS[name].cameras)) for name in names or list(KINDS)]
    weights = np.array([kind.weight for kind, _ in choices])
    kind, manners = choices[rng.choice(len(choices), p=weights / weights.sum())]
    return kind, manners[rng.integers(len(manners))]


def build_scene(
    assets: Assets, kind: SceneKind, manner: str, sensor_hw: tuple[int, int], duration_us: int, config: WorldConfig,
    rng: np.random.Generator,
) -> RenderedScene:  # fmt: skip
    """Return a random scene. The same arguments and generator state give the same scene.

    The number of lines of the sensor is drawn too. If the sensor is larger than the frame, the scene shows a part of
    it; if it is smaller, the frame of the scene is smaller.

    Args:
        assets: The models.
        kind: What the scene contains.
        manner: How the camera is carried: CAR, HAND, REST or AIR.
        sensor_hw: Height and width of the frame in pixels.
        duration_us: Length of the recording in microseconds.
        config: Limits of the sensor and the lens, and the share of scenes at dusk.
        rng: Random generator.
    """
    return _Builder(assets, kind, manner, duration_us, config, rng).scene(sensor_hw)


class _Builder:
    def __init__(
        self, assets: Assets, kind: SceneKind, manner: str, duration_us: int, config: WorldConfig,
        rng: np.random.Generator,
    ) -> None:  # fmt: skip
        self.kind = kind
        self.manner = manner
        self.duration_us = duration_us
        self.duration_s = duration_us * 1e-6
        self.config = config
        self.rng = rng
        self.is_dusk = rng.random() < config.dusk_share
        self.speed = rng.uniform(*kind.speed_m_per_s)
        self.stage = Stage()
        self.roadside = Roadside(self.stage, assets, self.is_dusk, rng)
        self.cast = Cast(self.stage, assets, self.is_dusk or rng.random() < 0.25, rng)
        self.assets = assets
        self.flickers: list[Flicker] = []
        self.main, self.cross = self._streets()

    def scene(self, sensor_hw: tuple[int, int]) -> RenderedScene:
        # Lens and sensor: lines of the whole sensor, of which the frame shows a part.
        rng, config = self.rng, self.config
        lines, height, width = drawn_sensor(sensor_hw, config, rng)
        focal_px = lines * rng.uniform(0.75, 1.5)
        # What stands.
        self.roadside.ground(self.speed * self.duration_s if self.manner == CAR else 0.0)
        for street, height_m in ((self.cross, -0.004), (self.main, 0.0)):
            if street is not None:
                self.roadside.street(street, height_m)
                self.roadside.houses(street)
                self.roadside.furniture(street)
        # What moves, after the camera, which nothing may run into.
        camera = self._camera()
        self._parked()
        self._traffic()
        self._people(camera)
        self._screens()
        veil = None
        if self.manner == CAR and rng.random() < 0.5:
            veil = drawn_veil(height, width, self.is_dusk, rng)
        packed = self.stage.packed()
        light = drawn_light(self.assets, self.is_dusk, rng)
        return RenderedScene(
            packed, self.cast.actors, camera, light, focal_px, height, width, self.duration_us,
            rng.uniform(0, config.lens_blur), rng.uniform(0, config.distortion), veil, self.flickers,
        )  # fmt: skip

    # --- streets -----------------------------------------------------------------------------------------------------

    def _streets(self) -> tuple[Street, Street | None]:
        """Return the street of the camera along z, and the one that crosses it."""
        rng, kind = self.rng, self.kind
        roadside = str(rng.choice(kind.roadsides))
        lanes = self._count(kind.lanes)
        if roadside != OPEN and rng.random() < 0.15:
            lanes += 1
        lane_m = rng.uniform(3.4, 3.75) if roadside == OPEN else rng.uniform(2.7, 3.5)
        strip_m = 0.0 if roadside == OPEN else float(rng.choice((2.2, 2.2, 5.0)))
        sight_m = _MOTORWAY_SIGHT_M if roadside == OPEN else _SIGHT_M
        far_m = sight_m + self.speed * self.duration_s
        setback_m = rng.uniform(3, 10) if roadside == SUBURB else rng.uniform(0, 0.8)
        pavement_m = rng.uniform(1.6, 4.5)
        if kind.is_square:
            strip_m, pavement_m = rng.uniform(8, 16), rng.uniform(3, 6)
        gap_m = (0.0, 0.0)
        cross = None
        if kind.across[1] > 0:
            # The camera stays before the crossing, unless it turns there.
            way_m = self.speed * self.duration_s if self.manner == CAR else 0.0
            if kind.stops:
                way_m *= 0.5
            at = way_m + rng.uniform(9, 28)
            if kind.turns:
                at = rng.uniform(8, 14)
            cross_lane_m = rng.uniform(2.8, 3.4)
            half = cross_lane_m + 2.2
            reach = half + 2.5
            main_half = lanes * lane_m + strip_m + pavement_m
            gap_m = (at - reach, at + reach)
            matrix = pose(0.0, at, math.pi / 2)
            cross = Street(
                matrix, cross_lane_m, 1, 2.2, 2.5, rng.uniform(0, 2), roadside, -90.0, 90.0, (-main_half, main_half)
            )
        main = Street(np.eye(4), lane_m, lanes, strip_m, pavement_m, setback_m, roadside, -25.0, far_m, gap_m)
        return main, cross

    def _count(self, limits: Range) -> int:
        return int(self.rng.integers(int(limits[0]), int(limits[1]) + 1))

    # --- the camera --------------------------------------------------------------------------------------------------

    def _camera(self) -> CameraTrip:
        rng, main = self.rng, self.main
        if self.manner == CAR:
            height_m = float(rng.choice((rng.uniform(1.1, 1.6), rng.uniform(1.6, 2.4))))
            shake = shaking((0.02, 0.006, 0.006, 0.004), rng)
            pitch, turn = rng.normal(-0.02, 0.03), rng.normal(0, 0.04)
            return CameraTrip(self._own_path(), height_m, rng.uniform(0.0, 1.0), turn, 0.0, pitch, shake)
        if self.manner == AIR:  # above the road, it looks down and in any direction but back
            height_m = rng.uniform(5, 18)
            path = line(rng.uniform(-1, 1) * main.half_m, 0.0, 0.0, steady(self.duration_s, rng.uniform(0, 6), rng))
            pitch = -math.atan2(1.0, rng.uniform(0.8, 2.5))
            shake = shaking((0.05, 0.02, 0.02, 0.02), rng)
            return CameraTrip(path, height_m, 0.0, rng.uniform(-1.2, 1.2), rng.normal(0, 0.25), pitch, shake)
        height_m = rng.uniform(1.3, 1.75)
        beside = main.half_m + main.pavement_m * rng.uniform(0.3, 0.9)
        side = rng.choice((-1, 1))
        if self.kind.is_square:
            beside = rng.uniform(0, main.half_m)
        if self.manner == HAND:
            speed = rng.choice((0.0, rng.uniform(0.6, 1.6)))
            path = line(side * beside, 0.0, 0.0, steady(self.duration_s, speed, rng))
            turn = -side * rng.uniform(-0.3, 0.9)
            rate = rng.choice((0.0, rng.normal(0, 0.25)))
            shake = shaking((0.03, 0.03, 0.025, 0.02), rng)
            return CameraTrip(path, height_m + KERB_M, 0.0, turn, rate, rng.normal(-0.05, 0.06), shake)
        # At rest, it looks along the street or across it.
        height_m = float(rng.choice((height_m, rng.uniform(2.0, 5.0))))
        turn = -side * rng.uniform(0.1, 1.6)
        pitch = -math.atan2(height_m - 1.2, rng.uniform(6, 15))
        path = standing(side * beside, 0.0, 0.0)
        return CameraTrip(path, height_m, 0.0, turn, 0.0, pitch, np.zeros((4, 3, 2)))

    def _own_path(self) -> Path:
        """Return the path of the car with the camera."""
        rng = self.rng
        x = self.main.lane_u(int(rng.integers(self.main.lanes))) + rng.normal(0, 0.15)
        self.own_x = x
        if self.kind.turns and self.cross is not None:
            side = int(rng.choice((-1, 1)))
            radius = rng.uniform(5, 8) + (4.0 if side < 0 else 0.0)
            at = (self.main.gap_m[0] + self.main.gap_m[1]) / 2
            # It ends in the lane of the other street that leads away: to the right, the near one.
            lane_z = at - side * self.cross.lane_m / 2
            straight = max(lane_z - radius, 0.5)
            return turned(x, 0.0, straight, lane_z - straight, side, steady(self.duration_s, self.speed, rng))
        if self.kind.stops:
            halt_s = rng.uniform(0.3, 0.8) * self.duration_s
            self.own_reached = halting(self.duration_s, self.speed, halt_s, rng.uniform(0.5, 2.0))
        else:
            self.own_reached = steady(self.duration_s, self.speed, rng)
        return line(x, 0.0, 0.0, self.own_reached)

    # --- vehicles ----------------------------------------------------------------------------------------------------

    def _parked(self) -> None:
        rng, main = self.rng, self.main
        if main.strip_m == 0 or self.kind.is_square:
            return
        is_across = main.strip_m > 4  # cars stand beside each other
        for side in (-1, 1):
            share = rng.uniform(*self.kind.parked) * rng.choice((0.0, 0.5, 1.0))
            v = main.start_m + rng.uniform(5, 12)
            place_m = rng.uniform(2.5, 3.0) if is_across else rng.uniform(5.2, 6.5)
            slant = rng.choice((0.0, 0.6))
            while v < min(main.end_m, 90.0):
                v += place_m * (1.4 if slant and is_across else 1.0)
                if rng.random() > share or main.is_in_gap(v, 4.0):
                    continue
                u = side * (main.half_m - (2.4 if is_across else 1.05) + rng.normal(0, 0.08))
                heading = rng.choice((0.0, math.pi)) if side < 0 else 0.0
                if is_across:
                    heading = side * math.pi / 2 - side * slant + rng.choice((0.0, math.pi))
                if rng.random() < 0.06:
                    self.cast.parked_two_wheeler(standing(u, v, heading), rng.random() < 0.5)
                else:
                    self.cast.vehicle(standing(u, v, heading + rng.normal(0, 0.03)), 0.05)

    def _traffic(self) -> None:
        rng, main, kind = self.rng, self.main, self.kind
        is_open = main.roadside == OPEN
        gap = (12.0, 45.0) if is_open else (7.0, 28.0)
        # The same direction: the first vehicle in the lane of the camera stays ahead of it.
        next_z = {lane: rng.uniform(6, 16) for lane in range(main.lanes)}
        ahead: dict[int, list[tuple[float, Actor]]] = {lane: [] for lane in next_z}
        for number in range(self._count(kind.ahead)):
            lane = int(rng.integers(main.lanes))
            speed = self.speed * rng.uniform(0.97, 1.12)
            if self.manner == CAR and number == 0 and not kind.turns:
                lane = self._own_lane()
            reached = steady(self.duration_s, max(speed, 2.0), rng)
            z = next_z[lane] + 2.5
            if kind.stops and self.manner == CAR:  # the queue brakes together
                reached = self.own_reached * rng.uniform(0.9, 1.0)
                z = next_z[lane] * 0.6 + 3.5
            vehicle = self.cast.vehicle(line(self._lane_x(lane), z, 0.0, reached), kind.large_share)
            ahead[lane].append((z, vehicle))
            next_z[lane] = z + rng.uniform(*gap) + 6
        for lane, vehicles in ahead.items():
            is_own = self.manner == CAR and not kind.turns and lane == self._own_lane()
            keep_apart(vehicles, self.own_reached + _BONNET_M if is_own else -math.inf)
        # The other direction.
        next_z = {lane: rng.uniform(8, 60) for lane in range(main.lanes)}
        oncoming: dict[int, list[tuple[float, Actor]]] = {lane: [] for lane in next_z}
        for _ in range(self._count(kind.oncoming)):
            lane = int(rng.integers(main.lanes))
            reached = steady(self.duration_s, self.speed * rng.uniform(0.9, 1.1) + 1.0, rng)
            path = line(self._lane_x(-1 - lane), next_z[lane], math.pi, reached)
            oncoming[lane].append((-next_z[lane], self.cast.vehicle(path, kind.large_share)))
            next_z[lane] += rng.uniform(*gap) + 6
        for vehicles in oncoming.values():
            keep_apart(vehicles)
        if self.cross is not None:
            self._crossing_traffic(self.cross)
        for _ in range(self._count((0, 3)) if kind is not EMPTY else 0):
            z = rng.uniform(90, 140)
            reached = steady(self.duration_s, self.speed, rng)
            self.cast.far_vehicle(line(self._lane_x(0), z, 0.0, reached))

    def _own_lane(self) -> int:
        """Return the lane of the car with the camera."""
        return int(np.clip(round(self.own_x / self.main.lane_m - 0.5), 0, self.main.lanes - 1))

    def _lane_x(self, lane: int) -> float:
        return self.main.lane_u(lane) + self.rng.normal(0, 0.15)

    def _crossing_traffic(self, cross: Street) -> None:
        rng = self.rng
        middle_z = cross.matrix[2, 3]
        for direction in (-1, 1):
            # In the street along x, vehicles keep to the right of their direction.
            z = middle_z - direction * cross.lane_m / 2
            behind = rng.uniform(4, 25)
            vehicles = []
            for _ in range(self._count(self.kind.across) // 2 + int(rng.random() < 0.5)):
                if self.kind.turns and direction * (1 if self.own_x > 0 else -1) > 0:
                    continue
                reached = steady(self.duration_s, rng.uniform(3, 11), rng)
                x = -direction * behind
                path = line(x, z, direction * math.pi / 2, reached)
                vehicles.append((-behind, self.cast.vehicle(path, self.kind.large_share)))
                behind += rng.uniform(9, 25)
            keep_apart(vehicles)

    # --- people ------------------------------------------------------------------------------------------------------

    def _people(self, camera: CameraTrip) -> None:
        rng, main, kind = self.rng, self.main, self.kind
        position, rotation = camera.at(self.duration_s / 2)
        for _ in range(self._count(kind.walkers)):
            if self.manner == CAR and not kind.is_square:
                self._pedestrian()
            else:
                self._walker_in_view(position, rotation)
        for _ in range(self._count(kind.riders)):
            is_motorcycle = rng.random() < 0.4
            speed = self.speed * rng.uniform(0.8, 1.2) if is_motorcycle else rng.uniform(3, 7)
            reached = steady(self.duration_s, speed, rng)
            if self.manner != CAR and rng.random() < 0.6:
                x, z, heading = self._place_in_view(position, rotation, speed)
                self.cast.rider(line(x, z, heading, reached), is_motorcycle)
                continue
            direction = rng.choice((-1, 1))
            edge = main.lanes * main.lane_m - rng.uniform(0.4, 1.0)
            z = rng.uniform(8, 40) if direction > 0 else rng.uniform(15, 70)
            self.cast.rider(line(direction * edge, z, 0.0 if direction > 0 else math.pi, reached), is_motorcycle)

    def _pedestrian(self) -> None:
        """Add a person on a pavement, or one who crosses the road ahead of the camera."""
        rng, main = self.rng, self.main
        way_m = self.speed * self.duration_s
        speed = rng.uniform(0.8, 1.9)
        if rng.random() < 0.3:
            side = int(rng.choice((-1, 1)))
            z = way_m + rng.uniform(5, 20)
            reached = steady(self.duration_s, speed, rng)
            self.cast.walker(line(side * rng.uniform(0, main.half_m), z, -side * math.pi / 2, reached), 0.0)
            return
        side = int(rng.choice((-1, 1)))
        u = side * (main.half_m + rng.uniform(0.4, max(0.5, main.pavement_m - 0.3)))
        z = rng.uniform(5, way_m + 30)
        heading = float(rng.choice((0.0, math.pi)))
        if rng.random() < 0.2:
            self.cast.walker(standing(u, z, rng.uniform(0, 6.3)), KERB_M)
            return
        for k in range(2 if rng.random() < 0.25 else 1):  # some walk side by side
            reached = steady(self.duration_s, speed, rng)
            self.cast.walker(line(u + 0.6 * k, z, heading, reached), KERB_M)

    def _place_in_view(self, position: np.ndarray, rotation: np.ndarray, speed: float) -> tuple[float, float, float]:
        """Return x, z and the heading of something that comes through the view of a camera at 2 to 8 m or farther."""
        rng = self.rng
        away = rng.uniform(2, 8) if rng.random() < 0.5 else rng.uniform(8, 25)
        ahead, right = rotation[2], rotation[0]
        level = max(math.hypot(ahead[0], ahead[2]), 1e-6)
        if self.manner == AIR:  # around the point of the ground in the middle of the view
            away = rng.uniform(0.6, 1.7) * position[1] * level / -ahead[1]
        beside = rng.uniform(-0.5, 0.5) * away
        x = position[0] + ahead[0] / level * away + right[0] * beside
        z = position[2] + ahead[2] / level * away + right[2] * beside
        across = math.atan2(right[0], right[2]) + float(rng.choice((0.0, math.pi)))
        heading = across + rng.normal(0, 0.4)
        back_m = speed * self.duration_s / 2  # it passes this point in the middle of the recording
        return float(x - math.sin(heading) * back_m), float(z - math.cos(heading) * back_m), float(heading)

    def _walker_in_view(self, position: np.ndarray, rotation: np.ndarray) -> None:
        rng = self.rng
        speed = rng.uniform(0.7, 2.0)
        x, z, heading = self._place_in_view(position, rotation, speed)
        reached = steady(self.duration_s, speed, rng)
        if rng.random() < 0.25:  # stands still for a while
            reached = halting(self.duration_s, speed, rng.uniform(0.3, 0.8) * self.duration_s, rng.uniform(0.5, 2.0))
        height_m = KERB_M if abs(x) > self.main.half_m else 0.0
        for k in range(2 if rng.random() < 0.2 else 1):
            self.cast.walker(line(x + 0.55 * k, z + 0.2 * k, heading, reached), height_m)

    def _screens(self) -> None:
        rng = self.rng
        for _ in range(self._count(self.kind.screens)):
            instance = self.roadside.screen(self.main, rng.uniform(4, 20), int(rng.choice((-1, 1))))
            hz = float(rng.choice((rng.uniform(1, 12), 50.0, 60.0, 100.0)))
            self.flickers.append(Flicker(instance, hz, rng.uniform(0.2, 1.0), bool(rng.random() < 0.5)))
