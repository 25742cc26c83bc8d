"""Counting windows: the time per window against RVT's way in torch, and sliding windows against short ones.

The baseline is rebuilt from the description of RVT's preparation: times scaled to bins in float32, one index per event,
a scatter with accumulation into bytes, a clamp; at 1 Mpx the finished frame is halved by nearest-exact interpolation.
Its events are int64 tensors already. Outputs are compared before they are timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from rvtssm.events.cells import frame_pixels
from rvtssm.events.frame_counter import FrameCounter
from rvtssm.records import Events, WindowSettings

SENSORS = {"gen1": (240, 304, 1), "onempx": (720, 1280, 2)}  # height, width, downsample
WINDOWS = ((1, 50), (5, 50), (20, 50), (5, 5))  # million events per second, milliseconds
SLIDING_RATES = (1, 5, 20)
NUM_EVENTS = 20_000_000  # of each recording: every window is another part of it
REACH = {"gen1": 4.0, "onempx": 8.0}
SLIDING_REACH = 1.3
SURFACES_REACH = 4.0  # four sums per event instead of one count
MAX_WINDOWS = 60


def rows() -> list[dict[str, Any]]:
    """Return one row per sensor, rate and window: seconds per window of ours and of the baseline, and their ratio."""
    torch.set_num_threads(1)
    found = []
    for sensor, (height, width, downsample) in SENSORS.items():
        events = traffic(NUM_EVENTS, height, width)
        for rate, length_ms in WINDOWS:
            found.append(_counting_row(sensor, events, height, width, downsample, rate, length_ms))
        for rate in SLIDING_RATES:
            found.append(_sliding_row(sensor, events, height, width, downsample, rate))
            found.append(_surfaces_row(events, height, width, downsample, rate))
    return found


def traffic(num_events: int, height: int, width: int, seed: int = 0) -> Events:
    """Return edges that move across the sensor, and noise; one event per microsecond."""
    rng = np.random.default_rng(seed)
    t = np.arange(num_events, dtype=np.int64)
    edge = rng.integers(0, 40, num_events, dtype=np.uint8)
    begin, speed = rng.uniform(0, width, 40), rng.uniform(-3e-4, 3e-4, 40)  # pixels per microsecond
    top, extent = rng.uniform(0, 0.7 * height, 40), rng.uniform(0.05, 0.3, 40) * height
    x = begin[edge] + speed[edge] * t + rng.normal(0, 1.5, num_events)
    y = top[edge] + extent[edge] * rng.random(num_events)
    is_noise = rng.random(num_events) < 0.2
    x[is_noise], y[is_noise] = width * rng.random(is_noise.sum()), height * rng.random(is_noise.sum())
    p = (speed[edge] > 0).astype(np.uint8) ^ (rng.random(num_events) < 0.3)
    return Events(t, (x % width).astype(np.uint16), y.astype(np.uint16), p.astype(np.uint8))


def paired(ours: Callable[[int], object], theirs: Callable[[int], object], num_runs: int) -> tuple[float, float, float]:
    """Return the median seconds of both and of theirs / ours, run by turns on part 0, 1, ... of the data."""
    ours(0), theirs(0)
    seconds = np.empty((num_runs, 2))
    for run in range(num_runs):
        for which, function in enumerate((ours, theirs) if run % 2 else (theirs, ours)):
            began = time.perf_counter()
            function(run)
            seconds[run, which if run % 2 else 1 - which] = time.perf_counter() - began
    mine, other = np.median(seconds, axis=0)
    return float(mine), float(other), float(np.median(seconds[:, 1] / seconds[:, 0]))


def _part(events: Events, number: int, size: int, length_us: int) -> Events:
    """Return part `number` of the recording with its times scaled to a window that begins at 0."""
    start = number * size % (len(events) - size)
    t = np.arange(size, dtype=np.int64) * length_us // size
    return Events(t, *(getattr(events, name)[start : start + size] for name in ("x", "y", "p")))


def _counting_row(
    sensor: str, events: Events, height: int, width: int, downsample: int, rate: float, length_ms: int
) -> dict[str, Any]:
    size, length_us = round(1e3 * rate * length_ms), 1000 * length_ms
    num_runs = min(MAX_WINDOWS, len(events) // size - 1)
    parts = [_part(events, number, size, length_us) for number in range(num_runs)]
    tensors = [tuple(torch.from_numpy(array.astype(np.int64)) for array in (e.t, e.x, e.y, e.p)) for e in parts]
    bounds_us, settings = np.array([[0, length_us]]), WindowSettings(length_us, length_us, "rvt")
    pixels = frame_pixels(height, width, downsample)
    out = np.empty((1, 20, height // downsample, width // downsample), np.uint8)

    def ours(number: int) -> np.ndarray:
        counter = FrameCounter(settings, pixels)
        counter.push(parts[number])
        return counter.take(bounds_us, out)

    def theirs(number: int) -> torch.Tensor:
        t, x, y, p = tensors[number]
        frame = _rvt_histogram(t, x, y, p, 10, 10, height, width)
        if downsample == 1:
            return frame
        return F.interpolate(frame[None], scale_factor=1 / downsample, mode="nearest-exact")[0]

    if not np.array_equal(ours(0)[0], theirs(0).numpy()):
        raise AssertionError(f"the two histograms differ ({sensor}, {rate} Mev/s, {length_ms} ms)")
    seconds, baseline, ratio = paired(ours, theirs, num_runs)
    return {
        "name": "histogram",
        "shape": f"{height}x{width}" + (f" to {height // downsample}x{width // downsample}" if downsample > 1 else ""),
        "pass": f"{length_ms} ms at {rate} Mev/s",
        "seconds": seconds,
        "baseline": baseline,
        "baseline_name": "RVT's torch code",
        "ratio": ratio,
        "reach": f">= {REACH[sensor]:g}",
        "is_reached": ratio >= REACH[sensor],
        "events_per_s": size / seconds,
    }


def _sliding_row(sensor: str, events: Events, height: int, width: int, downsample: int, rate: float) -> dict[str, Any]:
    """Compare 50 ms windows every 5 ms, pushed and taken, with a 5 ms window and the writing of one frame."""
    size, stride_us, num_windows = round(5e3 * rate), 5_000, 150
    frame_shape = (20, height // downsample, width // downsample)
    parts = [_part(events, number, size, stride_us) for number in range(num_windows)]
    moved = [Events(part.t + stride_us * number, part.x, part.y, part.p) for number, part in enumerate(parts)]
    settings, pixels = WindowSettings(stride_us, 10 * stride_us), frame_pixels(height, width, downsample)
    sliding = FrameCounter(settings, pixels)
    out, short, written = (np.empty((1, *frame_shape), np.uint8) for _ in range(3))
    seconds = np.empty((num_windows, 2))
    for number in range(num_windows):
        began = time.perf_counter()
        sliding.push(moved[number])
        sliding.forget_before((number - 9) * stride_us)
        sliding.take(np.array([[number - 9, number + 1]]) * stride_us, out)
        middle = time.perf_counter()
        one = FrameCounter(settings, pixels)
        one.push(parts[number])
        one.take(np.array([[0, stride_us]]), short)
        written[:] = out
        seconds[number] = middle - began, time.perf_counter() - middle
    return {
        "name": "sliding windows",
        "shape": _shape(height, width, downsample),
        "pass": f"50 ms every 5 ms at {rate} Mev/s",
        "baseline_name": "a 5 ms window and a frame write",
        **_against(seconds[20:], SLIDING_REACH, size),
    }


def _surfaces_row(events: Events, height: int, width: int, downsample: int, rate: float) -> dict[str, Any]:
    """Compare frames of surfaces every 5 ms with histograms of sliding 50 ms windows, from pushed events to frames."""
    size, stride_us, num_windows = round(5e3 * rate), 5_000, 150
    pixels = frame_pixels(height, width, downsample)
    parts = [_part(events, number, size, stride_us) for number in range(num_windows)]
    moved = [Events(part.t + stride_us * number, part.x, part.y, part.p) for number, part in enumerate(parts)]
    counters, seconds = [], np.empty((num_windows, 2))
    for representation in ("surfaces", "histogram"):
        counter = FrameCounter(WindowSettings(stride_us, 10 * stride_us, representation=representation), pixels)
        counters.append((counter, np.empty((1, *counter.frame_shape), np.uint8)))
    for number in range(num_windows):
        for which, (counter, out) in enumerate(counters):
            began = time.perf_counter()
            counter.push(moved[number])
            counter.forget_before((number - 9) * stride_us)
            counter.take(np.array([[number - 9, number + 1]]) * stride_us, out)
            seconds[number, which] = time.perf_counter() - began
    return {
        "name": "surfaces",
        "shape": _shape(height, width, downsample),
        "pass": f"every 5 ms at {rate} Mev/s",
        "baseline_name": "histograms of sliding 50 ms windows",
        **_against(seconds[20:], SURFACES_REACH, size),
    }


def _shape(height: int, width: int, downsample: int) -> str:
    return f"{height}x{width}" + (f" to {height // downsample}x{width // downsample}" if downsample > 1 else "")


def _against(seconds: npt.NDArray[np.float64], reach: float, size: int) -> dict[str, Any]:
    """Return what pairs of times (N, 2), ours and those of the alternative, say about `size` events each."""
    ours, baseline = np.median(seconds, axis=0)
    ratio = float(np.median(seconds[:, 0] / seconds[:, 1]))
    return {
        "seconds": float(ours),
        "baseline": float(baseline),
        "ratio": ratio,
        "reach": f"<= {reach:g}",
        "is_reached": ratio <= reach,
        "events_per_s": size / float(ours),
    }


def _rvt_histogram(
    t: torch.Tensor,
    x: torch.Tensor,
    y: torch.Tensor,
    p: torch.Tensor,
    num_bins: int,
    cutoff: int,
    height: int,
    width: int,
) -> torch.Tensor:
    share = (t - t[0]) / max(int(t[-1] - t[0]), 1)
    bins = (share * num_bins).floor().clamp(max=num_bins - 1).long()
    places = ((p * num_bins + bins) * height + y) * width + x
    counts = torch.zeros(2 * num_bins * height * width, dtype=torch.uint8)
    counts.put_(places, torch.ones_like(places, dtype=torch.uint8), accumulate=True)
    return counts.clamp(max=cutoff).view(2 * num_bins, height, width)
