"""How many windows per second this processor sustains, for every factor by which frames are smaller than the sensor."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rvtssm.detection.engine import StreamDetector
from rvtssm.models.checkpoint_meta import LoadedCheckpoint, downsample_by_size
from rvtssm.models.detector import Detector
from rvtssm.models.model_config import PostprocessConfig
from rvtssm.readers import Recording
from rvtssm.records import Events, WindowSettings

FEWEST_WINDOWS = 20  # per factor


@dataclass(frozen=True)
class SustainedRate:
    """The time of a window at one factor, measured one window at a time as in live detection."""

    downsample: int  # frames are smaller than the sensor by this factor per side
    frame_hw: tuple[int, int]  # pixels
    smallest_object_px: float  # diagonal of the smallest objects of the training, in pixels of the sensor
    num_windows: int
    p50_ms: float  # time of a window, from counting its events to its boxes
    p95_ms: float
    hz: float  # windows per second of which 95 % are ready before the next one ends: 1000 / p95_ms


def sustained_rates(
    checkpoint: LoadedCheckpoint,
    recording: Recording,
    windows: WindowSettings,
    config: PostprocessConfig,
    downsample: int | None = None,
) -> Iterator[SustainedRate]:
    """Yield the rates of the usual factor, of half of it, and so on down to 1.

    Args:
        checkpoint: The weights.
        recording: Its first windows are measured; a short recording is repeated.
        windows: Stride and length of windows.
        config: Post-processing.
        downsample: Measure only this factor.
    """
    sensor_hw = recording.height, recording.width
    usual = downsample_by_size(checkpoint, *sensor_hw)
    factors = [downsample or usual]
    is_fixed = downsample is not None or not isinstance(checkpoint.detector, Detector)  # exported frames have one size
    while not is_fixed and factors[-1] > 1:
        factors.append((factors[-1] + 1) // 2)
    events = _first_windows(recording, windows)
    for factor in factors:
        yield _sustained(checkpoint, events, sensor_hw, windows, config, factor)


def _first_windows(recording: Recording, windows: WindowSettings) -> list[Events]:
    """Return the events of consecutive windows, which begin again with the first events if the recording is short."""
    first_us, last_us = recording.time_range_us
    stride_us, span_us = round(windows.stride_us), last_us + 1 - first_us
    parts = list[Events]()
    for number in range(FEWEST_WINDOWS + 1):
        start_us = number * stride_us % max(span_us - stride_us, 1)
        part = recording.between(first_us + start_us, first_us + start_us + stride_us)
        shifted_us = part.t - first_us - start_us + number * stride_us
        parts.append(Events(shifted_us, part.x, part.y, part.p))
    return parts


def _sustained(
    checkpoint: LoadedCheckpoint,
    events: list[Events],
    sensor_hw: tuple[int, int],
    windows: WindowSettings,
    config: PostprocessConfig,
    downsample: int,
) -> SustainedRate:
    detector = StreamDetector(
        checkpoint, *sensor_hw, windows=windows, start_us=0, downsample=downsample, config=config, skip="never"
    )
    detector.warm_up()
    times_ms = []
    for number, part in enumerate(events, 1):
        closed = detector.push(part, until_us=number * round(windows.stride_us))
        times_ms += [1000 * result.seconds for result in closed]
    p50_ms, p95_ms = (float(np.percentile(times_ms, share)) for share in (50, 95))
    spec = checkpoint.spec
    return SustainedRate(
        downsample=downsample,
        frame_hw=detector.frame_hw,
        smallest_object_px=downsample * spec.prepare_min_diagonal_px / spec.downsample,
        num_windows=len(times_ms),
        p50_ms=p50_ms,
        p95_ms=p95_ms,
        hz=1000 / p95_ms,
    )
