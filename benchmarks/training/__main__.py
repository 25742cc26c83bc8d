"""Steps per second, peak memory and data-wait share of training, with each temporal layer and each option.

    python -m benchmarks.training --json FILE [--threads T] [--device cuda] [--quick] [--demo]

A step is forward, loss, backward, clipping and AdamW of the base detector on frames of Gen1. Baselines, both with RVT's
LSTM (a product of input and hidden state together at each step): `rvt-lstm-loop`, where only the LSTM is run step by
step and the rest of the backbone, as everywhere here, on all steps at once; and `rvt-backbone-loop`, where the whole
backbone is run step by step, as RVT trains. `lstm` is our layer, which multiplies all inputs at once. All take turns
within each round, in one process and on the same threads; a ratio is the median over rounds of what the baseline took
divided by what the other took. The options are compared in the same way with the same detector without them. Memory is
that of one step above weights, optimiser and batch, in a process of its own. Data wait is the share of the time in
which the loop waits for a real loader, for which recordings are generated.

On a GPU the shape is the published one, batch 8, L = 21; on a CPU it is batch 1, L = 10. `--demo` takes
the frames, the spatial part and the batch of the demo. The file is
written after each part; the last one, torch.compile, takes minutes before its first step.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console

from benchmarks.measuring import at_least_1, some_of, times_faster, usable_device, write_json
from benchmarks.scan import keep_freed_memory, machine
from benchmarks.training import loading
from benchmarks.training.step import (
    BASELINES,
    LAYERS,
    OPTIONS,
    Say,
    Shape,
    build_training,
    build_trainings,
    make_batch,
    peak_bytes,
    take_turns,
)
from rvtssm.cli.composition import compose
from rvtssm.evaluation.render import TerminalTable

PARTS = ("layers", "memory", "data", "options", "compile")


def main(arguments: Sequence[str] | None = None, shape: Shape | None = None) -> None:
    """Measure, print, and write the file if one is given; `shape` replaces the shape in the options."""
    options = _options(arguments)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    is_cpu = options.device == "cpu"
    if is_cpu:
        keep_freed_memory()
    if options.demo:
        demo = compose(["experiment=demo"])
        batch, length = demo.sampling.batch_size, demo.sampling.chunk_length
        shape = Shape(batch, length, options.device, demo.dataset.height, demo.dataset.width, demo.model)
    elif shape is None:
        shape = Shape(8, 21, options.device)
        if is_cpu:
            shape = Shape(1, 5 if options.quick else 10, options.device)
    rounds = 2 if options.quick else 5
    console, progress = Console(), Console(stderr=True)
    result = {**machine(options.device), "batch": shape.batch, "length": shape.length, "rounds": rounds}
    where = f"{result['device']}, {result['threads']} threads, batch {shape.batch}, L = {shape.length}"
    say = progress.print
    optional, waits = [f"s5+{name}" for name in OPTIONS], 2 if options.quick else 4
    measures: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "layers": lambda: measure_layers(shape, rounds, say),
        "memory": lambda: measure_memory([*BASELINES, *LAYERS, "s5+", *optional, "s5+compile"], shape, say),
        "data": lambda: measure_data([*BASELINES, *LAYERS, *optional], shape, options.workers, waits, say),
        "options": lambda: measure_options(OPTIONS, shape, min(rounds, 3), say),
        "compile": lambda: measure_options(("compile",), shape, min(rounds, 3), say),
    }
    for part in options.only:
        rows = result[part] = measures[part]()
        console.print(results_table(rows, f"{part}: {where}"))
        write_json(options.json, result)  # after each part, whatever becomes of the next


def measure_layers(shape: Shape, rounds: int, say: Say) -> list[dict[str, Any]]:
    """Measure every layer and both baselines."""
    say(f"{len(LAYERS) + len(BASELINES)} layers, {rounds} rounds")
    taken = take_turns(build_trainings([*BASELINES, *LAYERS], shape), shape, rounds)
    rows = []
    for name, seconds in taken.items():
        ratios = {f"ratio_{baseline}": times_faster(seconds, taken[baseline]) for baseline in BASELINES}
        rows.append({"name": name, "steps_per_s": 1 / median(seconds), "seconds": median(seconds), **ratios})
    return rows


def measure_memory(names: Sequence[str], shape: Shape, say: Say) -> list[dict[str, Any]]:
    """Measure the peak memory of a step of each in a fresh process, because memory of others would hide it."""
    rows = []
    for name in names:
        say(f"memory of {name}")
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            rows.append({"name": name, "bytes": pool.apply(peak_bytes, (name, shape, torch.get_num_threads()))})
    return rows


def measure_data(names: Sequence[str], shape: Shape, num_workers: int, steps: int, say: Say) -> list[dict[str, Any]]:
    """Measure the share of waiting for data of each, and of s5 without workers, which shows what prefetching saves."""
    with tempfile.TemporaryDirectory() as folder:
        say("generating recordings")
        overrides = loading.prepare(Path(folder), shape, num_workers)
        rows = []
        for name in names:
            say(f"data wait of {name}")
            rows.append(loading.measure_wait(name, shape, overrides, steps))
        alone = [*overrides, "data.workers=0"]
        rows.append({**loading.measure_wait("s5", shape, alone, steps), "name": "s5 without prefetch"})
    return rows


def measure_options(names: Sequence[str], shape: Shape, rounds: int, say: Say) -> list[dict[str, Any]]:
    """Measure the s5 detector with each option, and the difference of its first loss from that without the option."""
    rows = []
    for name in (f"s5+{option}" for option in names):
        say(f"option {name}")
        pair = {other: build_training(other, shape) for other in ("s5+", name)}
        losses = {other: training.step(make_batch(shape)) for other, training in pair.items()}
        taken = take_turns(pair, shape, rounds)
        rows.append(
            {
                "name": name,
                "steps_per_s": 1 / median(taken[name]),
                "ratio_without": times_faster(taken[name], taken["s5+"]),
                "loss_difference": abs(losses[name] / losses["s5+"] - 1),
            }
        )
    return rows


def results_table(rows: Sequence[dict[str, Any]], title: str) -> TerminalTable:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    named = ({"bytes": "MiB"}.get(column, column).replace("ratio_", "times faster than ") for column in columns)
    head = [name.replace("_", " ") for name in named]
    cells = [head]
    for row in rows:
        cells.append([_shown(column, row[column]) for column in columns])
    return TerminalTable(title, cells)


def _shown(column: str, value: Any) -> str:
    if column == "bytes":
        return f"{value / 2**20:.0f}"
    if column == "data_wait":
        return f"{value:.1%}"
    if column == "loss_difference":
        return f"{value:.1e}"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="file to write")
    parser.add_argument("--only", type=some_of(PARTS), default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--threads", type=at_least_1, help="of PyTorch; default: as many as there are cores")
    parser.add_argument("--workers", type=int, default=2, help="of the loader")
    parser.add_argument("--device", type=usable_device, choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--demo", action="store_true", help="the demo's detector and chunks in place of Gen1 base")
    parser.add_argument("--quick", action="store_true", help="shorter chunks, fewer rounds")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
