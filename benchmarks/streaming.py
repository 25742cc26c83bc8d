"""How long one step of a detector takes while it streams, and whether its memory stays as it is.

    python -m benchmarks.streaming --json FILE [--threads T] [--models DIR] [--sizes tiny,small,base]

Gen1 frames (240 x 304), batch 1, random counts, carried state, tiny, small and base with S5 and with the LSTM of the
same width, on CPU: PyTorch eager as `StreamDetector` runs it (step prepared once), compiled ahead of time (`rvtssm
export out=*.aot.pt2`) and ONNX (`out=*.onnx`, run by onnxruntime, and with `precision=bf16` by OpenVINO). All of a size
take turns within each round, in one process and on the same threads; a ratio is the median over rounds of what the
baseline took divided by what the other took.
`--models` keeps the exported files, which take longer to make than to measure, for the next run: that takes about three
minutes on one core of a Xeon.

Memory is that of a process which pushes a packet of events per window into a `StreamDetector`: 10,000 windows of 5 ms,
tiny S5, frames of 32 x 32, resident memory after the first 1,000 and after the last.

With `--device cuda` the forms are eager and a CUDA graph of the exported step; no figures of it have been taken yet.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.scan import machine
from rvtssm.atomic_files import atomic_file
from rvtssm.datasets import DATASETS
from rvtssm.inference.export_detector import export_detector
from rvtssm.inference.exported import read_exported
from rvtssm.inference.live import StreamDetector
from rvtssm.inference.schedule import FixedRate
from rvtssm.models.checkpoint import CheckpointMeta, LoadedCheckpoint
from rvtssm.models.low_precision import set_precision
from rvtssm.models.model_config import MODEL_SIZES, ModelConfig
from rvtssm.models.step import DetectorStep
from rvtssm.records import DatasetSpec, Events, WindowSettings
from rvtssm.ssm.temporal_config import TemporalConfig

SPEC = DATASETS["gen1"]
SIZES: dict[str, ModelConfig] = MODEL_SIZES
LAYERS = ("s5", "lstm")
SUFFIXES = {"compiled": ".aot.pt2", "onnx": ".onnx", "onnx bf16": ".onnx"}  # of the forms that are files
FORMS = {"cpu": ("eager", "eager bf16", *SUFFIXES), "cuda": ("eager", "cuda graph")}
ROUNDS = 21
WARM_UP = 3
MEMORY_STEPS = (1_000, 10_000)

Step = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Row:
    """One form of one detector. Ratios: how many times faster than eager, and than the LSTM in the same form."""

    size: str
    layer: str
    form: str
    median_ms: float
    p95_ms: float
    times_eager: float
    times_lstm: float
    frame_hw: tuple[int, int] = (SPEC.frame_height, SPEC.frame_width)


def build_checkpoint(size: str, layer: str, spec: DatasetSpec = SPEC) -> LoadedCheckpoint:
    """Return new random weights, because the cost of a step does not depend on them."""
    torch.manual_seed(0)
    windows = WindowSettings(50_000, None, "exact", 10, 10)
    meta = CheckpointMeta(spec, SIZES[size], TemporalConfig(name=layer), windows)
    return LoadedCheckpoint(**{f.name: getattr(meta, f.name) for f in fields(meta)}, detector=meta.build().eval())


def eager_step(checkpoint: LoadedCheckpoint, device: str = "cpu") -> Step:
    """Return a function from counts (1, C, H, W) to predictions that keeps the state between calls."""
    detector = checkpoint.detector.to(device)
    prepared, state = detector.prepare(1.0), detector.init_state(1)

    def step(hist: Tensor) -> Tensor:
        nonlocal state
        predictions, state = detector(hist[None], state, prepared)
        return predictions[0]

    return step


def exported_step(checkpoint: LoadedCheckpoint, path: Path, say: Callable[[str], None], precision: str) -> Step:
    """Return the same from an exported file, which is written if it does not exist."""
    if not path.exists():
        say(f"exporting {path.name}")
        export_detector(checkpoint, path)
    return eager_step(read_exported(path, trust=True, precision=precision))


class CudaGraphStep:
    """One step captured as a CUDA graph: counts are copied in, the state stays where it is."""

    def __init__(self, checkpoint: LoadedCheckpoint) -> None:
        step = DetectorStep(checkpoint.detector).cuda()
        size = (1, step.detector.in_channels, SPEC.frame_height, SPEC.frame_width)
        self._hist = torch.zeros(size, dtype=torch.uint8, device="cuda")
        scale, state = torch.ones(1, device="cuda"), step.init_state(1)

        def run() -> Tensor:
            predictions, after = step(self._hist, scale, state)
            for old, new in zip(state, after, strict=True):
                old.copy_(new)
            return predictions[0]

        side_stream = torch.cuda.Stream()
        side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side_stream):  # what is chosen and allocated once must not be captured
            for _ in range(WARM_UP):
                run()
        torch.cuda.current_stream().wait_stream(side_stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._predictions = run()

    def __call__(self, hist: Tensor) -> Tensor:
        self._hist.copy_(hist, non_blocking=True)
        self._graph.replay()
        return self._predictions


@torch.inference_mode()
def measure_steps(
    sizes: Sequence[str], forms: Sequence[str], folder: Path, rounds: int, device: str, say: Callable[[str], None]
) -> list[Row]:
    """Measure every form of every detector, one size at a time."""
    rows = []
    for size in sizes:
        steps: dict[tuple[str, str], Step] = {}
        for layer in LAYERS:
            for form in forms:
                checkpoint = build_checkpoint(size, layer)
                precision = "bf16" if form.endswith("bf16") else "float32"
                if form in SUFFIXES:
                    name = f"{size}_{layer}_{SPEC.frame_height}x{SPEC.frame_width}{SUFFIXES[form]}"
                    steps[layer, form] = exported_step(checkpoint, folder / name, say, precision)
                else:
                    set_precision(checkpoint.detector, precision)
                    steps[layer, form] = (
                        CudaGraphStep(checkpoint) if "graph" in form else eager_step(checkpoint, device)
                    )
        say(f"timing {size}")
        rows += compared(size, take_turns(steps, rounds, device))
    return rows


def take_turns(steps: dict[tuple[str, str], Step], rounds: int, device: str) -> dict[tuple[str, str], list[float]]:
    """Return the milliseconds of each step in each round, after some warm-up rounds."""
    size = (1, 20, SPEC.frame_height, SPEC.frame_width)
    hist = torch.randint(0, 11, size, dtype=torch.uint8, generator=torch.Generator().manual_seed(0)).to(device)
    taken: dict[tuple[str, str], list[float]] = {key: [] for key in steps}
    for round_ in range(-WARM_UP, rounds):
        for key, step in steps.items():
            _wait(device)
            start = time.perf_counter()
            step(hist)
            _wait(device)
            if round_ >= 0:
                taken[key].append(1000 * (time.perf_counter() - start))
    return taken


def compared(size: str, taken: dict[tuple[str, str], list[float]]) -> list[Row]:
    def times(ours: tuple[str, str], theirs: tuple[str, str]) -> float:
        return median(their / our for our, their in zip(taken[ours], taken[theirs], strict=True))

    return [
        Row(
            size,
            layer,
            form,
            median(milliseconds),
            float(np.percentile(milliseconds, 95)),
            times((layer, form), (layer, "eager")),
            times((layer, form), ("lstm", form)),
        )
        for (layer, form), milliseconds in taken.items()
    ]


def measure_memory(steps: tuple[int, int]) -> dict[str, float]:
    """Return the resident bytes after the given numbers of windows, measured in a separate process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        early, late = pool.apply(stream_and_look, (steps, torch.get_num_threads(), "tiny"))
    return {"steps": steps[0], "bytes": early, "later_steps": steps[1], "later_bytes": late, "growth": late / early - 1}


def stream_and_look(steps: tuple[int, int], threads: int, size: str) -> tuple[int, int]:
    """Push a packet per window and measure the resident memory twice; this needs Linux."""
    torch.set_num_threads(threads)
    side, num_events, window_us = 32, 200, 5_000
    checkpoint = build_checkpoint(size, "s5", replace(SPEC, height=side, width=side))
    live = StreamDetector(checkpoint, side, side, schedule=FixedRate(1e6 / window_us), start_us=0)
    rng = np.random.default_rng(0)
    seen = []
    for step in range(max(steps)):
        x, y = rng.integers(0, side, (2, num_events)).astype(np.uint16)
        t = step * window_us + np.arange(num_events) * (window_us // num_events)
        live.push(Events(t, x, y, (x % 2).astype(np.uint8)), until_us=(step + 1) * window_us)
        if step + 1 in steps:
            seen.append(_resident_bytes())
    return seen[0], seen[-1]


def _resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def table_of(rows: Sequence[Row], title: str) -> Table:
    table = Table(title=title)
    for column in ("size", "layer", "form", "ms", "95 %", "x eager", "x lstm"):
        table.add_column(column, justify="left" if column in ("size", "layer", "form") else "right")
    for row in rows:
        numbers = (row.median_ms, row.p95_ms, row.times_eager, row.times_lstm)
        table.add_row(row.size, row.layer, row.form, *(f"{number:.2f}" for number in numbers))
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write the file if one is given."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streaming", description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="file to write")
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch and onnxruntime")
    parser.add_argument("--device", choices=tuple(FORMS), default="cpu")
    parser.add_argument("--sizes", default=",".join(SIZES), help="of the detector")
    parser.add_argument("--forms", help="some of those of the device")
    parser.add_argument("--models", type=Path, help="folder to keep exported files in; default: thrown away")
    options = parser.parse_args(arguments)
    sizes, forms = options.sizes.split(","), (options.forms or ",".join(FORMS[options.device])).split(",")
    for name, given, known in (("--sizes", sizes, SIZES), ("--forms", forms, FORMS[options.device])):
        if unknown := [one for one in given if one not in known]:
            parser.error(f"{name} {unknown[0]}: choose from {', '.join(known)}")
    if "eager" not in forms:
        parser.error("--forms needs eager, which the others are compared with")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: PyTorch finds no CUDA device here; leave it out to measure the CPU")
    if "onnx bf16" in forms and find_spec("openvino") is None:
        parser.error("--forms onnx bf16 needs the package openvino; install it, or name other forms")
    if options.threads < 1:
        parser.error(f"--threads {options.threads}: needed is at least 1")
    torch.set_num_threads(options.threads)
    console, progress = Console(), Console(stderr=True)
    found: dict[str, Any] = machine(options.device)
    with tempfile.TemporaryDirectory() as folder:
        rows = measure_steps(sizes, forms, options.models or Path(folder), ROUNDS, options.device, progress.print)
    progress.print(f"memory over {MEMORY_STEPS[1]} steps")
    memory = measure_memory(MEMORY_STEPS)
    console.print(table_of(rows, f"One step at batch 1, {found['device']}, {found['threads']} threads"))
    console.print(
        f"resident after {memory['steps']} steps {memory['bytes'] / 2**20:.1f} MiB, after {memory['later_steps']} "
        f"{memory['later_bytes'] / 2**20:.1f} MiB ({memory['growth']:+.2%})"
    )
    if options.json:
        result = {**found, "rows": [asdict(row) for row in rows], "memory": memory}
        with atomic_file(options.json) as staged:
            staged.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
