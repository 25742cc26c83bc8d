"""An opened event file of any format: a stream of repaired events with access by time.

A format provides the state of its decoder at the start of the file, and a function that decodes one block of events and
advances the state. States are small vectors of integers. A copy of a state is enough to resume decoding, so an index of
a few states gives exact access by time in any format. The index is built in one pass and kept on disk.
"""

from __future__ import annotations

import copy
import os
import pickle
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rvtssm.readers.faults import Reach, ReadFaults, UnitDoubt, say, warn_of_unit
from rvtssm.readers.filters import FilterChain
from rvtssm.readers.gate import LATEST_US, POSITION, EventBuffer, State, first_state
from rvtssm.readers.header import LARGEST_SIDE
from rvtssm.readers.index import RecordingIndex, identity_of, load_index, save_index
from rvtssm.readers.other_clock import (
    after_other_clock,
    may_end_earlier,
    may_start_later,
    num_before_other_clock,
)
from rvtssm.records import Events
from rvtssm.records.arrays import check_time_range
from rvtssm.system.user_error import UserError

MAX_EVENTS_PER_UNIT = 36  # an EVT2.1 word, which is written as three vectors of 12 pixels
_LATEST_US = np.iinfo(np.int64).max
_ENOUGH_EVENTS = 1 << 22  # that tell which pixels a recording has
_LONGEST_GAP_US = 6 * 3_600_000_000  # longest gap in a recording; every empty window in it is computed
_NOT_SETTINGS = ("path", "faults", "repair", "filters", "_index", "_handle", "_handle_owner", "_begin", "_is_told")

Bytes = npt.NDArray[np.uint8]


class Recording(ABC):
    """One event file. Use `iterate` to stream all of it and `between` for the events of a time range.

    Times never decrease, coordinates lie on the sensor, polarity is 0 or 1. A recording can be pickled; each process
    opens the file again. Only one thread may use it at a time.

    A new format derives from this class, or from `ByteRecording` if its file is a header followed by words of equal
    size. It sets `format`, implements `_open` and `_decode`, and lists the initial values of its own slots of the state
    in `own_state`. `_decode` follows the rules of `rvtssm/readers/gate.py` in every format. Its result depends only on
    the state, the file, and attributes that `__init__` sets and that survive pickling. A
    damaged file raises a UserError that names it.

    >>> recording = rvtssm.open("street/test/test_0000_td.dat")
    >>> sum(len(events) for events in recording.blocks()) == len(recording.read())
    True

    Args:
        path: The file.
        height: Height of the sensor, pixels.
        width: Width of the sensor, pixels.
        num_units: Number of units in the file, as POSITION counts them.
        truncated_bytes: Bytes after the last complete unit.
    """

    format: str
    own_state: tuple[int, ...] = ()
    smallest_block = 1  # the least room for events that `_decode` needs
    is_unit_fixed = True  # the format defines that times are microseconds
    is_unit_certain = True  # the file or the caller says the unit of time; otherwise unusual times are doubted
    index_events = 1 << 15  # events between two index entries; a smaller number makes short slices cheaper

    def __init__(self, path: Path, height: int, width: int, num_units: int, truncated_bytes: int = 0) -> None:
        self.path = path
        self.height = height
        self.width = width
        self._num_units = num_units
        self.faults = ReadFaults(truncated_bytes=truncated_bytes)
        self.repair = False  # read the file even if many events are faulty
        self.filters: FilterChain | None = None  # of `iterate` and `between`; counts those of the latest iteration
        self._is_told = False  # whether the faults were said
        self._begin: State | None = None  # the state before the first event of the recording's clock
        self._index: RecordingIndex | None = None
        self._handle: Any = None
        self._handle_owner = 0

    def _first_state(self) -> State:
        """Return the decoder state at the first event, as far as it is known."""
        return first_state(*self.own_state) if self._begin is None else self._begin.copy()

    def _start(self) -> State:
        """Return the decoder state at the first event, after a few events of another clock if there are any."""
        if self._begin is None:
            first = first_state(*self.own_state)
            self._begin = after_other_clock(self._decode, first, self._num_units, self.smallest_block)
            self._begin = self._with_new_clock(self._begin)
        return self._begin.copy()

    def _with_new_clock(self, state: State) -> State:
        """Return the state after events of another clock, without what the decoder has concluded from their times."""
        return state

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
            self._handle, self._handle_owner = self._open(), os.getpid()
        return self._handle

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:  # __init__ may have failed
            self.close()

    def close(self) -> None:
        """Close the file. Reading opens it again."""
        if self._handle is not None:
            self._handle.close()
            self._handle = None

    def iterate(
        self, max_events: int = 1 << 16, start_us: int | None = None, end_us: int | None = None, *, reuse: bool = False
    ) -> Iterator[Events]:
        """Return an iterator over all events, or those with start_us <= t < end_us, in blocks.

        `faults` counts from the start of the file to the end of the block. It is complete after an iteration over all
        events.

        Args:
            max_events: The most events in a block.
            start_us: Start of the time range; None: the first event.
            end_us: End of the time range; None: after the last event.
            reuse: Let each block overwrite the arrays of the previous one, which saves a copy in loops that keep no
                block.

        Raises:
            UserError: A time is not a whole number, or the end lies before the start. While iterating: the file is
                damaged, or too many events are out of order without `repair`.
        """
        check_time_range(start_us, end_us, "iterate")
        if max_events < MAX_EVENTS_PER_UNIT:
            raise UserError(
                "reader.max_events",
                f"max_events={max_events} is too small; one word can hold {MAX_EVENTS_PER_UNIT} events",
            )
        buffer = EventBuffer(max_events)
        if self.filters is None:
            return self._blocks(buffer, start_us, end_us, reuse)
        if start_us is None:
            self.filters = self.filters.fresh()
            return self.filters.blocks(self._blocks(buffer, start_us, end_us, reuse))
        self.filters, begin_us = self.filters.before(start_us, self.time_range_us[0])
        blocks = self.filters.blocks(self._blocks(buffer, begin_us, end_us, reuse))
        parts = (block.between(start_us, _LATEST_US) for block in blocks)
        return (part for part in parts if len(part))

    def blocks(self) -> Iterator[Events]:
        """Yield all events. Each block overwrites the arrays of the block before it."""
        return self.iterate(reuse=True)

    def _blocks(self, buffer: EventBuffer, start_us: int | None, end_us: int | None, reuse: bool) -> Iterator[Events]:
        state, num_left = self._first_state(), None
        if start_us is not None:
            state, num_left = self._state_at(start_us)
        is_whole, limits = start_us is None and end_us is None, np.iinfo(np.int64)
        start_us, end_us = limits.min if start_us is None else start_us, limits.max if end_us is None else end_us
        num_events, first_us, doubt = 0, 0, UnitDoubt()
        for count in self._block_sizes(state, buffer, num_left):
            first_us = first_us if num_events else int(buffer.t[0])
            num_events += count
            self.faults = ReadFaults.of(state, self.faults.truncated_bytes)
            block = buffer.events(count)
            if is_whole:
                doubt.look(block.t)
            else:
                block = block.between(start_us, end_us)
            if len(block):
                yield block if reuse else copy_events(block)
            if state[LATEST_US] >= end_us:
                return
        self.faults = ReadFaults.of(state, self.faults.truncated_bytes)
        if is_whole:
            self._conclude(num_events, (first_us, int(state[LATEST_US])), doubt.is_multiple)

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

    def read(self) -> Events:
        """Return all events. Use this only for files that fit in memory."""
        return join_events(list(self.iterate()))

    def between(self, start_us: int, end_us: int) -> Events:
        """Return the events with start_us <= t < end_us. Few other events are decoded."""
        check_time_range(start_us, end_us)
        if self.filters is None:
            return self._unfiltered(start_us, end_us)
        filters, begin_us = self.filters.before(start_us, self.time_range_us[0])
        return filters(self._unfiltered(begin_us, end_us)).between(start_us, end_us)

    def _unfiltered(self, start_us: int, end_us: int) -> Events:
        index = self._built_index()
        first, stop = index.blocks(start_us, end_us) if start_us < end_us else (0, 0)
        num_needed, filled = int(index.num_before[stop] - index.num_before[first]), 0
        if not num_needed:
            return EventBuffer(0).events(0)
        state, buffer = index.states[first].copy(), EventBuffer(num_needed + MAX_EVENTS_PER_UNIT)
        while filled < num_needed and state[POSITION] < self._num_units:
            filled += self._decode(state, buffer.after(filled))
        return buffer.events(min(filled, num_needed)).between(start_us, end_us)

    def part(self, start_us: int, end_us: int) -> Recording:
        """Return the recording with only the index of start_us <= t < end_us, so that less data is sent to workers.

        Reading other times from it gives wrong results.
        """
        part = copy.copy(self)
        part._handle = None
        part._index = self._index and self._index.part(start_us, end_us)
        return part

    def __repr__(self) -> str:
        counted = f", {self._index.num_events} events" if self._index is not None else ""
        return f"Recording({self.name}: {self.format}, {self.width} x {self.height} pixels{counted})"

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.path.name

    @property
    def time_shift_us(self) -> int | None:
        """The time that other software subtracts from the events, so that its labels begin near 0; None if unknown."""
        return None

    @property
    def num_bytes(self) -> int:
        """The size of the file."""
        return self.path.stat().st_size

    @property
    def time_range_us(self) -> tuple[int, int]:
        """The times of the first and the last event.

        Raises:
            UserError: The file has no events, or a gap of hours, which comes from a damaged time.
        """
        index = self._built_index()
        if not len(index.states):
            raise self.error_without_events()
        gaps_us = np.diff(index.latest_us, prepend=index.first_us)  # between blocks of a few thousand events
        if gaps_us.max() > _LONGEST_GAP_US:
            late_us = int(index.latest_us[np.argmax(gaps_us)])
            raise UserError(
                "reader.damaged_time",
                f"{self.path} has an event at {late_us} us, {gaps_us.max() / 3.6e9:.3g} hours after others; its time "
                "is damaged, cut the file there",
            )
        return index.first_us, int(index.latest_us[-1])

    @property
    def num_events(self) -> int:
        """The number of events in the whole file that lie on the sensor."""
        return self._built_index().num_events

    def _conclude(self, num_events: int, range_us: tuple[int, int], is_multiple: bool) -> None:
        """Say what was left out and whether the unit of time looks wrong. Raise UserError if there are too many faults.

        Args:
            num_events: Number of events in the whole recording.
            range_us: Times of the first and the last event.
            is_multiple: Whether all times are multiples of 1000.
        """
        if reason := self.refusal(num_events, self.repair):
            raise UserError("reader.refused", f"{self.path} {reason}")
        if num_events:
            is_multiple_or_certain = None if self.is_unit_certain else is_multiple
            warn_of_unit(self.name, num_events, range_us, (self.height, self.width), is_multiple_or_certain)
        if not self._is_told and (note := self.fault_note(num_events)):
            say(f"{self.name}: {note}")
            self._is_told = True

    def refusal(self, num_events: int, is_repaired: bool = False) -> str:
        """Return why a recording with the faults found so far is refused, see `ReadFaults.refusal`."""
        return self.faults.refusal(num_events, self.height, self.width, is_repaired, self._reach)

    def _reach(self) -> Reach:
        """Return the pixels of the first millions of events, wherever they lie."""
        limits, num_read = np.array([[LARGEST_SIDE, 0], [LARGEST_SIDE, 0]]), 0
        wide = copy.copy(self)
        wide._handle, wide.height, wide.width = None, LARGEST_SIDE, LARGEST_SIDE
        if gate := getattr(self, "_gate", None):
            wide._gate = replace(gate, height=LARGEST_SIDE, width=LARGEST_SIDE)  # type: ignore[attr-defined]
        state, buffer = wide._first_state(), EventBuffer(1 << 16)
        for count in wide._block_sizes(state, buffer):
            for limit, pixels in zip(limits, (buffer.x[:count], buffer.y[:count]), strict=True):
                limit[:] = min(limit[0], pixels.min()), max(limit[1], pixels.max())
            num_read += count
            if num_read > _ENOUGH_EVENTS:
                break
        wide.close()
        return Reach(tuple(limits[0].tolist()), tuple(limits[1].tolist()))

    def fault_note(self, num_events: int) -> str:
        """Return what was left out so far, see `ReadFaults.note`."""
        return self.faults.note(num_events, self.height, self.width)

    def error_without_events(self) -> UserError:
        """Return the error to raise if the whole file was read and contained no valid event."""
        if outside := self.faults.out_of_frame:
            return UserError(
                "events.all_outside_frame",
                f"{self.path} has all of its {outside} events outside its {self.width}x{self.height} (width x height) "
                "pixels; choose the dataset or the size that fits",
            )
        return UserError("events.none", f"{self.path} holds no events; remove it or record it again")

    def _state_at(self, time_us: int) -> tuple[State, int]:
        """Return the state before the first event at or after a time, or some events earlier, and the number after."""
        index = self._built_index()
        first, _ = index.blocks(time_us, time_us)
        num_left = int(index.num_before[-1] - index.num_before[first])
        return (index.states[first].copy() if num_left else index.last_state.copy()), num_left

    def _built_index(self) -> RecordingIndex:
        if self._index is None:
            settings = self._settings()
            identity = identity_of(self.path, settings)
            index = load_index(self.path, identity)
            if index is None:
                index = self.build_index()
                # An index of one block saves no time. A file that changed during the pass has a new identity.
                if len(index.states) > 1 and identity_of(self.path, settings) == identity:
                    save_index(self.path, identity, index)
            self.faults = ReadFaults.of(index.last_state, self.faults.truncated_bytes)
            last_us = int(index.latest_us[-1]) if len(index.states) else 0
            self._conclude(index.num_events, (index.first_us, last_us), index.is_multiple)
            self._index = index
        return self._index

    def build_index(self) -> RecordingIndex:
        state, buffer = self._first_state(), EventBuffer(self.index_events)
        states: list[State] = []
        latest_us: list[np.int64] = []
        counts = [0]
        first_us, doubt = 0, UnitDoubt()
        before = state.copy()
        for count in self._block_sizes(state, buffer):
            if not states:
                first_us = int(buffer.t[0])
                before = self._first_state()
            doubt.look(buffer.t[:count])
            states.append(before)
            latest_us.append(state[LATEST_US])
            counts.append(count)
            before = state.copy()
        blocks = np.array(states, np.int64).reshape(len(states), len(state)), np.array(latest_us, np.int64)
        return RecordingIndex(*blocks, np.cumsum(counts, dtype=np.int64), state, first_us, doubt.is_multiple)

    def _settings(self) -> bytes:
        """Return everything besides the content of the file that decides which events are read."""
        chosen = {name: value for name, value in self.__getstate__().items() if name not in _NOT_SETTINGS}
        return pickle.dumps((type(self).__qualname__, self.index_events, sorted(chosen.items())), protocol=4)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handle": None}


def copy_events(events: Events) -> Events:
    """Return the events in arrays of their own, since a reader overwrites its buffer."""
    return Events(events.t.copy(), events.x.copy(), events.y.copy(), events.p.copy())


def join_events(parts: list[Events]) -> Events:
    """Concatenate consecutive parts; an empty list gives no events."""
    if not parts:
        return EventBuffer(0).events(0)
    return Events(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("t", "x", "y", "p")))
