"""The positions of cameras and actors of an open world at any time, stored as paths on a fine grid of times."""

import math
from dataclasses import dataclass

import numpy as np

from rvtssm.contrib.worlds.perspective import Place, Shot, rotation

_GRID_S = 0.005  # time between two rows of a path
_BRAKING_S = 0.3


def _grid_s(duration_s: float) -> np.ndarray:
    return np.arange(math.ceil(duration_s / _GRID_S) + 2) * _GRID_S


def _row_at(rows: np.ndarray, t_s: float) -> np.ndarray:
    """Return the row of a path at any time, between two of its rows (N, C)."""
    i = min(int(t_s / _GRID_S), len(rows) - 2)
    share = t_s / _GRID_S - i
    return (1 - share) * rows[i] + share * rows[i + 1]


@dataclass(frozen=True)
class CameraTrip:
    """The motion of a camera, one row every 5 ms."""

    rows: np.ndarray  # (N, 6): x, y, z in metres, yaw, pitch, roll in radians
    focal_px: float
    middle_px: tuple[float, float]  # (x, y) where the axis of the lens meets the sensor
    is_moving: bool

    def shot(self, t_s: float, light: np.ndarray) -> Shot:
        """Return the camera at one moment.

        Args:
            t_s: Time in seconds.
            light: Direction (3,) in the world from which the light comes.
        """
        x, y, z, yaw, pitch, roll = _row_at(self.rows, t_s)
        f, (cx, cy) = self.focal_px, self.middle_px
        turned = rotation(yaw, pitch, roll)
        lens = np.array([[f, 0, cx], [0, f, cy], [0, 0, 1]])
        return Shot(lens @ turned, np.array([x, y, z]), f, turned @ light * (1, 1, -1))

    def speed_px_per_s(self, t_s: float) -> float:
        """Return roughly the largest speed of the background over the sensor, for surroundings that are not too near.

        Args:
            t_s: Time in seconds.
        """
        i = min(int(t_s / _GRID_S), len(self.rows) - 2)
        moved = np.abs(self.rows[i + 1] - self.rows[i]) / _GRID_S
        near_m = max(2.0, 2 * self.rows[i, 1])
        turning = max(moved[3] + moved[4], 0.5 * moved[5])
        return self.focal_px * float(turning + math.hypot(moved[0], moved[2]) / near_m)


MANNERS = ("handheld", "panning", "walking", "driving", "turning")


def build_camera_trip(
    manner: str, duration_s: float, start: tuple[float, float, float, float, float], focal_px: float,
    middle_px: tuple[float, float], rng: np.random.Generator, m_per_s: tuple[float, float] = (1.5, 18),
) -> CameraTrip:  # fmt: skip
    """Return a camera that moves in one of MANNERS, or stands still if `manner` is any other word.

    Args:
        manner: One of MANNERS.
        duration_s: Length of the recording in seconds.
        start: x, y and z in metres, yaw and pitch in radians.
        focal_px: Focal length in pixels.
        middle_px: Where the axis of the lens meets the sensor, (x, y).
        rng: Random generator.
        m_per_s: Lowest and highest speed of a camera that is driven.
    """
    t = _grid_s(duration_s)
    rows = np.zeros((len(t), 6))
    rows[:, :5] = start
    if manner not in MANNERS:
        rows[:, 5] = rng.normal(0, 0.01)
        return CameraTrip(rows, focal_px, middle_px, False)
    degree = math.pi / 180

    def wobble(amplitude: float, low_hz: float, high_hz: float) -> np.ndarray:
        parts = [amplitude * rng.uniform(0.2, 1) * np.sin(2 * math.pi * rng.uniform(low_hz, high_hz) * t
                 + rng.uniform(0, 6.3)) for _ in range(3)]  # fmt: skip
        return np.sum(parts, axis=0)

    if manner in ("handheld", "walking"):
        shake = degree * np.exp(rng.uniform(math.log(0.05), math.log(0.8)))
        for axis, share in ((3, 1.0), (4, 1.0), (5, 0.5)):
            rows[:, axis] += share * (wobble(shake, 0.3, 3) + wobble(0.15 * shake, 6, 14))
        rows[:, 3] += (
            rng.uniform(0, 25) * degree * np.sin(2 * math.pi * rng.uniform(0.05, 0.3) * t + rng.uniform(0, 6.3))
        )
    if manner == "panning":
        rate = rng.choice((-1, 1)) * np.exp(rng.uniform(math.log(5), math.log(120))) * degree
        period_s = 2 * rng.uniform(20, 90) * degree / abs(rate)
        rows[:, 3] += rate * (np.abs((t / period_s + rng.random()) % 1 - 0.5) - 0.25) * 2 * period_s / 2
    if manner in ("walking", "driving", "turning"):
        speed = rng.uniform(0.7, 1.8) if manner == "walking" else np.exp(rng.uniform(*np.log(m_per_s)))
        pace = speed * (1 + wobble(0.06, 0.1, 0.5))
        if manner == "turning":
            rate = rng.choice((-1, 1)) * rng.uniform(8, 35) * degree
            rows[:, 3] += rate * t * np.clip(np.sin(math.pi * t / max(duration_s, 1e-3)), 0.2, 1)
        rows[:, 0] += np.cumsum(pace * np.sin(rows[:, 3])) * _GRID_S
        rows[:, 2] += np.cumsum(pace * np.cos(rows[:, 3])) * _GRID_S
        if manner == "walking":
            rows[:, 1] += 0.03 * np.sin(2 * math.pi * 1.9 * t)
        else:
            vibration = degree * rng.uniform(0.02, 0.25)
            rows[:, 4] += wobble(vibration, 0.8, 2.5) + wobble(0.25 * vibration, 8, 15)
            rows[:, 5] += wobble(0.4 * vibration, 0.8, 2.5)
    return CameraTrip(rows, focal_px, middle_px, True)


@dataclass(frozen=True)
class Trip:
    """The path of an actor over the ground, one row every 5 ms. The actor may stop on the way."""

    rows: np.ndarray  # (N, 4): x and z in metres, heading in radians, distance moved so far in metres
    still_s: np.ndarray  # (N,) time since the actor last moved
    has_moved: np.ndarray  # (N,) bool, whether the actor has moved since the recording began

    def at(self, t_s: float) -> Place:
        """Return where the actor is.

        Args:
            t_s: Time in seconds.
        """
        return Place(*_row_at(self.rows, t_s).tolist())

    def still_us(self, t_us: int) -> int:
        """Return the time since the actor last moved, in microseconds.

        Args:
            t_us: Time in microseconds.
        """
        i = min(int(t_us * 1e-6 / _GRID_S), len(self.rows) - 1)
        return int(1e6 * self.still_s[i])

    def was_seen_moving(self, t_us: int) -> bool:
        """Return whether the actor moved between the beginning of the recording and this time.

        Args:
            t_us: Time in microseconds.
        """
        return bool(self.has_moved[min(int(t_us * 1e-6 / _GRID_S), len(self.rows) - 1)])


def build_trip_ahead(camera: CameraTrip, gap_m: float, rng: np.random.Generator) -> Trip:
    """Return the trip of a car that drives `gap_m` before a camera, at almost its speed."""
    t = np.arange(len(camera.rows)) * _GRID_S
    gap_m = gap_m * (1 + rng.uniform(-0.04, 0.04) * t + 0.03 * np.sin(rng.uniform(0.3, 1.5) * t + rng.uniform(0, 6.3)))
    x = camera.rows[:, 0] + rng.normal(0, 0.3) + 0.1 * np.sin(0.7 * t + rng.uniform(0, 6.3))
    z = camera.rows[:, 2] + gap_m
    way = np.concatenate(([0.0], np.cumsum(np.hypot(np.diff(x), np.diff(z)))))
    heading = np.arctan2(np.gradient(x), np.maximum(np.gradient(z), 1e-6))
    return Trip(np.stack((x, z, heading, way), axis=1), np.zeros(len(t)), way >= 0)


def build_trip(
    duration_s: float, at_s: float, x_m: float, z_m: float, heading: float, speed_m_per_s: float,
    rng: np.random.Generator, turn_share: float = 0.25, stop_share: float = 0.35,
) -> Trip:  # fmt: skip
    """Return a trip that passes a place with some heading at a given time.

    Args:
        duration_s: Length of the recording in seconds.
        at_s: When the actor passes the place, in seconds.
        x_m: The place to the right, in metres.
        z_m: The place ahead, in metres.
        heading: Direction of motion in radians, from z to x.
        speed_m_per_s: Speed; 0 is for an actor who stands still.
        rng: Random generator.
        turn_share: Probability that the path curves.
        stop_share: Probability that the actor stops on the way.
    """
    t = _grid_s(duration_s)
    middle = min(int(at_s / _GRID_S), len(t) - 1)
    pace = np.full(len(t), speed_m_per_s)
    if speed_m_per_s > 0 and rng.random() < stop_share:
        begin_s, length_s = rng.uniform(0.5, max(duration_s, 0.6)), rng.uniform(0.4, 2.0)
        ends_s = (begin_s, begin_s + _BRAKING_S, begin_s + _BRAKING_S + length_s, begin_s + 2 * _BRAKING_S + length_s)
        pace *= np.interp(t, ends_s, (1, 0, 0, 1))
    turned = np.zeros(len(t))
    if speed_m_per_s > 0 and rng.random() < turn_share:
        radius_m = rng.uniform(1.5, 8) * max(1.0, speed_m_per_s) * rng.choice((-1, 1))
        turned = np.cumsum(pace) * _GRID_S / radius_m
    way = np.concatenate(([0.0], np.cumsum(pace[:-1]))) * _GRID_S
    headings = heading + turned - turned[middle]
    x = np.concatenate(([0.0], np.cumsum((pace * np.sin(headings))[:-1]))) * _GRID_S
    z = np.concatenate(([0.0], np.cumsum((pace * np.cos(headings))[:-1]))) * _GRID_S
    rows = np.stack((x_m + x - x[middle], z_m + z - z[middle], headings, way), axis=1)
    last_moved = np.maximum.accumulate(np.where(pace > 0, np.arange(len(t)), -1))
    still_s = (np.arange(len(t)) - last_moved) * _GRID_S
    return Trip(rows, still_s, way > 0.05)
