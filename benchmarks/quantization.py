"""How fast an exported file with products in 8 bits is beside the same file in float32, and whether its state drifts.

    rvtssm export checkpoint=best.ckpt out=exact.xml
    rvtssm export checkpoint=best.ckpt out=int8.xml precision=int8 calibrate=RECORDINGS
    python -m benchmarks.quantization --exact exact.xml --low int8.xml --recording FILE [--steps 10000] [--json FILE]

Both are run by OpenVINO, in float32 and with the rest in bf16, by turns in one process; times are those of the
processor, medians and minima over rounds, and a ratio is the median over rounds. The drift is that on the
first 100 windows of the recording, the largest of all states.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from benchmarks.measuring import write_json
from benchmarks.scan import machine
from rvtssm.contrib.int8.quantization import CalibrationFrames
from rvtssm.export.exported import read_exported

ROUNDS, WARM_UP = 25, 3
_LAST = 100  # steps of which the largest difference counts, since it changes from window to window


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
    counts = [torch.from_numpy(frame) for frame in frames.first(100)]
    result: dict[str, Any] = {
        **machine("cpu"),
        "rows": measure_steps(options.exact, options.low, counts[0][None, None]),
    }
    console = Console()
    for row in result["rows"]:
        times = f"{row['ms']:.1f} ms (least {row['least_ms']:.1f}), {row['times']:.2f} times as fast"
        console.print(f"{row['file']} in {row['precision']}: {times}")
    exact, low = (read_exported(path).detector for path in (options.exact, options.low))
    result["drift"] = measure_drift(exact, low, counts, options.steps)
    by_steps = (f"{step}: {max(differences):.1e}" for step, differences in result["drift"].items())
    console.print(f"drift by steps: {', '.join(by_steps)}")
    write_json(options.json, result)


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
    rows = []
    for (path, precision), times in zip(forms, taken, strict=True):
        row = {"file": path.name, "precision": precision, "ms": median(times), "least_ms": min(times)}
        rows.append(row | {"times": median(first / own for first, own in zip(taken[0], times, strict=True))})
    return rows


@torch.inference_mode()
def measure_drift(exact: Any, low: Any, frames: Sequence[Tensor] | Tensor, num_steps: int) -> dict[str, list[float]]:
    """Return the difference of each state after 10, 100, ... steps and the last one. Frames are (C, H, W).

    Both detectors take the same windows over and over, from the zero state and without a reset. The difference of a
    state is the norm of the difference over the norm of the state in float32, the largest of the last 100 steps of each
    decade.
    """
    detectors = [(detector, detector.prepare(1.0)) for detector in (exact, low)]
    states: list[Any] = [detector.init_state(1) for detector, _ in detectors]
    no_frame = torch.zeros(0, 2, dtype=torch.int64)  # neither neck nor head needs to run
    decades = [10**power for power in range(1, len(str(num_steps))) if 10**power < num_steps] + [num_steps]
    drift: dict[str, list[float]] = {}
    for step in range(1, num_steps + 1):
        frame = frames[(step - 1) % len(frames)][None, None]
        states = [run(frame, state, scale, no_frame)[1] for (run, scale), state in zip(detectors, states, strict=True)]
        decade = next(last for last in decades if step <= last)
        if step > decade - _LAST:
            differences = [float((ours - theirs).norm() / theirs.norm()) for theirs, ours in zip(*states, strict=True)]
            before = drift.get(str(decade), differences)
            drift[str(decade)] = [max(pair) for pair in zip(before, differences, strict=True)]
    return drift


if __name__ == "__main__":
    main()
