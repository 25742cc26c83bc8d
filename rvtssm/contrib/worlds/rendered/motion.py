"""Paths over the ground and the motion of a camera along one, at any time."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

_GRID_S = 0.01  # time between two entries of a pace
_JOINT_M = 0.3  # length of the parts of a way beside an arc
SHAKE_HZ = (0.7, 2.1, 7.0)  # of a body, of steps and of an engine


@dataclass(frozen=True)
class Path:
    """A way over the ground, and how far along it something is."""

    points_m: np.ndarray  # (K, 2) x and z
    reached_m: np.ndarray  # (N,) distance from the first point, every _GRID_S from time 0 on

    def at(self, t_s: float) -> tuple[float, float, float, float]:
        """Return x and z in metres, the heading in radians from z towards x, and the distance in metres."""
        k = min(int(t_s / _GRID_S), len(self.reached_m) - 2)
        share = t_s / _GRID_S - k
        distance = float((1 - share) * self.reached_m[k] + share * self.reached_m[k + 1])
        directions, ends, headings = self._segments
        k = int(np.clip(np.searchsorted(ends, distance, side="right") - 1, 0, len(directions) - 1))
        heading = headings[0]
        if len(headings) > 1:  # between the middles of two segments, the heading turns evenly
            heading = np.interp(distance, (ends[:-1] + ends[1:]) / 2, headings)
        x, z = self.points_m[k] + directions[k] * (distance - ends[k])  # also before the first and after the last point
        return float(x), float(z), float(heading), distance

    @functools.cached_property
    def _segments(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Directions (K - 1, 2), ends (K,) in metres and headings (K - 1,) of the parts of the way."""
        steps = np.diff(self.points_m, axis=0)
        lengths = np.hypot(steps[:, 0], steps[:, 1])
        ends = np.concatenate(([0.0], np.cumsum(lengths)))
        return steps / lengths[:, None], ends, np.unwrap(np.arctan2(steps[:, 0], steps[:, 1]))

    @property
    def is_moving(self) -> bool:
        """Whether the distance changes at any time."""
        return bool(self.reached_m[-1] != self.reached_m[0])


def line(x: float, z: float, heading: float, reached_m: np.ndarray) -> Path:
    """Return a straight path from a point."""
    points = np.array([[x, z], [x + math.sin(heading), z + math.cos(heading)]])
    return Path(points, reached_m)


def turned(x: float, z: float, straight_m: float, radius_m: float, side: int, reached_m: np.ndarray) -> Path:
    """Return a path along z, then a quarter of a circle to the right (side=1) or the left (-1), then along x."""
    angles = np.linspace(0, math.pi / 2, 24)
    arc_x = x + side * radius_m * (1 - np.cos(angles))
    arc_z = z + straight_m + radius_m * np.sin(angles)
    # The heading turns between the middles of two parts of a way, so that short ones lie before and after the arc.
    before, after = (x, z + straight_m - _JOINT_M), (x + side * (radius_m + _JOINT_M), z + straight_m + radius_m)
    far = (x + side * (radius_m + 60), z + straight_m + radius_m)
    return Path(np.array([(x, z), before, *zip(arc_x, arc_z, strict=True), after, far]), reached_m)


def steady(duration_s: float, speed_m_per_s: float, rng: np.random.Generator) -> np.ndarray:
    """Return distances of a pace that varies by a tenth."""
    times = np.arange(math.ceil(duration_s / _GRID_S) + 2) * _GRID_S
    swing = 0.1 * np.sin(times * rng.uniform(0.5, 2.0) + rng.uniform(0, 2 * math.pi))
    return _summed(speed_m_per_s * (1 + swing))


def halting(duration_s: float, speed_m_per_s: float, halt_s: float, pause_s: float) -> np.ndarray:
    """Return distances of something that brakes until `halt_s`, stands for `pause_s` and starts again."""
    times = np.arange(math.ceil(duration_s / _GRID_S) + 2) * _GRID_S
    braking_s = min(halt_s, max(0.8, speed_m_per_s / 5.0))
    knots = (halt_s - braking_s, halt_s, halt_s + pause_s, halt_s + pause_s + 2.0)
    return _summed(np.interp(times, knots, (speed_m_per_s, 0.0, 0.0, 0.7 * speed_m_per_s)))


def _summed(speeds: np.ndarray) -> np.ndarray:
    return np.concatenate(([0.0], np.cumsum(speeds[:-1]) * _GRID_S))


@dataclass(frozen=True)
class CameraTrip:
    """A camera on a path, which shakes."""

    path: Path
    height_m: float
    ahead_m: float  # of the point of the path
    turn: float  # from the heading of the path, in radians
    turn_rate: float  # radians per second
    pitch: float
    shake: np.ndarray  # (4, 3, 2) amplitude and phase of height, yaw, pitch and roll at each of SHAKE_HZ

    def at(self, t_s: float) -> tuple[np.ndarray, np.ndarray]:
        """Return position (3,) and rotation (3, 3), whose rows are right, up and ahead."""
        x, z, heading, _ = self.path.at(t_s)
        waves = self.shake[..., 0] * np.sin(2 * math.pi * np.array(SHAKE_HZ) * t_s + self.shake[..., 1])
        height, yaw, pitch, roll = waves.sum(1)
        yaw += heading + self.turn + self.turn_rate * t_s
        pitch += self.pitch
        x, z = x + math.sin(heading) * self.ahead_m, z + math.cos(heading) * self.ahead_m
        ahead = np.array([math.sin(yaw) * math.cos(pitch), math.sin(pitch), math.cos(yaw) * math.cos(pitch)])
        right = np.array([math.cos(yaw), 0.0, -math.sin(yaw)])
        up = np.cross(ahead, right)
        cosine, sine = math.cos(roll), math.sin(roll)
        rotation = np.array([cosine * right + sine * up, cosine * up - sine * right, ahead])
        return np.array([x, self.height_m + height, z]), rotation

    @property
    def is_moving(self) -> bool:
        """Whether its view changes at any time."""
        return self.path.is_moving or self.turn_rate != 0 or bool(self.shake[..., 0].any())


def shaking(strength: tuple[float, float, float, float], rng: np.random.Generator) -> np.ndarray:
    """Return the shake of a camera whose height, yaw, pitch and roll have amplitudes up to `strength`."""
    shake = np.zeros((4, len(SHAKE_HZ), 2))
    fall = np.array((1.0, 0.5, 0.15))  # fast waves are small
    shake[..., 0] = np.array(strength)[:, None] * fall * rng.uniform(0.3, 1.0, (4, len(SHAKE_HZ)))
    shake[..., 1] = rng.uniform(0, 2 * math.pi, (4, len(SHAKE_HZ)))
    return shake
