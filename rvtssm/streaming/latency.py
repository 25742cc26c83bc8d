"""How long a detector takes from the end of a window to its boxes, and which boxes are known at a time because of it.

The time is measured here, or read from the file of a benchmark. Streaming accuracy (Li, Wang and Ramanan 2020) scores a
label with the newest boxes that were known.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from rvtssm.events.readers import open_recording
from rvtssm.models.checkpoint import LoadedCheckpoint
from rvtssm.models.model_config import PostprocessConfig
from rvtssm.records import WindowSettings
from rvtssm.streaming.live import StreamDetector
from rvtssm.streaming.schedule import FixedRate
from rvtssm.system.user_error import UserError

_WARM_UP = 5  # windows; the first ones compile and allocate
_TIMED = 60


def measured_latency_ms(
    checkpoint: LoadedCheckpoint, path: Path, windows: WindowSettings, config: PostprocessConfig
) -> float:
    """Return the median time of a window of a recording, from counting its events to its boxes, at batch 1."""
    recording = open_recording(path, checkpoint.spec.height, checkpoint.spec.width)
    detector = StreamDetector(
        checkpoint,
        recording.height,
        recording.width,
        schedule=FixedRate(windows.hz, windows.length_us),
        downsample=checkpoint.spec.downsample,
        config=config,
    )
    seconds: list[float] = []
    for packet in recording.iterate(reuse=True):
        seconds += [window.seconds for window in detector.push(packet)]
        if len(seconds) >= _WARM_UP + _TIMED:
            break
    recording.close()
    if not seconds:
        raise UserError(
            f"{path} is shorter than a window of {windows.stride_us / 1000:g} ms, so no latency can be measured; "
            "give evaluation.latency_ms"
        )
    return 1000 * float(np.median(seconds[min(_WARM_UP, len(seconds) // 2) :]))


def read_latency_ms(path: Path, checkpoint: LoadedCheckpoint) -> float:
    """Return the latency that a file tells: `prediction.json`, or the JSON of `benchmarks.streaming`.

    Both leave the counting of events out. The first must be from single windows, since a call with several of them says
    nothing about one. Of the second, it is the row of the size, layer and frame of the checkpoint, run eagerly. Raise
    ValueError without such a number.
    """
    spec = checkpoint.spec
    try:
        found: Any = json.loads(path.read_text())
        if "step_ms" in found:
            latency_ms, num_windows = float(found["step_ms"]["p50"]), found["windows_per_call"]
        else:
            wanted = {
                "size": checkpoint.model_config.size,
                "layer": checkpoint.temporal_config.name,
                "form": "eager",
                "frame_hw": [spec.frame_height, spec.frame_width],
            }
            rows = [row for row in found["rows"] if all(row[name] == value for name, value in wanted.items())]
            latency_ms, num_windows = float(rows[0]["median_ms"]), 1
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UserError(
            f"evaluation.latency_from={path} tells no latency of {checkpoint.model_config.size} "
            f"{checkpoint.temporal_config.name}; give a prediction.json of `rvtssm predict` or the JSON of "
            f"benchmarks.streaming for frames of {spec.frame_height} x {spec.frame_width}, or evaluation.latency_ms"
        ) from error
    if num_windows != 1:
        raise UserError(
            f"evaluation.latency_from={path} is of calls of {num_windows} windows; predict with "
            "predict.windows_per_call=1 for the latency of one"
        )
    if not 0 <= latency_ms < math.inf:
        raise UserError(f"evaluation.latency_from={path} tells {latency_ms:g} ms; needed is a number from 0 on")
    return latency_ms


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
