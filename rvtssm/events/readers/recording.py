"""What every event file is once opened: a stream of repaired events that can be sought by time.

A format supplies two things, a state to start from and a function that decodes one block and advances the state.
States are small integer vectors, so a copy of one is a place to resume at: a sparse index of them, built in one
pass, makes any file seekable, exactly, whatever its encoding.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rvtssm.records import Events

# The first slots of every decoder state; formats append their own. Kernels import these numbers as constants.
POSITION = 0  # next unit of the file: event or word
LATEST_US = 1  # largest time so far, the running maximum
BACKWARD = 2  # events that were earlier than the one before
OUTSIDE = 3  # events outside the sensor, dropped
NUM_COMMON = 4

MAX_EVENTS_PER_UNIT = 12  # an EVT3 vector
_INDEX_EVENTS = 1 << 15  # events between two entries of the index

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


@dataclass(frozen=True, slots=True)
class _Index:
    states: State  # (K, S) decoder state at the start of each block
    latest_us: npt.NDArray[np.int64]  # (K,) time of the last event of each block
    first_us: int
    num_events: int


class Recording(ABC):
    """One event file. Times never decrease, coordinates lie on the sensor, polarity is 0 or 1.

    Recordings can be pickled; files are opened again where they are used.
    """

    format: str

    def __init__(self, path: Path, height: int, width: int, num_units: int, truncated_bytes: int = 0) -> None:
        self.path = path
        self.height = height
        self.width = width
        self._num_units = num_units
        self.faults = ReadFaults(truncated_bytes=truncated_bytes)
        self._index: _Index | None = None
        self._handle: Any = None
        self._handle_owner = 0

    @abstractmethod
    def _start(self) -> State:
        """The decoder state at the first unit of the file."""

    @abstractmethod
    def _decode(self, state: State, buffer: EventBuffer) -> int:
        """Write the next events into the buffer, advance the state, return how many were written."""

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

    def iterate(self, max_events: int = 1 << 18) -> Iterator[Events]:
        """All events in blocks of at most `max_events`.

        The arrays of a block are reused for the next one: copy what must outlive the step. `faults` grows
        along and is complete when the iteration is.
        """
        if max_events < MAX_EVENTS_PER_UNIT:
            raise ValueError(f"max_events={max_events} is too small; one word can hold {MAX_EVENTS_PER_UNIT} events")
        state, buffer = self._start(), EventBuffer(max_events)
        while state[POSITION] < self._num_units:
            count = self._decode(state, buffer)
            self._note_faults(state)
            if count:
                yield buffer.events(count)

    def read(self) -> Events:
        """All events at once; for files that fit in memory."""
        return join_events([copy_events(block) for block in self.iterate()])

    def between(self, start_us: int, end_us: int) -> Events:
        """The events with start_us <= t < end_us, decoding little more than these."""
        index = self._built_index()
        buffer = EventBuffer(_INDEX_EVENTS)
        parts = []
        for k in range(int(np.searchsorted(index.latest_us, start_us)), len(index.states)):
            if index.states[k, LATEST_US] >= end_us:
                break
            count = self._decode(index.states[k].copy(), buffer)
            parts.append(copy_events(buffer.events(count).between(start_us, end_us)))
        return join_events(parts)

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

    def _built_index(self) -> _Index:
        if self._index is None:
            state, buffer = self._start(), EventBuffer(_INDEX_EVENTS)
            states: list[State] = []
            latest_us: list[np.int64] = []
            first_us = num_events = 0
            while state[POSITION] < self._num_units:
                before = state.copy()
                count = self._decode(state, buffer)
                if not count:
                    continue
                num_events += count
                if not states:
                    first_us = int(buffer.t[0])
                states.append(before)
                latest_us.append(state[LATEST_US])
            self._note_faults(state)
            table = np.array(states, np.int64).reshape(len(states), len(state))
            self._index = _Index(table, np.array(latest_us, np.int64), first_us, num_events)
        return self._index

    def _note_faults(self, state: State) -> None:
        self.faults = ReadFaults(int(state[BACKWARD]), int(state[OUTSIDE]), self.faults.truncated_bytes)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handle": None}


class ByteRecording(Recording):
    """A recording that is a header and then words of `unit_bytes` bytes each."""

    unit_bytes: int

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
        num_bytes = min(max_units, self._num_units - position) * self.unit_bytes
        if len(self._bytes) < num_bytes:
            self._bytes = np.empty(num_bytes, np.uint8)
        file = self._file()
        file.seek(self._data_offset + position * self.unit_bytes)
        if file.readinto(self._bytes[:num_bytes]) != num_bytes:
            raise ValueError(f"{self.path} became shorter while it was read; read it again when it is complete")
        return self._bytes[:num_bytes]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_bytes": np.empty(0, np.uint8)}


def copy_events(events: Events) -> Events:
    """Events in arrays of their own, for keeping what a reader will overwrite."""
    return Events(events.t.copy(), events.x.copy(), events.y.copy(), events.p.copy())


def join_events(parts: list[Events]) -> Events:
    """Consecutive parts as one; a recording without events for an empty list."""
    if not parts:
        return EventBuffer(0).events(0)
    return Events(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("t", "x", "y", "p")))
