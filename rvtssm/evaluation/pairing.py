"""Which output of a detector is scored at which label time: the end of one window may answer labels of other times."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from rvtssm.records import Detections, Labels, Windows


def requests(steps: np.ndarray, windows: Windows) -> Labels:
    """Return labels without a size that ask for the outputs of some steps, at the times when their windows end."""
    steps = np.unique(steps)
    nothing = np.zeros(len(steps), np.int64)
    boxes = np.zeros((len(steps), 4), np.float32)
    return Labels(boxes, nothing, windows.ends_us[steps], steps, nothing - 1)


def paired(labels: Labels, outputs: Mapping[int, Detections]) -> list[Detections]:
    """Return the detections to score at each label time: those of the step that its labels belong to.

    `outputs` are by step. A label of the step -1 came before any output, so nothing was detected.
    """
    empty = Detections(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64), 0)
    times, first = np.unique(labels.t_us, return_index=True)
    steps = labels.window_index[first]
    return [
        replace(outputs[step] if step >= 0 else empty, t_us=time)
        for time, step in zip(times.tolist(), steps.tolist(), strict=True)
    ]
