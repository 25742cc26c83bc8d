"""What every event file is once opened: a stream of repaired events that can be sought by time.

A format supplies two things, a state to start from and a function that decodes one block and advances the state.
States are small integer vectors, so a copy of one is a place to resume at: a sparse index of them, built in one
pass and kept on disk, makes any file seekable, exactly, whatever its encoding.
"""

from __future__ import annotations

import copy
import os
import pickle
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rvtssm.events.readers.index import RecordingIndex, identity_of, load_index, save_index
from rvtssm.records import Events

# The first slots of every decoder state; formats append their own. Kernels import these numbers as constants.
POSITION = 0  # next unit of the file: event or word
LATEST_US = 1  # largest time so far, the running maximum
BACKWARD = 2  # events that were earlier than the one before
OUTSIDE = 3  # events outside the sensor, dropped
NUM_COMMON = 4

MAX_EVENTS_PER_UNIT = 36  # an EVT2.1 word, which is written as three vectors of 12 pixels
_READ_BYTES = 1 << 19  # at once: this and the events in it stay in the processor's cache
_NOT_SETTINGS = ("path", "faults", "_index", "_handle", "_handle_owner")

State = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ReadFaults:
    """What had to be repaired in the part read so far."""

    backward_steps: int = 0  # events earlier than one before them: moved up to that time
    out_of_frame: int = 0  # events outside the sensor: dropped
    truncated_bytes: int = 0  # bytes after the last whole event: ignored


class EventBuffer:
    """Arrays for `capacity` events that decoders write into again and again."""

    def __init__(self, capacity: int) -> None:
        self.t = np.empty(capacity, np.int64)
        self.x = np.empty(capacity, np.uint16)
        self.y = np.empty(capacity, np.uint16)
        self.p = np.empty(capacity, np.uint8)

    def events(self, count: int) -> Events:
        """The first `count` events, as views."""
        return Events(self.t[:count], self.x[:count], self.y[:count], self.p[:count])

    def after(self, count: int) -> EventBuffer:
        """The same arrays without the first `count` places."""
        rest = EventBuffer(0)
        rest.t, rest.x, rest.y, rest.p = self.t[count:], self.x[count:], self.y[count:], self.p[count:]
        return rest


class Recording(ABC):
    """One event file. Times never decrease, coordinates lie on the sensor, polarity is 0 or 1.

    Recordings can be pickled; files are opened again where they are used. One thread at a time.

    A new format derives from this class (from `ByteRecording` if it is a header and then words of equal size) and
    gives `format`, `_open`, `_decode` and, where its state needs more than the common slots, `_start`; it hands the
    number of its units (events, words, bytes: whatever POSITION counts) to `__init__`. `_decode` keeps the rules that
    make formats alike: time is int64 microseconds and only moves up, by the running maximum; events outside the
    sensor are dropped; both are counted in the state. All that `_decode` depends on is in the state, in the file and
    in attributes that are set by `__init__` and survive pickling. A damaged file is a ValueError that names it. Then
    a function that opens the format goes into READERS.
    """

    format: str
    index_events = 1 << 15  # between two entries of the index; fewer make short slices cheaper

    def __init__(self, path: Path, height: int, width: int, num_units: int, truncated_bytes: int = 0) -> None:
        self.path = path
        self.height = height
        self.width = width
        self._num_units = num_units
        self.faults = ReadFaults(truncated_bytes=truncated_bytes)
        self._index: RecordingIndex | None = None
        self._handle: Any = None
        self._handle_owner = 0

    def _start(self) -> State:
        """The decoder state at the first unit of the file."""
        return new_state()

    @abstractmethod
    def _decode(self, state: State, buffer: EventBuffer) -> int:
        """Write the next events into the buffer, advance the state, return how many were written.

        The buffer holds MAX_EVENTS_PER_UNIT events or more; units without events are passed over and give 0.
        """

    @abstractmethod
    def _open(self) -> Any:
        """The file, opened for reading, with a `close` method."""

    def _file(self) -> Any:
        # A handle inherited through a fork shares its read position with the parent: every process opens its own.
        if self._handle is None or self._handle_owner != os.getpid():
            self._handle, self._handle_owner = self._open(), os.getpid()
        return self._handle

    def close(self) -> None:
        """Release the file; the recording stays usable and opens it again."""
        if self._handle is not None:
            self._handle.close()
            self._handle = None

    def iterate(
        self, max_events: int = 1 << 16, start_us: int | None = None, end_us: int | None = None
    ) -> Iterator[Events]:
        """All events, or those with start_us <= t < end_us, in blocks of at most `max_events`.

        The arrays of a block are reused for the next one: copy what must outlive the step. `faults` are those from
        the start of the file to the end of the block, and complete when the iteration over all is.
        """
        if max_events < MAX_EVENTS_PER_UNIT:
            raise ValueError(f"max_events={max_events} is too small; one word can hold {MAX_EVENTS_PER_UNIT} events")
        state, buffer = self._start() if start_us is None else self._state_at(start_us), EventBuffer(max_events)
        is_whole, limits = start_us is None and end_us is None, np.iinfo(np.int64)
        start_us, end_us = limits.min if start_us is None else start_us, limits.max if end_us is None else end_us
        while state[POSITION] < self._num_units and state[LATEST_US] < end_us:
            count = self._decode(state, buffer)
            self._note_faults(int(state[BACKWARD]), int(state[OUTSIDE]))
            block = buffer.events(count)
            if not is_whole:
                block = block.between(start_us, end_us)
            if len(block):
                yield block

    def read(self) -> Events:
        """All events at once; for files that fit in memory."""
        return join_events([copy_events(block) for block in self.iterate()])

    def between(self, start_us: int, end_us: int) -> Events:
        """The events with start_us <= t < end_us, decoding little more than these."""
        index = self._built_index()
        first, stop = index.blocks(start_us, end_us) if start_us < end_us else (0, 0)
        wanted = int(index.num_before[stop] - index.num_before[first])
        buffer, filled = EventBuffer(wanted + MAX_EVENTS_PER_UNIT if wanted else 0), 0
        state = index.states[first].copy() if wanted else self._start()
        while filled < wanted and state[POSITION] < self._num_units:
            filled += self._decode(state, buffer.after(filled))
        return buffer.events(filled).between(start_us, end_us)

    def part(self, start_us: int, end_us: int) -> Recording:
        """The recording for who reads no other times than start_us <= t < end_us: little to send elsewhere."""
        part = copy.copy(self)
        part._handle = None
        part._index = self._index and self._index.part(start_us, end_us)
        return part

    @property
    def time_range_us(self) -> tuple[int, int]:
        """Times of the first and of the last event, both inclusive; ValueError for a file without events."""
        index = self._built_index()
        if not len(index.states):
            raise self.error_without_events()
        return index.first_us, int(index.latest_us[-1])

    @property
    def num_events(self) -> int:
        """Events of the whole file that lie on the sensor."""
        return self._built_index().num_events

    def error_without_events(self) -> ValueError:
        """What to raise when all of the file was read and no event was left."""
        if outside := self.faults.out_of_frame:
            return ValueError(
                f"{self.path} has all of its {outside} events outside its {self.height}x{self.width} (height x width) "
                "pixels; choose the dataset or the size that fits, or copy it again"
            )
        return ValueError(f"{self.path} holds no events; remove it or record it again")

    def _state_at(self, time_us: int) -> State:
        """The state before the first event at or after a time, or some events earlier."""
        index = self._built_index()
        first, _ = index.blocks(time_us, time_us)
        if first < len(index.states):
            found: State = index.states[first].copy()
            return found
        state = self._start()
        state[POSITION] = self._num_units
        return state

    def _built_index(self) -> RecordingIndex:
        if self._index is None:
            settings = self._settings()
            identity = identity_of(self.path, settings)
            index = load_index(self.path, identity)
            if index is None:
                index = self._build_index()
                # an index of one block saves nothing; a file that changed meanwhile has another identity
                if len(index.states) > 1 and identity_of(self.path, settings) == identity:
                    save_index(self.path, identity, index)
            self._index = index
            self._note_faults(index.backward_steps, index.out_of_frame)
        return self._index

    def _build_index(self) -> RecordingIndex:
        state, buffer = self._start(), EventBuffer(self.index_events)
        states: list[State] = []
        latest_us: list[np.int64] = []
        counts = [0]
        first_us = 0
        while state[POSITION] < self._num_units:
            before = state.copy()
            count = self._decode(state, buffer)
            if not count:
                continue
            if not states:
                first_us = int(buffer.t[0])
            states.append(before)
            latest_us.append(state[LATEST_US])
            counts.append(count)
        return RecordingIndex(
            np.array(states, np.int64).reshape(len(states), len(state)),
            np.array(latest_us, np.int64),
            np.cumsum(counts, dtype=np.int64),
            first_us,
            int(state[BACKWARD]),
            int(state[OUTSIDE]),
        )

    def _settings(self) -> bytes:
        """All but the file's content that decides which events come out of it."""
        chosen = {name: value for name, value in self.__getstate__().items() if name not in _NOT_SETTINGS}
        return pickle.dumps((type(self).__qualname__, self.index_events, sorted(chosen.items())), protocol=4)

    def _note_faults(self, backward_steps: int, out_of_frame: int) -> None:
        self.faults = ReadFaults(backward_steps, out_of_frame, self.faults.truncated_bytes)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handle": None}


class ByteRecording(Recording):
    """A recording that is a header and then words of `unit_bytes` bytes each."""

    unit_bytes: int
    index_events = 1 << 13

    def __init__(self, path: Path, height: int, width: int, data_offset: int) -> None:
        num_units, truncated_bytes = divmod(path.stat().st_size - data_offset, self.unit_bytes)
        super().__init__(path, height, width, num_units, truncated_bytes)
        self._data_offset = data_offset
        self._bytes = np.empty(0, np.uint8)

    def _open(self) -> Any:
        return open(self.path, "rb", buffering=0)

    def _read_units(self, state: State, max_units: int) -> npt.NDArray[np.uint8]:
        """The bytes of the next units at the position of the state, in a buffer that is used again."""
        position = int(state[POSITION])
        num_units = min(max_units, _READ_BYTES // self.unit_bytes, self._num_units - position)
        num_bytes = num_units * self.unit_bytes
        if len(self._bytes) < num_bytes:
            self._bytes = np.empty(num_bytes, np.uint8)
        offset = self._data_offset + position * self.unit_bytes
        file = self._file()
        file.seek(offset)
        if file.readinto(self._bytes[:num_bytes]) != num_bytes:
            raise ValueError(
                f"{self.path} became shorter while it was read, it ends before byte {offset + num_bytes}; "
                "read it again when it is complete"
            )
        return self._bytes[:num_bytes]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_bytes": np.empty(0, np.uint8)}


def new_state(num_own: int = 0) -> State:
    """The state before the first unit: the common slots, then `num_own` zeros of the format."""
    state = np.zeros(NUM_COMMON + num_own, np.int64)
    state[LATEST_US] = np.iinfo(np.int64).min
    return state


def copy_events(events: Events) -> Events:
    """Events in arrays of their own, for keeping what a reader will overwrite."""
    return Events(events.t.copy(), events.x.copy(), events.y.copy(), events.p.copy())


def join_events(parts: list[Events]) -> Events:
    """Consecutive parts as one; a recording without events for an empty list."""
    if not parts:
        return EventBuffer(0).events(0)
    return Events(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("t", "x", "y", "p")))
