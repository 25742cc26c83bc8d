"""An open world: people, vehicles and two-wheelers in streets, open places and rooms, seen by a camera that may move.

Labels are boxes around the whole object, hidden parts included, clipped to the frame. An object whose visible share is
below MIN_VISIBLE has no label; what is outside of the frame counts as hidden. Before a camera at rest, it also has
none before it has moved. `generate_recordings.with_events` removes the labels of objects that nothing was seen of yet.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import cv2
import numpy as np

from rvtssm.events.labels import BOX_DTYPE, Boxes
from rvtssm.simulation.atlas import WEAVES, Atlas, cloth
from rvtssm.simulation.people import SITTING, STANDING, WALKING, Animal, Person, build_animal, build_person
from rvtssm.simulation.perspective import Box, Pictures, Shot, outline, paint_limbs, paint_panels, panel
from rvtssm.simulation.simulation_config import WorldConfig
from rvtssm.simulation.surroundings import NO_PANELS, Fixture, Surroundings, build_indoors, build_outdoors
from rvtssm.simulation.trips import CameraTrip, Trip, build_camera_trip, build_trip
from rvtssm.simulation.vehicles import Automobile, Parts, TwoWheeler, build_automobile, build_two_wheeler

PERSON, VEHICLE, TWO_WHEELER, NO_CLASS = 0, 1, 2, -1  # class ids
MIN_VISIBLE = 0.3
MAX_STEP_PX = 1.0  # between two frames, where the shortest step allows
STEP_US = (2_500, 8_000)  # shortest and longest time between two frames
_LIMB_SPEED = 1.6  # of hands and feet, relative to the box
_TRIES = 12

Body = Person | Animal | Automobile | TwoWheeler


@dataclass(frozen=True)
class Player:
    """A body on its trip."""

    class_id: int
    body: Body
    trip: Trip
    has_lamps: bool = False

    def parts(self, t_s: float, eye: np.ndarray) -> Parts:
        """Return what is painted of it at a time."""
        x, z, heading, way = self.trip.at(t_s)
        if isinstance(self.body, Automobile):
            return self.body.parts(x, z, heading, way, eye)
        if isinstance(self.body, TwoWheeler):
            return self.body.parts(x, z, heading, way, t_s)
        return Parts(NO_PANELS, self.body.limbs(x, z, heading, way, t_s))

    def box(self, parts: Parts, t_s: float, shot: Shot) -> Box:
        """Return the smallest box around the body in px, which may reach out of the frame; empty if it is too near."""
        if isinstance(self.body, Automobile):
            x, z, heading, _ = self.trip.at(t_s)
            sine, cosine, points = math.sin(heading), math.cos(heading), self.body.points_m
            f, u, r = points[:, 0], points[:, 1], points[:, 2]
            balls = np.stack((x + f * sine + r * cosine, u, z + f * cosine - r * sine), axis=1)
            radii = np.zeros(len(balls))
        else:
            balls = np.concatenate((parts.limbs[:, :3], parts.limbs[:, 4:7]))
            radii = np.concatenate((parts.limbs[:, 3], parts.limbs[:, 7]))
            if len(parts.panels):  # wheels
                middles = parts.panels[:, :3] + (parts.panels[:, 3:6] + parts.panels[:, 6:9]) / 2
                for angle in np.arange(8) * math.pi / 4:
                    rim = math.cos(angle) * parts.panels[:, 3:6] + math.sin(angle) * parts.panels[:, 6:9]
                    balls = np.concatenate((balls, middles + rim / 2))
                radii = np.concatenate((radii, np.zeros(len(balls) - len(radii))))
        box: Box = outline(balls, radii, shot.matrix, shot.position, shot.focal_px)
        return box

    @property
    def is_gesturing(self) -> bool:
        """Whether its limbs move while it is at one place."""
        return isinstance(self.body, Person) and self.body.posture in (STANDING, SITTING)

    @property
    def size_m(self) -> tuple[float, float]:
        """Length and width of its shadow."""
        if isinstance(self.body, Automobile):
            return self.body.size_m[0] * 1.15, self.body.size_m[2] * 1.3
        return (1.9, 0.6) if isinstance(self.body, TwoWheeler) else (0.6, 0.6)


@dataclass(frozen=True)
class World:
    """Surroundings, players and a camera, over `duration_us`."""

    duration_us: int
    height: int
    width: int
    surroundings: Surroundings
    players: tuple[Player, ...]
    camera: CameraTrip
    pictures: Pictures
    lens_px: float

    def frames(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield times in us and intensities (H, W) float32, dense enough for the camera; 1 is white paper by day."""
        backdrop = None if self.camera.is_moving else self._backdrop(self._shot(0.0))
        before: list[Box] = []
        t_us, step_us = 0, STEP_US[0]
        while True:
            t_s = t_us * 1e-6
            shot = self._shot(t_s)
            canvas = self._backdrop(shot) if backdrop is None else backdrop.copy()
            boxes = self._paint_things(canvas, t_s, shot)
            yield t_us, cv2.GaussianBlur(canvas, (0, 0), self.lens_px) if self.lens_px > 0.2 else canvas
            if t_us >= self.duration_us:
                return
            speed = self.camera.speed_px_per_s(t_s)
            for one, two in zip(before, boxes, strict=False):
                if one[2] > one[0] and two[2] > two[0]:
                    moved = max(abs(a - b) for a, b in zip(one, two, strict=True))
                    speed = max(speed, _LIMB_SPEED * moved / (step_us * 1e-6))
            step_us = int(min(max(MAX_STEP_PX / max(speed, 1e-3) * 1e6, STEP_US[0]), STEP_US[1]))
            step_us = min(step_us, self.duration_us - t_us)
            before, t_us = boxes, t_us + step_us

    def boxes(self, t_us: int, min_side_px: float, min_diagonal_px: float) -> Boxes:
        """Return the labels at `t_us`, nearest first, by the rule of this file.

        Boxes below the limits are left out. `still_us` is the time since an object last moved; of people whose limbs
        always move a little, and before a camera that moves, it is 0.
        """
        t_s = t_us * 1e-6
        shot = self._shot(t_s)
        unhidden = np.ones((self.height, self.width), np.float32)
        found = []
        for index, thing in self._nearest_first(t_s, shot):
            parts = thing.parts(t_s, shot.position)
            covered = np.zeros((self.height, self.width), np.float32)
            self._paint(covered, parts, shot, is_silhouette=True)
            if isinstance(thing, Player) and thing.class_id != NO_CLASS:
                box = thing.box(parts, t_s, shot)
                left, top, right, bottom = np.clip(box, 0, (self.width, self.height, self.width, self.height))
                w, h = right - left, bottom - top
                is_large = min(w, h) >= min_side_px and np.hypot(w, h) >= min_diagonal_px
                if is_large and self._is_known(thing, t_us):
                    shown = float((covered * unhidden).sum()) / max(float(covered.sum()), 1e-6)
                    shown *= w * h / ((box[2] - box[0]) * (box[3] - box[1]))
                    is_resting = not (self.camera.is_moving or thing.is_gesturing)
                    if shown >= MIN_VISIBLE:
                        still_us = thing.trip.still_us(t_us) if is_resting else 0
                        found.append((t_us, left, top, w, h, thing.class_id, index, 1.0, 0.0, still_us))
            unhidden *= 1 - covered
        return np.array(found, BOX_DTYPE)

    def _is_known(self, player: Player, t_us: int) -> bool:
        """Return whether events have shown it: the camera moves, it has moved, or it is a person who gestures."""
        return self.camera.is_moving or player.is_gesturing or player.trip.was_seen_moving(t_us)

    def _shot(self, t_s: float) -> Shot:
        return self.camera.shot(t_s, self.surroundings.light)

    def _backdrop(self, shot: Shot) -> np.ndarray:
        canvas = np.full((self.height, self.width), 0.7 * self.surroundings.brightness, np.float32)  # the zenith
        rows = self.surroundings.background
        centres = rows[:, :3] + (rows[:, 3:6] + rows[:, 6:9]) / 2 - shot.position
        # flat panels first, in the order given: sky and ground; then walls from the farthest
        order = np.argsort(-np.where(rows[:, 7] == 0, 1e9, np.hypot(centres[:, 0], centres[:, 2])), kind="stable")
        paint_panels(
            canvas, rows[order], shot.matrix, shot.position, *self.pictures, self.surroundings.brightness, False
        )
        return canvas

    def _nearest_first(self, t_s: float, shot: Shot) -> list[tuple[int, Player | Fixture]]:
        """Return fixtures, with the number -1, and players with theirs, ordered by their distance."""
        things: list[tuple[float, int, Player | Fixture]] = []
        eye = shot.position
        for fixture in self.surroundings.fixtures:
            x, _, z = fixture.place_m
            things.append((math.hypot(x - eye[0], z - eye[2]), -1, fixture))
        for index, player in enumerate(self.players):
            x, z, _, _ = player.trip.at(t_s)
            things.append((math.hypot(x - eye[0], z - eye[2]), index, player))
        return [(index, thing) for _, index, thing in sorted(things, key=lambda entry: entry[0])]

    def _paint_things(self, canvas: np.ndarray, t_s: float, shot: Shot) -> list[Box]:
        """Paint fixtures and players; return the boxes of the players in the order of their numbers."""
        boxes: list[Box] = [(0.0, 0.0, 0.0, 0.0)] * len(self.players)
        order = self._nearest_first(t_s, shot)
        shadows = [self._shadow(thing, t_s) for _, thing in order if isinstance(thing, Player)]
        if shadows:
            self._paint(canvas, Parts(np.array(shadows), np.empty((0, 12))), shot)
        for index, thing in reversed(order):
            parts = thing.parts(t_s, shot.position)
            if isinstance(thing, Player):
                boxes[index] = thing.box(parts, t_s, shot)
                left, top, right, bottom = boxes[index]
                is_near = right == left  # a part of it is behind the camera
                if not is_near and (right < 0 or bottom < 0 or left > self.width or top > self.height):
                    continue
            self._paint(canvas, parts, shot)
            if isinstance(thing, Player) and thing.has_lamps:
                self._paint(canvas, Parts(self._lamps(thing, t_s, shot), np.empty((0, 12))), shot)
        return boxes

    def _paint(self, canvas: np.ndarray, parts: Parts, shot: Shot, is_silhouette: bool = False) -> None:
        brightness = self.surroundings.brightness
        if len(parts.panels):
            paint_panels(canvas, parts.panels, shot.matrix, shot.position, *self.pictures, brightness, is_silhouette)
        if len(parts.limbs):
            paint_limbs(
                canvas, parts.limbs, shot.matrix, shot.position, shot.focal_px, shot.light, *self.pictures, brightness,
                is_silhouette,
            )  # fmt: skip

    def _shadow(self, player: Player, t_s: float) -> np.ndarray:
        x, z, heading, _ = player.trip.at(t_s)
        long, wide = player.size_m
        light = self.surroundings.light
        reach = 0.5 if self.surroundings.shadow < 0.4 else min(1.5, 0.7 / max(float(light[1]), 0.3))
        along, across = (
            np.array((math.sin(heading), math.cos(heading))),
            np.array((math.cos(heading), -math.sin(heading))),
        )
        away = -light[[0, 2]] * reach
        middle = np.array((x, z)) + away / 2
        u, v = along * long + away, across * wide + away * 0.3
        start = middle - (u + v) / 2
        number = self.surroundings.shadow_picture
        return panel((start[0], 0.01, start[1]), (u[0], 0, u[1]), (v[0], 0, v[1]), number, number, gain=0.0,
                     strength=self.surroundings.shadow)  # fmt: skip

    def _lamps(self, player: Player, t_s: float, shot: Shot) -> np.ndarray:
        """Return the glow of headlamps and rear lamps that shine towards the camera."""
        x, z, heading, _ = player.trip.at(t_s)
        half = player.body.size_m[0] / 2 if isinstance(player.body, Automobile) else 0.8
        wide = player.body.size_m[2] / 2 - 0.2 if isinstance(player.body, Automobile) else 0.0
        sine, cosine = math.sin(heading), math.cos(heading)
        is_coming = (shot.position[0] - x) * sine + (shot.position[2] - z) * cosine > 0
        end, size, gain = (half, 0.7, 1.0) if is_coming else (-half, 0.4, 0.1)
        right = np.array((cosine, 0.0, -sine))
        rows = []
        for side in (-wide, wide) if wide else (0.0,):
            centre = np.array((x + end * sine + side * cosine, 0.7, z + end * cosine - side * sine))
            start = centre - right * size / 2 + (0, size / 2, 0)
            rows.append(panel(tuple(start), tuple(right * size), (0, -size, 0), self.surroundings.glow_picture,
                              self.surroundings.glow_picture, gain=gain, is_glowing=True, strength=0.99))  # fmt: skip
        return np.array(rows)


def build_world(
    height: int, width: int, duration_us: int, config: WorldConfig, rng: np.random.Generator, is_ego_moving: bool
) -> World:
    """Return a random world; the same arguments and generator state give the same world.

    The sensor has a number of lines that is drawn too. Of one that is larger than the frame, the frame shows a part;
    one that is smaller fills the frame only in part: `World.height` and `width` are those of the part that is seen.
    """
    if duration_us <= 0 or min(height, width) < 16:
        raise ValueError(
            f"a world of {height}x{width} pixels and {duration_us} us is too small; give at least 16x16 pixels and 1 us"
        )
    duration_s = duration_us * 1e-6
    is_indoors, is_dark = rng.random() < config.indoor_share, rng.random() < config.dark_share
    atlas = Atlas()
    first_cloth, *_ = [atlas.add(cloth(kind, rng)) for kind in range(WEAVES)]
    lines = round(_log_uniform(config.min_lines, config.max_lines, rng))
    seen_h, seen_w = min(lines, height), min(round(lines * width / height), width)
    has_houses = rng.random() < 0.55
    if is_indoors:
        around = build_indoors(is_dark, config.max_clutter, atlas, rng)
    else:
        around = build_outdoors(has_houses, is_dark, config.max_clutter, atlas, rng)
    focal_px = lines * rng.uniform(0.55, 1.2) if is_indoors else lines * _log_uniform(0.6, 2.5, rng)
    camera = _camera(is_indoors, has_houses, is_ego_moving, around, duration_s, focal_px, (seen_h, seen_w), rng)
    players = _players(
        camera, around, is_indoors, is_dark, duration_s, (seen_h, seen_w), config, atlas, first_cloth, rng
    )
    lens_px = rng.uniform(0.2, max(config.lens_blur, 0.2)) if config.lens_blur else 0.0
    return World(duration_us, seen_h, seen_w, around, players, camera, Pictures(*atlas.packed()), float(lens_px))


def _log_uniform(low: float, high: float, rng: np.random.Generator) -> float:
    return float(math.exp(rng.uniform(math.log(low), math.log(high))))


def _camera(
    is_indoors: bool, has_houses: bool, is_moving: bool, around: Surroundings, duration_s: float, focal_px: float,
    size: tuple[int, int], rng: np.random.Generator,
) -> CameraTrip:  # fmt: skip
    height, width = size
    x0, x1, _, _ = around.bounds_m
    manner = "rest"
    if is_indoors:
        if is_moving:
            manner = str(rng.choice(("handheld", "handheld", "panning", "walking")))
        start = (rng.uniform(0.5 * x0, 0.5 * x1), rng.uniform(0.4, 2.3), 0.3, rng.uniform(-0.3, 0.3), 0.0)
    else:
        if is_moving:
            manner = str(rng.choice(("handheld", "panning", "walking", "driving", "driving", "turning")))
        if manner == "turning" and has_houses:
            manner = "driving"
        along = manner in ("driving", "walking") or rng.random() < 0.4
        yaw = rng.normal(0, 0.08) if along else rng.uniform(-1.4, 1.4)
        is_high = manner in ("rest", "panning") and rng.random() < 0.4
        y = rng.uniform(2.5, 8) if is_high else rng.uniform(0.5, 2.2)
        x = rng.uniform(-3, 3) if along else -math.copysign(0.8 * min(x1, 10.0), yaw)
        start = (x, y, 0.0, yaw, 0.0)
    pitch = rng.normal(-0.03, 0.06) - (0.1 * start[1] / 3 if start[1] > 2.3 else 0.0)
    middle = (width / 2 * rng.uniform(0.9, 1.1), height / 2 * rng.uniform(0.8, 1.1))
    return build_camera_trip(manner, duration_s, (*start[:4], pitch), focal_px, middle, rng)


def _players(
    camera: CameraTrip, around: Surroundings, is_indoors: bool, is_dark: bool, duration_s: float, size: tuple[int, int],
    config: WorldConfig, atlas: Atlas, first_cloth: int, rng: np.random.Generator,
) -> tuple[Player, ...]:  # fmt: skip
    """Return players who are seen at some time and do not pass through each other, the camera or a wall."""
    found: list[Player] = []
    times_s = np.arange(0.0, duration_s + 0.05, 0.1)
    count = int(rng.integers(0, config.max_actors + 1))
    if rng.random() < config.crowd_share:
        count = int(rng.integers(config.max_actors, 3 * config.max_actors + 1))
    people_share = 1.0 if is_indoors else rng.choice((0.25, 0.5, 0.8))
    kinds = [PERSON if rng.random() < people_share else int(rng.choice((VEHICLE, VEHICLE, TWO_WHEELER)))
             for _ in range(count)]  # fmt: skip
    kinds += [NO_CLASS] * int(rng.integers(0, config.max_animals + 1))
    for kind in kinds:
        body, speed, tall_m, radius_m = _body_and_speed(kind, camera.is_moving, atlas, first_cloth, rng)
        for _ in range(_TRIES):
            at_s = rng.uniform(0, duration_s)
            shot = camera.shot(at_s, around.light)
            tall_px = _log_uniform(config.min_object_px, config.max_object_px, rng)
            tall_px *= {PERSON: 1.0, TWO_WHEELER: 1.0}.get(kind, 0.5)
            depth_m = shot.focal_px * tall_m / tall_px
            ray = np.linalg.solve(shot.matrix, (rng.uniform(0.02, 0.98) * size[1], size[0] / 2, 1.0))
            ray = ray[[0, 2]] / np.hypot(ray[0], ray[2])
            x, z = shot.position[[0, 2]] + ray * depth_m
            heading = rng.uniform(0, 2 * math.pi)
            if not is_indoors and rng.random() < (0.85 if kind == VEHICLE else 0.6):  # along the street
                heading = rng.normal(0, 0.1) + math.pi * rng.integers(2)
                if kind != VEHICLE and rng.random() < 0.35:
                    heading += math.pi / 2
            elif rng.random() < 0.3:  # across the view
                heading = math.atan2(ray[0], ray[1]) + rng.choice((-1, 1)) * math.pi / 2
            turn_share = 0.15 if kind == VEHICLE else 0.35
            trip = build_trip(duration_s, at_s, x, z, heading, speed, rng, turn_share)
            player = Player(kind, body, trip, is_dark and kind in (VEHICLE, TWO_WHEELER))
            if _fits(player, radius_m, found, camera, around, times_s, is_indoors) and _is_seen(
                player, at_s, camera, around, size
            ):
                found.append(player)
                break
    return tuple(found)


def _body_and_speed(
    kind: int, is_camera_moving: bool, atlas: Atlas, first_cloth: int, rng: np.random.Generator
) -> tuple[Body, float, float, float]:
    """Return a body, its speed in m/s, its height and about its radius in metres."""
    if kind == PERSON:
        posture = int(rng.choice((WALKING, STANDING, SITTING), p=(0.72, 0.2, 0.08)))
        person = build_person(posture, first_cloth, rng)
        is_running = person.look[12] > 0.9
        speed = 0.0 if posture != WALKING else rng.uniform(2.2, 4.5) if is_running else rng.uniform(0.5, 1.8)
        return person, speed, person.height_m, 0.3
    if kind == VEHICLE:
        car = build_automobile(atlas, rng)
        is_parked = rng.random() < (0.4 if is_camera_moving else 0.1)
        return car, 0.0 if is_parked else _log_uniform(1.5, 16, rng), car.size_m[1], car.size_m[0] / 2
    if kind == TWO_WHEELER:
        which = int(rng.choice(3, p=(0.55, 0.35, 0.1)))
        return build_two_wheeler(which, atlas, first_cloth, rng), _log_uniform(1.5, (8, 15, 6)[which], rng), 1.75, 0.9
    animal = build_animal(first_cloth, rng)
    return animal, _log_uniform(0.3, 5, rng), 1.0, 0.5


def _fits(
    player: Player, radius_m: float, others: list[Player], camera: CameraTrip, around: Surroundings,
    times_s: np.ndarray, is_indoors: bool,
) -> bool:  # fmt: skip
    """Return whether it stays apart from the others and the camera, and within the walls while it may be seen."""
    steps = np.minimum((times_s / 0.005).astype(int), len(player.trip.rows) - 1)
    x, z = player.trip.rows[steps, 0], player.trip.rows[steps, 1]
    eye = camera.rows[steps]
    far = np.hypot(x - eye[:, 0], z - eye[:, 2])
    if far.min() < (radius_m + 1.0):
        return False
    x0, x1, z0, z1 = around.bounds_m
    is_outside = (x < x0) | (x > x1) | (z < z0) | (z > z1)
    if is_outside.any():
        return False
    for other in others:
        gap = np.hypot(x - other.trip.rows[steps, 0], z - other.trip.rows[steps, 1])
        other_radius = other.size_m[0] / 2 if isinstance(other.body, Automobile) else 0.4
        if gap.min() < 0.75 * (radius_m + other_radius):
            return False
    return True


def _is_seen(player: Player, at_s: float, camera: CameraTrip, around: Surroundings, size: tuple[int, int]) -> bool:
    shot = camera.shot(at_s, around.light)
    left, top, right, bottom = player.box(player.parts(at_s, shot.position), at_s, shot)
    is_inside = right > 2 and left < size[1] - 2 and bottom > 2 and top < size[0] - 2
    return is_inside and right > left and bottom - top < 1.6 * size[0] and right - left < 1.4 * size[1]
