"""How fast the S5 layer is beside its textbook form and beside an LSTM of the same width, and what memory it takes.

    python -m benchmarks.scan --json FILE [--threads T] [--device cuda]

Every layer runs with its projections: forward without gradient, our layer with its matrices prepared once, as streaming
code holds them; and forward plus backward through input and parameters, the preparation included. The shapes are the
four stages of the base detector on Gen1 at batch 1: an image is 5120, 1280, 320 and 80 sequences of 64, 128, 256 and
512 features. L = 21 is a training chunk, L = 1 a step of a stream. All layers take turns within each round, in one
process and on the same threads; a turn at L = 1 is five calls. A ratio is the median over rounds of what the baseline
took divided by what ours took, and that of a sum compares the sums of each round. On CPU, freed memory is
kept by the process (mallopt), which spares everybody page faults, the textbook form the most. Peak memory is that of
forward plus backward above what stood before: resident memory of a process of its own on CPU, allocated memory on a
GPU. `floor` is the least traffic (inputs, outputs, states, weights and their gradients, each moved once) at the speed
of a large copy on the same device, as a fraction of the time taken.

What was tried on the way, in milliseconds of CPU time on one thread of a Xeon (AVX-512), L = 21, sum of the stages,
full state, forward / forward + backward:

    complex loop in place over blocks of the second-level cache, copied in and out          136 / 485
    input and output used where they lie, 512 rows per product, numba scan                  125 / 481
    the same with 1024 rows                                                                 113 / 421
    the same with 2048 rows                                                                 112 / 410
    the same, with up to 64 MiB of states kept for the backward (in use)                    112 / 357
    the matrix products alone                                                                80 / 240

    the scan alone, first stage: complex `addcmul` 5.0, numba over separate real and imaginary parts 1.9,
    over complex numbers 2.1 (in use: no reordering of the matrices), over pairs of reals 2.1 to 7 by width
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import multiprocessing
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from benchmarks.measuring import at_least_1, peak_of_run, take_turns, times_faster, usable_device, write_json
from benchmarks.textbook import TextbookS5
from rvtssm.evaluation.render import TerminalTable
from rvtssm.ssm import TemporalConfig
from rvtssm.ssm.lstm import LSTM
from rvtssm.ssm.s5 import S5SSM
from rvtssm.system.files import commit, processor

Stage = tuple[int, int]  # sequences, features
STAGES: tuple[Stage, ...] = ((5120, 64), (1280, 128), (320, 256), (80, 512))
LENGTHS = (21, 1)
ROUNDS = {21: 7, 1: 21}
CALLS = {21: 1, 1: 5}  # timed together
OURS, BASELINES = ("s5-full", "s5-half"), ("textbook", "lstm")
PASSES = ("forward", "forward+backward")
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of glibc's malloc.h


@dataclass(frozen=True)
class Row:
    """One layer, in one pass at one shape, beside one baseline. Memory rows have bytes in place of seconds."""

    name: str
    shape: str
    # forward, forward+backward, or peak memory
    pass_: str
    seconds: float
    baseline: str
    baseline_seconds: float
    ratio: float
    floor: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the row with the keys of the file, because `pass` is a keyword and memory has another unit."""
        row = {key.rstrip("_"): value for key, value in asdict(self).items() if value is not None}
        if self.pass_ == "peak memory":
            row["bytes"], row["baseline_bytes"] = row.pop("seconds"), row.pop("baseline_seconds")
        return row


@dataclass(frozen=True)
class Case:
    """A layer with its input, first state and an output gradient."""

    layer: nn.Module
    x: Tensor
    state: Any
    grad: Tensor
    prepared: Any  # what takes the place of the step scale

    def forward(self) -> None:
        """Run without gradients."""
        with torch.no_grad():
            self.layer(self.x, self.state, self.prepared)

    def both(self) -> None:
        """Compute the gradients of input and parameters."""
        x = self.x.detach().requires_grad_()
        y, _ = self.layer(x, self.state)
        torch.autograd.grad(y, [x, *self.layer.parameters()], self.grad)

    def floor_bytes(self, with_backward: bool) -> int:
        """Return the least traffic: both passes read input, state and weights, and backward the gradients too."""
        states = self.state if isinstance(self.state, tuple) else (self.state,)
        weights = sum(p.numel() * p.element_size() for p in self.layer.parameters())
        state = sum(s.numel() * s.element_size() for s in states)
        sequences = self.x.numel() * self.x.element_size()
        return 5 * sequences + 3 * state + 3 * weights if with_backward else 2 * sequences + 2 * state + weights


def build_case(name: str, length: int, stage: Stage, device: str) -> Case:
    """Return the case of that name; the textbook form has sequences first, as usual."""
    num_sequences, dim = stage
    torch.manual_seed(0)
    layer: LSTM | S5SSM | TextbookS5
    if name == "lstm":
        layer = LSTM(dim, TemporalConfig(name="lstm"))
    else:
        layer = S5SSM(dim, TemporalConfig(bandlimit=0.0, half_state=name == "s5-half"))
    state = layer.init_state(num_sequences)
    shape = (length, num_sequences, dim)
    if name == "textbook":
        layer, shape = TextbookS5(layer), (num_sequences, length, dim)
    state = tuple(s.to(device) for s in state) if isinstance(state, tuple) else state.to(device)
    layer = layer.to(device)
    x, grad = torch.randn(2, *shape, device=device)
    with torch.no_grad():
        prepared = 1.0 if isinstance(layer, TextbookS5) else layer.prepare(1.0)
    return Case(layer, x, state, grad, prepared)


def measure_times(
    stages: Sequence[Stage], lengths: Sequence[int], rounds: dict[int, int], device: str, say: Callable[[str], None]
) -> list[Row]:
    """Return one row per case and stage, and the sums over the stages."""
    rows = []
    bandwidth = copy_bandwidth(device)
    for length in lengths:
        taken: dict[tuple[str, str], list[list[float]]] = {}  # layer and pass -> stages -> rounds
        floors: dict[tuple[str, str], list[float]] = {}
        for stage in stages:
            say(f"L = {length}, {stage[0]} sequences of {stage[1]} features")
            cases = {name: build_case(name, length, stage, device) for name in OURS + BASELINES}
            turns = take_turns(runs_of(cases), rounds[length], device, warm_up=2, calls=CALLS.get(length, 1))
            for key, seconds in turns.items():
                taken.setdefault(key, []).append(seconds)
                floor = cases[key[0]].floor_bytes(with_backward=key[1] == PASSES[1]) / bandwidth
                floors.setdefault(key, []).append(floor)
        for index, (num_sequences, dim) in enumerate(stages):
            shape = f"L={length} N={num_sequences} H={dim}"
            at_stage = {key: times[index] for key, times in taken.items()}
            rows += _compared(shape, at_stage, {key: floor[index] for key, floor in floors.items()})
        sums = {}
        for key, per_stage in taken.items():
            sums[key] = [sum(times) for times in zip(*per_stage, strict=True)]
        rows += _compared(f"L={length} sum", sums, {key: sum(floor) for key, floor in floors.items()})
    return rows


def runs_of(cases: dict[str, Case]) -> dict[tuple[str, str], Callable[[], None]]:
    """Return both passes of all layers."""
    both = {name: zip(PASSES, (case.forward, case.both), strict=True) for name, case in cases.items()}
    return {(name, pass_): run for name, runs in both.items() for pass_, run in runs}


def _compared(shape: str, taken: dict[tuple[str, str], list[float]], floors: dict[tuple[str, str], float]) -> list[Row]:
    rows = []
    for name in OURS:
        for pass_ in PASSES:
            ours = taken[name, pass_]
            for baseline in BASELINES:
                theirs = taken[baseline, pass_]
                ratio = times_faster(ours, theirs)
                floor = floors[name, pass_] / median(ours)
                rows.append(Row(name, shape, pass_, median(ours), baseline, median(theirs), ratio, floor))
    return rows


def copy_bandwidth(device: str) -> float:
    """Return the bytes read and written per second by the fastest of several copies."""
    source = torch.zeros(1 << 27, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * len(source) / min(take_turns({"copy": lambda: target.copy_(source)}, 5, device)["copy"])


def measure_memory(stages: Sequence[Stage], length: int, device: str, say: Callable[[str], None]) -> list[Row]:
    """Return the peak memory of forward plus backward at each stage; the ratio is ours divided by the textbook's."""
    rows = []
    for stage in stages:
        say(f"memory at L = {length}, {stage[0]} sequences of {stage[1]} features")
        peaks = {}
        for name in (*OURS, "textbook"):
            # a fresh process: what another layer left behind would hide the peak of this one
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                peaks[name] = pool.apply(peak_bytes, (name, length, stage, device))
        for name in OURS:
            shape, textbook = f"L={length} N={stage[0]} H={stage[1]}", peaks["textbook"]
            rows.append(Row(name, shape, "peak memory", peaks[name], "textbook", textbook, peaks[name] / textbook))
    return rows


def peak_bytes(name: str, length: int, stage: Stage, device: str) -> int:
    """Return the peak of one forward and backward above the memory before; a CPU needs Linux and a separate process."""
    return peak_of_run(build_case(name, length, stage, device).both, device)


def table_of(rows: Sequence[Row], title: str) -> TerminalTable:
    """Return all rows as a table."""
    is_memory = bool(rows) and rows[0].pass_ == "peak memory"
    unit, factor = ("MiB", 2.0**-20) if is_memory else ("ms", 1e3)
    cells = [["layer", "shape", "pass", unit, f"baseline {unit}", "ratio", "floor", "baseline"]]
    for row in rows:
        floor = f"{row.floor:.0%}" if row.floor is not None else ""
        ours, theirs = f"{row.seconds * factor:.2f}", f"{row.baseline_seconds * factor:.2f}"
        cells.append([row.name, row.shape, row.pass_, ours, theirs, f"{row.ratio:.2f}", floor, row.baseline])
    return TerminalTable(title, cells, num_text=3)


def machine(device: str) -> dict[str, Any]:
    """Return a description of the machine and the versions."""
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else processor(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": commit() or "unknown",
    }


def keep_freed_memory() -> None:
    """Make glibc keep freed memory; other C libraries are not changed."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            libc = ctypes.CDLL("libc.so.6")
            libc.mallopt(_M_MMAP_MAX, 0)
            libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write the file if one is given."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scan", description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="file to write")
    parser.add_argument("--threads", type=at_least_1, help="of PyTorch; default: as many as there are cores")
    parser.add_argument("--device", type=usable_device, choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args(arguments)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    if options.device == "cpu":
        keep_freed_memory()
    console = Console()
    result = machine(options.device)
    progress = Console(stderr=True)
    rows = measure_times(STAGES, LENGTHS, ROUNDS, options.device, progress.print)
    memory = measure_memory(STAGES, LENGTHS[0], options.device, progress.print)
    console.print(table_of(rows, f"Layers with their projections, {result['device']}, {result['threads']} threads"))
    console.print(table_of(memory, "Peak memory of forward + backward"))
    write_json(options.json, {**result, "rows": [row.to_json() for row in [*rows, *memory]]})


if __name__ == "__main__":
    main()
