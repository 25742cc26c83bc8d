"""What lower precision costs a trained detector: its average precision, and how far its carried state drifts.

    python -m benchmarks.precision --checkpoint FILE --raw DIR --json FILE [--steps 10000]

AP is that of the test split of DIR with sliding windows. For the drift, a detector in bfloat16 and one in float32 take
the same windows of the first test recording, over and over, from the zero state and without a reset. The difference of
the states is the norm of the difference over the norm of the state in float32, by stage, at the end of each decade.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.scan import machine
from rvtssm.atomic_files import atomic_file
from rvtssm.cli import compose
from rvtssm.events.frame_counter import count_windows
from rvtssm.events.readers import open_recording
from rvtssm.events.tree import find_recordings
from rvtssm.events.windows import free_grid
from rvtssm.models.model_config import PRECISIONS
from rvtssm.run.evaluate import evaluate
from rvtssm.run.weights import read_weights

HZ = (20, 100, 200)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write the file if one is given."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--raw", type=Path, required=True, help="folder of recordings with a test split")
    parser.add_argument("--steps", type=int, default=10_000, help="of the drift")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    found: dict[str, Any] = {**machine("cpu"), "steps": options.steps}
    found["AP"] = {precision: measure_ap(options.checkpoint, options.raw, precision) for precision in PRECISIONS}
    found["drift"] = measure_drift(options.checkpoint, options.raw, options.steps)
    console = Console()
    table = Table("precision", *(f"AP at {hz} Hz" for hz in HZ), title=f"{found['device']}, {found['threads']} threads")
    for precision, by_rate in found["AP"].items():
        table.add_row(precision, *(f"{100 * by_rate[str(hz)]:.2f}" for hz in HZ))
    console.print(table)
    table = Table("steps", *(f"stage {stage}" for stage in range(1, len(next(iter(found["drift"].values()))) + 1)))
    for step, differences in found["drift"].items():
        table.add_row(step, *(f"{difference:.1e}" for difference in differences))
    console.print(table)
    if options.json:
        with atomic_file(options.json) as staged:
            staged.write_text(json.dumps(found, indent=1) + "\n")


def measure_ap(checkpoint: Path, raw: Path, precision: str) -> dict[str, float]:
    """Return AP as a fraction by rate."""
    with tempfile.TemporaryDirectory() as out:
        keys = [f"checkpoint={checkpoint}", f"dataset.raw_dir={raw}", f"precision={precision}", f"out={out}"]
        keys += [f"evaluation.frequencies_hz={list(HZ)}", "evaluation.window=slide"]
        (report,) = evaluate(compose(keys))
    return {f"{row.hz:g}": row.metrics["AP"] for row in report.rows}


@torch.inference_mode()
def measure_drift(checkpoint: Path, raw: Path, num_steps: int) -> dict[str, list[float]]:
    """Return the differences of the states by stage, after 10, 100, ... steps."""
    loaded = [read_weights(compose([f"checkpoint={checkpoint}", f"precision={name}"])) for name in PRECISIONS]
    spec, windows = loaded[0].spec, loaded[0].windows
    recording = open_recording(find_recordings(raw, "test", spec)[0].events_path, spec.height, spec.width)
    events = recording.between(0, 1 << 62)
    grid = free_grid(int(events.t[0]), int(events.t[-1]), windows)
    frames = torch.from_numpy(count_windows(events, grid, spec.height, spec.width, windows, spec.downsample))
    steps = [(weights.detector, weights.detector.prepare(1.0)) for weights in loaded]
    states: list[Any] = [detector.init_state(1) for detector, _ in steps]
    none = torch.zeros(0, 2, dtype=torch.int64)
    found: dict[str, list[float]] = {}
    for step in range(1, num_steps + 1):
        frame = frames[(step - 1) % len(frames)][None, None]
        states = [run(frame, state, scale, none)[1] for (run, scale), state in zip(steps, states, strict=True)]
        if step == num_steps or (step >= 10 and set(str(step)[1:]) == {"0"} and str(step)[0] == "1"):
            pairs = zip(*states, strict=True)
            found[str(step)] = [float(torch.norm(low - exact) / torch.norm(exact)) for exact, low in pairs]
    return found


if __name__ == "__main__":
    main()
