"""Streaming accuracy (Li, Wang and Ramanan, 2020): each label is scored with the newest boxes that are ready by then.

The time from the end of a window to its boxes is given, read from the file of a benchmark, or measured here.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rvtssm.datasets.sequence import FrameSequence
from rvtssm.detection.engine import StreamDetector
from rvtssm.evaluation.detector_run import DetectorRun
from rvtssm.readers import open_with
from rvtssm.system.user_error import UserError

_WARM_UP = 5  # first windows, which compile and allocate and are not timed
_TIMED = 60  # windows to time
Ints = npt.NDArray[np.int64]


class LabelSteps(NamedTuple):
    """The step whose output is scored at each label time of a recording."""

    times_us: Ints  # (U,) ascending, times of labels with and without boxes
    steps: Ints  # (U,) -1: nothing was detected, because the label precedes every output


def step_latency_ms(run: DetectorRun, sequences: Sequence[FrameSequence]) -> float:
    """Return the duration of a step in milliseconds: given, read from a file, or measured on the longest recording.

    Args:
        run: The detector, and the options.
        sequences: The recordings in windows at the rate.

    Raises:
        UserError: The file has no latency, or prepared recordings do not allow to measure one.
    """
    options = run.options
    if options.latency_ms is not None:
        return options.latency_ms
    if options.latency_from is not None:
        return read_latency_ms(Path(options.latency_from))
    if run.source != "raw":
        needed = "the latency is measured on raw recordings"
        advice = "use them (evaluation.source=raw dataset.raw_dir=DIR), or give evaluation.latency_ms"
        raise UserError("setting.needs", name="evaluation.streaming", found="true", needed=needed, advice=advice)
    return measured_latency_ms(run, max(sequences, key=lambda sequence: len(sequence.windows)))


def measured_latency_ms(run: DetectorRun, sequence: FrameSequence) -> float:
    """Return the median milliseconds per window of a raw recording at batch size 1, from counting events to boxes.

    Raise a UserError if the recording is shorter than a window.
    """
    # The same detector, one window at a time as in live detection.
    spec = sequence.source.plan.spec  # type: ignore[union-attr]  # of a raw recording
    path = sequence.source.path
    recording = open_with(path, spec.read_options)
    windows = sequence.settings
    sensor_hw = (recording.height, recording.width)
    downsample = spec.downsample
    config = run.postprocess
    detector = StreamDetector(
        run.checkpoint, *sensor_hw, windows=windows, downsample=downsample, config=config, skip="never"
    )
    # The first windows of the recording, until enough are timed.
    seconds: list[float] = []
    for packet in recording.iterate(reuse=True):
        seconds += [window.seconds for window in detector.push(packet)]
        if len(seconds) >= _WARM_UP + _TIMED:
            break
    recording.close()
    if not seconds:
        found = f"it is shorter than a window of {windows.stride_us / 1000:g} ms, so no latency can be measured"
        raise UserError("file.content", name=path, found=found, advice="give evaluation.latency_ms")
    return 1000 * float(np.median(seconds[min(_WARM_UP, len(seconds) // 2) :]))


def read_latency_ms(path: Path) -> float:
    """Return the milliseconds of a step that `prediction.json` holds, from counting events to boxes.

    Raise a UserError if it has none, or if it was not measured with single windows: a call with several windows does
    not tell the latency of one.
    """
    try:
        content: Any = json.loads(path.read_text())
        latency_ms = float(content["step_ms"]["p50"])
        num_windows = content["windows_per_call"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        found = "the file has no latency"
        advice = "give a prediction.json of `rvtssm predict`, or evaluation.latency_ms"
        raise UserError("file.content", name=f"evaluation.latency_from={path}", found=found, advice=advice) from error
    # The number must be the time of one window, and one that can be.
    if num_windows != 1:
        found = f"it was measured with {num_windows} windows per call"
        advice = "predict with windows_per_call=1 to measure the latency of one"
        raise UserError("file.content", name=f"evaluation.latency_from={path}", found=found, advice=advice)
    if not 0 <= latency_ms < math.inf:
        found = f"a latency of {latency_ms:g} ms"
        needed = "it must be at least 0"
        raise UserError("file.content", name=f"evaluation.latency_from={path}", found=found, needed=needed)
    return latency_ms


def newest(times_us: np.ndarray, known_us: np.ndarray) -> np.ndarray:
    """Return, for each time, the index of the newest output that is known by then.

    Args:
        times_us: (N,), times.
        known_us: (M,), when each output becomes known, ascending.

    Returns:
        (N,) indices into `known_us`, -1 if nothing is known yet.
    """
    return np.searchsorted(known_us, times_us, side="right").astype(np.int64) - 1


def taken_steps(ends_us: np.ndarray, latency_us: float, when_late: str) -> tuple[np.ndarray, np.ndarray]:
    """Return which steps are computed, and when each has finished.

    A step starts when its window has ended and the previous step has finished, and takes `latency_us`.

    Args:
        ends_us: (N,), ends of the windows.
        latency_us: Duration of a step.
        when_late: If windows end faster than steps finish: `skip` continues with the newest window, `queue` computes
            every window in order.

    Returns:
        (M,) indices of the windows, and (M,) microseconds.
    """
    steps = []
    finished_us = []
    free_us = -np.inf
    step = 0
    while step < len(ends_us):
        # The step begins when its window has ended and the detector is free.
        free_us = max(free_us, float(ends_us[step])) + latency_us
        steps.append(step)
        finished_us.append(free_us)
        step += 1
        if when_late == "skip":
            step = max(step, int(newest(np.array([free_us]), ends_us)[0]))
    return np.array(steps, np.int64), np.array(finished_us)


def newest_steps(sequence: FrameSequence, known_us: npt.NDArray[np.generic], shift_us: int = 0) -> LabelSteps:
    """Score each label with the newest output that is known at its time plus a shift.

    Args:
        sequence: The recording.
        known_us: When the output of each step becomes known, ascending.
        shift_us: The shift.
    """
    times_us = np.union1d(sequence.labels.t_us, sequence.labels.empty_us)
    return LabelSteps(times_us, newest(times_us + shift_us, known_us))


def late_steps(
    sequences: Sequence[FrameSequence], latency_ms: float, when_late: str
) -> tuple[list[FrameSequence], list[LabelSteps]]:
    """Return recordings with the steps that a detector of this latency takes, and which of them labels are scored with.

    Args:
        sequences: The recordings.
        latency_ms: Duration of a step.
        when_late: See `taken_steps`.

    Raises:
        UserError: The detector would skip windows of a prepared recording.
    """
    taken = []
    label_steps = []
    for sequence in sequences:
        steps, finished_us = taken_steps(sequence.windows.ends_us, 1000 * latency_ms, when_late)
        taken.append(sequence.taking(steps))
        label_steps.append(newest_steps(taken[-1], finished_us))
    return taken, label_steps
