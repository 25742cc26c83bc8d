"""How fast an exported file with products in 8 bits is beside the same file in float32, and whether its state drifts.

    rvtssm export checkpoint=best.ckpt out=exact.xml
    rvtssm export checkpoint=best.ckpt out=int8.xml precision=int8 calibrate=RECORDINGS
    python -m benchmarks.quantization --exact exact.xml --low int8.xml --recording FILE [--steps 10000] [--json FILE]

Both are run by OpenVINO, in float32 and with the rest in bf16, by turns in one process; times are those of the
processor, medians and minima over rounds, and a ratio is the median over rounds. For the drift, both take the same
windows of the recording over and over, from the zero state and without a reset; the difference of the states is the
norm of the difference over the norm of the exact state, the largest of all states, at the end of each decade of steps.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console

from benchmarks.scan import machine
from rvtssm.atomic_files import atomic_file
from rvtssm.inference.calibration import CalibrationFrames
from rvtssm.inference.exported import read_exported

ROUNDS, WARM_UP = 25, 3


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write the file if one is given."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--exact", type=Path, required=True, help=".xml of `rvtssm export`")
    parser.add_argument("--low", type=Path, required=True, help="the same with precision=int8")
    parser.add_argument("--recording", required=True)
    parser.add_argument("--steps", type=int, default=10_000, help="of the drift")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    checkpoint = read_exported(options.exact)
    frames = CalibrationFrames(
        (options.recording,), checkpoint.spec, checkpoint.windows, checkpoint.detector.frame_hw, 200
    )
    counts = [torch.from_numpy(frame)[None, None] for frame in frames.first(100)]
    found: dict[str, Any] = {**machine("cpu"), "rows": measure_steps(options.exact, options.low, counts[0])}
    console = Console()
    for row in found["rows"]:
        times = f"{row['ms']:.1f} ms (least {row['least_ms']:.1f}), {row['times']:.2f} times as fast"
        console.print(f"{row['file']} in {row['precision']}: {times}")
    found["drift"] = measure_drift(options.exact, options.low, counts, options.steps)
    console.print("drift by steps: " + ", ".join(f"{step}: {value:.1e}" for step, value in found["drift"].items()))
    if options.json:
        with atomic_file(options.json) as staged:
            staged.write_text(json.dumps(found, indent=1) + "\n")


@torch.inference_mode()
def measure_steps(exact: Path, low: Path, counts: torch.Tensor, rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """Return milliseconds of both files in both precisions, and how many times faster than the first one."""
    forms = [(path, precision) for path in (exact, low) for precision in ("float32", "bf16")]
    detectors = [read_exported(path, precision=precision).detector for path, precision in forms]
    taken: list[list[float]] = [[] for _ in forms]
    for round_ in range(-WARM_UP, rounds):
        for detector, times in zip(detectors, taken, strict=True):
            state = detector.init_state(1)
            start = time.process_time()
            detector(counts, state)
            if round_ >= 0:
                times.append(1000 * (time.process_time() - start))
    return [
        {
            "file": path.name,
            "precision": precision,
            "ms": median(times),
            "least_ms": min(times),
            "times": median(first / own for first, own in zip(taken[0], times, strict=True)),
        }
        for (path, precision), times in zip(forms, taken, strict=True)
    ]


@torch.inference_mode()
def measure_drift(exact: Path, low: Path, counts: Sequence[torch.Tensor], num_steps: int) -> dict[str, float]:
    """Return the difference of the states after 10, 100, ... steps."""
    detectors = [read_exported(path).detector for path in (exact, low)]
    states: list[Any] = [detector.init_state(1) for detector in detectors]
    found = {}
    for step in range(1, num_steps + 1):
        frame = counts[(step - 1) % len(counts)]
        states = [detector(frame, state)[1] for detector, state in zip(detectors, states, strict=True)]
        if step == num_steps or (step >= 10 and str(step).strip("0") == "1"):
            pairs = zip(*states, strict=True)
            found[str(step)] = max(float((ours - theirs).norm() / theirs.norm()) for theirs, ours in pairs)
    return found


if __name__ == "__main__":
    main()
