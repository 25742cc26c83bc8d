"""Events for pictures at the resolution of the sensor, which is often higher than that of a detector's frames."""

import numpy as np

from rvtssm.events.cells import frame_pixels
from rvtssm.events.frame_counter import FrameCounter
from rvtssm.records import Events, WindowSettings


class SensorFrames:
    """Counts the events of a recording per pixel of the sensor, for the time span of each picture.

    Args:
        sensor_hw: Height and width of the sensor in pixels.
        overlap_us: How long before the end of a picture the next one may start, in microseconds.
        until_us: Events from this time on are left out.
    """

    def __init__(self, sensor_hw: tuple[int, int], overlap_us: int = 0, until_us: int | None = None) -> None:
        self._counter = FrameCounter(WindowSettings(num_bins=1, count_cutoff=255), frame_pixels(*sensor_hw))
        self._overlap_us = overlap_us
        self._until_us = np.iinfo(np.int64).max if until_us is None else until_us

    def add(self, block: Events) -> None:
        """Keep the events of the next block for `take`. Its arrays may be overwritten later."""
        self._counter.push(block.between(np.iinfo(np.int64).min, self._until_us))

    def take(self, start_us: int, end_us: int) -> np.ndarray:
        """Return the numbers of darker and brighter events with start_us <= t < end_us, at most 255 per pixel.

        Later calls must not start before `end_us - overlap_us`.

        Args:
            start_us: Start of the span in microseconds.
            end_us: End of the span in microseconds.

        Returns:
            The numbers (2, H, W) uint8, darker first.
        """
        (counts,) = self._counter.take(np.array([[start_us, end_us]]))
        self.forget(end_us)
        return counts

    def forget(self, end_us: int) -> None:
        """Forget events before `end_us - overlap_us`, which later pictures do not show."""
        self._counter.forget_before(end_us - self._overlap_us)
