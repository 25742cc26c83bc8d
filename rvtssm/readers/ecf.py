"""Metavision HDF5 files: a table `CD/events` in chunks that are compressed with Prophesee's codec ECF.

No package contains the HDF5 filter of this codec, so the stored chunks are read and decoded here, and every byte is
checked. A chunk holds times, then rows, then columns and polarities, each packed in runs. If runs would take more
space, columns and polarities are packed together, if necessary with the rows. Tables that are stored in another way are
read through h5py. Sources: OpenEB 0499c95, sdk/modules/stream (hdf5_event_file_reader.cpp); prophesee-ai/hdf5_ecf
8735ce7 (ecf_codec.cpp), for the order of bits.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from rvtssm.readers.columns import NAMES, GatedRecording, agreed_unit, columns_of
from rvtssm.readers.gate import LATEST_POSSIBLE_US, POSITION, Column, EventBuffer, Gate, State
from rvtssm.readers.hdf5 import OpenDatasets, check_storage, filters_of, open_hdf5, reading
from rvtssm.readers.header import sensor_size
from rvtssm.records import ReadOptions
from rvtssm.system.jit import jit
from rvtssm.system.user_error import UserError

TABLE = "CD/events"
_FILTER = 0x8ECF

_Parts = tuple[Column, Column, Column, Column]


class EcfRecording(GatedRecording):
    """The events of a table `CD/events`.

    Args:
        gate: The conversion of columns to events.
        num_events: Number of rows of the table.
        chunk_events: Number of rows per chunk.
        is_packed: Whether ECF is the only filter of the table.
    """

    format = "ecf"
    is_unit_fixed = False
    index_events = 1 << 14  # one chunk of the files that cameras write

    def __init__(self, gate: Gate, num_events: int, chunk_events: int, is_packed: bool) -> None:
        super().__init__(gate, num_events)
        self._chunk_events = chunk_events
        self._is_packed = is_packed
        self._chunk: tuple[int, _Parts] | None = None  # number and columns of the chunk that was read last
        self._decoded: EventBuffer | None = None

    def _open(self) -> OpenDatasets:
        return OpenDatasets(self.path, [TABLE])

    def _next_columns(self, state: State, max_events: int) -> tuple[Sequence[Column], str]:
        number, start = divmod(int(state[POSITION]), self._chunk_events)
        part = [column[start : start + max_events] for column in self._columns(number)]
        state[POSITION] += len(part[0])
        return part, f"in chunk {number}"

    def _next_times(self, state: State) -> Column:
        self._decoded = None  # the gate still reads those arrays
        return super()._next_times(state)

    def _columns(self, number: int) -> _Parts:
        """Return t, x, y, p of one chunk, in arrays that the next chunk overwrites."""
        if self._chunk is None or self._chunk[0] != number:
            self._chunk = None
            start = number * self._chunk_events
            stop = min(start + self._chunk_events, self._num_units)
            with reading(self.path, f", events {start} to {stop}"):
                (table,) = self._file().datasets
                columns = self._unpacked(table, start, stop) if self._is_packed else _fields(table[start:stop])
            self._chunk = (number, columns)
        return self._chunk[1]

    def _unpacked(self, table: h5py.Dataset, start: int, stop: int) -> _Parts:
        filter_mask, stored = table.id.read_direct_chunk((start,))
        data = np.frombuffer(stored, np.uint8)
        if filter_mask:  # the filter was not applied to this chunk, so it is stored unpacked
            return _fields(data.view(table.dtype)[: stop - start])
        if self._decoded is None:
            self._decoded = EventBuffer(MAX_CHUNK_EVENTS + SLACK)
        columns = self._decoded
        position = decode_chunk(data, stop - start, columns.t, columns.x, columns.y, columns.p)
        if position < 0:
            place = table.id.get_chunk_info_by_coord((start,)).byte_offset  # slow, so only for the message
            found = f"the chunk of {len(data)} bytes at byte {place} is damaged at its byte {~position}"
            raise UserError("file.damaged", found=found)
        events = columns.events(stop - start)
        return events.t, events.x, events.y, events.p

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_chunk": None, "_decoded": None}


def open_ecf(path: Path, options: ReadOptions) -> EcfRecording:
    """Open a Metavision HDF5 file.

    Args:
        path: The file.
        options: What the caller says about the file.

    Raises:
        UserError: The table has other columns, or the size of the sensor is unknown.
    """
    with reading(path), open_hdf5(path) as file:
        # The table must hold events, in chunks that can be unpacked.
        table = file[TABLE]
        is_table = isinstance(table, h5py.Dataset) and table.ndim == 1 and set(NAMES) <= set(table.dtype.names or ())
        if not is_table or not all(table.dtype[name].kind in "iu" for name in NAMES):
            found = f"has no table {TABLE} of whole numbers t, x, y, p"
            raise UserError("file.content", name=path, found=found, advice="write it again")
        check_storage(path, table)
        filters = filters_of(table)
        is_packed = len(filters) == 1 and filters[0][0] == _FILTER
        chunk_events, *_ = table.chunks or (EcfRecording.index_events,)
        if is_packed and chunk_events > MAX_CHUNK_EVENTS:
            found = f"has chunks of {chunk_events} events, above {MAX_CHUNK_EVENTS}"
            raise UserError("file.content", name=path, found=found, advice="write it in smaller ones")
        num_events, in_file = len(table), _geometry(file.attrs.get("geometry"))
    height, width = sensor_size(path, in_file, options)
    gate = Gate(path, height, width, agreed_unit(path, None, options))
    return EcfRecording(gate, num_events, chunk_events, is_packed)


def is_ecf(file: h5py.File) -> bool:
    """Return whether an HDF5 file has the layout of Metavision."""
    return TABLE in file


def _geometry(text: Any) -> tuple[int, int] | None:
    """Return height and width from `WIDTHxHEIGHT`, None for None, and (0, 0), an invalid size, for anything else."""
    if text is None:
        return None
    if isinstance(text, bytes):
        text = text.decode("ascii", "replace")
    sides = re.fullmatch(r"(\d+)x(\d+)", str(text))
    return (int(sides[2]), int(sides[1])) if sides else (0, 0)


def _fields(rows: npt.NDArray[np.void]) -> _Parts:
    t, x, y, p = columns_of(rows)
    return t, x, y, p


MAX_CHUNK_EVENTS = 65535  # the limit of the codec
SLACK = 128  # places after the last event, so that short runs can be written with a fixed length
_HEAD_BYTES = 12
_MAX_SHIFT = 56  # a time step has at most this many bits before its last four
_PACKED_COLUMNS, _PACKED_ROWS = 1, 2  # flags of a chunk: columns packed with polarities; rows packed as well


@jit
def decode_chunk(data, num_events, t, x, y, p):  # type: ignore[no-untyped-def]
    """Decode a chunk into t, x, y, p, which have room for MAX_CHUNK_EVENTS + SLACK events.

    The chunk must hold at least `num_events` events and may hold more. Return the number of bytes used, or
    ~position of the first invalid byte.
    """
    if len(data) < _HEAD_BYTES:
        return ~len(data)
    # The head says how many events there are, and how they are packed.
    head = _number(data, 0, 4)
    in_chunk = head >> 2
    if in_chunk < num_events or in_chunk > MAX_CHUNK_EVENTS:
        return ~0
    position = _decode_times(data, in_chunk, t)
    if head & _PACKED_ROWS:
        return _decode_packed(data, position, in_chunk, 4, y, x, p)
    position = _decode_runs(data, position, in_chunk, 2, 5, y)
    if head & _PACKED_COLUMNS:
        return _decode_packed(data, position, in_chunk, 2, y, x, p)
    position = _decode_columns(data, position, in_chunk, x)
    return _decode_runs(data, position, in_chunk, 1, 7, p)


@jit
def _number(data, position, num_bytes):  # type: ignore[no-untyped-def]
    value = np.int64(0)
    for i in range(num_bytes):
        value |= np.int64(data[position + i]) << (8 * i)
    return value


@jit
def _long_run(data, position, filled, in_chunk):  # type: ignore[no-untyped-def]
    """Return the position after the two bytes of a run's length, ~position if that is too long, and the length."""
    if position + 2 > len(data):
        return ~position, 0
    length = _number(data, position, 2)
    position += 2
    return position if filled + length <= in_chunk else ~position, length


@jit
def _decode_times(data, in_chunk, t):  # type: ignore[no-untyped-def]
    """Decode a start time, then one byte per run: 4 bits of time step, 4 bits of length.

    A byte whose upper half is 15 comes before a run and holds 4 bits of a long step. Branches on the kind of a byte
    would be hard to predict, so both cases are computed and one is selected without a branch.
    """
    time = _number(data, 4, 8)
    position = _HEAD_BYTES
    shift = filled = step = np.int64(0)
    while filled < in_chunk:
        if position >= len(data) or shift > _MAX_SHIFT or time < 0 or time >= LATEST_POSSIBLE_US:
            return ~position
        # One byte: a run, or a part of a long step. Without branches, both are computed.
        upper, length = np.int64(data[position] >> 4), np.int64(data[position] & 0xF)
        position += 1
        part = -np.int64(upper == 15)  # all bits set for a part of a long step, none for a run
        time += (step + upper) & ~part
        step = (step | length << shift) & part
        shift = (shift + 4) & part
        # The run: its length may need two more bytes.
        if length == 15 and not part:
            position, length = _long_run(data, position, filled, in_chunk)
            if position < 0:
                return position
            t[filled : filled + length] = time
        else:
            for i in range(16):
                t[filled + i] = time
        filled += length & ~part
    return position if filled == in_chunk and 0 <= time < LATEST_POSSIBLE_US else ~position


@jit
def _decode_runs(data, position, in_chunk, num_bytes, length_bits, values):  # type: ignore[no-untyped-def]
    """Decode one number of 1 or 2 bytes per run: a value, and in the lower bits the length of the run.

    If all bits of the length are 1, the next two bytes hold it.
    """
    filled, longest = np.int64(0), (1 << length_bits) - 1
    while position >= 0 and filled < in_chunk:
        if position + num_bytes > len(data):
            return ~position
        # One run: its value and its length.
        number = _number(data, position, num_bytes)
        position += num_bytes
        value, length = number >> length_bits, number & longest
        if length == longest:
            position, length = _long_run(data, position, filled, in_chunk)
            if position < 0:
                return position
        # Short runs are written with a fixed length, which needs no test in the loop.
        if length <= 16:
            for i in range(16):
                values[filled + i] = value
        else:
            for i in range(length):
                values[filled + i] = value
        filled += length
    return position if filled <= in_chunk or position < 0 else ~position


@jit
def _decode_columns(data, position, in_chunk, x):  # type: ignore[no-untyped-def]
    """Decode two bytes per group: 11 bits of column, then one bit for each of the next five columns.

    The last group may contain more events than the chunk, because the encoder reads beyond the end of its input.
    """
    filled = np.int64(0)
    while position >= 0 and filled < in_chunk:
        if position + 2 > len(data):
            return ~position
        value = _number(data, position, 2)
        position += 2
        column = value >> 5
        x[filled] = column
        filled += 1
        for i in range(5):
            x[filled] = column + i + 1
            filled += (value >> (4 - i)) & 1
    return position


@jit
def _decode_packed(data, position, in_chunk, num_bytes, y, x, p):  # type: ignore[no-untyped-def]
    """Decode four events from three numbers of 2 or 4 bytes. Each event has 11 bits of column and one bit of polarity.

    With 4 bytes, 11 bits of row come before the column.
    """
    end = position + (in_chunk + 3) // 4 * 3 * num_bytes
    if position < 0:
        return position
    if end > len(data):
        return ~len(data)
    part = 2 * num_bytes  # each number holds three quarters of one event and a quarter of another
    for i in range(0, in_chunk, 4):
        a, b = _number(data, position, num_bytes), _number(data, position + num_bytes, num_bytes)
        c = _number(data, position + 2 * num_bytes, num_bytes)
        position += 3 * num_bytes
        # Three numbers hold four events, whose bits are put together.
        second = (a & ((1 << part) - 1)) | (b >> 2 * part) << part
        third = (b & ((1 << 2 * part) - 1)) | (c >> 3 * part) << 2 * part
        values = (a >> part, second, third, c & ((1 << 3 * part) - 1))
        for j in range(4):
            x[i + j] = (values[j] >> 1) & 0x7FF
            p[i + j] = values[j] & 1
            if num_bytes == 4:
                y[i + j] = (values[j] >> 12) & 0x7FF
    return end
