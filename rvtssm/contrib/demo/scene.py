"""A street with cars and pedestrians: the image that a camera sees at any microsecond, and the boxes."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rvtssm.contrib.demo.actors import PEDESTRIAN, Actor, Sighting, build_actors
from rvtssm.contrib.demo.simulation_config import SceneConfig
from rvtssm.contrib.demo.street import Street, View, build_street, build_view
from rvtssm.events.labels import BOX_DTYPE, Boxes

MIN_VISIBLE = 0.4  # a figure is labelled if at least this share of it is in the frame and not hidden
MAX_MOTION_PX = 0.7  # largest motion between two frames
FRAME_STEP_US = (1_000, 10_000)  # shortest and longest time between two frames
LIMB_SPEED = 2.0  # speed of hands and feet, relative to the box of a pedestrian


@dataclass(frozen=True)
class Scene:
    """A street and its actors over `duration_us`."""

    duration_us: int
    street: Street
    actors: tuple[Actor, ...]

    @property
    def view(self) -> View:
        return self.street.view

    def frames(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield times in microseconds and intensities (H, W) float32 in [0, 1], close enough in time for the camera."""
        backdrop = self._backdrop(0)
        for t_us in self.frame_times_us():
            canvas = self._backdrop(t_us) if self.view.is_moving else backdrop.copy()
            for _, actor, sighting in reversed(self._visible(t_us)):
                actor.figure.paint(canvas, *sighting[1:])
            yield t_us, canvas

    def frame_times_us(self) -> Iterator[int]:
        """Yield times from 0 to the end, so close that nothing moves much more than MAX_MOTION_PX in between."""
        t_us = 0
        yield t_us
        while t_us < self.duration_us:
            speed = self._max_speed_px_per_s(t_us)
            step_us = FRAME_STEP_US[1]
            if speed:
                step_us = int(MAX_MOTION_PX / speed * 1e6)
            t_us = min(t_us + min(max(step_us, FRAME_STEP_US[0]), FRAME_STEP_US[1]), self.duration_us)
            yield t_us

    def boxes(self, t_us: int, min_side_px: float, min_diagonal_px: float) -> Boxes:
        """Return the labels at one time, nearest first. Boxes include hidden parts and are clipped to the frame.

        Figures with a visible share below MIN_VISIBLE and boxes below the limits are left out. `still_us` is the time
        since the figure last moved over the sensor, so it is always 0 if the camera moves.

        Args:
            t_us: Time in microseconds.
            min_side_px: Smallest side of a box in pixels.
            min_diagonal_px: Smallest diagonal of a box in pixels.
        """
        height, width = self.view.height, self.view.width
        unhidden = np.ones((height, width), np.float32)
        rows = []
        for track_id, actor, sighting in self._visible(t_us):
            covered = np.zeros((height, width), np.float32)
            actor.figure.paint(covered, *sighting[1:], is_silhouette=True)
            unhidden_share = float((covered * unhidden).sum()) / max(float(covered.sum()), 1e-6)
            unhidden *= 1 - covered
            box = sighting.box_ltrb
            left, top, right, bottom = np.clip(box, 0, (width, height, width, height))
            w, h = right - left, bottom - top
            share_in_frame = w * h / ((box[2] - box[0]) * (box[3] - box[1]))
            is_large = min(w, h) >= min_side_px and np.hypot(w, h) >= min_diagonal_px
            if is_large and unhidden_share * share_in_frame >= MIN_VISIBLE:
                still_us = 0 if self.view.is_moving else actor.journey.still_us(t_us)
                rows.append((t_us, left, top, w, h, actor.class_id, track_id, 1.0, 0.0, still_us))
        return np.array(rows, BOX_DTYPE)

    def _visible(self, t_us: int) -> list[tuple[int, Actor, Sighting]]:
        """Return track id, actor and sighting of the actors in the frame, nearest first."""
        visible = []
        for track_id, actor in enumerate(self.actors):
            sighting = actor.sighting(t_us * 1e-6)
            if sighting is not None:
                visible.append((track_id, actor, sighting))
        return sorted(visible, key=lambda entry: -entry[2].px_per_m)

    def _backdrop(self, t_us: int) -> np.ndarray:
        canvas = np.empty((self.view.height, self.view.width), np.float32)
        self.street.paint(canvas, t_us * 1e-6)
        return canvas

    def _max_speed_px_per_s(self, t_us: int) -> float:
        """Return the largest speed of anything in the frame, as a mean over the longest step after `t_us`."""
        speed = self.view.max_speed_px_per_s()
        for actor in self.actors:
            now, later = actor.sighting(t_us * 1e-6), actor.sighting((t_us + FRAME_STEP_US[1]) * 1e-6)
            if now is not None and later is not None:
                moved_px = max(abs(b - a) for a, b in zip(now.box_ltrb, later.box_ltrb, strict=True))
                factor = LIMB_SPEED if actor.class_id == PEDESTRIAN else 1.0
                speed = max(speed, factor * moved_px / (FRAME_STEP_US[1] * 1e-6))
        return speed


def build_scene(
    height: int, width: int, duration_us: int, config: SceneConfig, rng: np.random.Generator, is_ego_moving: bool
) -> Scene:
    """Return a random scene. The same arguments and generator state give the same scene.

    A sensor of the same shape but another size sees the same scene with other textures.

    Args:
        height: Height of the sensor in pixels, at least 16.
        width: Width of the sensor in pixels, at least 16.
        duration_us: Length of the recording in microseconds.
        config: How many actors there are, and what they do.
        rng: Random generator.
        is_ego_moving: Whether the camera moves.
    """
    view = build_view(height, width, is_ego_moving, rng)
    street = build_street(view, rng.spawn(1)[0])
    return Scene(duration_us, street, build_actors(view, duration_us * 1e-6, config, rng))
