"""Detectors with all their settings: how much to reduce the sensor by what finds objects, and at which rate to run."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rvtssm.detection import AUTO, DetectionConfig, shown_boxes
from rvtssm.detection.engine import StreamDetector
from rvtssm.detection.sources import OpenedSource
from rvtssm.detection.tiles import tile_size
from rvtssm.detection.track_objects import TRACK_MEMORY_S, tracker_of
from rvtssm.models import PostprocessConfig
from rvtssm.models.checkpoint_meta import LoadedCheckpoint, downsample_by_size
from rvtssm.models.detector import Detector
from rvtssm.readers.filters import Filters
from rvtssm.readers.source import EventSource
from rvtssm.records import Events
from rvtssm.records.settings import SHOWN_SCORE

NUM_TRIED = 4  # windows at the start of a recording that are tried
_SURE_SCORE = 0.5


def choose_downsample(
    checkpoint: LoadedCheckpoint,
    source: EventSource,
    reduce: str | None = None,
    tiles: str | None = None,
    filters: Filters = (),
) -> int:
    """Return the factor by which the frames of a recording are smaller than its sensor.

    The first NUM_TRIED windows are tried at the rate of training, with the factor `downsample_by_size` and smaller ones
    down to 1. The largest factor wins with which at least half of the windows have a box with a score of at least 0.5;
    failing that, of at least SHOWN_SCORE; failing that, the usual factor. Streams, whose first windows are not known in
    advance, and exported files, whose frames have a fixed size, always use the usual factor.

    Args:
        checkpoint: The weights.
        source: The recording.
        reduce: How a square of the sensor becomes a pixel; None means as in training.
        tiles: How frames are cut, see `StreamDetector`.
        filters: Filters of the events, see `FilterChain`.
    """
    # Where nothing is to choose, or where it cannot be tried.
    windows = checkpoint.windows
    sensor_hw = source.height, source.width
    usual = downsample_by_size(checkpoint, *tile_size(sensor_hw, tiles))
    is_of_training = sensor_hw == (checkpoint.spec.height, checkpoint.spec.width)
    if usual == 1 or is_of_training or source.is_live or not isinstance(checkpoint.detector, Detector):
        return usual
    assert source.time_range_us is not None
    # The events of the first windows.
    first_us, last_us = source.time_range_us
    num_windows = min(NUM_TRIED, math.ceil((last_us + 1 - first_us) / windows.stride_us))
    until_us = first_us + round(num_windows * windows.stride_us)
    tried = source.between(first_us, until_us)
    best: dict[int, np.ndarray] = {}
    # From the smallest frames to the largest: the first that shows sure boxes in half of the windows wins.
    for downsample in halved(usual):
        best[downsample] = best_scores(checkpoint, tried, sensor_hw, downsample, until_us, reduce, tiles, filters)
        if np.mean(best[downsample] >= _SURE_SCORE) >= 0.5:
            return downsample
    # Otherwise the first with boxes that would be shown.
    for downsample, scores in best.items():
        if np.mean(scores >= SHOWN_SCORE) >= 0.5:
            return downsample
    return usual


def halved(usual: int) -> list[int]:
    """Return a factor, half of it, and so on down to 1."""
    factors = [usual]
    while factors[-1] > 1:
        factors.append((factors[-1] + 1) // 2)
    return factors


def best_scores(
    checkpoint: LoadedCheckpoint,
    events: Events,
    sensor_hw: tuple[int, int],
    downsample: int,
    until_us: int,
    reduce: str | None = None,
    tiles: str | None = None,
    filters: Filters = (),
) -> np.ndarray:
    """Return the best score of every window that ends by `until_us`.

    Args:
        checkpoint: The weights.
        events: The events from the first window on.
        sensor_hw: Height and width of the sensor, pixels.
        downsample: The factor to try.
        until_us: End of the last window.
        reduce: As in `choose_downsample`.
        tiles: As in `choose_downsample`.
        filters: As in `choose_downsample`.

    Returns:
        (N,) float32, 0 for a window without a box; at least one number.
    """
    config = PostprocessConfig(min_score=SHOWN_SCORE, max_detections=1)
    windows = checkpoint.windows_at(reduce=reduce)
    detector = StreamDetector(
        checkpoint,
        *sensor_hw,
        windows=windows,
        downsample=downsample,
        tiles=tiles,
        filters=filters,
        config=config,
        skip="never",
    )
    closed_us = until_us + detector.windows.includes_end  # an event at the end may belong to the last window
    best = [window.score.max(initial=0) for window in detector.push(events, closed_us)]
    return np.array(best or [0], np.float32)  # of no window if filters leave no event


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
