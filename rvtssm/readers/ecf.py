"""Metavision HDF5 files: a table `CD/events` in chunks that are compressed with Prophesee's codec ECF.

No package contains the HDF5 filter of this codec, so the stored chunks are read and decoded here. Tables that are
stored in another way are read through h5py. Source: OpenEB 0499c95, sdk/modules/stream (hdf5_event_file_reader.cpp).
"""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from rvtssm.readers.columns import NAMES, agreed_unit
from rvtssm.readers.ecf_codec import MAX_CHUNK_EVENTS, SLACK, decode_chunk
from rvtssm.readers.gate import POSITION, Column, EventBuffer, Gate, State
from rvtssm.readers.hdf5 import OpenDatasets, check_storage, open_hdf5, reading
from rvtssm.readers.header import sensor_size
from rvtssm.readers.recording import Recording
from rvtssm.records import ReadOptions
from rvtssm.system.user_error import UserError

TABLE = "CD/events"
_FILTER = 0x8ECF

_Parts = tuple[Column, Column, Column, Column]


class EcfRecording(Recording):
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
        super().__init__(gate.path, gate.height, gate.width, num_events)
        self._gate = gate
        self._chunk_events = chunk_events
        self._is_packed = is_packed
        self._chunk: tuple[int, _Parts] | None = None  # number and columns of the chunk that was read last
        self._decoded: EventBuffer | None = None

    def _open(self) -> OpenDatasets:
        return OpenDatasets(self.path, [TABLE])

    def _decode(self, state: State, buffer: EventBuffer) -> int:
        num_kept = filled = 0
        while filled < len(buffer.t) and state[POSITION] < self._num_units:
            number, start = divmod(int(state[POSITION]), self._chunk_events)
            columns = self._columns(number)
            stop = min(len(columns[0]), start + len(buffer.t) - filled)
            part = [column[start:stop] for column in columns]
            num_kept += self._gate.keep(part, f"in chunk {number}", state, buffer.after(num_kept))
            state[POSITION] += stop - start
            filled += stop - start
        return num_kept

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
            raise UserError(
                "ecf.chunk", f"the chunk of {len(data)} bytes at byte {place} is damaged at its byte {~position}"
            )
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
        table = file[TABLE]
        is_table = isinstance(table, h5py.Dataset) and table.ndim == 1 and set(NAMES) <= set(table.dtype.names or ())
        if not is_table or not all(table.dtype[name].kind in "iu" for name in NAMES):
            raise UserError("ecf.no_table", f"{path} has no table {TABLE} of whole numbers t, x, y, p; write it again")
        check_storage(path, table)
        filters = table.id.get_create_plist()
        is_packed = [filters.get_filter(i)[0] for i in range(filters.get_nfilters())] == [_FILTER]
        chunk_events = table.chunks[0] if table.chunks else EcfRecording.index_events
        if is_packed and chunk_events > MAX_CHUNK_EVENTS:
            raise UserError(
                "ecf.chunk_size",
                f"{path} has chunks of {chunk_events} events, above {MAX_CHUNK_EVENTS}; write it in smaller ones",
            )
        num_events, in_file = len(table), _geometry(file.attrs.get("geometry"))
    height, width = sensor_size(path, in_file, (options.height, options.width))
    gate = Gate(path, height, width, agreed_unit(path, None, options))
    return EcfRecording(gate, num_events, chunk_events, is_packed)


def is_ecf(file: h5py.File) -> bool:
    """Return whether an HDF5 file has the layout of Metavision."""
    return TABLE in file


def _geometry(text: Any) -> tuple[int, int] | None:
    """Return height and width from `WIDTHxHEIGHT`, None for None, and (0, 0), an invalid size, for anything else."""
    if text is None:
        return None
    width, _, height = (text.decode("ascii", "replace") if isinstance(text, bytes) else str(text)).partition("x")
    return (int(height), int(width)) if height.isdecimal() and width.isdecimal() else (0, 0)


def _fields(rows: npt.NDArray[np.void]) -> _Parts:
    t, x, y, p = (np.ascontiguousarray(rows[name]) for name in NAMES)
    return t, x, y, p
