"""Which output of a detector is scored at each label time."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rvtssm.datasets.sequence import FrameSequence
from rvtssm.evaluation.latency import newest, taken_steps
from rvtssm.records import Detections

Ints = npt.NDArray[np.int64]


class LabelSteps(NamedTuple):
    """The step whose output is scored at each label time of a recording."""

    times_us: Ints  # (U,) ascending, times of labels with and without boxes
    steps: Ints  # (U,) -1: nothing was detected, because the label precedes every output


def own_steps(sequence: FrameSequence) -> LabelSteps:
    """Score each label with the window that it was assigned to: the one that ends at the label, or the next one."""
    labels, windows = sequence.labels, sequence.windows
    box_us, first = np.unique(labels.t_us, return_index=True)
    empty_us = np.setdiff1d(labels.empty_us, box_us)
    empty_steps = np.minimum(np.searchsorted(windows.ends_us, empty_us), len(windows) - 1)
    empty_steps[empty_us < windows.ends_us[0] - windows.dt_us[0]] = -1
    times_us, steps = np.concatenate([box_us, empty_us]), np.concatenate([labels.window_index[first], empty_steps])
    order = np.argsort(times_us, kind="stable")
    return LabelSteps(times_us[order], steps[order])


def newest_steps(sequence: FrameSequence, known_us: npt.NDArray[np.generic], shift_us: int = 0) -> LabelSteps:
    """Score each label with the newest output that is known at its time plus a shift.

    Args:
        sequence: The recording.
        known_us: When the output of each step becomes known, ascending.
        shift_us: The shift.
    """
    times_us = np.union1d(sequence.labels.t_us, sequence.labels.empty_us)
    return LabelSteps(times_us, newest(times_us + shift_us, known_us))


def after_latency(
    sequence: FrameSequence, latency_ms: float, when_late: str
) -> tuple[FrameSequence, npt.NDArray[np.float64]]:
    """Return a recording with the steps that a detector of this latency takes, and when each has finished.

    Args:
        sequence: The recording.
        latency_ms: Duration of a step.
        when_late: See `taken_steps`.

    Raises:
        UserError: The detector would skip windows of a prepared recording.
    """
    steps, finished_us = taken_steps(sequence.windows.ends_us, 1000 * latency_ms, when_late)
    return sequence.taking(steps), finished_us


def asking(sequence: FrameSequence, *label_steps: LabelSteps) -> FrameSequence:
    """Return the recording with the scored steps as its wanted steps."""
    steps = np.unique(np.concatenate([each.steps for each in label_steps]))
    return replace(sequence, asked=steps[steps >= 0])


def at_labels(label_steps: LabelSteps, steps: Ints, outputs: Sequence[Detections]) -> list[Detections]:
    """Return the detections to score at each label time.

    Args:
        label_steps: Which step is scored at each label time.
        steps: (M,) the steps with outputs.
        outputs: One per step.
    """
    by_step = dict(zip(steps.tolist(), outputs, strict=True))
    by_step[-1] = Detections(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64), 0)
    pairs = zip(label_steps.times_us.tolist(), label_steps.steps.tolist(), strict=True)
    return [replace(by_step[step], t_us=time_us) for time_us, step in pairs]
