"""How far a sensor is reduced that is larger than that of the training: as far as something is still found."""

import math

import numpy as np

from rvtssm.models.checkpoint import LoadedCheckpoint
from rvtssm.models.detector import Detector
from rvtssm.models.frame_size import usual_downsample
from rvtssm.models.model_config import PostprocessConfig
from rvtssm.records import SHOWN_SCORE, Events
from rvtssm.streaming.live import StreamDetector
from rvtssm.streaming.sources import Source

NUM_TRIED = 4  # windows at the start of a recording
_SURE_SCORE = 0.5


def choose_downsample(checkpoint: LoadedCheckpoint, source: Source) -> int:
    """Return the factor by which the frames of a recording are smaller than its sensor.

    `usual_downsample` and smaller ones, down to 1, are tried on the first NUM_TRIED windows, at the rate of the
    training. The largest is chosen with which half of the windows or more have a box with a score of at least 0.5, else
    of at least SHOWN_SCORE, else the usual one. That one also serves streams, whose first windows are not known, and
    exported files, whose frames have one size.
    """
    recording, windows = source.recording, checkpoint.windows
    usual = usual_downsample(checkpoint.spec, recording.height, recording.width)
    is_of_training = (recording.height, recording.width) == (checkpoint.spec.height, checkpoint.spec.width)
    if usual == 1 or is_of_training or source.is_piped or not isinstance(checkpoint.detector, Detector):
        return usual
    first_us, last_us = source.time_range_us
    num_windows = min(NUM_TRIED, math.ceil((last_us + 1 - first_us) / windows.stride_us))
    until_us = first_us + round(num_windows * windows.stride_us)
    events = source.between(first_us, until_us)
    best: dict[int, np.ndarray] = {}
    for downsample in _smaller_and_smaller(usual):
        best[downsample] = best_scores(checkpoint, events, (recording.height, recording.width), downsample, until_us)
        if np.mean(best[downsample] >= _SURE_SCORE) >= 0.5:
            return downsample
    return next((n for n, scores in best.items() if np.mean(scores >= SHOWN_SCORE) >= 0.5), usual)


def best_scores(
    checkpoint: LoadedCheckpoint, events: Events, sensor_hw: tuple[int, int], downsample: int, until_us: int
) -> np.ndarray:
    """Return the best score of every window of the events that ends by `until_us`, (N,) float32, 0 without a box."""
    config = PostprocessConfig(min_score=SHOWN_SCORE, max_detections=1)
    detector = StreamDetector(checkpoint, *sensor_hw, downsample=downsample, config=config)
    found = [window.detections[0].score.max(initial=0) for window in detector.push(events, until_us)]
    return np.array(found, np.float32)


def _smaller_and_smaller(downsample: int) -> list[int]:
    """Return factors down to 1, each half of the one before it, rounded up."""
    return [downsample] if downsample == 1 else [downsample, *_smaller_and_smaller((downsample + 1) // 2)]
