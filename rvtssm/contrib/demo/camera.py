"""A simulated event camera, which turns rendered frames and their times into events.

A pixel emits an event when its log intensity has changed by a threshold since its last event. The time of the event
follows from linear interpolation between two frames (Rebecq et al., ESIM, CoRL 2018). Thresholds differ between pixels.
All pixels emit rare noise events, and hot pixels emit many. Events of a pixel within the refractory time after its
last event are dropped.

Further effects are off by default:

- a bandwidth that increases with the light, leak events, and shot noise that is strongest in the dark (Hu et al., v2e,
  CVPRW 2021)
- thresholds that differ from event to event, and a latency with jitter (Joubert et al., IEBCS, Frontiers in
  Neuroscience 2021)
- dead pixels, row-by-row readout, and a limit of the event rate (openeb, the software of Prophesee's cameras)
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from rvtssm.contrib.demo.simulation_config import MIN_THRESHOLD, CameraConfig
from rvtssm.records import Events
from rvtssm.system.jit import jit
from rvtssm.system.user_error import UserError

BLOCK_US = 200_000  # minimum length of a block of events
DRAWN_THRESHOLDS = (0.05, 0.4)  # limits of a threshold that is drawn per recording
_LIMIT_US = 1_000  # time span in which the event rate is limited
_BRIGHT_SHOT_SHARE = 0.25  # shot noise in white, relative to darkness
_LEAST_FACTOR = 0.5  # smallest random factor of a threshold that differs from event to event
_DRAWN = (
    *("threshold", "threshold_mismatch", "refractory_us", "background_rate_hz", "hot_pixel_share", "hot_pixel_rate_hz"),
    *("threshold_noise", "cutoff_hz", "leak_rate_hz", "shot_rate_hz", "dead_pixel_share", "latency_us"),
    *("latency_jitter_us", "readout_us", "max_rate_hz"),
)

Columns = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # t, x, y, p with the dtypes of Events
Thresholds = tuple[np.ndarray, np.ndarray]  # (H, W) each, of events that are darker and brighter


def drawn_camera(config: CameraConfig, rng: np.random.Generator) -> CameraConfig:
    """Return the camera of one recording, with properties drawn within `spread`.

    Args:
        config: The camera.
        rng: Random generator.
    """
    if config.spread == 1:
        return config
    reach = math.log(config.spread)
    drawn = {name: getattr(config, name) * math.exp(rng.uniform(-reach, reach)) for name in _DRAWN}
    drawn["threshold"] = min(max(drawn["threshold"], DRAWN_THRESHOLDS[0]), DRAWN_THRESHOLDS[1])
    drawn["hot_pixel_share"] = min(drawn["hot_pixel_share"], 1.0)
    whole = {name: round(drawn[name]) for name in ("refractory_us", "readout_us")}
    ratio = config.on_to_off * math.exp(rng.uniform(-reach, reach) / 3)
    return replace(config, **{**drawn, **whole, "on_to_off": ratio})


def simulate_events(
    frames: Iterable[tuple[int, np.ndarray]], config: CameraConfig, rng: np.random.Generator
) -> Iterator[Events]:
    """Yield the events of a camera that sees these frames, in consecutive blocks.

    At the first frame, all pixels are at rest. Between frames, the logarithm of the intensity is linear. Events lie
    between the first and the last frame. The same frames, settings and generator state give the same events.

    Args:
        frames: Pairs of a time in microseconds, which must increase, and an intensity (H, W), in [0, 1] by day.
        config: The camera; `spread` is not read.
        rng: Random generator.

    Raises:
        UserError: If there are no frames, or if their times do not increase.
    """
    stream = iter(frames)
    first = next(stream, None)
    if first is None:
        raise UserError("setting.missing", name="frames", needed="at least one")
    before_us, image = first
    start_us = block_start_us = before_us
    before = lit = _log_intensity(image, config)
    level = lit.copy()
    pixels = _draw_pixels(lit.shape, config, rng)
    output = _Output(lit.shape, pixels, config, rng)
    parts: list[Columns] = []
    for t_us, image in stream:
        if t_us <= before_us:
            raise UserError(
                "setting.form", name="frames", found=f"{t_us} us after {before_us} us", needed="increasing times"
            )
        bright = _log_intensity(image, config)
        if config.cutoff_hz:
            radians = 2 * math.pi * config.cutoff_hz * (t_us - before_us) * 1e-6
            bright = _low_passed(lit, bright, image, radians, config.dark_intensity)
        after = lit = bright
        if pixels.leak is not None:
            after = lit + pixels.leak * np.float32((t_us - start_us) * 1e-6)
        span_us = before_us, t_us
        parts.append(
            _crossings(
                before, after, level, pixels.thresholds, pixels.now, config.threshold_noise, pixels.chance, *span_us
            )
        )
        if config.shot_rate_hz:
            parts.append(_shot_noise(image, *span_us, config, rng))
        before_us, before = t_us, after
        if t_us - block_start_us >= BLOCK_US:
            yield output.block(parts, block_start_us, t_us)
            parts, block_start_us = [], t_us
    if parts:
        yield output.block(parts, block_start_us, before_us)


@dataclass
class _Pixels:
    """What differs between the pixels of one camera."""

    thresholds: Thresholds
    now: Thresholds  # of the next event, which differ if there is noise
    chance: np.ndarray  # (1,) uint64, state of the generator of that noise
    hot: np.ndarray  # numbers of the pixels that send events without a reason
    dead: np.ndarray | None = None  # (H, W) bool
    leak: np.ndarray | None = None  # (H, W) float32, a slow rise of the signal, in thresholds per second


def _draw_pixels(shape: tuple[int, ...], config: CameraConfig, rng: np.random.Generator) -> _Pixels:
    thresholds, size = _thresholds(shape, config, rng), math.prod(shape)
    hot = rng.choice(size, rng.binomial(size, config.hot_pixel_share), replace=False)
    pixels = _Pixels(thresholds, thresholds, np.zeros(1, np.uint64), hot)
    if config.dead_pixel_share:
        pixels.dead = rng.random(shape) < config.dead_pixel_share
    if config.leak_rate_hz:
        rates = config.leak_rate_hz * np.exp(config.leak_mismatch * rng.standard_normal(shape))
        pixels.leak = (rates * thresholds[1]).astype(np.float32)
    if config.threshold_noise:
        pixels.now = thresholds[0].copy(), thresholds[1].copy()
        pixels.chance[0] = rng.integers(1, 1 << 62)
    return pixels


class _Output:
    """Turns what the pixels signal into events: noise, refractory time, latency and the limit of the rate.

    Args:
        shape: Height and width of the sensor.
        pixels: Its pixels.
        config: The camera.
        rng: Random generator.
    """

    def __init__(self, shape: tuple[int, ...], pixels: _Pixels, config: CameraConfig, rng: np.random.Generator) -> None:
        self._shape, self._pixels, self._config, self._rng = shape, pixels, config, rng
        self._free_from_us = np.full(shape, np.iinfo(np.int64).min, np.int64)
        self._is_delayed = config.latency_us > 0 or config.latency_jitter_us > 0 or config.readout_us > 0
        self._late: list[Columns] = []  # events whose latency moves them to the next block

    def block(self, parts: list[Columns], start_us: int, end_us: int) -> Events:
        """Return the events of a block; `parts` are the crossings and the shot noise of its frames."""
        config, rng = self._config, self._rng
        parts.append(_noise(self._shape, self._pixels.hot, start_us, end_us, config, rng))
        t, x, y, p = _sorted(parts)
        keep = _outside_refractory(t, x, y, self._free_from_us, config.refractory_us)
        if self._pixels.dead is not None:
            keep &= ~self._pixels.dead[y, x]
        t, x, y, p = t[keep], x[keep], y[keep], p[keep]
        if self._is_delayed:
            t = _delayed(t, y, self._shape[0], config, rng)
            t, x, y, p = _sorted([*self._late, (t, x, y, p)])
            cut = np.searchsorted(t, end_us, side="right")
            self._late = [(t[cut:], x[cut:], y[cut:], p[cut:])]
            t, x, y, p = t[:cut], x[:cut], y[:cut], p[:cut]
        if config.max_rate_hz:
            keep = _within_rate(t, start_us, config.max_rate_hz * math.prod(self._shape) * _LIMIT_US * 1e-6)
            t, x, y, p = t[keep], x[keep], y[keep], p[keep]
        return Events(t, x, y, p)


def _sorted(parts: list[Columns]) -> Columns:
    t, x, y, p = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = np.argsort(t, kind="stable")
    return t[order], x[order], y[order], p[order]


def _log_intensity(image: np.ndarray, config: CameraConfig) -> np.ndarray:
    lit: np.ndarray = image.astype(np.float32) + np.float32(config.dark_intensity)
    np.log(lit, out=lit)
    return lit


def _thresholds(shape: tuple[int, ...], config: CameraConfig, rng: np.random.Generator) -> Thresholds:
    drawn = config.threshold * (1 + config.threshold_mismatch * rng.standard_normal((2, *shape)))
    if config.on_to_off != 1:
        drawn *= np.array((config.on_to_off**-0.5, config.on_to_off**0.5))[:, None, None]
    off, on = np.maximum(drawn, MIN_THRESHOLD).astype(np.float32)
    return off, on


@jit
def _low_passed(
    before: np.ndarray, bright: np.ndarray, image: np.ndarray, radians: float, dark_intensity: float
) -> np.ndarray:
    """Return the signal one step later: it approaches `bright` exponentially, and faster where there is more light.

    `radians` is the step times the angular cutoff frequency of a white pixel.
    """
    out = np.empty_like(before)
    for y in range(before.shape[0]):
        for x in range(before.shape[1]):
            share = 1 - math.exp(-radians * (image[y, x] + dark_intensity) / (1 + dark_intensity))
            out[y, x] = before[y, x] + share * (bright[y, x] - before[y, x])
    return out


@jit
def _crossings(
    before: np.ndarray, after: np.ndarray, level: np.ndarray, thresholds: Thresholds, now: Thresholds, noise: float,
    chance: np.ndarray, start_us: int, end_us: int,
) -> Columns:  # fmt: skip
    """Return the events of all threshold crossings, and update `level` (H, W), the last crossed level, in place.

    With noise, the thresholds of the next event, `now`, are drawn after each event around the thresholds of the pixel.
    `chance` (1,) is the state of the generator.
    """
    (threshold_off, threshold_on), (now_off, now_on) = thresholds, now
    height, width = before.shape
    room = 0
    for y in range(height):
        for x in range(width):
            change = after[y, x] - level[y, x]
            if after[y, x] != before[y, x]:  # because of rounding, there can be one more than the quotient
                threshold = threshold_on[y, x] if change > 0 else threshold_off[y, x]
                room += int(abs(change) / (threshold * _LEAST_FACTOR if noise else threshold)) + 1
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
            step = now_on[y, x] if slope > 0 else -now_off[y, x]
            following = level[y, x] + step
            while (after[y, x] - following) * step >= 0:
                level[y, x] = following
                t_out[n] = start_us + int((following - before[y, x]) / slope * (end_us - start_us))
                x_out[n], y_out[n], p_out[n] = x, y, step > 0
                if noise > 0:
                    drawn = 0.0
                    for _ in range(4):  # the sum of four uniform numbers is close to a normal distribution
                        chance[0] ^= chance[0] << np.uint64(13)
                        chance[0] ^= chance[0] >> np.uint64(7)
                        chance[0] ^= chance[0] << np.uint64(17)
                        drawn += float(chance[0] >> np.uint64(11)) * 2.0**-53 - 0.5
                    factor = max(_LEAST_FACTOR, 1 + noise * drawn * math.sqrt(3.0))
                    now_on[y, x], now_off[y, x] = factor * threshold_on[y, x], factor * threshold_off[y, x]
                    step = now_on[y, x] if step > 0 else -now_off[y, x]
                following += step
                n += 1
    return t_out[:n], x_out[:n], y_out[:n], p_out[:n]


def _noise(
    shape: tuple[int, ...], hot: np.ndarray, start_us: int, end_us: int, config: CameraConfig, rng: np.random.Generator
) -> Columns:
    """Return noise: a Poisson process in every pixel, and a faster one of a single polarity in each `hot` pixel."""
    num_pixels, seconds = shape[0] * shape[1], (end_us - start_us) * 1e-6
    background = rng.integers(num_pixels, size=rng.poisson(config.background_rate_hz * num_pixels * seconds))
    repeated = np.repeat(hot, rng.poisson(config.hot_pixel_rate_hz * seconds, len(hot)))
    pixel = np.concatenate((background, repeated))
    t = rng.integers(start_us, end_us, len(pixel))
    p = np.concatenate((rng.integers(2, size=len(background)), repeated % 2))
    y, x = np.divmod(pixel, shape[1])
    return t, x.astype(np.uint16), y.astype(np.uint16), p.astype(np.uint8)


def _shot_noise(
    image: np.ndarray, start_us: int, end_us: int, config: CameraConfig, rng: np.random.Generator
) -> Columns:
    """Return noise whose rate falls linearly from darkness to a quarter in white."""
    count = rng.poisson(config.shot_rate_hz * image.size * (end_us - start_us) * 1e-6)
    pixel = rng.integers(image.size, size=count)
    share = 1 - (1 - _BRIGHT_SHOT_SHARE) * np.clip(image.ravel()[pixel], 0, 1)
    pixel = pixel[rng.random(count) < share]
    y, x = np.divmod(pixel, image.shape[1])
    t = rng.integers(start_us, end_us, len(pixel))
    return t, x.astype(np.uint16), y.astype(np.uint16), rng.integers(2, size=len(pixel)).astype(np.uint8)


def _delayed(t: np.ndarray, y: np.ndarray, height: int, config: CameraConfig, rng: np.random.Generator) -> np.ndarray:
    """Return the times at which events are read: after a latency with jitter, when it is the turn of their row."""
    latency = config.latency_us + config.latency_jitter_us * rng.standard_normal(len(t))
    t = t + np.maximum(latency, 0).astype(np.int64)
    if config.readout_us:
        turn = y.astype(np.int64) * config.readout_us // height  # when a row is read within a readout of all rows
        t = -((turn - t) // config.readout_us) * config.readout_us + turn
    return t


@jit
def _within_rate(t: np.ndarray, start_us: int, limit: float) -> np.ndarray:
    """Return which of the sorted events are sent if at most `limit` fit into _LIMIT_US. They are evenly spread."""
    keep = np.ones(len(t), np.bool_)
    i = 0
    while i < len(t):
        end_us = start_us + ((t[i] - start_us) // _LIMIT_US + 1) * _LIMIT_US
        j = i
        while j < len(t) and t[j] < end_us:
            j += 1
        if j - i > limit:
            share = limit / (j - i)
            for k in range(i, j):
                keep[k] = int((k - i + 1) * share) > int((k - i) * share)
        i = j
    return keep


@jit
def _outside_refractory(
    t: np.ndarray, x: np.ndarray, y: np.ndarray, free_from_us: np.ndarray, refractory_us: int
) -> np.ndarray:
    """Return which of the sorted events lie outside the refractory time, and update `free_from_us` (H, W) in place."""
    keep = np.empty(len(t), np.bool_)
    for i in range(len(t)):
        keep[i] = t[i] >= free_from_us[y[i], x[i]]
        if keep[i]:
            free_from_us[y[i], x[i]] = t[i] + refractory_us
    return keep
