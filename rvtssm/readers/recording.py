"""An opened event file of any format: a stream of repaired events with access by time.

An index of a few states of the decoder gives exact access by time in any format. It is built in one pass and kept on
disk.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rvtssm.readers.decoder import Decoder
from rvtssm.readers.faults import ReadFaults, are_multiples, say, warn_of_unit
from rvtssm.readers.gate import LATEST_US, POSITION, EventBuffer, copy_events, first_state, join_events
from rvtssm.readers.index import RecordingIndex, identity_of, index_of, load_index, save_index
from rvtssm.readers.source import EventSource
from rvtssm.records import Events
from rvtssm.records.arrays import check_time_range
from rvtssm.system.user_error import UserError

MAX_EVENTS_PER_UNIT = 36  # an EVT2.1 word, which is written as three vectors of 12 pixels
_LONGEST_GAP_US = 6 * 3_600_000_000  # longest gap in a recording; every empty window in it is computed
_NOT_SETTINGS = ("path", "_counted", "repair", "_index", "_handle", "_handle_owner", "_begin", "_is_told")

Bytes = npt.NDArray[np.uint8]


class Recording(Decoder, EventSource):
    """One event file. Use `iterate` to stream all of it and `between` for the events of a time range.

    Times never decrease, coordinates lie on the sensor, polarity is 0 or 1. A recording can be pickled; each process
    opens the file again. Only one thread may use it at a time.

    A new format derives from this class, from `ByteRecording` if its file is a header followed by words of equal size,
    or from `GatedRecording` if its parts hold columns. It sets `format`, implements `_open` and `_decode`, and lists
    the initial values of its own slots of the state in `own_state`. `_decode` follows the rules of
    `rvtssm/readers/gate.py` in every format. Its result depends only on the state, the file, and attributes that
    `__init__` sets and that survive pickling. A damaged file raises a UserError that names it.

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

    is_live = False
    is_unit_fixed = True  # the format defines that times are microseconds
    options_used: tuple[str, ...] = ()  # of `columns` and `key`, which the caller may name, those that the format has
    is_unit_certain = True  # the file or the caller says the unit of time; otherwise unusual times are doubted
    index_events = 1 << 15  # events between two index entries; a smaller number makes short slices cheaper

    def __init__(self, path: Path, height: int, width: int, num_units: int, truncated_bytes: int = 0) -> None:
        super().__init__(path, height, width, num_units)
        self._truncated_bytes = truncated_bytes
        self._counted = first_state()  # the state whose faults were counted last
        self.repair = False  # read the file even if many events are faulty
        self._is_told = False  # whether the faults were said
        self._index: RecordingIndex | None = None

    def iterate(
        self, max_events: int = 1 << 16, start_us: int | None = None, end_us: int | None = None, *, reuse: bool = False
    ) -> Iterator[Events]:
        """Return an iterator over all events, or those with start_us <= t < end_us, in blocks.

        A time range needs the index, as in `between`, so the first one reads the whole file once.

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
            advice = f"one word can hold {MAX_EVENTS_PER_UNIT} events"
            raise UserError("setting.out_of_range", found=f"max_events={max_events} is too small", advice=advice)
        return self._blocks(EventBuffer(max_events), start_us, end_us, reuse)

    def blocks(self) -> Iterator[Events]:
        """Yield all events. Each block overwrites the arrays of the block before it."""
        return self.iterate(reuse=True)

    def _blocks(self, buffer: EventBuffer, start_us: int | None, end_us: int | None, reuse: bool) -> Iterator[Events]:
        state, num_left = self._first_state(), None
        # A pass over the whole file also says what is wrong with it. For a part of the file, the index has said it.
        is_whole, limits = start_us is None and end_us is None, np.iinfo(np.int64)
        start_us, end_us = limits.min if start_us is None else start_us, limits.max if end_us is None else end_us
        if not is_whole:  # begin at the first event of the time range, or some events earlier
            index = self._built_index()
            first, _ = index.blocks(start_us, start_us)
            num_left = int(index.num_before[-1] - index.num_before[first])
            state = (index.states[first] if num_left else index.last_state).copy()
        self._counted = state
        num_events, first_us, is_multiple = 0, 0, True
        for count in self._block_sizes(state, buffer, num_left):
            if not num_events:
                first_us = int(buffer.t[0])
            num_events += count
            # The events of this block that are asked for.
            block = buffer.events(count)
            if is_whole:
                is_multiple = is_multiple and are_multiples(block.t)
            else:
                block = block.between(start_us, end_us)
            if len(block):
                yield block if reuse else copy_events(block)
            if state[LATEST_US] >= end_us:
                return
        if is_whole:
            self._conclude(num_events, (first_us, int(state[LATEST_US])), is_multiple)

    def read(self) -> Events:
        """Return all events. Use this only for files that fit in memory."""
        return join_events(list(self.iterate()))

    def between(self, start_us: int, end_us: int) -> Events:
        """Return the events with start_us <= t < end_us. Few other events are decoded."""
        check_time_range(start_us, end_us)
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
        counted = ""
        if self._index is not None:
            counted = f", {self._index.num_events} events"
        return f"Recording({self.name}: {self.format}, {self.width} x {self.height} pixels{counted})"

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name of the file."""
        return self.path.name

    @property
    def faults(self) -> ReadFaults:
        """What was moved or left out from the start of the file to the end of the latest block, or of the index."""
        return ReadFaults.of(self._counted, self._truncated_bytes)

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
            found = f"has an event at {late_us} us, {gaps_us.max() / 3600000000.0:.3g} hours after others"
            advice = "its time is damaged, cut the file there"
            raise UserError("events.times", name=self.path, found=found, advice=advice)
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
            raise UserError("events.faulty", name=self.path, found=f"{reason}")
        if num_events:
            is_multiple_or_certain = None if self.is_unit_certain else is_multiple
            warn_of_unit(self.name, num_events, range_us, (self.height, self.width), is_multiple_or_certain)
        if not self._is_told and (note := self.fault_note(num_events)):
            say(f"{self.name}: {note}")
            self._is_told = True

    def refusal(self, num_events: int, is_repaired: bool = False) -> str:
        """Return why a recording with the faults found so far is refused, see `ReadFaults.refusal`."""
        return self.faults.refusal(num_events, self.height, self.width, is_repaired, self._reach)

    def fault_note(self, num_events: int) -> str:
        """Return what was left out so far, see `ReadFaults.note`."""
        return self.faults.note(num_events, self.height, self.width)

    def error_without_events(self) -> UserError:
        """Return the error to raise if the whole file was read and contained no valid event."""
        if outside := self.faults.out_of_frame:
            found = f"has all of its {outside} events outside its {self.width}x{self.height} (width x height) pixels"
            advice = "choose the dataset or the size that fits"
            return UserError("events.outside_frame", name=self.path, found=found, advice=advice)
        return UserError("events.none", name=self.path, found="holds no events", advice="remove it or record it again")

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
            self._counted = index.last_state
            last_us = int(index.latest_us[-1]) if len(index.states) else 0
            self._conclude(index.num_events, (index.first_us, last_us), index.is_multiple)
            self._index = index
        return self._index

    def build_index(self) -> RecordingIndex:
        """Return a new index, after decoding the whole file."""
        state, buffer = self._first_state(), EventBuffer(self.index_events)
        return index_of(self._block_sizes(state, buffer), state, buffer, self._first_state)

    def _settings(self) -> bytes:
        """Return everything besides the content of the file that decides which events are read."""
        chosen = {name: value for name, value in self.__getstate__().items() if name not in _NOT_SETTINGS}
        return pickle.dumps((type(self).__qualname__, self.index_events, sorted(chosen.items())), protocol=4)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handle": None}


class EventBlocks:
    """The blocks of a recording. While they are iterated, it counts the events and records the first and last time.

    Args:
        recording: The recording.
    """

    def __init__(self, recording: Recording) -> None:
        self._blocks = recording.blocks()
        self.num_events = self.first_us = self.last_us = 0

    def __iter__(self) -> Iterator[Events]:
        for block in self._blocks:
            if not self.num_events:
                self.first_us = int(block.t[0])
            self.last_us = int(block.t[-1])
            self.num_events += len(block)
            yield block
