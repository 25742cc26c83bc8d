"""How time and memory grow with the size of frames, the events, the chunk, the cameras and the processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks import streaming
from benchmarks.events.histogram import traffic
from benchmarks.measuring import peak_of_run, resident, take_turns
from benchmarks.training.step import Say, Shape, build_training, make_batch
from rvtssm.events.cells import frame_pixels
from rvtssm.events.frame_counter import FrameCounter
from rvtssm.records import Events, WindowSettings

SIZE = "tiny"
Run = Callable[[], object]


@dataclass(frozen=True)
class Curve:
    """Values on one axis, and what is run at each."""

    what: str
    values: tuple[float, ...]
    build: Callable[[Any], Run]


def live_step(lines: int, cameras: int) -> Run:
    """Return a live step of batched cameras with frames of 4 : 3."""
    spec = replace(streaming.SPEC, height=lines, width=4 * lines // 3)
    detector = streaming.build_checkpoint(SIZE, "s5", spec).detector
    prepared, state = detector.prepare(1.0), detector.init_state(cameras)
    hist = torch.randint(0, 11, (1, cameras, 20, spec.height, spec.width), dtype=torch.uint8)
    return torch.inference_mode()(lambda: detector(hist, state, prepared))


def training_step(length: int) -> Run:
    """Return a training step on a chunk of this length."""
    shape = Shape(1, length, "cpu", streaming.SPEC.height, streaming.SPEC.width, streaming.SIZES[SIZE])
    return partial(build_training("s5+", shape).step, make_batch(shape))


def counted_window(mev_per_s: float) -> Run:
    """Return the counting of a window of 50 ms."""
    height, width, length_us = streaming.SPEC.height, streaming.SPEC.width, streaming.WINDOW_US
    events = traffic(round(mev_per_s * length_us), height, width)
    packet = Events(events.t * length_us // len(events), events.x, events.y, events.p)
    pixels, bounds_us = frame_pixels(height, width, 1), np.array([[0, length_us]])

    def run() -> object:
        counter = FrameCounter(WindowSettings(length_us), pixels)
        counter.push(packet)
        return counter.take(bounds_us)

    return run


CURVES = {
    "lines": Curve("live step, frames of 4 : 3", (240, 360, 480, 720), lambda lines: live_step(lines, 1)),
    "cameras": Curve("live step of one batch", (1, 2, 4, 8), lambda count: live_step(streaming.SPEC.height, count)),
    "steps of a chunk": Curve("training step", (5, 10, 20, 40), training_step),
    "Mev/s": Curve("counting of 50 ms", (0.1, 1, 5, 20, 50), counted_window),
}
PROCESSES = (1, 2, 4)


def measure_growth(rounds: int, say: Say) -> list[dict[str, Any]]:
    """Return the curves: milliseconds, bytes, and the exponents of both, which are slopes of logarithms."""
    rows = []
    for axis, curve in CURVES.items():
        say(f"growth with {axis}")
        taken = take_turns({value: curve.build(value) for value in curve.values}, rounds)
        seconds = [median(taken[value]) for value in curve.values]
        rows.append(_row(axis, curve.what, curve.values, seconds, [measure_peak(axis, each) for each in curve.values]))
    say("growth with processes")
    both = [measure_processes(count, 5 * rounds) for count in PROCESSES]
    what = "live step, memory of all processes"
    return [*rows, _row("processes", what, PROCESSES, [each for each, _ in both], [each for _, each in both])]


def exponent(values: Sequence[float], found: Sequence[float]) -> float:
    """Return p of found = c values^p, fitted to the logarithms."""
    return float(np.polyfit(np.log(values), np.log(found), 1)[0])


def _row(
    axis: str, what: str, values: Sequence[float], seconds: Sequence[float], num_bytes: Sequence[int]
) -> dict[str, Any]:
    return {
        "axis": axis,
        "what": what,
        "values": list(values),
        "ms": [1000 * each for each in seconds],
        "bytes": list(num_bytes),
        "time_exponent": exponent(values, seconds),
        "memory_exponent": exponent(values, num_bytes),
    }


def measure_peak(axis: str, value: float) -> int:
    """Return the peak memory of a run above what there was before, in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_peak, (axis, value, torch.get_num_threads()))


def _peak(axis: str, value: float, threads: int) -> int:
    torch.set_num_threads(threads)
    return peak_of_run(CURVES[axis].build(value))


def measure_processes(count: int, rounds: int) -> tuple[float, int]:
    """Return the seconds of a live step while as many processes run at once, on one thread each, and their memory."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(count, _meet_at, (context.Barrier(count),)) as pool:
        found = pool.map(_step_together, [rounds] * count, chunksize=1)
    return median(seconds for seconds, _ in found), sum(num_bytes for _, num_bytes in found)


_barrier: Any = None  # of a process that `measure_processes` has started


def _meet_at(barrier: Any) -> None:
    global _barrier
    _barrier = barrier


def _step_together(rounds: int) -> tuple[float, int]:
    torch.set_num_threads(1)
    run = live_step(streaming.SPEC.height, 1)
    run()
    _barrier.wait()
    seconds = median(take_turns({"step": run}, rounds)["step"])
    _barrier.wait()
    num_bytes = resident("Pss", Path("/proc/self/smaps_rollup"))  # memory that is shared counts once
    _barrier.wait()
    return seconds, num_bytes
