"""A file that is decoded block by block from any state, as the formats implement it.

A format provides the state of its decoder at the start of the file, and a function that decodes one block of events and
advances the state. States are small vectors of integers. A copy of a state is enough to resume decoding.

Cameras can send a few events with the times of their previous use, or from before their clock was set. Then the times
jump before the first or after the last event of the recording's own clock. Those events are left out; otherwise they
would move all others to a wrong time, or add hours without events.
"""

from __future__ import annotations

import copy
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rvtssm.readers.faults import Reach
from rvtssm.readers.gate import (
    AHEAD_US,
    BACKWARD,
    JUMP_US,
    LATEST_US,
    MOST_STRAYS,
    NEVER_US,
    NUM_COMMON,
    OTHER_CLOCK,
    POSITION,
    EventBuffer,
    State,
    first_state,
)
from rvtssm.readers.header import LARGEST_SIDE

_ENOUGH_EVENTS = 1 << 22  # that tell which pixels a recording has
_LONGEST_GAP_US = 10_000_000  # no sensor is silent for so long just after a few events, or just before the last few
_MORE = 10  # so many times as many events must follow without a jump, or have come before
_NUM_PROBED = 2048  # events

Decode = Callable[[State, EventBuffer], int]


class Decoder(ABC):
    """The events of a file in order, without what is said of their faults. `Recording` adds that, and access by time.

    Args:
        path: The file.
        height: Height of the sensor, pixels.
        width: Width of the sensor, pixels.
        num_units: Number of units in the file, as POSITION counts them.
    """

    own_state: tuple[int, ...] = ()
    smallest_block = 1  # the least room for events that `_decode` needs

    def __init__(self, path: Path, height: int, width: int, num_units: int) -> None:
        self.path = path
        self.height = height
        self.width = width
        self._num_units = num_units
        self._begin: State | None = None  # the state before the first event of the recording's clock
        self._handle: Any = None
        self._handle_owner = 0

    @abstractmethod
    def _decode(self, state: State, buffer: EventBuffer) -> int:
        """Write the next events into the buffer, advance the state and return the number of events written.

        The buffer has room for at least `smallest_block` events. The result is 0 if the units held no events.
        """

    @abstractmethod
    def _open(self) -> Any:
        """Open the file for reading and return an object with a `close` method."""

    def _file(self) -> Any:
        # A handle inherited through a fork shares its read position with the parent, so every process opens its own.
        if self._handle is None or self._handle_owner != os.getpid():
            self._handle = self._open()
            self._handle_owner = os.getpid()
        return self._handle

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:  # __init__ may have failed
            self.close()

    def close(self) -> None:
        """Close the file. Reading opens it again."""
        if self._handle is not None:
            self._handle.close()
            self._handle = None

    def _first_state(self) -> State:
        """Return the decoder state at the first event, as far as it is known."""
        return first_state(*self.own_state) if self._begin is None else self._begin.copy()

    def _start(self) -> State:
        """Return the decoder state at the first event, after a few events of another clock if there are any."""
        if self._begin is None:
            self._begin = after_other_clock(self._decode, self._first_state(), self._num_units, self.smallest_block)
        return self._begin.copy()

    def _block_sizes(self, state: State, buffer: EventBuffer, num_left: int | None = None) -> Iterator[int]:
        """Decode block after block into the buffer, advance the state, and yield the number of events of each block.

        A few events of another clock at the start and at the end of the file are left out. Blocks without events are
        passed over.

        Args:
            state: The state to start from.
            buffer: Room for events, which each block overwrites.
            num_left: Number of events from this state to the end; None: unknown, since the state is at the start.
        """
        num_events = 0
        while state[POSITION] < self._num_units and num_left != 0:
            before_us = int(state[LATEST_US])
            count = self._decode(state, buffer)
            if not count:
                continue
            if num_left is not None:
                count = min(count, num_left)
                num_left -= count
            # The first events may have the time of another clock.
            elif self._begin is None and may_start_later(buffer.t[:count], state):
                state[:] = self._start()
                continue
            elif may_end_earlier(buffer.t[:count], before_us):
                count = num_before_other_clock(
                    self._decode, state, self._num_units, self.smallest_block, buffer.t[:count], (num_events, before_us)
                )
            if self._begin is None:
                self._begin = self._first_state()
            num_events += count
            if count:
                yield count

    def _reach(self) -> Reach:
        """Return the pixels of the first millions of events, wherever they lie."""
        # The same file read as if its sensor were as large as the format allows.
        limits = np.array([[LARGEST_SIDE, 0], [LARGEST_SIDE, 0]])
        num_read = 0
        wide = copy.copy(self)
        wide._handle = None
        wide.height = LARGEST_SIDE
        wide.width = LARGEST_SIDE
        if gate := getattr(self, "_gate", None):
            wide._gate = replace(gate, height=LARGEST_SIDE, width=LARGEST_SIDE)  # type: ignore[attr-defined]
        state = wide._first_state()
        buffer = EventBuffer(1 << 16)
        for count in wide._block_sizes(state, buffer):
            for limit, pixels in zip(limits, (buffer.x[:count], buffer.y[:count]), strict=True):
                limit[:] = min(limit[0], pixels.min()), max(limit[1], pixels.max())
            num_read += count
            if num_read > _ENOUGH_EVENTS:
                break
        wide.close()
        return Reach(tuple(limits[0].tolist()), tuple(limits[1].tolist()))


def may_start_later(times_us: npt.NDArray[np.int64], state: State) -> bool:
    """Return whether the first events may have the time of another clock, so that `after_other_clock` has to look.

    Args:
        times_us: Times of the first events.
        state: The decoder state after them.
    """
    first_us = times_us[:_NUM_PROBED]
    return bool(state[OTHER_CLOCK] or (first_us[-1] - first_us[0] > _LONGEST_GAP_US and _has_gap(first_us)))


def after_other_clock(decode: Decode, first: State, num_units: int, smallest_block: int) -> State:
    """Return the decoder state after the first events of another clock; the given state if there are none.

    Args:
        decode: Writes the next events into a buffer, advances the state and returns the number of events.
        first: The state at the start of the file.
        num_units: Number of units in the file.
        smallest_block: The least room for events that `decode` needs.
    """
    if not _has_jump(*_next_events(decode, first.copy(), num_units, EventBuffer(_NUM_PROBED))):
        return first
    # One event after the other may be the first of the recording's own clock.
    state = first.copy()
    buffer = EventBuffer(smallest_block)
    times_us = list[int]()
    num_strays = 0
    while num_strays <= MOST_STRAYS:
        before = state.copy()
        before[LATEST_US] = NEVER_US
        before[BACKWARD:NUM_COMMON] = first[BACKWARD:NUM_COMMON]
        before[OTHER_CLOCK] = num_strays
        state[LATEST_US] = NEVER_US  # so that a step back shows
        count = decode(state, buffer)
        if not count:
            if state[POSITION] >= num_units:
                return first
            continue
        # It is, if its time jumps away from all before it and many events follow it without a jump.
        time_us = int(buffer.t[0])
        if times_us and all(_is_jump(time_us - earlier_us) for earlier_us in times_us):
            probe = EventBuffer(max(2 * _MORE * num_strays, smallest_block))
            after, num_after, strays = _next_events(decode, before.copy(), num_units, probe)
            is_clock = num_after >= _MORE * num_strays and not _has_jump(after, num_after, strays - num_strays)
            if is_clock and not _jumps_to(times_us[-1], after.t[:num_after]):
                return before
        times_us.append(time_us)
        num_strays += count
    return first


def may_end_earlier(times_us: npt.NDArray[np.int64], before_us: int) -> bool:
    """Return whether the last events of a block may have the time of another clock.

    Args:
        times_us: Times of the events of the block, at least one.
        before_us: Time of the event before the block, NEVER_US without one.
    """
    if len(times_us) > MOST_STRAYS:
        before_us = times_us[-MOST_STRAYS - 1]
    elif before_us == NEVER_US:
        before_us = times_us[0]
    return bool(times_us[-1] - before_us > _LONGEST_GAP_US)


def num_before_other_clock(
    decode: Decode,
    state: State,
    num_units: int,
    smallest_block: int,
    times_us: npt.NDArray[np.int64],
    before: tuple[int, int],
) -> int:
    """Return how many events of a block come before the last events of a file, if those have the time of another clock.

    If there are such events, the state is advanced to the end of the file, and counts them.

    Args:
        decode: See `after_other_clock`.
        state: The state after the block.
        num_units: Number of units in the file.
        smallest_block: The least room for events that `decode` needs.
        times_us: Times of the events of the block, at least one.
        before: The number of events before the block, and the time of the last of them.
    """
    # How many events the file has after this block; a few may be strays.
    after = state.copy()
    probe = EventBuffer(max(MOST_STRAYS + 1, smallest_block))
    num_more = 0
    while after[POSITION] < num_units and num_more <= MOST_STRAYS:
        num_more += decode(after, probe)
    # Only the last events of the block can belong to the strays that end the file.
    num_before, before_us = before
    start = max(0, len(times_us) - MOST_STRAYS)
    before_us = int(times_us[start - 1]) if start else before_us
    latest_us = np.r_[before_us, times_us[start:]]  # of the event before each event, and of the last event
    for jump in np.flatnonzero(np.diff(latest_us) > _LONGEST_GAP_US).tolist():
        num_strays = len(times_us) - start - jump + num_more
        if num_strays <= MOST_STRAYS and num_before + start + jump >= _MORE * num_strays:
            state[:] = after
            state[OTHER_CLOCK] += num_strays
            state[LATEST_US] = latest_us[jump]
            return int(start + jump)
    return len(times_us)


def _next_events(decode: Decode, state: State, num_units: int, buffer: EventBuffer) -> tuple[EventBuffer, int, int]:
    """Decode the next events. Return them, their number, and how many events of another clock the state counts."""
    count = 0
    while not count and state[POSITION] < num_units:
        count = decode(state, buffer)
    return buffer, count, int(state[OTHER_CLOCK])


def _has_jump(events: EventBuffer, count: int, num_strays: int) -> bool:
    return num_strays > 0 or _has_gap(events.t[:count])


def _has_gap(times_us: npt.NDArray[np.int64]) -> bool:
    return bool((np.diff(times_us) > _LONGEST_GAP_US).any())


def _jumps_to(time_us: int, times_us: npt.NDArray[np.int64]) -> bool:
    """Return whether times jump ahead to a time, so that only those before the jump come from another clock."""
    is_there = np.abs(times_us[1:] - time_us) <= JUMP_US
    return bool((is_there & (np.diff(times_us) > AHEAD_US)).any())


def _is_jump(step_us: int) -> bool:
    return not -JUMP_US <= step_us <= _LONGEST_GAP_US
