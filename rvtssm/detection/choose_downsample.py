"""How much to reduce a sensor that is larger than in training: as much as possible while objects are still found."""

import math
from dataclasses import dataclass

import numpy as np

from rvtssm.detection.live import StreamDetector
from rvtssm.detection.sources import Source
from rvtssm.models.checkpoint_meta import LoadedCheckpoint
from rvtssm.models.detector import Detector
from rvtssm.models.frame_size import downsample_by_size
from rvtssm.models.model_config import PostprocessConfig
from rvtssm.records import SHOWN_SCORE, Events

NUM_TRIED = 4  # windows at the start of a recording that are tried
_SURE_SCORE = 0.5


@dataclass(frozen=True, slots=True)
class ChosenDownsample:
    """A factor, and a sentence if it was chosen for boxes with low scores."""

    downsample: int
    doubt: str = ""


def choose_downsample(checkpoint: LoadedCheckpoint, source: Source) -> ChosenDownsample:
    """Return the factor by which the frames of a recording are smaller than its sensor.

    The first NUM_TRIED windows are tried at the rate of training, with the factor `downsample_by_size` and smaller ones
    down to 1. The largest factor wins with which at least half of the windows have a box with a score of at least 0.5;
    failing that, of at least SHOWN_SCORE; failing that, the usual factor. Streams, whose first windows are not known in
    advance, and exported files, whose frames have a fixed size, always use the usual factor.

    Args:
        checkpoint: The weights.
        source: The opened recording.
    """
    recording, windows = source.recording, checkpoint.windows
    usual = downsample_by_size(checkpoint, recording.height, recording.width)
    is_of_training = (recording.height, recording.width) == (checkpoint.spec.height, checkpoint.spec.width)
    if usual == 1 or is_of_training or source.is_piped or not isinstance(checkpoint.detector, Detector):
        return ChosenDownsample(usual)
    first_us, last_us = source.time_range_us
    length_us = last_us + 1 - first_us
    num_windows = min(NUM_TRIED, math.ceil(length_us / windows.stride_us))
    until_us = first_us + round(num_windows * windows.stride_us)
    events = source.between(first_us, until_us)
    best: dict[int, np.ndarray] = {}
    factors = [usual]
    while factors[-1] > 1:
        factors.append((factors[-1] + 1) // 2)
    for downsample in factors:
        best[downsample] = best_scores(checkpoint, events, (recording.height, recording.width), downsample, until_us)
        if np.mean(best[downsample] >= _SURE_SCORE) >= 0.5:
            return ChosenDownsample(downsample)
    for downsample, scores in best.items():
        if np.mean(scores >= SHOWN_SCORE) >= 0.5:
            tried_ms = min(until_us - first_us, length_us) / 1000
            return ChosenDownsample(
                downsample,
                f"downsample={downsample} was chosen for boxes with scores from {SHOWN_SCORE:g} at the start of the "
                f"recording ({tried_ms:.3g} ms at {windows.hz:g} Hz), where no factor gives {_SURE_SCORE:g}; "
                "such boxes are often wrong: look at pictures of them before you rely on them",
            )
    return ChosenDownsample(usual)


def best_scores(
    checkpoint: LoadedCheckpoint, events: Events, sensor_hw: tuple[int, int], downsample: int, until_us: int
) -> np.ndarray:
    """Return the best score of every window that ends by `until_us`.

    Args:
        checkpoint: The weights.
        events: The events from the first window on.
        sensor_hw: Height and width of the sensor, pixels.
        downsample: The factor to try.
        until_us: End of the last window.

    Returns:
        (N,) float32, 0 for a window without a box.
    """
    config = PostprocessConfig(min_score=SHOWN_SCORE, max_detections=1)
    detector = StreamDetector(checkpoint, *sensor_hw, downsample=downsample, config=config)
    closed_us = until_us + detector.windows.includes_end  # an event at the end may belong to the last window
    found = [window.detections[0].score.max(initial=0) for window in detector.push(events, closed_us)]
    return np.array(found, np.float32)
