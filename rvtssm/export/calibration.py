"""Frames of recordings from which quantisation finds the value ranges of an exported file."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from rvtssm.detection.sources import first_events
from rvtssm.events.frame_counter import count_windows
from rvtssm.events.windows import free_grid
from rvtssm.models.checkpoint_meta import fitting_downsample, usual_downsample
from rvtssm.records import DatasetSpec, Events, Windows, WindowSettings
from rvtssm.system.user_error import UserError

_FAST = 10  # the higher rate, in rates of training; its windows overlap and are as long as in training
_LEAST = 20  # fewest windows per recording and rate, since the first ones start from zero and hold few events


@dataclass(frozen=True)
class CalibrationFrames:
    """The first windows of recordings, at the rate of training and at ten times that rate.

    If there are more recordings than can give 20 windows each at both rates, some of them are chosen, evenly spread
    over the list. Each iteration reads the recordings again, so that the frames of only one recording are in memory.
    """

    paths: tuple[str, ...]
    spec: DatasetSpec
    windows: WindowSettings  # how events became frames in training
    frame_hw: tuple[int, int]  # height and width of the frames of the file, in pixels
    num_windows: int  # number of windows in all recordings and rates together, rounded up

    def __iter__(self) -> Iterator[tuple[np.ndarray, float]]:
        """Yield frames (T, C, H, W) of consecutive windows with their step scale."""
        num_each, opened = self._recordings()
        for events, sensor_hw, downsample in opened:
            for speed, settings, grid in self._grids(events, num_each):
                yield count_windows(events, grid, *sensor_hw, settings, downsample), 1 / speed

    def check(self) -> list[int]:
        """Read each chosen recording once, and return its number of windows.

        Raises:
            UserError: If a recording has no events, or frames of another size than the file.
        """
        num_windows, opened = self._recordings()
        counts = []
        for events, *_ in opened:
            counts.append(sum(len(grid) for *_, grid in self._grids(events, num_windows)))
        return counts

    def _grids(self, events: Events, num_windows: int) -> Iterator[tuple[int, WindowSettings, Windows]]:
        """Yield both rates, in rates of training, with their settings and the first windows of a recording."""
        for speed in (1, _FAST):
            settings = self.windows if speed == 1 else self.windows.at_rate(speed * self.windows.hz, "slide")
            yield speed, settings, free_grid(int(events.t[0]), int(events.t[-1]), settings)[:num_windows]

    def _recordings(self) -> tuple[int, Iterator[tuple[Events, tuple[int, int], int]]]:
        """Return the number of windows per recording and rate, and each recording.

        A recording is its events, the height and width of its sensor in pixels, and its downsampling.
        """
        count = min(len(self.paths), max(1, self.num_windows // (2 * _LEAST)))
        num_each = -(-self.num_windows // (2 * count))
        chosen = [self.paths[i * len(self.paths) // count] for i in range(count)]
        return num_each, (self._opened(path, num_each * self.windows.stride_us / 1e6) for path in chosen)

    def _opened(self, path: str, seconds: float) -> tuple[Events, tuple[int, int], int]:
        events, sensor_hw, _ = first_events(path, seconds, (self.spec.height, self.spec.width))
        downsample = fitting_downsample(sensor_hw, self.frame_hw) or usual_downsample(self.spec, *sensor_hw)
        height, width = (side // downsample for side in sensor_hw)
        if (height, width) != self.frame_hw:
            raise UserError(
                "calibration.frame_size",
                f"calibrate: {path} has frames of {width} x {height} pixels, but the file is for "
                f"{self.frame_hw[1]} x {self.frame_hw[0]}; give other recordings, or export.height={height} "
                f"export.width={width}",
            )
        if not len(events):
            raise UserError(
                "calibration.no_events",
                f"calibrate: {path} has no events in its first {seconds:g} s; give other recordings",
            )
        return events, sensor_hw, downsample

    def first(self, num_frames: int) -> list[np.ndarray]:
        """Return the first frames (C, H, W), at most `num_frames` of them."""
        return list(islice((frame for frames, _ in self for frame in frames), num_frames))
