"""An opened event file of any format: a stream of repaired events with access by time.

A format provides the state of its decoder at the start of the file, and a function that decodes one block of events and
advances the state. States are small vectors of integers. A copy of a state is enough to resume decoding, so an index of
a few states gives exact access by time in any format. The index is built in one pass and kept on disk.
"""

from __future__ import annotations

import copy
import os
import pickle
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rvtssm.readers.index import RecordingIndex, identity_of, load_index, save_index
from rvtssm.records import Events, check_time_range
from rvtssm.system.user_error import UserError

# The first slots of every decoder state; formats append their own. Compiled functions read these as constants.
POSITION = 0  # index of the next unit of the file; a unit is an event, a word or a byte
LATEST_US = 1  # the largest time so far
BACKWARD = 2  # number of events that were earlier than an event before them
OUTSIDE = 3  # number of events outside the sensor, which are dropped
NUM_COMMON = 4

MAX_EVENTS_PER_UNIT = 36  # an EVT2.1 word, which is written as three vectors of 12 pixels
_MOST_MOVED = 0.01  # share of events out of order that can be a glitch of the camera
_FEW_MOVED = 100  # this many events out of order are accepted in any case
# Events per pixel and second, averaged over all pixels and the whole recording. The fastest sensors read out about 1e9
# events per second from 1280 x 720 pixels, 1,100 per pixel, and only for moments; smaller ones reach 300 to 700. Real
# recordings average 0.1 to 40, so 40 to 40,000 if the times are milliseconds and 1000 times that if they are seconds.
_MOST_PER_PIXEL = 1000
_ENOUGH_FOR_DENSITY = 1000  # events; fewer say little about the average
_INSTANT_US = 10  # some sensors give the same time to all events of a row, or of a reading
MANY_EVENTS = 10_000  # fewer can be a single instant, or a short piece on purpose
_LONGEST_GAP_US = 6 * 3_600_000_000  # longest gap in a recording; every empty window in it is computed
_NOT_SETTINGS = ("path", "faults", "repair", "_index", "_handle", "_handle_owner")

State = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class ReadFaults:
    """How many repairs were made in the part of a file that was read so far."""

    backward_steps: int = 0  # events earlier than an event before them; they get the latest time so far
    out_of_frame: int = 0  # events outside the sensor; they are dropped
    truncated_bytes: int = 0  # bytes after the last complete event; they are ignored


class EventBuffer:
    """Arrays for `capacity` events. Decoders overwrite them with every block."""

    def __init__(self, capacity: int) -> None:
        self.t = np.empty(capacity, np.int64)
        self.x = np.empty(capacity, np.uint16)
        self.y = np.empty(capacity, np.uint16)
        self.p = np.empty(capacity, np.uint8)

    def events(self, count: int) -> Events:
        """Return the first `count` events as views."""
        return Events(self.t[:count], self.x[:count], self.y[:count], self.p[:count])

    def after(self, count: int) -> EventBuffer:
        """Return a buffer on the same arrays that skips the first `count` places."""
        rest = EventBuffer(0)
        rest.t, rest.x, rest.y, rest.p = self.t[count:], self.x[count:], self.y[count:], self.p[count:]
        return rest


class Recording(ABC):
    """One event file. Use `iterate` to stream all of it and `between` for the events of a time range.

    Times never decrease, coordinates lie on the sensor, polarity is 0 or 1. A recording can be pickled; each process
    opens the file again. Only one thread may use it at a time.

    A new format derives from this class, or from `ByteRecording` if its file is a header followed by words of equal
    size. It sets `format`, implements `_open` and `_decode`, and lists the initial values of its own slots of the state
    in `own_state`. `_decode` follows the same rules in every format: an event that is earlier than one before it gets
    the latest time so far, an event outside the sensor is dropped, and both are counted in the state. The result of
    `_decode` depends only on the state, the file, and attributes that `__init__` sets and that survive pickling. A
    damaged file raises a UserError that names it.

    Args:
        path: The file.
        height: Height of the sensor, pixels.
        width: Width of the sensor, pixels.
        num_units: Number of units in the file, as POSITION counts them.
        truncated_bytes: Bytes after the last complete unit.
    """

    format: str
    own_state: tuple[int, ...] = ()
    index_events = 1 << 15  # events between two index entries; a smaller number makes short slices cheaper

    def __init__(self, path: Path, height: int, width: int, num_units: int, truncated_bytes: int = 0) -> None:
        self.path = path
        self.height = height
        self.width = width
        self._num_units = num_units
        self.faults = ReadFaults(truncated_bytes=truncated_bytes)
        self.repair = False  # read the file even if many events are out of order
        self._index: RecordingIndex | None = None
        self._handle: Any = None
        self._handle_owner = 0

    def _start(self) -> State:
        """Return the decoder state at the first unit of the file."""
        return np.array([0, np.iinfo(np.int64).min, 0, 0, *self.own_state], np.int64)

    @abstractmethod
    def _decode(self, state: State, buffer: EventBuffer) -> int:
        """Write the next events into the buffer, advance the state and return the number of events written.

        The buffer has room for at least MAX_EVENTS_PER_UNIT events. The result is 0 if the units held no events.
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
            raise UserError(f"max_events={max_events} is too small; one word can hold {MAX_EVENTS_PER_UNIT} events")
        return self._blocks(EventBuffer(max_events), start_us, end_us, reuse)

    def blocks(self) -> Iterator[Events]:
        """Yield all events. Each block overwrites the arrays of the block before it."""
        return self.iterate(reuse=True)

    def _blocks(self, buffer: EventBuffer, start_us: int | None, end_us: int | None, reuse: bool) -> Iterator[Events]:
        state = self._start() if start_us is None else self._state_at(start_us)
        is_whole, limits = start_us is None and end_us is None, np.iinfo(np.int64)
        start_us, end_us = limits.min if start_us is None else start_us, limits.max if end_us is None else end_us
        num_events = first_us = 0
        while state[POSITION] < self._num_units and state[LATEST_US] < end_us:
            count = self._decode(state, buffer)
            first_us = int(buffer.t[0]) if count and not num_events else first_us
            num_events += count
            self._note_faults(int(state[BACKWARD]), int(state[OUTSIDE]))
            block = buffer.events(count)
            if not is_whole:
                block = block.between(start_us, end_us)
            if len(block):
                yield block if reuse else copy_events(block)
        if is_whole:
            self._check_order(num_events)
            warn_of_density(self.name, num_events, (first_us, int(state[LATEST_US])), self.height, self.width)

    def read(self) -> Events:
        """Return all events. Use this only for files that fit in memory."""
        return join_events(list(self.iterate()))

    def between(self, start_us: int, end_us: int) -> Events:
        """Return the events with start_us <= t < end_us. Few other events are decoded."""
        check_time_range(start_us, end_us)
        index = self._built_index()
        first, stop = index.blocks(start_us, end_us) if start_us < end_us else (0, 0)
        wanted = int(index.num_before[stop] - index.num_before[first])
        buffer, filled = EventBuffer(wanted + MAX_EVENTS_PER_UNIT if wanted else 0), 0
        state = index.states[first].copy() if wanted else self._start()
        while filled < wanted and state[POSITION] < self._num_units:
            filled += self._decode(state, buffer.after(filled))
        return buffer.events(filled).between(start_us, end_us)

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
                f"{self.path} has an event at {late_us} us, {gaps_us.max() / 3.6e9:.3g} hours after others; its time "
                "is damaged, copy the file again, or cut it there"
            )
        return index.first_us, int(index.latest_us[-1])

    @property
    def num_events(self) -> int:
        """The number of events in the whole file that lie on the sensor."""
        return self._built_index().num_events

    def _check_order(self, num_events: int) -> None:
        """Raise UserError without `repair` if more than 1 % of all events, and more than a few, are out of order."""
        moved, total = self.faults.backward_steps, num_events + self.faults.out_of_frame
        if moved > max(_MOST_MOVED * total, _FEW_MOVED) and not self.repair:
            raise UserError(
                f"{self.path} has {moved} of {total} events that are earlier than an event before them; sort it by "
                "time, or give repair=true (dataset.repair=true, in Python repair=True) to move them "
                "to the time of that event"
            )

    def error_without_events(self) -> UserError:
        """Return the error to raise if the whole file was read and contained no valid event."""
        if outside := self.faults.out_of_frame:
            return UserError(
                f"{self.path} has all of its {outside} events outside its {self.width}x{self.height} (width x height) "
                "pixels; choose the dataset or the size that fits, or copy the file again"
            )
        return UserError(f"{self.path} holds no events; remove it or record it again")

    def _state_at(self, time_us: int) -> State:
        """Return the state before the first event at or after a time, or a state some events earlier."""
        index = self._built_index()
        first, _ = index.blocks(time_us, time_us)
        state: State = index.states[first].copy() if first < len(index.states) else self._start()
        if first == len(index.states):
            state[POSITION] = self._num_units
        return state

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
            self._note_faults(index.backward_steps, index.out_of_frame)
            self._check_order(index.num_events)
            if len(index.states):
                range_us = index.first_us, int(index.latest_us[-1])
                warn_of_density(self.name, index.num_events, range_us, self.height, self.width)
            self._index = index
        return self._index

    def build_index(self) -> RecordingIndex:
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
        blocks = np.array(states, np.int64).reshape(len(states), len(state)), np.array(latest_us, np.int64)
        num_before, faults = np.cumsum(counts, dtype=np.int64), (int(state[BACKWARD]), int(state[OUTSIDE]))
        return RecordingIndex(*blocks, num_before, first_us, *faults)

    def _settings(self) -> bytes:
        """Return everything besides the content of the file that decides which events are read."""
        chosen = {name: value for name, value in self.__getstate__().items() if name not in _NOT_SETTINGS}
        return pickle.dumps((type(self).__qualname__, self.index_events, sorted(chosen.items())), protocol=4)

    def _note_faults(self, backward_steps: int, out_of_frame: int) -> None:
        self.faults = ReadFaults(backward_steps, out_of_frame, self.faults.truncated_bytes)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handle": None}


def warn_of_density(name: str, num_events: int, range_us: tuple[int, int], height: int, width: int) -> bool:
    """Warn if a recording has more events than any sensor gives, as times in milliseconds or seconds would.

    Args:
        name: The recording, for the message.
        num_events: Number of events.
        range_us: Times of the first and the last event, as they were read.
        height: Height of the sensor, pixels.
        width: Width of the sensor, pixels.

    Returns:
        Whether it warned.
    """
    span_us = range_us[1] - range_us[0]
    per_pixel = num_events / (height * width) / max(span_us, 1) * 1e6
    is_enough = num_events >= (_ENOUGH_FOR_DENSITY if span_us >= _INSTANT_US else MANY_EVENTS)
    if is_told := is_enough and per_pixel > _MOST_PER_PIXEL:
        text = (
            f"{name} has {num_events} events in {span_us / 1000:g} ms on {width} x {height} pixels, that is "
            f"{per_pixel:.0f} per pixel and second, more than any sensor gives; if the times are milliseconds, "
            "multiply them by 1000, if seconds, by 1000000"
        )
        warnings.warn_explicit(
            text, UserWarning, __file__, 0
        )  # without a registry, which would keep a second call quiet
    return is_told


def copy_events(events: Events) -> Events:
    """Return the events in arrays of their own, since a reader overwrites its buffer."""
    return Events(events.t.copy(), events.x.copy(), events.y.copy(), events.p.copy())


def join_events(parts: list[Events]) -> Events:
    """Concatenate consecutive parts; an empty list gives no events."""
    if not parts:
        return EventBuffer(0).events(0)
    return Events(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("t", "x", "y", "p")))
