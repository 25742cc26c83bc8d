"""Compare a detector with itself: the same steps with another state, another past or another step scale."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rvtssm.models.checkpoint_meta import LoadedCheckpoint
from rvtssm.models.detector import Detector
from rvtssm.models.streams import Streams

_HELD_STEPS = 4  # steps of training for which an input is held

Numbers = dict[str, float]  # by output: a map, such as `stride 8`, `boxes` or `scores`


def carried_and_dropped(
    checkpoint: LoadedCheckpoint, detector: Detector, frames: Tensor, border: int
) -> dict[str, Numbers]:
    """Return how much the outputs change if the state is dropped, at one step and at every step.

    Args:
        checkpoint: The weights.
        detector: The detector for this frame size.
        frames: (L, C, H, W), L > border.
        border: The step at which the state is dropped.

    Returns:
        The difference at step `border` if the state is dropped there, and the mean difference after the first step if
        it is dropped at every step.
    """
    at_border = _differences(checkpoint, detector, frames, frames, {border})
    always = _differences(checkpoint, detector, frames, frames, set(range(len(frames))))
    numbers: dict[str, Numbers] = {"at the border": {}, "at every step": {}}
    for name in at_border:
        numbers["at the border"][name] = float(at_border[name][border])
        numbers["at every step"][name] = float(always[name][1:].mean())
    return numbers


def memory_curves(checkpoint: LoadedCheckpoint, detector: Detector, frames: Tensor, at: int) -> dict[str, np.ndarray]:
    """Return the relative change of each output at steps at, at + 1, ... if the events of window `at` are removed.

    Args:
        checkpoint: The weights.
        detector: The detector for this frame size.
        frames: (L, C, H, W).
        at: The window to empty.
    """
    emptied = frames.clone()
    emptied[at] = 0
    differences = _differences(checkpoint, detector, frames, emptied, set())
    return {name: values[at:] for name, values in differences.items()}


def memory_steps(curve: np.ndarray, threshold: float, stride_ms: float) -> float | None:
    """Return the time until a curve stays at or below a share of its first value.

    Args:
        curve: (N,), one value per step.
        threshold: The share.
        stride_ms: Duration of a step.

    Returns:
        Milliseconds; inf if it never does, None if the curve starts at zero.
    """
    if not curve[0] > 0:
        return None
    last = int(np.flatnonzero(curve > threshold * curve[0])[-1])
    return math.inf if last == len(curve) - 1 else (last + 1) * stride_ms


def rescaling(
    detector: Detector, before: Tensor, held: Tensor, finer: Sequence[int]
) -> tuple[dict[int, Numbers], dict[int, Numbers]]:
    """Compare finer steps with steps of training over the same time.

    Args:
        detector: The detector.
        before: (L, C, H, W), frames that fill the state.
        held: (1, C, H, W), the constant input.
        finer: How many finer steps replace one step of training.

    Returns:
        Differences of states and outputs, first with the step scale of the finer steps, then with that of training.
    """
    _, state = detector(before[:, None].to(detector.device))
    reference = _hold(detector, held, state, _HELD_STEPS, 1.0)

    def compared(factor: int, step_scale: float) -> Numbers:
        after = _hold(detector, held, state, _HELD_STEPS * factor, step_scale)
        return {name: _relative(after[name], values) for name, values in reference.items()}

    rescaled = {factor: compared(factor, 1 / factor) for factor in finer}
    return rescaled, {factor: compared(factor, 1.0) for factor in finer}


def _differences(
    checkpoint: LoadedCheckpoint, detector: Detector, frames: Tensor, others: Tensor, resets: set[int]
) -> dict[str, np.ndarray]:
    """Return, by output, how much (L,) a stream of `others`, restarted at `resets`, differs from one of `frames`."""
    stride_us = checkpoint.windows.stride_us
    streams = Streams(detector, stride_us, checkpoint.model_config.memory_chunk)
    differences: dict[str, list[float]] = defaultdict(list)
    with _watched(detector) as maps:
        for step, pair in enumerate(zip(frames, others, strict=True)):
            predictions = streams.push(
                torch.stack(pair)[None],
                torch.full((1, 2), stride_us, dtype=torch.float64),
                torch.tensor([[0, 0], [0, 1]]),
                slots=[0, 1],
                is_first=[step == 0, step == 0 or step in resets],
            )
            for name, (ours, theirs) in _outputs(detector, maps, predictions).items():
                differences[name].append(_relative(theirs, ours))
    return {name: np.array(values) for name, values in differences.items()}


def _hold(detector: Detector, held: Tensor, state: Any, num_steps: int, step_scale: float) -> dict[str, Tensor]:
    """Return states and outputs of one stream after the last step."""
    prepared, frame = detector.prepare(step_scale), held[:, None].to(detector.device)
    with _watched(detector) as maps:
        for _ in range(num_steps):
            predictions, state = detector(frame, state, prepared)
        after = {name: values[0] for name, values in _outputs(detector, maps, predictions).items()}
    for stride, leaves in zip(detector.backbone.temporal_layers(), state, strict=True):
        flat = [leaves] if isinstance(leaves, Tensor) else list(leaves)
        real = [torch.view_as_real(leaf) if leaf.is_complex() else leaf for leaf in flat]
        after[f"state {stride}"] = torch.cat([leaf.flatten() for leaf in real] or [held.new_zeros(1)])
    return after


@contextmanager
def _watched(detector: Detector) -> Iterator[dict[int, Tensor]]:
    """Yield the maps (1, B, H, W, D) of the last call of a detector, by stride."""
    maps: dict[int, Tensor] = {}

    def keep(module: Any, given: Any, result: tuple[dict[int, Tensor], Any]) -> None:
        maps.update(result[0])

    handle = detector.backbone.register_forward_hook(keep)
    try:
        yield maps
    finally:
        handle.remove()


def _outputs(detector: Detector, maps: dict[int, Tensor], predictions: Any) -> dict[str, Tensor]:
    """Return the outputs (B, ...) of one step by name."""
    boxes, scores = detector.head.compared(predictions)
    outputs = {f"stride {stride}": values[0] for stride, values in maps.items()}
    return {**outputs, "boxes": boxes, "scores": scores}


def _relative(values: Tensor, reference: Tensor) -> float:
    size = reference.double().norm()
    return float((values.double() - reference.double()).norm() / size.clamp_min(torch.finfo(torch.float64).tiny))
