"""Which windows have closed while events arrive: at a fixed stride from an anchor on, or those of a grid."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rvtssm.events.windows import FreeGrid
from rvtssm.records import Events, Windows, WindowSettings

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
        return {name: getattr(self, name) for name in CLOCK_TIMES}

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
