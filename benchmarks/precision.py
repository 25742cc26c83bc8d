"""What lower precision costs a trained detector: its average precision, and how far its carried state drifts.

    python -m benchmarks.precision --checkpoint FILE --raw DIR --json FILE [--steps 10000]

AP is that of the test split of DIR with sliding windows. The drift (`benchmarks.drift`) is that of a detector in
bfloat16 from one in float32 on the windows of the first test recording, by stage.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.drift import drift_bar, measure_drift
from benchmarks.measuring import write_json
from benchmarks.scan import machine, print_bars
from rvtssm.cli.evaluate import evaluate
from rvtssm.cli.main import compose
from rvtssm.cli.weights import read_weights
from rvtssm.datasets.tree import find_recordings
from rvtssm.events.frame_counter import count_windows
from rvtssm.events.windows import free_grid
from rvtssm.models.model_config import PRECISIONS
from rvtssm.readers import open_recording

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
    found["drift"] = drift_in_bf16(options.checkpoint, options.raw, options.steps)
    found["bars"] = [drift_bar(found["drift"])]
    console = Console()
    table = Table("precision", *(f"AP at {hz} Hz" for hz in HZ), title=f"{found['device']}, {found['threads']} threads")
    for precision, by_rate in found["AP"].items():
        table.add_row(precision, *(f"{100 * by_rate[str(hz)]:.2f}" for hz in HZ))
    console.print(table)
    table = Table("steps", *(f"stage {stage}" for stage in range(1, len(next(iter(found["drift"].values()))) + 1)))
    for step, differences in found["drift"].items():
        table.add_row(step, *(f"{difference:.1e}" for difference in differences))
    console.print(table)
    print_bars(found["bars"], console)
    write_json(options.json, found)


def measure_ap(checkpoint: Path, raw: Path, precision: str) -> dict[str, float]:
    """Return AP as a fraction by rate."""
    with tempfile.TemporaryDirectory() as out:
        keys = [f"checkpoint={checkpoint}", f"dataset.raw_dir={raw}", f"precision={precision}", f"out={out}"]
        keys += [f"evaluation.hz={list(HZ)}", "evaluation.window=slide"]
        (report,) = evaluate(compose(keys))
    return {f"{row.hz:g}": row.metrics["AP"] for row in report.rows}


def drift_in_bf16(checkpoint: Path, raw: Path, num_steps: int) -> dict[str, list[float]]:
    """Return the differences of the states by stage, after 10, 100, ... steps."""
    loaded = [read_weights(compose([f"checkpoint={checkpoint}", f"precision={name}"])) for name in PRECISIONS]
    spec, windows = loaded[0].spec, loaded[0].windows
    recording = open_recording(find_recordings(raw, "test", spec)[0].events_path, spec.height, spec.width)
    events = recording.between(0, 1 << 62)
    grid = free_grid(int(events.t[0]), int(events.t[-1]), windows)
    frames = torch.from_numpy(count_windows(events, grid, spec.height, spec.width, windows, spec.downsample))
    exact, low = (weights.detector for weights in loaded)
    return measure_drift(exact, low, frames, num_steps)


if __name__ == "__main__":
    main()
