"""A rendered scene: frames for the camera, and boxes with the share of each object that is seen.

A box covers the part of an object in the frame, hidden parts included. It is the exact extent of the triangles, or, at
the border of the frame, of the samples that see the object when it is drawn alone. The visible share of an object is
the number of samples that see it, divided by the number that see it when it is drawn alone. An object has no box

- if its visible share is below MIN_VISIBLE, because other objects hide it,
- if less than MIN_INSIDE of its extent lies in the frame,
- if its box is smaller than the dataset keeps,
- if neither it nor the camera has moved since the beginning.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import cv2
import numpy as np

from rvtssm.contrib.worlds import rules
from rvtssm.contrib.worlds.rendered import raster
from rvtssm.contrib.worlds.rendered.lens import Lens, build_lens
from rvtssm.contrib.worlds.rendered.motion import CameraTrip
from rvtssm.contrib.worlds.rendered.raster import SAMPLES, Buffers, Eye, Light, Packed
from rvtssm.contrib.worlds.rendered.traffic import Actor
from rvtssm.events.labels import BOX_DTYPE, Boxes

MIN_INSIDE = 0.15
MAX_STEP_PX = 1.5  # largest motion between two frames, if the shortest step allows it
STEP_US = (3_000, 8_000)  # shortest and longest time between two frames
_NEAR_M = 3.0  # what stands beside the camera is about this far away
_BRIGHTEST = 1.5
_ZENITH = np.array([0.0, 1.0, 0.0])


@dataclass(frozen=True)
class Flicker:
    """A screen or a lamp whose light changes."""

    instance: int
    hz: float
    depth: float  # 1: it is dark for half of the time
    is_abrupt: bool

    def tint(self, t_s: float) -> float:
        """Return the factor of its light."""
        wave = math.sin(2 * math.pi * self.hz * t_s)
        if self.is_abrupt:
            wave = math.copysign(1.0, wave)
        return 1 - self.depth * (0.5 + 0.5 * wave)


@dataclass
class RenderedScene:
    """What is drawn, and what moves in it. `frames` can be read once, and fills `rows` with the boxes."""

    packed: Packed
    actors: list[Actor]
    camera: CameraTrip
    light: Light
    focal_px: float
    height: int
    width: int
    duration_us: int
    lens_px: float = 0.0  # standard deviation of the blur of the lens
    distortion: float = 0.0  # how much less the lens magnifies at the corners of the frame than in the middle
    veil: np.ndarray | None = None  # (H, W) light that a windscreen mirrors into the camera
    flickers: list[Flicker] = field(default_factory=list)
    rows: list[tuple[float, ...]] = field(default_factory=list)

    def frames(
        self, label_times_us: Sequence[int], min_side_px: float, min_diagonal_px: float
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yield times in microseconds and intensities (H, W) float32, and note the boxes at the label times.

        Args:
            label_times_us: When boxes are noted; there is a frame at each of them.
            min_side_px: Smallest side of a box in pixels.
            min_diagonal_px: Smallest diagonal of a box in pixels.
        """
        buffers = raster.new_buffers(self.height, self.width, self._num_triangles())
        alone = raster.new_buffers(self.height, self.width, self._num_triangles())
        sun = self.light.sun if self.light.sun_strength else _ZENITH
        still_since = np.full(len(self.actors) + 1, -1)  # -1: never moved
        waiting = list(label_times_us)
        before: np.ndarray | None = None
        t_us, step_us = 0, STEP_US[0]
        while True:
            # Place everything.
            t_s = t_us * 1e-6
            state = np.array([actor.move(self.packed, t_s) for actor in self.actors]).reshape(-1, 4)
            for flicker in self.flickers:
                self.packed.tint[flicker.instance] = flicker.tint(t_s)
            eye = self.eye(t_s)
            if before is not None:
                has_moved = np.abs(state - before).max(1) > 1e-9
                still_since[1:][has_moved | self.camera.is_moving] = t_us
            # Draw.
            image = np.empty((self.height, self.width), np.float32)
            raster.find_nearest(self.packed, eye, buffers, -1)
            raster.mark_shadows(self.packed, eye, sun, buffers)
            raster.shade(image, self.packed, eye, self.light, buffers)
            if waiting and t_us == waiting[0]:
                waiting.pop(0)
                if self.distortion:
                    buffers.nearest[~self._lens.is_inside] = -1
                seen = raster.count_samples(self.packed, buffers, len(self.actors) + 1)
                for row in self._boxes(eye, seen, alone, still_since, t_us):
                    if min(row[3:5]) >= min_side_px and math.hypot(*row[3:5]) >= min_diagonal_px:
                        self.rows.append(row)
            yield t_us, self._through_the_lens(image)
            if t_us >= self.duration_us:
                return
            # Choose the next time.
            step_us = self._step_us(t_s, eye, state, before, step_us)
            until_us = waiting[0] if waiting else self.duration_us
            step_us = min(step_us, until_us - t_us)
            before, t_us = state, t_us + step_us

    @property
    def boxes(self) -> Boxes:
        """The boxes of the frames so far."""
        boxes = np.zeros(len(self.rows), BOX_DTYPE)
        names = ("t", "x", "y", "w", "h", "class_id", "track_id", "class_confidence", "still_us")
        for name, column in zip(names, zip(*self.rows, strict=True), strict=False):
            boxes[name] = column
        return boxes

    def _num_triangles(self) -> int:
        return int((self.packed.span[:, 1] - self.packed.span[:, 0]).sum()) + 1

    def eye(self, t_s: float) -> Eye:
        position, rotation = self.camera.at(t_s)
        return Eye(
            position, rotation, self.focal_px * SAMPLES, self.width * SAMPLES / 2, self.height * SAMPLES / 2
        )  # fmt: skip

    @functools.cached_property
    def _lens(self) -> Lens:
        return build_lens(self.height, self.width, self.distortion)

    def _through_the_lens(self, image: np.ndarray) -> np.ndarray:
        if self.distortion:
            image = cv2.remap(image, *self._lens.source, cv2.INTER_LINEAR)
        if self.lens_px > 0.2:
            image = cv2.GaussianBlur(image, (0, 0), self.lens_px)
        if self.veil is not None:
            image = image + self.veil
        return np.clip(image, 0, _BRIGHTEST)

    def _boxes(self, eye: Eye, seen: np.ndarray, alone: Buffers, still_since: np.ndarray, t_us: int
               ) -> Iterator[tuple[float, ...]]:  # fmt: skip
        """Yield t, x, y, w, h, class, track, confidence and the time since a motion of every object that is seen."""
        whole = raster.outlines(self.packed, eye, len(self.actors) + 1) / SAMPLES
        for actor in self.actors:
            number = actor.number
            if not seen[number] or still_since[number] < 0:
                continue
            box = whole[number]
            left, top, right, bottom = np.clip(box, 0, (self.width, self.height, self.width, self.height))
            inside = (right - left) * (bottom - top) / ((box[2] - box[0]) * (box[3] - box[1]))
            raster.find_nearest(self.packed, eye, alone, number)
            drawn, *part = raster.covered_part(alone)
            if self.distortion:
                left, top, right, bottom, share = self._lens.part(alone.nearest >= 0)
                inside *= share
                drawn = np.count_nonzero((alone.nearest >= 0) & self._lens.is_inside)
            elif inside < 1:  # the part outside may reach lower or higher than the one in the frame
                left, top, right, bottom = (side / SAMPLES for side in part)
            if seen[number] >= rules.MIN_VISIBLE * drawn and inside >= MIN_INSIDE:
                still_us = t_us - int(still_since[number])
                yield t_us, left, top, right - left, bottom - top, actor.class_id, number, 1.0, still_us

    def _step_us(self, t_s: float, eye: Eye, state: np.ndarray, before: np.ndarray | None, step_us: int) -> int:
        """Return the time until the next frame, in which nothing moves far over the sensor."""
        position, rotation = self.camera.at(t_s + 0.01)
        turned = float(np.linalg.norm(rotation[2] - eye.rotation[2])) / 0.01
        moved = float(np.linalg.norm(position - eye.position)) / 0.01
        # Beside a moving camera, points at a distance to the side move over the border of the frame at this speed.
        speed = self.focal_px * turned + moved * (self.width / 2) ** 2 / (self.focal_px * _NEAR_M)
        if before is not None and len(state):
            way = np.hypot(*(state - before)[:, :2].T) / (step_us * 1e-6)
            away = np.hypot(state[:, 0] - eye.position[0], state[:, 1] - eye.position[2])
            speed = max(speed, 1.6 * self.focal_px * float((way / np.maximum(away, 1.5)).max()))
        if self.flickers:
            return STEP_US[0]
        return rules.step_us(speed, MAX_STEP_PX, STEP_US)
