"""Squares that move, stop for 0.2 to 5 s and go on, as an event camera with noise sees them: the data of the study."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

HZ = 20
SIZE_PX = 16  # of a frame
CELL_PX = 2  # of an output
NUM_CELLS = SIZE_PX // CELL_PX
_SIDE_PX = (4.0, 6.0)
_SPEED_PX_PER_S = (4.0, 16.0)
_MOVING_S = (0.3, 1.5)
_STILL_S = (0.2, 5.0)  # drawn log-uniformly
_MARGIN_PX = 4.0  # so far outside the frame a square turns back
_EVENTS_PER_CHANGE = 3.0  # mean number of events of a pixel whose light changes completely
_NOISE = 0.02  # events per pixel, polarity and step


@dataclass(frozen=True)
class Sprites:
    """T steps of B streams, each with one square."""

    frames: npt.NDArray[np.uint8]  # (T, B, 2, SIZE_PX, SIZE_PX) events by polarity
    is_covered: npt.NDArray[np.bool_]  # (T, B, NUM_CELLS, NUM_CELLS), the square covers more than half of the cell
    still_s: npt.NDArray[np.float32]  # (T, B) time since the square last moved, 0 while it moves


def simulate(num_streams: int, num_steps: int, seed: int) -> Sprites:
    """Return streams that are the same for the same seed."""
    rng = np.random.default_rng(seed)
    shape = num_steps, num_streams
    covered, still_s = np.empty((*shape, SIZE_PX, SIZE_PX), np.float32), np.empty(shape, np.float32)
    frames = np.empty((*shape, 2, SIZE_PX, SIZE_PX), np.uint8)
    for stream in range(num_streams):
        center, still_s[:, stream] = _path(rng, num_steps)
        half = rng.uniform(*_SIDE_PX) / 2
        rows, columns = (_overlap(center[:, axis], half) for axis in (0, 1))
        covered[:, stream] = rows[:, :, None] * columns[:, None, :]
        change = np.diff(covered[:, stream], axis=0, prepend=covered[:1, stream]) * rng.choice([-1, 1])
        for polarity, sign in enumerate((-1, 1)):
            rate = _EVENTS_PER_CHANGE * np.maximum(sign * change, 0) + _NOISE
            frames[:, stream, polarity] = rng.poisson(rate)
    cells = covered.reshape(*shape, NUM_CELLS, CELL_PX, NUM_CELLS, CELL_PX).mean(axis=(3, 5))
    return Sprites(frames, cells > 0.5, still_s)


def _path(rng: np.random.Generator, num_steps: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return centres (T, 2) in pixels and the time in seconds since the last motion (T,)."""
    centers, still_s = np.empty((num_steps, 2)), np.zeros(num_steps)
    center, step = rng.uniform(0, SIZE_PX, 2), 0
    while step < num_steps:
        angle, speed = rng.uniform(0, 2 * math.pi), rng.uniform(*_SPEED_PX_PER_S) / HZ
        velocity = speed * np.array([math.sin(angle), math.cos(angle)])
        for _ in range(round(rng.uniform(*_MOVING_S) * HZ)):
            if step == num_steps:
                break
            is_outside = (center < -_MARGIN_PX) | (center > SIZE_PX + _MARGIN_PX)
            velocity = np.where(is_outside, np.abs(velocity) * np.sign(SIZE_PX / 2 - center), velocity)
            center = center + velocity
            centers[step] = center
            step += 1
        num_still = min(round(math.exp(rng.uniform(*np.log(_STILL_S))) * HZ), num_steps - step)
        centers[step : step + num_still] = center
        still_s[step : step + num_still] = np.arange(1, num_still + 1) / HZ
        step += num_still
    return centers, still_s


def _overlap(center: npt.NDArray[np.float64], half: float) -> npt.NDArray[np.float64]:
    """Return the share of every pixel (T, SIZE_PX) of a line that [center - half, center + half] covers."""
    first = np.arange(SIZE_PX)
    stop = np.minimum(first + 1, center[:, None] + half)
    overlap: npt.NDArray[np.float64] = np.clip(stop - np.maximum(first, center[:, None] - half), 0, 1)
    return overlap
