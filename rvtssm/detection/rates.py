"""Which rate a live detector sustains on this machine: `hz=auto`, and the table of `live benchmark=true`."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rvtssm.detection.downsample import halved
from rvtssm.detection.engine import StreamDetector
from rvtssm.models.checkpoint_meta import LoadedCheckpoint, downsample_by_size
from rvtssm.models.detector import Detector
from rvtssm.models.model_config import PostprocessConfig
from rvtssm.records import WindowSettings

NUM_TIMED = 10  # windows for hz=auto
NUM_OF_TABLE = 20  # windows for each line of the table
MARGIN = 0.8  # share of the time that windows may take; counting many events and other programs take the rest
_MOST_TRAINED = 10  # times the rate of training, up to which the accuracy of weights was measured


@dataclass(frozen=True)
class SustainedRate:
    """The time of a window at one factor, measured one window at a time as in live detection."""

    downsample: int  # frames are smaller than the sensor by this factor per side
    frame_hw: tuple[int, int]  # pixels
    smallest_object_px: float  # diagonal of the smallest objects of the training, in pixels of the sensor
    p50_ms: float  # time of a window, from counting its events to its boxes
    p95_ms: float
    hz: float  # the highest rate that is sustained, see `sustained_hz`


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


def measured_hz(detector: StreamDetector) -> float:
    """Time windows of a detector that has seen no events yet, and return the rate that it sustains."""
    return sustained_hz(detector.warm_up(NUM_TIMED), detector.checkpoint.windows.hz)


def sustained_rates(
    checkpoint: LoadedCheckpoint,
    sensor_hw: tuple[int, int],
    windows: WindowSettings,
    config: PostprocessConfig,
    downsample: int | None = None,
) -> Iterator[SustainedRate]:
    """Yield the rates of the usual factor, of half of it, and so on down to 1.

    Args:
        checkpoint: The weights.
        sensor_hw: Height and width of the sensor, pixels.
        windows: Stride and length of windows.
        config: Post-processing.
        downsample: Measure only this factor.
    """
    usual = downsample_by_size(checkpoint, *sensor_hw)
    factors = [downsample or usual]
    if downsample is None and isinstance(checkpoint.detector, Detector):  # exported frames have one size
        factors = halved(usual)
    for factor in factors:
        detector = StreamDetector(checkpoint, *sensor_hw, windows=windows, downsample=factor, config=config)
        seconds = detector.warm_up(NUM_OF_TABLE)
        yield SustainedRate(
            downsample=factor,
            frame_hw=detector.frame_hw,
            smallest_object_px=factor * checkpoint.spec.prepare_min_diagonal_px / checkpoint.spec.downsample,
            p50_ms=1000 * float(np.percentile(seconds, 50)),
            p95_ms=1000 * float(np.percentile(seconds, 95)),
            hz=sustained_hz(seconds, checkpoint.windows.hz),
        )
