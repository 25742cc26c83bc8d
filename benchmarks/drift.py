"""How far the carried state of a detector in lower precision drifts from that in float32 over thousands of steps.

Both take the same windows over and over, from the zero state and without a reset. The difference of a state is the norm
of the difference over the norm of the state in float32, the largest of the last 100 steps, at the end of each decade.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_LAST = 100  # steps of which the largest difference counts, since it changes from window to window
_MOST_GROWTH = 1.1  # of the largest difference from one decade to the next


@torch.inference_mode()
def measure_drift(exact: Any, low: Any, frames: Sequence[Tensor] | Tensor, num_steps: int) -> dict[str, list[float]]:
    """Return the difference of each state after 10, 100, ... steps and the last one. Frames are (C, H, W)."""
    detectors = [(detector, detector.prepare(1.0)) for detector in (exact, low)]
    states: list[Any] = [detector.init_state(1) for detector, _ in detectors]
    no_frame = torch.zeros(0, 2, dtype=torch.int64)  # neither neck nor head needs to run
    decades = [10**power for power in range(1, len(str(num_steps))) if 10**power < num_steps] + [num_steps]
    found: dict[str, list[float]] = {}
    for step in range(1, num_steps + 1):
        frame = frames[(step - 1) % len(frames)][None, None]
        states = [run(frame, state, scale, no_frame)[1] for (run, scale), state in zip(detectors, states, strict=True)]
        decade = next(each for each in decades if step <= each)
        if step > decade - _LAST:
            differences = [float((ours - theirs).norm() / theirs.norm()) for theirs, ours in zip(*states, strict=True)]
            before = found.get(str(decade), differences)
            found[str(decade)] = [max(pair) for pair in zip(before, differences, strict=True)]
    return found


def drift_bar(drift: dict[str, list[float]]) -> dict[str, Any]:
    """Return whether the largest difference stayed as it was over the last decade of steps."""
    (before, early), (after, late) = list(drift.items())[-2:]
    growth = max(late) / max(early)
    return {
        "bar": f"states after {after} steps against {before}: {growth:.2f} times as far apart",
        "wanted": f"<= {_MOST_GROWTH:g}",
        "met": growth <= _MOST_GROWTH,
    }
