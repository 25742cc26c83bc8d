"""The time grid: where windows begin and end, and which have closed while events arrive.

Length and stride are independent. With length None (shrink), every window begins at the end of the previous one, so
each event is in exactly one window. With a fixed length (slide), windows have that length at any stride.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from rvtssm.records import Events, Windows, WindowSettings
from rvtssm.records.settings import CHANNELS_PER_BIN, CONVENTIONS, REDUCTIONS, TIME_CONSTANTS_US
from rvtssm.system.limits import Settings, setting, values_of
from rvtssm.system.user_error import UserError, errors_about

LATE_US = 10_000  # in a live stream, a larger step back in time means that the clock has jumped
LONGEST_SILENCE_US = 600_000_000  # longest gap in a live stream; every empty window in it is computed
_MOST_WINDOWS = 10_000_000  # 14 hours at 200 Hz; a longer grid comes from a damaged time
_USUAL = WindowSettings()
USUAL_REDUCTION = {"exact": "sum", "rvt": "nearest"}  # of new trainings, by convention; docs/live.md compares the two


@dataclass
class WindowsConfig(Settings, section="windows"):
    """How events become frames: the section `windows` of the configuration.

    >>> rvtssm.WindowsConfig(stride_ms=10, window_ms=50).settings.hz
    100.0
    """

    stride_ms: float = setting(_USUAL.stride_us / 1000, at_least=0.001)  # one microsecond
    """Time between window ends."""
    window_ms: float | None = setting(None, at_least=0.001)
    """Length of a window; null: as long as the stride (shrink); a number: fixed (slide)."""
    num_bins: int = setting(_USUAL.num_bins, at_least=1)
    """Time bins of a window, for each polarity."""
    count_cutoff: int = setting(_USUAL.count_cutoff, at_least=1, at_most=255)
    """Counts per pixel, bin and polarity saturate here."""
    convention: str = setting(_USUAL.convention, choices=CONVENTIONS)
    """exact, or rvt to reproduce the files of RVT."""
    representation: str = setting(_USUAL.representation, choices=CHANNELS_PER_BIN)
    """histogram or surfaces."""
    time_constants_ms: list[float] = setting(
        [tau / 1000 for tau in _USUAL.time_constants_us],
        at_least=TIME_CONSTANTS_US[0] / 1000,
        at_most=TIME_CONSTANTS_US[1] / 1000,
        is_filled=True,
    )
    """Only for representation=surfaces, which has no bins."""
    reduce: str | None = setting(None, choices=(*REDUCTIONS, None))
    """Of each n x n square if downsample is n. nearest: keep one pixel, as RVT does; sum: count the events of all;
    null: nearest with convention=rvt, otherwise sum."""

    def __post_init__(self) -> None:
        super().__post_init__()
        with errors_about("windows"):
            self._in_microseconds()  # which refuses values that do not fit each other

    @property
    def settings(self) -> WindowSettings:
        """The same settings in microseconds."""
        return self._in_microseconds()

    def _in_microseconds(self) -> WindowSettings:
        stride_us = round(self.stride_ms * 1000)
        length_us = None
        if self.window_ms is not None:
            length_us = round(self.window_ms * 1000)
        elif self.convention == "rvt":  # whose windows have a fixed length
            length_us = stride_us
        counted = self.convention, self.num_bins, self.count_cutoff, self.representation
        constants_us = tuple(round(tau * 1000) for tau in self.time_constants_ms)
        reduce = self.reduce or USUAL_REDUCTION.get(self.convention, "sum")
        return WindowSettings(stride_us, length_us, *counted, constants_us, reduce)

    @classmethod
    def of(cls, windows: WindowSettings) -> "WindowsConfig":
        """Return the settings in milliseconds that give these windows."""
        return cls(
            stride_ms=windows.stride_us / 1000,
            window_ms=None if windows.length_us is None else windows.length_us / 1000,
            num_bins=windows.num_bins,
            count_cutoff=windows.count_cutoff,
            convention=windows.convention,
            representation=windows.representation,
            time_constants_ms=[tau / 1000 for tau in windows.time_constants_us],
            reduce=None if windows.reduce == USUAL_REDUCTION[windows.convention] else windows.reduce,
        )


@dataclass(frozen=True, slots=True)
class FreeGrid:
    """Windows at a fixed stride from the first event on, without an end. Edges are rounded to the microsecond."""

    first_us: int  # time of the first event
    settings: WindowSettings

    def ends_us(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the ends of the windows [start, stop), counted from 0. Window -1 ends at the first event.

        Raises:
            UserError: There are more windows than a recording can have.
        """
        stride_us = self.settings.stride_us
        _check_span(round(self.first_us + start * stride_us), round(self.first_us + stop * stride_us), stride_us)
        ends_us = np.rint(self.first_us + stride_us * np.arange(start + 1, stop + 1))
        rounded: npt.NDArray[np.int64] = ends_us.astype(np.int64)
        return rounded

    def windows(self, start: int, stop: int) -> Windows:
        """Return the windows [start, stop), counted from 0."""
        ends_us = self.ends_us(start - 1, stop)
        return Windows(_bounds_us(ends_us, self.settings.length_us), np.diff(ends_us))

    def num_ended(self, time_us: int) -> int:
        """Return how many windows end at or before a time."""
        count = max(0, int((time_us - self.first_us) // self.settings.stride_us))
        return count + int(self.ends_us(count, count + 1)[0] <= time_us)  # its end may have been rounded down

    def num_until(self, last_us: int) -> int:
        """Return how many windows a recording has whose last event is at `last_us`. The last window may end later.

        Raises:
            UserError: There are more windows than a recording can have.
        """
        _check_span(self.first_us, last_us, self.settings.stride_us)
        return self.num_ended(last_us) + 1


def free_grid(first_us: int, last_us: int, settings: WindowSettings) -> Windows:
    """Return the windows of a recording on the free grid.

    Args:
        first_us: Time of the first event.
        last_us: Time of the last event.
        settings: Stride and length of the windows.
    """
    grid = FreeGrid(first_us, settings)
    return grid.windows(0, grid.num_until(last_us))


def label_grid(label_times_us: npt.NDArray[np.int64], start_us: int, settings: WindowSettings) -> Windows:
    """Return a grid on which a window ends at every label time.

    The interval between two label times is divided into equal steps, as close to the stride as possible. Before the
    first label, windows go back at the stride as long as they begin at or after `start_us`. The grid ends at the last
    label.

    Args:
        label_times_us: (N,), in any order.
        start_us: The earliest start of a window.
        settings: Stride and length of the windows.

    Raises:
        UserError: There are no label times, or more windows than a recording can have.
    """
    times = np.unique(label_times_us)
    stride_us = settings.stride_us
    if not len(times):
        raise UserError("windows.no_label_time")
    _check_span(start_us, int(times[-1]), stride_us)
    # Windows begin at a rounded end, or at a whole length before one, and the first may begin at `start_us` itself.
    reach_us = settings.length_us or stride_us
    num_before = max(0, int((times[0] - reach_us - start_us + 0.5) // stride_us))
    parts = [np.rint(times[0] - stride_us * np.arange(num_before + 1, -1, -1)).astype(np.int64)]
    for earlier, later in pairwise(times):
        num_steps = max(1, round((later - earlier) / stride_us))
        # Rounded down as in RVT, so that its files can be reproduced.
        parts.append(np.linspace(earlier, later, num_steps + 1).astype(np.int64)[1:])
    ends = np.concatenate(parts)
    return Windows(_bounds_us(ends, settings.length_us), np.diff(ends))


def _check_span(first_us: int, last_us: int, stride_us: float) -> None:
    if (last_us - first_us) / stride_us > _MOST_WINDOWS:
        raise UserError(
            "windows.too_many",
            found=f"times range from {first_us} to {last_us} us, which is more than {_MOST_WINDOWS} windows of "
            f"{stride_us:g} us",
        )


def _bounds_us(ends_us: npt.NDArray[np.int64], length_us: int | None) -> npt.NDArray[np.int64]:
    """Return the bounds (N, 2) of the windows that end at ends_us[1:]; without a length, they touch each other."""
    starts_us = ends_us[:-1] if length_us is None else ends_us[1:] - length_us
    return np.stack([starts_us, ends_us[1:]], axis=1)


def first_jump(before_us: int | None, times_us: npt.NDArray[np.int64]) -> int | None:
    """Return the index of the first time that is more than LONGEST_SILENCE_US after the time before it, or None.

    Args:
        before_us: The time before the first one; None if there was none.
        times_us: (N,), sorted.
    """
    jumps = np.flatnonzero(_steps_us(before_us, times_us) > LONGEST_SILENCE_US)
    return next(map(int, jumps), None)


def _steps_us(before_us: int | None, times_us: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.diff(times_us, prepend=times_us[:1] if before_us is None else before_us)


def clock_jumps(before_us: int | None, times_us: npt.NDArray[np.int64]) -> list[int]:
    """Return the indices of the times at which the clock of a live stream has jumped, back or forward.

    Args:
        before_us: The time before the first one; None if there was none.
        times_us: (N,).
    """
    steps_us = _steps_us(before_us, times_us)
    return np.flatnonzero((steps_us < -LATE_US) | (steps_us > LONGEST_SILENCE_US)).tolist()


CLOCK_TIMES = ("known_us", "last_us", "anchor_us", "end_us", "done")  # what a `WindowClock` knows


class WindowClock:
    """Which windows of a stream have closed: at a fixed stride from an anchor on, or those of a grid.

    Args:
        windows: Stride and length of the windows.
        grid: The windows themselves, for recordings whose windows end at labels.
        start_us: Start of the first window; None: the first event.
    """

    def __init__(self, windows: WindowSettings, grid: Windows | None, start_us: int | None) -> None:
        self.windows = windows
        self.grid = grid
        self.anchor_us = start_us  # start of the windows at a fixed stride; None: not known yet
        self.known_us = start_us  # all events before this time are known; None: no event yet
        self.last_us: int | None = None  # time of the last event
        self.end_us = start_us  # end of the last computed window
        self.done = 0  # computed windows since the anchor

    def times(self) -> dict[str, int | None]:
        """Return CLOCK_TIMES by name."""
        return values_of(self, CLOCK_TIMES)

    def set_times(self, times: Mapping[str, Any]) -> None:
        """Set CLOCK_TIMES."""
        for name in CLOCK_TIMES:
            setattr(self, name, times[name])

    def change_windows(self, windows: WindowSettings) -> None:
        """Begin windows of another stride or length where the last one ended."""
        self.windows = windows
        self.anchor_us = self.end_us
        self.done = 0

    def advance(self, known_us: int) -> None:
        """Note that all events before a time are known."""
        if self.known_us is None or known_us > self.known_us:
            self.known_us = known_us

    def note(self, events: Events) -> None:
        """Note the times of events that will be counted."""
        self.last_us = int(events.t[-1])
        if self.anchor_us is None:
            self.anchor_us = self.end_us = int(events.t[0])

    def close(self) -> None:
        """Note that the windows up to the last event were computed, as if no event followed."""
        assert self.last_us is not None
        self.known_us = max(self.last_us, (self.end_us or 0) + self.windows.includes_end)

    def is_apart(self) -> bool:
        """Return whether windows share no events."""
        if self.grid is not None:
            return bool((self.grid.bounds_us[1:, 0] >= self.grid.bounds_us[:-1, 1]).all())
        return self.windows.length_us is None or self.windows.length_us <= int(self.windows.stride_us)

    def part(self, start: int, stop: int) -> Windows:
        """Return the windows [start, stop) since the anchor."""
        if self.grid is not None:
            return self.grid[start:stop]
        return self._free_grid().windows(start, stop)

    def next_part(self, stop: int, most: int) -> Windows:
        """Return the next windows before `stop`, at most so many, and count them as done."""
        windows = self.part(self.done, min(self.done + most, stop))
        self.done += len(windows)
        return windows

    def steps_us(self, windows: Windows) -> npt.NDArray[Any]:
        """Return the time of the step that each of some windows takes, microseconds."""
        if self.grid is not None:
            return windows.dt_us
        return np.full(len(windows), self.windows.stride_us)

    def num_closed(self, known_us: int | None = None) -> int:
        """Return how many windows since the anchor end by a time, by default by what is known."""
        if known_us is None:
            known_us = self.known_us
        if self.anchor_us is None or known_us is None:
            return self.done
        closed_us = known_us - self.windows.includes_end  # if closed, more events may come at the end
        if self.grid is None:
            return self._free_grid().num_ended(closed_us)
        return int(np.searchsorted(self.grid.ends_us, closed_us, "right"))

    def num_at_the_end(self) -> int:
        """Return how many windows since the anchor there are if no event follows; 0 without an event."""
        if self.last_us is None:
            return 0
        if self.grid is not None:
            return len(self.grid)
        return self._free_grid().num_ended(self.last_us) + 1

    def _free_grid(self) -> FreeGrid:
        assert self.anchor_us is not None
        return FreeGrid(self.anchor_us, self.windows)
