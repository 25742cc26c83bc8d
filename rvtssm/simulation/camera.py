"""A simulated event camera: it turns rendered frames and their times into events.

A pixel emits an event if its log intensity has changed by a threshold since its last event. The time of the event
follows from linear interpolation between two frames (Rebecq et al., ESIM, CoRL 2018). Thresholds differ between pixels.
All pixels emit rare noise events, and hot pixels emit many. Events of a pixel within the refractory time after its
last event are dropped.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from rvtssm.events.jit import jit
from rvtssm.records import Events
from rvtssm.simulation.simulation_config import CameraConfig

MIN_THRESHOLD = 0.02  # of the log intensity; smaller random thresholds are raised to it
BLOCK_US = 200_000  # minimum length of a block of events

Columns = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # t, x, y, p with the types of Events


def simulate_events(
    frames: Iterable[tuple[int, np.ndarray]], config: CameraConfig, rng: np.random.Generator
) -> Iterator[Events]:
    """Yield the events of a camera that sees these frames, in consecutive blocks.

    `frames` are pairs of t_us and intensity (H, W) in [0, 1], with increasing times. At the first frame all pixels are
    at rest. Between frames the logarithm of the intensity is linear. Events lie between the first and the last frame
    time. The same frames, config and generator state give the same events.
    """
    stream = iter(frames)
    first = next(stream, None)
    if first is None:
        raise ValueError("simulate_events received no frames; give at least one")
    before_us, image = first
    before = _log_intensity(image, config)
    threshold_off, threshold_on = _thresholds(before.shape, config, rng)
    hot = rng.choice(before.size, rng.binomial(before.size, config.hot_pixel_share), replace=False)
    level = before.copy()
    free_from_us = np.full(before.shape, np.iinfo(np.int64).min, np.int64)

    def block(parts: list[Columns], start_us: int, end_us: int) -> Events:
        parts.append(_noise(before.shape, hot, start_us, end_us, config, rng))
        t, x, y, p = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        order = np.argsort(t, kind="stable")
        t, x, y, p = t[order], x[order], y[order], p[order]
        keep = _outside_refractory(t, x, y, free_from_us, config.refractory_us)
        return Events(t[keep], x[keep], y[keep], p[keep])

    parts: list[Columns] = []
    block_start_us = before_us
    for t_us, image in stream:
        if t_us <= before_us:
            raise ValueError(
                f"a frame at {t_us} us follows one at {before_us} us; frame times must increase, sort them"
            )
        after = _log_intensity(image, config)
        parts.append(_crossings(before, after, level, threshold_off, threshold_on, before_us, t_us))
        before_us, before = t_us, after
        if t_us - block_start_us >= BLOCK_US:
            yield block(parts, block_start_us, t_us)
            parts, block_start_us = [], t_us
    if parts:
        yield block(parts, block_start_us, before_us)


def _log_intensity(image: np.ndarray, config: CameraConfig) -> np.ndarray:
    lit: np.ndarray = image.astype(np.float32) + np.float32(config.dark_intensity)
    np.log(lit, out=lit)
    return lit


def _thresholds(
    shape: tuple[int, ...], config: CameraConfig, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    drawn = config.threshold * (1 + config.threshold_mismatch * rng.standard_normal((2, *shape)))
    off, on = np.maximum(drawn, MIN_THRESHOLD).astype(np.float32)
    return off, on


@jit
def _crossings(
    before: np.ndarray,
    after: np.ndarray,
    level: np.ndarray,
    threshold_off: np.ndarray,
    threshold_on: np.ndarray,
    start_us: int,
    end_us: int,
) -> Columns:
    """Return the events of all crossings of thresholds; update `level` (H, W), the last crossed level, in place."""
    height, width = before.shape
    room = 0
    for y in range(height):
        for x in range(width):
            change = after[y, x] - level[y, x]
            if after[y, x] != before[y, x]:  # rounding can make one more than the quotient
                room += int(abs(change) / (threshold_on[y, x] if change > 0 else threshold_off[y, x])) + 1
    t_out = np.empty(room, np.int64)
    x_out = np.empty(room, np.uint16)
    y_out = np.empty(room, np.uint16)
    p_out = np.empty(room, np.uint8)
    n = 0
    for y in range(height):
        for x in range(width):
            slope = after[y, x] - before[y, x]
            if slope == 0:
                continue
            step = threshold_on[y, x] if slope > 0 else -threshold_off[y, x]
            following = level[y, x] + step
            while (after[y, x] - following) * step >= 0:
                level[y, x] = following
                t_out[n] = start_us + int((following - before[y, x]) / slope * (end_us - start_us))
                x_out[n], y_out[n], p_out[n] = x, y, step > 0
                following += step
                n += 1
    return t_out[:n], x_out[:n], y_out[:n], p_out[:n]


def _noise(
    shape: tuple[int, ...],
    hot: np.ndarray,
    start_us: int,
    end_us: int,
    config: CameraConfig,
    rng: np.random.Generator,
) -> Columns:
    """Return noise: a Poisson process in every pixel, and a faster one of one polarity in the `hot` pixels."""
    num_pixels, seconds = shape[0] * shape[1], (end_us - start_us) * 1e-6
    background = rng.integers(num_pixels, size=rng.poisson(config.background_rate_hz * num_pixels * seconds))
    repeated = np.repeat(hot, rng.poisson(config.hot_pixel_rate_hz * seconds, len(hot)))
    pixel = np.concatenate((background, repeated))
    t = rng.integers(start_us, end_us, len(pixel))
    p = np.concatenate((rng.integers(2, size=len(background)), repeated % 2))
    y, x = np.divmod(pixel, shape[1])
    return t, x.astype(np.uint16), y.astype(np.uint16), p.astype(np.uint8)


@jit
def _outside_refractory(
    t: np.ndarray, x: np.ndarray, y: np.ndarray, free_from_us: np.ndarray, refractory_us: int
) -> np.ndarray:
    """Return which of the sorted events are after the refractory time; update `free_from_us` (H, W) in place."""
    keep = np.empty(len(t), np.bool_)
    for i in range(len(t)):
        keep[i] = t[i] >= free_from_us[y[i], x[i]]
        if keep[i]:
            free_from_us[y[i], x[i]] = t[i] + refractory_us
    return keep
