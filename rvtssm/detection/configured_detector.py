"""The detector that settings describe. What they leave open is decided here: hz=auto, and the size of frames."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rvtssm.detection.downsample import choose_downsample
from rvtssm.detection.engine import StreamDetector
from rvtssm.detection.inference_config import AUTO, DetectionConfig, shown_boxes
from rvtssm.detection.sources import OpenedSource
from rvtssm.detection.track_objects import TRACK_MEMORY_S, tracker_of
from rvtssm.models.checkpoint_meta import LoadedCheckpoint
from rvtssm.models.model_config import PostprocessConfig
from rvtssm.readers.filters import Filters

NUM_TIMED = 10  # windows for hz=auto
MARGIN = 0.8  # share of the time that windows may take; counting many events and other programs take the rest
_MOST_TRAINED = 10  # times the rate of training, up to which the accuracy of weights was measured


def settings_detector(
    checkpoint: LoadedCheckpoint,
    source: OpenedSource,
    detection: DetectionConfig,
    postprocess: PostprocessConfig,
    filters: Filters,
    **how: Any,
) -> StreamDetector:
    """Return the detector of a source that the settings describe.

    Args:
        checkpoint: The weights.
        source: The opened source, whose first windows may be tried to choose the frames.
        detection: Rate, windows, frames and tracks.
        postprocess: Which boxes count as detections.
        filters: Filters of the events, see `FilterChain`.
        how: Further arguments of `StreamDetector`.
    """
    sensor_hw = source.events.height, source.events.width
    if detection.downsample is None:
        downsample = choose_downsample(checkpoint, source.events, detection.reduce, detection.tiles, filters)
        detection = replace(detection, downsample=downsample)
    return sensor_detector(checkpoint, sensor_hw, detection, postprocess, filters, **how)


def sensor_detector(
    checkpoint: LoadedCheckpoint,
    sensor_hw: tuple[int, int],
    detection: DetectionConfig,
    postprocess: PostprocessConfig,
    filters: Filters = (),
    track_memory_s: float = TRACK_MEMORY_S,
    **how: Any,
) -> StreamDetector:
    """Return the detector of a sensor that the settings describe. hz=auto takes the rate that the machine sustains.

    Args:
        checkpoint: The weights.
        sensor_hw: Height and width of the sensor, pixels.
        detection: As in `settings_detector`.
        postprocess: As in `settings_detector`.
        filters: As in `settings_detector`.
        track_memory_s: How long a lost object keeps its number, in seconds.
        how: Further arguments of `StreamDetector`.
    """
    # Time windows at the rate of training, then take the rate that leaves room.
    if detection.hz == AUTO:
        at_rate_of_training = replace(detection, hz=None, track=None)
        timed = sensor_detector(checkpoint, sensor_hw, at_rate_of_training, postprocess)
        detection = replace(detection, hz=sustained_hz(timed.warm_up(NUM_TIMED), checkpoint.windows.hz))
    # From here on, every setting has a value.
    windows = checkpoint.windows_at(detection.rate, detection.window, detection.reduce)
    score = detection.min_score
    return StreamDetector(
        checkpoint,
        *sensor_hw,
        windows=windows,
        downsample=detection.downsample,
        tiles=detection.tiles,
        filters=filters,
        config=shown_boxes(postprocess),
        tracker=tracker_of(detection.track, checkpoint.spec.num_classes, windows.hz, score, track_memory_s),
        **how,
    )


def sustained_hz(seconds: Sequence[float], trained_hz: float) -> float:
    """Return the highest rate at which windows take at most MARGIN of the time between two of them.

    It is a whole number of Hz, or one with two digits below 1 Hz, and at most ten times the rate of training.

    >>> sustained_hz([0.050] * 10, trained_hz=20)
    16.0

    Args:
        seconds: The times of windows, of which 95 % count.
        trained_hz: The rate of training.
    """
    hz = min(MARGIN / float(np.percentile(seconds, 95)), _MOST_TRAINED * trained_hz)
    unit = 1.0
    # Below 1 Hz, two digits instead of whole numbers.
    if hz < 1:
        unit = 10.0 ** (math.floor(math.log10(hz)) - 1)
    return round(math.floor(hz / unit) * unit, 9)
