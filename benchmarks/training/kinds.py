"""Where the time of a training step goes, by kind of work, and which share of the processor's limit it reaches.

    python -m benchmarks.training.kinds --json FILE [--cases demo-muon,demo-adamw,base-bf16,base-float32] [--threads 1]

A step is forward, loss, backward, clipping and optimiser, from the zero state, on random counts. The demo has 4 chunks
of 6 steps, selective S5 and bf16; `base` has S5, frames of Gen1, one chunk of 5 steps and AdamW. The profiler adds up
the time of every operation, without the operations inside it. The last rows are of steps without the profiler. The
limit is the best of five products of 2048 x 2048 matrices in the precision of the step.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.measuring import some_of, write_json
from benchmarks.scan import keep_freed_memory, machine
from benchmarks.training.step import Shape, Training, make_batch
from rvtssm.cli.composition import compose
from rvtssm.evaluation.terminal_table import TerminalTable
from rvtssm.models.detector import build_detector
from rvtssm.training.optim import build_optimizer

CASES = {
    "demo-muon": ["experiment=demo", "training.precision=bf16"],
    "demo-adamw": ["experiment=demo", "training.precision=bf16", "optim.name=adamw"],
    "base-bf16": ["experiment=gen1_s5_base", "training.precision=bf16"],
    "base-float32": ["experiment=gen1_s5_base", "training.precision=float32"],
}
ROUNDS = 5
_BASE_CHUNKS = 1, 5  # chunks and steps, since a whole batch of the recipe takes minutes on a CPU
# the first kind with a part of its name in that of the operation
KINDS = {
    "optimiser, without its products": ("Optimizer", "_fused_adam", "foreach", "aten::lerp"),
    "scan": ("rvtssm",),  # the operations of our own
    "convolutions": ("convolution",),
    "products": ("mm", "baddbmm", "mkldnn_linear"),
    "copies": ("copy_", "clone", "contiguous", "aten::cat", "fill_", "zero_", "index"),
    "GELU": ("gelu",),
    "softmax, fused attention": ("softmax", "scaled_dot_product"),
    "norms": ("norm",),
    "exp, sin, cos": ("exp", "sin", "cos", "softplus"),
    "sums, products and others by element": ("aten::",),
}


def kind_of(operation: str) -> str:
    """Return the kind of work that an operation of the profiler is."""
    return next(
        (kind for kind, parts in KINDS.items() if any(part in operation for part in parts)), "Python and others"
    )


def build(words: Sequence[str]) -> tuple[Training, Shape]:
    """Return the training of a composed configuration, and its shape."""
    config = compose(list(words))
    height, width = (config.dataset.height, config.dataset.width) if config.dataset.height else (240, 304)
    is_demo = "experiment=demo" in words
    chunks, steps = (config.sampling.batch_size, config.sampling.chunk_length) if is_demo else _BASE_CHUNKS
    torch.manual_seed(0)
    detector = build_detector(config.model, config.temporal, height, width, num_classes=2).train()
    dtype = torch.bfloat16 if config.training.precision == "bf16" else torch.float32
    optimizer, _ = build_optimizer(detector, config.optim, 1000, chunks, dtype=dtype)
    layers = [stage.temporal for stage in detector.backbone.stages]
    lower = dtype if dtype == torch.bfloat16 else None
    return Training(detector, layers, [optimizer], "cpu", dtype=lower), Shape(chunks, steps, "cpu", height, width)


def measure(words: Sequence[str], rounds: int) -> dict[str, Any]:
    """Return the seconds of a step, its floating-point operations, and the seconds of each kind of work."""
    training, shape = build(words)
    batch = make_batch(shape)
    training.step(batch)
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        training.step(batch)
        seconds.append(time.perf_counter() - began)
    with FlopCounterMode(display=False) as counter:
        training.step(batch)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(2):
            training.step(batch)
    kinds: dict[str, float] = defaultdict(float)
    for event in profiler.key_averages():
        kinds[kind_of(event.key)] += event.self_cpu_time_total / 2e6
    limit = operations_per_second(training.dtype or torch.float32)
    return {
        "seconds": median(seconds),
        "flop": counter.get_total_flops(),
        "limit_flop_per_s": limit,
        "share_of_limit": counter.get_total_flops() / median(seconds) / limit,
        "kinds": dict(sorted(kinds.items(), key=lambda item: -item[1])),
    }


def operations_per_second(dtype: torch.dtype) -> float:
    """Return the floating-point operations per second of large products."""
    size = 2048
    left, right = (torch.randn(size, size).to(dtype) for _ in range(2))
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        left @ right
        seconds.append(time.perf_counter() - began)
    return 2 * size**3 / min(seconds)


def table(found: dict[str, dict[str, Any]], title: str) -> TerminalTable:
    """Return milliseconds per step by kind of work, a column per case."""
    kinds = list(dict.fromkeys(kind for row in found.values() for kind in row["kinds"]))
    cells = [["kind of work", *found]]
    for kind in kinds:
        times = [row["kinds"].get(kind, 0.0) for row in found.values()]
        totals = [sum(row["kinds"].values()) for row in found.values()]
        shown = (f"{1e3 * each:.0f} ({each / total:.0%})" for each, total in zip(times, totals, strict=True))
        cells.append([kind, *shown])
    cells.append(["step without the profiler", *(f"{1e3 * row['seconds']:.0f} ms" for row in found.values())])
    cells.append(["GFLOP", *(f"{row['flop'] / 1e9:.1f}" for row in found.values())])
    cells.append(["share of the limit", *(f"{row['share_of_limit']:.0%}" for row in found.values())])
    return TerminalTable(title, cells)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write the file if one is given."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.training.kinds", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--json", type=Path, help="file to write")
    parser.add_argument("--cases", type=some_of(CASES), default=",".join(CASES), help=f"some of {','.join(CASES)}")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    found = {case: measure(CASES[case], ROUNDS) for case in options.cases}
    where = machine("cpu")
    Console().print(table(found, f"ms per step: {where['device']}, {options.threads} threads"))
    write_json(options.json, {**where, "cases": found})


if __name__ == "__main__":
    main()
