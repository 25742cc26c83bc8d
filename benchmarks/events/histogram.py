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
STRIDE_US, NUM_STRIDES = 5_000, 150  # of sliding windows


def rows() -> list[dict[str, Any]]:
    """Return one row per sensor, rate and window: seconds per window of ours and of the baseline, and their ratio."""
    torch.set_num_threads(1)
    of_windows = []
    for sensor, (height, width, downsample) in SENSORS.items():
        events = traffic(NUM_EVENTS, height, width)
        for rate, length_ms in WINDOWS:
            of_windows.append(_counting_row(sensor, events, height, width, downsample, rate, length_ms))
        for rate in SLIDING_RATES:
            of_windows.append(_sliding_row(events, height, width, downsample, rate))
            of_windows.append(_surfaces_row(events, height, width, downsample, rate))
    return of_windows


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
    tensors = []
    for part in parts:
        columns = part.t, part.x, part.y, part.p
        tensors.append(tuple(torch.from_numpy(array.astype(np.int64)) for array in columns))
    bounds_us, settings = np.array([[0, length_us]]), WindowSettings(length_us, length_us, "rvt")
    pixels = frame_pixels(height, width, downsample)
    out = np.empty((1, 20, height // downsample, width // downsample), np.uint8)

    def ours(number: int) -> np.ndarray:
        counter = FrameCounter(settings, pixels)
        counter.push(parts[number])
        return counter.take(bounds_us, out)

    def theirs(number: int) -> torch.Tensor:
        t, x, y, p = tensors[number]
        return rvt_frame(t, x, y, p, height, width, downsample)

    if not np.array_equal(ours(0)[0], theirs(0).numpy()):
        raise AssertionError(f"the two histograms differ ({sensor}, {rate} Mev/s, {length_ms} ms)")
    seconds, baseline, ratio = paired(ours, theirs, num_runs)
    return {
        "name": "histogram",
        "shape": shape_of(height, width, downsample),
        "pass": f"{length_ms} ms at {rate} Mev/s",
        "seconds": seconds,
        "baseline": baseline,
        "baseline_name": "RVT's torch code",
        "ratio": ratio,
        "reach": f">= {REACH[sensor]:g}",
        "is_reached": ratio >= REACH[sensor],
        "events_per_s": size / seconds,
    }


def _sliding_row(events: Events, height: int, width: int, downsample: int, rate: float) -> dict[str, Any]:
    """Compare 50 ms windows every 5 ms, pushed and taken, with a 5 ms window and the writing of one frame."""
    pixels = frame_pixels(height, width, downsample)
    short, written = (np.empty((1, 20, height // downsample, width // downsample), np.uint8) for _ in range(2))

    def one_window(number: int, events: Events) -> None:
        one = FrameCounter(WindowSettings(STRIDE_US, 10 * STRIDE_US), pixels)
        one.push(events)
        one.take(np.array([[number, number + 1]]) * STRIDE_US, short)
        written[:] = short

    return {
        "name": "sliding windows",
        "shape": shape_of(height, width, downsample),
        "pass": f"50 ms every 5 ms at {rate} Mev/s",
        "baseline_name": "a 5 ms window and a frame write",
        **_against(_sliding(pixels, "histogram"), one_window, events, rate, SLIDING_REACH),
    }


def _surfaces_row(events: Events, height: int, width: int, downsample: int, rate: float) -> dict[str, Any]:
    """Compare frames of surfaces every 5 ms with histograms of sliding 50 ms windows, from pushed events to frames."""
    pixels = frame_pixels(height, width, downsample)
    ours, theirs = (_sliding(pixels, representation) for representation in ("surfaces", "histogram"))
    return {
        "name": "surfaces",
        "shape": shape_of(height, width, downsample),
        "pass": f"every 5 ms at {rate} Mev/s",
        "baseline_name": "histograms of sliding 50 ms windows",
        **_against(ours, theirs, events, rate, SURFACES_REACH),
    }


def _sliding(pixels: Any, representation: str) -> Callable[[int, Events], None]:
    """Return a function of a number and the events of its 5 ms that makes the frame of the 50 ms that end with them."""
    counter = FrameCounter(WindowSettings(STRIDE_US, 10 * STRIDE_US, representation=representation), pixels)
    out = np.empty((1, *counter.frame_shape), np.uint8)

    def take(number: int, events: Events) -> None:
        counter.push(events)
        counter.forget_before((number - 9) * STRIDE_US)
        counter.take(np.array([[number - 9, number + 1]]) * STRIDE_US, out)

    return take


def shape_of(height: int, width: int, downsample: int) -> str:
    return f"{height}x{width}" + (f" to {height // downsample}x{width // downsample}" if downsample > 1 else "")


def _against(
    ours: Callable[[int, Events], None],
    theirs: Callable[[int, Events], None],
    events: Events,
    rate: float,
    reach: float,
) -> dict[str, Any]:
    """Return what pairs of times, ours and those of the alternative, say about consecutive 5 ms of events."""
    size, seconds = round(STRIDE_US * rate), []
    parts = [_part(events, number, size, STRIDE_US) for number in range(NUM_STRIDES)]
    moved = [Events(part.t + STRIDE_US * number, part.x, part.y, part.p) for number, part in enumerate(parts)]
    for number, part in enumerate(moved):
        began = time.perf_counter()
        ours(number, part)
        middle = time.perf_counter()
        theirs(number, part)
        seconds.append((middle - began, time.perf_counter() - middle))
    mine, others = np.array(seconds[20:]).T
    ratio = float(np.median(mine / others))
    return {
        "seconds": float(np.median(mine)),
        "baseline": float(np.median(others)),
        "ratio": ratio,
        "reach": f"<= {reach:g}",
        "is_reached": ratio <= reach,
        "events_per_s": size / float(np.median(mine)),
    }


def rvt_frame(
    t: torch.Tensor, x: torch.Tensor, y: torch.Tensor, p: torch.Tensor, height: int, width: int, downsample: int
) -> torch.Tensor:
    """Return the frame (20, H, W) uint8 of a window with events as RVT's preparation makes it."""
    num_bins, cutoff = 10, 10
    share = (t - t[0]) / max(int(t[-1] - t[0]), 1)
    bins = (share * num_bins).floor().clamp(max=num_bins - 1).long()
    places = ((p * num_bins + bins) * height + y) * width + x
    counts = torch.zeros(2 * num_bins * height * width, dtype=torch.uint8)
    counts.put_(places, torch.ones_like(places, dtype=torch.uint8), accumulate=True)
    frame = counts.clamp(max=cutoff).view(2 * num_bins, height, width)
    if downsample == 1:
        return frame
    return F.interpolate(frame[None], scale_factor=1 / downsample, mode="nearest-exact")[0]
