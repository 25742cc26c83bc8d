"""What is asked of the packets of a stream, which windows they close, and those that are kept for pictures."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rvtssm.events.windows import LATE_US, LONGEST_SILENCE_US, FreeGrid, first_jump
from rvtssm.readers.recording import join_events
from rvtssm.records import Events, Windows, WindowSettings
from rvtssm.system.user_error import UserError

CLOCK_TIMES = ("known_us", "last_us", "anchor_us", "end_us", "done")  # what a `WindowClock` knows


def in_order(packet: Events, known_us: int | None) -> tuple[Events, int]:
    """Return a packet whose events up to 10 ms late have the time of the event before them, and their number.

    A packet whose events are in another order is returned unchanged; `check_events` refuses it.

    Args:
        packet: The events.
        known_us: All events before this time are known; None: there was no event yet.

    Raises:
        UserError: The packet starts more than 10 ms before `known_us`.
    """
    if not len(packet):
        return packet, 0
    before_us = int(packet.t[0]) if known_us is None else known_us
    if packet.t[0] < before_us - LATE_US:
        raise UserError(
            "stream.unsorted",
            f"events must come in order of time, at or after {before_us} us, as set by an earlier packet, until_us or "
            f"start_us; this packet starts at {packet.t[0]} us: leave it out and push the next one, or call restart() "
            "if the clock has jumped",
        )
    times_us = np.maximum.accumulate(np.maximum(packet.t, before_us))
    late_us = times_us - packet.t
    if not 0 < late_us.max() <= LATE_US:
        return packet, 0
    return replace(packet, t=times_us), int(np.count_nonzero(late_us))


def check_silence(packet: Events, known_us: int | None, until_us: int | None) -> None:
    """Raise UserError if no event came for more than LONGEST_SILENCE_US, as after a jump of the clock.

    Args:
        packet: The events.
        known_us: All events before this time are known; None: there was no event yet.
        until_us: No event before this time is missing; None says nothing.
    """
    last_us = int(packet.t[-1]) if len(packet) else known_us
    until = np.array([] if until_us is None else [until_us], np.int64)
    for before_us, times in ((known_us, packet.t), (last_us, until)):
        jump = first_jump(before_us, times)
        if jump is not None:
            longest_s = LONGEST_SILENCE_US / 1e6
            raise UserError(
                "stream.silence",
                f"no event for more than {longest_s:g} s before {times[jump]} us; if the clock has jumped, or start_us "
                "belongs to another clock, call restart(); if nothing happened, pass until_us in steps of at most "
                f"{longest_s:g} s",
            )


class WindowClock:
    """Which windows of a stream have closed: at a fixed stride from an anchor on, or those of a grid.

    Args:
        windows: Stride and length of the windows.
        grid: The windows themselves, for recordings whose windows end at labels.
        start_us: Start of the first window; None: the first event.
    """

    def __init__(self, windows: WindowSettings, grid: Windows | None, start_us: int | None) -> None:
        self.windows, self.grid = windows, grid
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
        self.windows, self.anchor_us, self.done = windows, self.end_us, 0

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


class KeptEvents:
    """The events of the windows that the last push closed, for pictures of their results."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._packets: list[Events] = []
        self._from_us: int | None = None
        self._is_new_push = False

    def add(self, packet: Events) -> None:
        self._packets.append(packet)

    def begin_push(self) -> None:
        self._is_new_push = True

    def note(self, start_us: int) -> None:
        """Forget the events before the first window of a push, which starts at a time."""
        if self._is_new_push:
            self._from_us, self._is_new_push = start_us, False
            self._packets = [packet for packet in self._packets if packet.t[-1] >= start_us]

    def between(self, start_us: int, end_us: int) -> Events:
        """Return the events of a window that the last push closed. Raise UserError for an earlier window."""
        if self._from_us is None or start_us < self._from_us:
            raise UserError(
                "stream.events_not_kept",
                "a stream only keeps the events of the windows that closed last; draw results before the next push, or "
                "pass its events: draw(EVENTS)",
            )
        return join_events([packet.between(start_us, end_us) for packet in self._packets])
