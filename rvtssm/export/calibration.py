"""Frames of recordings, from which a quantised file gets the ranges of its numbers."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from rvtssm.events.frame_counter import count_windows
from rvtssm.events.windows import free_grid
from rvtssm.models.frame_size import usual_downsample
from rvtssm.records import DatasetSpec, Events, WindowSettings
from rvtssm.streaming.sources import first_events
from rvtssm.system.user_error import UserError

_FAST = 10  # times the rate of training: windows that overlap, as long as in training
_LEAST = 20  # windows of a recording at a rate, since the first ones start from the zero state and hold few events


@dataclass(frozen=True)
class CalibrationFrames:
    """The first windows of recordings, at the rate of training and at ten times that rate.

    If there are more recordings than give 20 windows each at both rates, some are chosen, evenly over the list.

    Each iteration reads them again, so that the frames of one recording at a time are in memory.
    """

    paths: tuple[str, ...]
    spec: DatasetSpec
    windows: WindowSettings  # of training
    frame_hw: tuple[int, int]
    num_windows: int  # of all recordings and rates together, rounded up

    def __iter__(self) -> Iterator[tuple[np.ndarray, float]]:
        """Yield frames (T, C, H, W) of consecutive windows and their step scale."""
        each, opened = self._recordings()
        for events, sensor_hw, downsample in opened:
            for speed in (1, _FAST):
                settings = self.windows if speed == 1 else self.windows.at_rate(speed * self.windows.hz, "slide")
                grid = free_grid(int(events.t[0]), int(events.t[-1]), settings)[:each]
                yield count_windows(events, grid, *sensor_hw, settings, downsample), 1 / speed

    def check(self) -> None:
        """Read each recording once; raise UserError if frames have another size than the file, or without events."""
        for _ in self._recordings()[1]:
            pass

    def _recordings(self) -> tuple[int, Iterator[tuple[Events, tuple[int, int], int]]]:
        """Return windows per recording and rate; and events, size of the sensor in pixels and downsampling of each."""
        count = min(len(self.paths), max(1, self.num_windows // (2 * _LEAST)))
        each = -(-self.num_windows // (2 * count))
        chosen = [self.paths[i * len(self.paths) // count] for i in range(count)]
        return each, (self._opened(path, each * self.windows.stride_us / 1e6) for path in chosen)

    def _opened(self, path: str, seconds: float) -> tuple[Events, tuple[int, int], int]:
        events, sensor_hw, _ = first_events(path, seconds, (self.spec.height, self.spec.width))
        downsample = usual_downsample(self.spec, *sensor_hw)
        height, width = (side // downsample for side in sensor_hw)
        if (height, width) != self.frame_hw:
            raise UserError(
                f"calibrate: {path} has frames of {width} x {height} pixels, and the file is for "
                f"{self.frame_hw[1]} x {self.frame_hw[0]}; give other recordings, or export.height={height} "
                f"export.width={width}"
            )
        if not len(events):
            raise UserError(f"calibrate: {path} has no events in its first {seconds:g} s; give other recordings")
        return events, sensor_hw, downsample

    def first(self, num_frames: int) -> list[np.ndarray]:
        """Return the first frames (C, H, W), at most that many."""
        return list(islice((frame for frames, _ in self for frame in frames), num_frames))
