"""How long one step of a detector takes while it streams, the rate it sustains, and whether its memory stays as it is.

    python -m benchmarks.streaming --json FILE [--only steps,rates,memory] [--threads T] [--models DIR]
        [--sizes tiny,small,base] [--layers s5,selective_s5,selective_s5-gated,s7,lstm] [--forms eager,...]

Gen1 frames (240 x 304), batch 1, carried state, tiny, small and base with S5, selective S5, S7 and the LSTM of the same
width, on CPU: PyTorch eager as `StreamDetector` runs it (step prepared once), ONNX run by onnxruntime, and OpenVINO's
format in float32, bf16 and int8, which OpenVINO runs.
`--models` keeps the exported files, which take longer to make than to measure, for the next run: that takes about three
minutes on one core of a Xeon.

`steps` takes random counts. All forms of a size take turns within each round, in one process and on the same threads;
a ratio is the median over rounds of what the baseline took divided by what the other took.

`rates` finds the highest multiple of 5 Hz at which 95 % of the windows are ready before the next one ends. Windows are
50 ms long at every rate, of 1 million events per second. Their time is that of a whole `StreamDetector.push`: taking
the events, counting, the step, decoding and suppression of boxes.

`memory` is that of a process which pushes a packet of events per window into a `StreamDetector`: 10,000 windows of
5 ms, tiny S5, frames of 32 x 32, resident memory after the first 1,000 and after the last.

With `--device cuda` the forms are eager and a CUDA graph of the exported step; no figures of it have been taken yet.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.events.histogram import traffic
from benchmarks.measuring import at_least_1, resident, some_of, take_turns, times_faster, usable_device, write_json
from benchmarks.scan import machine
from rvtssm.datasets import DATASETS
from rvtssm.detection.engine import StreamDetector
from rvtssm.export.export_detector import export_detector
from rvtssm.export.exported import read_exported
from rvtssm.export.graphs import DetectorStep
from rvtssm.models import MODEL_SIZES, ModelConfig
from rvtssm.models.checkpoint_meta import CheckpointMeta, LoadedCheckpoint
from rvtssm.models.detector import set_precision
from rvtssm.records import DatasetSpec, Events, WindowSettings
from rvtssm.ssm import TemporalConfig

SPEC = DATASETS["gen1"]
SIZES: dict[str, ModelConfig] = MODEL_SIZES
LAYERS = {
    "s5": TemporalConfig(),
    "selective_s5": TemporalConfig(name="selective_s5"),
    "selective_s5-gated": TemporalConfig(name="selective_s5", discretization="bilinear", block="gated"),
    "s7": TemporalConfig(name="s7"),
    "lstm": TemporalConfig(name="lstm"),
}
# the forms that are files: how the name ends, the precision of the export and that of the products besides
FILES = {
    "onnxruntime": (".onnx", "float32", "float32"),
    "openvino": (".xml", "float32", "float32"),
    "openvino bf16": (".xml", "float32", "bf16"),
    "openvino int8": (".xml", "int8", "float32"),
}
FORMS = {"cpu": ("eager", "eager bf16", *FILES), "cuda": ("eager", "cuda graph")}
NEEDED = {"onnxruntime": "onnxruntime", "openvino": "openvino", "openvino bf16": "openvino", "openvino int8": "nncf"}
PARTS = ("steps", "rates", "memory")
ROUNDS = 21
RATE_WINDOWS = 60
RATE_STEP_HZ, FIRST_HZ = 5, 20
WINDOW_US = 50_000
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
    times_eager: float | None
    times_lstm: float | None
    frame_hw: tuple[int, int] = (SPEC.frame_height, SPEC.frame_width)


def build_checkpoint(size: str, layer: str, spec: DatasetSpec = SPEC) -> LoadedCheckpoint:
    """Return new random weights, because the cost of a step does not depend on them."""
    torch.manual_seed(0)
    windows = WindowSettings(50_000, None, "exact", 10, 10)
    meta = CheckpointMeta(spec, SIZES[size], LAYERS[layer], windows)
    return LoadedCheckpoint(**{f.name: getattr(meta, f.name) for f in fields(meta)}, detector=meta.build().eval())


def read_form(
    size: str, layer: str, form: str, folder: Path, device: str, say: Callable[[str], None]
) -> LoadedCheckpoint:
    """Return a detector in one form. Files are written if they do not exist.

    The calibration of int8 sees random counts, since time does not depend on the ranges.
    """
    checkpoint = build_checkpoint(size, layer)
    if form not in FILES:
        set_precision(checkpoint.detector, "bf16" if form.endswith("bf16") else "float32")
        checkpoint.detector.to(device)
        return checkpoint
    suffix, products, rest = FILES[form]
    low = "" if products == "float32" else f"_{products}"
    path = folder / f"{size}_{layer}_{SPEC.frame_height}x{SPEC.frame_width}{low}{suffix}"
    if not path.exists():
        say(f"exporting {path.name}")
        export_detector(checkpoint, path, precision=products, calibration=[(_random_counts(8).numpy(), 1.0)])
    return read_exported(path, precision=rest)


def step_of(checkpoint: LoadedCheckpoint) -> Step:
    """Return a function from counts (1, C, H, W) to predictions that keeps the state between calls."""
    detector = checkpoint.detector
    prepared, state = detector.prepare(1.0), detector.init_state(1)

    def step(hist: Tensor) -> Tensor:
        nonlocal state
        predictions, state = detector(hist[None], state, prepared)
        return predictions[0]

    return step


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
    sizes: Sequence[str],
    layers: Sequence[str],
    forms: Sequence[str],
    folder: Path,
    rounds: int,
    device: str,
    say: Callable[[str], None],
) -> list[Row]:
    """Measure every form of every detector, one size at a time."""
    rows = []
    for size in sizes:
        steps: dict[tuple[str, str], Step] = {}
        for layer in layers:
            for form in forms:
                if form == "cuda graph":
                    steps[layer, form] = CudaGraphStep(build_checkpoint(size, layer))
                else:
                    steps[layer, form] = step_of(read_form(size, layer, form, folder, device, say))
        say(f"timing {size}")
        hist = _random_counts(1).to(device)
        runs = {key: partial(step, hist) for key, step in steps.items()}
        rows += compared(size, take_turns(runs, rounds, device, WARM_UP))
    return rows


def compared(size: str, taken: dict[tuple[str, str], list[float]]) -> list[Row]:
    """Return rows of the seconds by layer and form; a ratio is None if what it compares with was not measured."""

    def times(ours: tuple[str, str], theirs: tuple[str, str]) -> float | None:
        return times_faster(taken[ours], taken[theirs]) if theirs in taken else None

    return [
        Row(
            size,
            layer,
            form,
            1000 * median(seconds),
            1000 * float(np.percentile(seconds, 95)),
            times((layer, form), (layer, "eager")),
            times((layer, form), ("lstm", form)),
        )
        for (layer, form), seconds in taken.items()
    ]


def measure_rates(
    sizes: Sequence[str], forms: Sequence[str], folder: Path, device: str, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Return the highest rate that each form of each S5 detector sustains, and the time of its windows there."""
    events = traffic(1_000_000, SPEC.height, SPEC.width)  # one per microsecond
    rows = []
    for size in sizes:
        for form in forms:
            checkpoint = read_form(size, "s5", form, folder, device, say)
            hz, p95_ms = sustained_hz(partial(window_p95_ms, checkpoint, events))
            say(f"{size}, {form}: {hz} Hz, 95 % of the windows within {p95_ms:.1f} ms")
            rows.append({"size": size, "form": form, "hz": hz, "p95_ms": p95_ms})
    return rows


def sustained_hz(p95_ms: Callable[[float], float]) -> tuple[int, float]:
    """Return the highest rate whose windows take less than its stride, and their time; 0 Hz if 5 Hz is too fast.

    The search goes down from the rate that the time at 20 Hz allows, since windows do not get shorter at higher rates.
    """
    taken_ms = p95_ms(FIRST_HZ)
    for hz in range(int(1000 / taken_ms) // RATE_STEP_HZ * RATE_STEP_HZ, 0, -RATE_STEP_HZ):
        if (taken_ms := p95_ms(hz)) < 1000 / hz:
            return hz, taken_ms
    return 0, taken_ms


def window_p95_ms(checkpoint: LoadedCheckpoint, events: Events, hz: float) -> float:
    """Return the 95th percentile of the time of a window of 50 ms at this rate, from its events to its boxes.

    `events`, one per microsecond, are repeated.
    """
    spec = checkpoint.spec
    live = StreamDetector(checkpoint, spec.height, spec.width, windows=WindowSettings(1e6 / hz, WINDOW_US), start_us=0)
    milliseconds, end_us = [], 0
    for count in range(-WARM_UP, RATE_WINDOWS):
        start_us, end_us = end_us, round((count + WARM_UP + 1) * 1e6 / hz)
        t = np.arange(start_us, end_us)
        chosen = t % len(events)
        packet = Events(t, events.x[chosen], events.y[chosen], events.p[chosen])
        began = time.perf_counter()
        assert len(live.push(packet, until_us=end_us)) == 1  # decoded boxes are on the CPU
        if count >= 0:
            milliseconds.append(1000 * (time.perf_counter() - began))
    return float(np.percentile(milliseconds, 95))


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
    live = StreamDetector(checkpoint, side, side, windows=WindowSettings(window_us), start_us=0)
    rng = np.random.default_rng(0)
    seen = []
    for step in range(max(steps)):
        x, y = rng.integers(0, side, (2, num_events)).astype(np.uint16)
        t = step * window_us + np.arange(num_events) * (window_us // num_events)
        live.push(Events(t, x, y, (x % 2).astype(np.uint8)), until_us=(step + 1) * window_us)
        if step + 1 in steps:
            seen.append(resident("VmRSS"))
    return seen[0], seen[-1]


def _random_counts(num_frames: int) -> Tensor:
    size = (num_frames, 20, SPEC.frame_height, SPEC.frame_width)
    return torch.randint(0, 11, size, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def table_of(rows: Sequence[Row], title: str) -> Table:
    table = Table(title=title)
    for column in ("size", "layer", "form", "ms", "95 %", "x eager", "x lstm"):
        table.add_column(column, justify="left" if column in ("size", "layer", "form") else "right")
    for row in rows:
        numbers = (row.median_ms, row.p95_ms, row.times_eager, row.times_lstm)
        table.add_row(row.size, row.layer, row.form, *("" if number is None else f"{number:.2f}" for number in numbers))
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write the file if one is given."""
    options = _options(arguments)
    torch.set_num_threads(options.threads)
    console, progress = Console(), Console(stderr=True)
    sizes, forms, device, say = options.sizes, options.forms, options.device, progress.print
    result: dict[str, Any] = machine(device)
    where = f"{result['device']}, {result['threads']} threads"
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.models or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if "steps" in options.only:
            rows = measure_steps(sizes, options.layers, forms, folder, ROUNDS, device, say)
            result["rows"] = [asdict(row) for row in rows]
            console.print(table_of(rows, f"One step at batch 1, {where}"))
        if "rates" in options.only:
            result["rates"] = measure_rates(
                sizes, [form for form in forms if form != "cuda graph"], folder, device, say
            )
            table = Table("size", "form", "Hz", "95 % of windows, ms", title=f"Highest sustained rate, {where}")
            for row in result["rates"]:
                table.add_row(row["size"], row["form"], f"{row['hz']:g}", f"{row['p95_ms']:.1f}")
            console.print(table)
    if "memory" in options.only:
        say(f"memory over {MEMORY_STEPS[1]} steps")
        memory = result["memory"] = measure_memory(MEMORY_STEPS)
        console.print(
            f"resident after {memory['steps']} steps {memory['bytes'] / 2**20:.1f} MiB, after {memory['later_steps']} "
            f"{memory['later_bytes'] / 2**20:.1f} MiB ({memory['growth']:+.2%})"
        )
    write_json(options.json, result)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streaming", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="file to write")
    parser.add_argument("--threads", type=at_least_1, default=1, help="of PyTorch, onnxruntime and OpenVINO")
    parser.add_argument("--device", type=usable_device, choices=tuple(FORMS), default="cpu")
    parser.add_argument("--only", type=some_of(PARTS), default=",".join(PARTS), help="some of the parts")
    parser.add_argument("--sizes", type=some_of(SIZES), default=",".join(SIZES), help="of the detector")
    parser.add_argument(
        "--layers", type=some_of(LAYERS), default=",".join(LAYERS), help="of the steps; rates are those of s5"
    )
    parser.add_argument("--forms", help="some of those of the device")
    parser.add_argument("--models", type=Path, help="folder to keep exported files in; default: thrown away")
    options = parser.parse_args(arguments)
    options.forms = forms_of(parser, options.forms, options.device)
    return options


def forms_of(parser: argparse.ArgumentParser, given: str | None, device: str) -> list[str]:
    """Return the forms that are named, or all of the device; end the program if a name or a package is missing."""
    forms = given.split(",") if given else list(FORMS[device])
    for form in forms:
        if form not in FORMS[device]:
            parser.error(f"--forms {form}: choose from {', '.join(FORMS[device])}")
        if form in NEEDED and find_spec(NEEDED[form]) is None:
            parser.error(f"--forms {form} needs the package {NEEDED[form]}; install it, or name other forms")
    return forms


if __name__ == "__main__":
    main()
