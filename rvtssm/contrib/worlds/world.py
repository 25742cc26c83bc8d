"""An open world: people, vehicles and two-wheelers in streets, open places and rooms, seen by a camera that may move.

A label is a box around the whole object, hidden parts included, clipped to the frame. An object has no label if its
visible share is below MIN_VISIBLE, where parts outside of the frame count as hidden. If the camera stands still, an
object also has no label before it has moved. `generate.with_events` later removes the labels of objects that
have not caused enough events.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import cv2
import numpy as np

from rvtssm.contrib.worlds import rules
from rvtssm.contrib.worlds.people import SITTING, STANDING, Animal, Person
from rvtssm.contrib.worlds.perspective import Box, Parts, Pictures, Shot, outline, paint_limbs, paint_panels, panel
from rvtssm.contrib.worlds.surroundings import Fixture, Surroundings
from rvtssm.contrib.worlds.trips import CameraTrip, Trip
from rvtssm.contrib.worlds.vehicles import Automobile, TwoWheeler
from rvtssm.events.labels import BOX_DTYPE, Boxes

NO_CLASS = -1
MAX_STEP_PX = 1.0  # largest motion between two frames, if the shortest step allows it
STEP_US = (2_500, 8_000)  # shortest and longest time between two frames
_LIMB_SPEED = 1.6  # speed of hands and feet, relative to the box

Body = Person | Animal | Automobile | TwoWheeler


@dataclass(frozen=True)
class Player:
    """A body on its trip."""

    class_id: int
    body: Body
    trip: Trip
    has_lamps: bool = False

    def parts(self, t_s: float, eye: np.ndarray) -> Parts:
        """Return the panels and limbs to paint.

        Args:
            t_s: Time in seconds.
            eye: Position (3,) of the camera in metres.
        """
        return self.body.parts(self.trip.at(t_s), t_s, eye)

    def box(self, parts: Parts, t_s: float, shot: Shot) -> Box:
        """Return the smallest box around the body in px, also beyond the frame. It is empty if the body is too near.

        Args:
            parts: The parts of the body at that time.
            t_s: Time in seconds.
            shot: The camera.
        """
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
        return outline(balls, radii, shot)

    @property
    def is_gesturing(self) -> bool:
        """Whether its limbs move while it stays in one place."""
        return isinstance(self.body, Person) and self.body.posture in (STANDING, SITTING)

    @property
    def size_m(self) -> tuple[float, float]:
        """Length and width of its shadow in metres."""
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
    lens_px: float  # standard deviation of the blur of the lens

    def frames(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield times in microseconds and intensities (H, W) float32, close enough in time for the camera.

        An intensity of 1 is white paper by day.
        """
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
            step_us = min(rules.step_us(speed, MAX_STEP_PX, STEP_US), self.duration_us - t_us)
            before, t_us = boxes, t_us + step_us

    def boxes(self, t_us: int, min_side_px: float, min_diagonal_px: float) -> Boxes:
        """Return the labels at one time, nearest first, by the rule at the top of this file.

        Boxes below the limits are left out. `still_us` is the time since an object last moved. It is 0 for people whose
        limbs always move a little, and if the camera moves.

        Args:
            t_us: Time in microseconds.
            min_side_px: Smallest side of a box in pixels.
            min_diagonal_px: Smallest diagonal of a box in pixels.
        """
        t_s = t_us * 1e-6
        shot = self._shot(t_s)
        unhidden = np.ones((self.height, self.width), np.float32)
        rows = []
        for index, thing in self._nearest_first(t_s, shot):
            parts = thing.parts(t_s, shot.position)
            covered = np.zeros((self.height, self.width), np.float32)
            self._paint(covered, parts, shot, is_silhouette=True)
            if isinstance(thing, Player) and thing.class_id != NO_CLASS:
                box = thing.box(parts, t_s, shot)
                left, top, right, bottom = np.clip(box, 0, (self.width, self.height, self.width, self.height))
                w, h = right - left, bottom - top
                is_large = min(w, h) >= min_side_px and np.hypot(w, h) >= min_diagonal_px
                # It must have caused events: the camera moves, it has moved itself, or it gestures.
                is_known = self.camera.is_moving or thing.is_gesturing or thing.trip.was_seen_moving(t_us)
                if is_large and is_known:
                    shown = float((covered * unhidden).sum()) / max(float(covered.sum()), 1e-6)
                    shown *= w * h / ((box[2] - box[0]) * (box[3] - box[1]))
                    is_resting = not (self.camera.is_moving or thing.is_gesturing)
                    if shown >= rules.MIN_VISIBLE:
                        still_us = thing.trip.still_us(t_us) if is_resting else 0
                        rows.append((t_us, left, top, w, h, thing.class_id, index, 1.0, 0.0, still_us))
            unhidden *= 1 - covered
        return np.array(rows, BOX_DTYPE)

    def _shot(self, t_s: float) -> Shot:
        return self.camera.shot(t_s, self.surroundings.light)

    def _backdrop(self, shot: Shot) -> np.ndarray:
        canvas = np.full((self.height, self.width), 0.7 * self.surroundings.brightness, np.float32)  # the zenith
        rows = self.surroundings.background
        centres = rows[:, :3] + (rows[:, 3:6] + rows[:, 6:9]) / 2 - shot.position
        # Horizontal panels come first, in the order given, then all others from the farthest to the nearest.
        order = np.argsort(-np.where(rows[:, 7] == 0, 1e9, np.hypot(centres[:, 0], centres[:, 2])), kind="stable")
        paint_panels(canvas, rows[order], shot, self.pictures, self.surroundings.brightness, False)
        return canvas

    def _nearest_first(self, t_s: float, shot: Shot) -> list[tuple[int, Player | Fixture]]:
        """Return fixtures, with the number -1, and players, with their own numbers, ordered by distance."""
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
        """Paint fixtures and players, and return the boxes of the players in the order of their numbers."""
        boxes: list[Box] = [(0.0, 0.0, 0.0, 0.0)] * len(self.players)
        order = self._nearest_first(t_s, shot)
        shadows = [self._shadow(thing, t_s) for _, thing in order if isinstance(thing, Player)]
        if shadows:
            self._paint(canvas, Parts(np.array(shadows)), shot)
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
                self._paint(canvas, Parts(self._lamps(thing, t_s, shot)), shot)
        return boxes

    def _paint(self, canvas: np.ndarray, parts: Parts, shot: Shot, is_silhouette: bool = False) -> None:
        brightness = self.surroundings.brightness
        if len(parts.panels):
            paint_panels(canvas, parts.panels, shot, self.pictures, brightness, is_silhouette)
        if len(parts.limbs):
            paint_limbs(canvas, parts.limbs, shot, self.pictures, brightness, is_silhouette)

    def _shadow(self, player: Player, t_s: float) -> np.ndarray:
        x, z, heading, _ = player.trip.at(t_s)
        long, wide = player.size_m
        light = self.surroundings.light
        reach = 0.5 if self.surroundings.shadow < 0.4 else min(1.5, 0.7 / max(float(light[1]), 0.3))
        sine, cosine = math.sin(heading), math.cos(heading)
        along, across = np.array((sine, cosine)), np.array((cosine, -sine))
        away = -light[[0, 2]] * reach
        middle = np.array((x, z)) + away / 2
        u, v = along * long + away, across * wide + away * 0.3
        start = middle - (u + v) / 2
        number = self.surroundings.shadow_picture
        return panel((start[0], 0.01, start[1]), (u[0], 0, u[1]), (v[0], 0, v[1]), number, number, gain=0.0,
                     strength=self.surroundings.shadow)  # fmt: skip

    def _lamps(self, player: Player, t_s: float, shot: Shot) -> np.ndarray:
        """Return the glow of the headlamps or rear lamps that face the camera."""
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
