"""Which output of a detector is scored at which label time: that of its window, or the newest that had finished.

The second is streaming accuracy (Li, Wang and Ramanan 2020): a detector is judged by what it knew at the time.
"""

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


def newest(times_us: np.ndarray, known_us: np.ndarray) -> np.ndarray:
    """Return for each time the index of the last of `known_us`, ascending, at or before it; -1 if there is none."""
    return np.searchsorted(known_us, times_us, side="right").astype(np.int64) - 1


def taken_steps(ends_us: np.ndarray, latency_us: float, when_late: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps that are computed, (M,) indices of windows, and when each has finished, (M,) microseconds.

    A step begins when its window has ended and the step before has finished, and takes `latency_us`. If windows end
    faster than steps finish, `when_late` is "skip": the next step takes the newest window, or "queue": every window is
    computed in order.
    """
    steps, finished_us, free_us, step = [], [], -np.inf, 0
    while step < len(ends_us):
        free_us = max(free_us, float(ends_us[step])) + latency_us
        steps.append(step)
        finished_us.append(free_us)
        step += 1
        if when_late == "skip":
            step = max(step, int(newest(np.array([free_us]), ends_us)[0]))
    return np.array(steps, np.int64), np.array(finished_us)
