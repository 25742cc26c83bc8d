"""Events in numpy files: a structured array, an array of shape (N, 4), or an `.npz` with one array per column.

Columns are found by name if the file has names. An array of shape (N, 4) without names is [t, x, y, p], as in PEDRo,
unless its first rows cannot be that.
Only the rows that are needed are read; an `.npz` is always read from its start.
Source: numpy.lib.format.
"""

import io
import lzma
import math
import zipfile
import zlib
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from rvtssm.readers.columns import (
    FIRST_ROWS,
    NAMES,
    Columns,
    ColumnsRecording,
    check_kinds,
    find_columns,
    matching,
    order_of_unnamed,
)
from rvtssm.readers.gate import Column, Gate
from rvtssm.readers.header import sensor_size
from rvtssm.records import ReadOptions
from rvtssm.system.files import CONTENT_ERRORS, file_errors
from rvtssm.system.user_error import UserError

NPY_SIGNATURE, NPZ_SIGNATURE = b"\x93NUMPY", b"PK\x03\x04"
_MAX_HEADER_BYTES = 1 << 16
_SIZE_NAMES = ("height", "width")
_UNREADABLE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, NotImplementedError, RuntimeError)

_NO_ARCHIVE = " cannot be opened as an archive of arrays", "copy or save it again", _UNREADABLE


@dataclass(frozen=True, slots=True)
class _Array:
    """One array on disk, in an `.npy` file or in a member of an archive."""

    member: str | None
    offset: int  # byte of the first row
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_fortran: bool
    truncated_bytes: int = 0  # after the last whole row


@dataclass(frozen=True, slots=True)
class _Table:
    """The stripes of all columns in a file: consecutive rows of one dtype, which hold one column or all columns."""

    stripes: list[_Array]
    columns: Columns  # their places among the columns of all stripes
    num_rows: int
    truncated_bytes: int = 0


class ArraysRecording(ColumnsRecording):
    """A numpy file of events.

    Args:
        table: Where the columns are.
        gate: The conversion of columns to events.
    """

    def __init__(self, table: _Table, gate: Gate) -> None:
        super().__init__(gate, table.num_rows, table.truncated_bytes)
        self.format = "npy" if table.stripes[0].member is None else "npz"
        self._table = table

    def _open(self) -> Any:
        return _OpenStripes(self.path, self._table.stripes)

    def _columns(self, start: int, stop: int) -> list[Column]:
        columns = _split(self._file().read(start, stop))
        return [np.ascontiguousarray(column) for column in self._table.columns.pick(columns)]


class _OpenStripes:
    """A file that is opened once per stripe, so that each stripe is read forwards."""

    def __init__(self, path: Path, stripes: list[_Array]) -> None:
        self._path = path
        self._stripes = stripes
        with ExitStack() as files, file_errors(path, *_NO_ARCHIVE):
            if stripes[0].member is None:
                streams: list[IO[bytes]] = [open(path, "rb") for _ in stripes]  # noqa: SIM115  closed by `files`
            else:
                archive = files.enter_context(zipfile.ZipFile(path))
                streams = [archive.open(str(stripe.member)) for stripe in stripes]
            self._streams = list(map(files.enter_context, streams))
            self._files = files.pop_all()

    def read(self, start: int, stop: int) -> list[npt.NDArray[Any]]:
        """Return the rows [start, stop) of every stripe."""
        parts = []
        for stripe, stream in zip(self._stripes, self._streams, strict=True):
            position, num_bytes = stripe.offset + start * stripe.dtype.itemsize, (stop - start) * stripe.dtype.itemsize
            where = f"{self._path}, {_place(stripe.member, position)}"
            with file_errors(where, errors=_UNREADABLE):
                stream.seek(position)
                data = stream.read(num_bytes)
            if len(data) != num_bytes:
                raise UserError("file.cut", name=where, found=f"{num_bytes} bytes are missing", advice="copy it again")
            parts.append(np.frombuffer(data, stripe.dtype))
        return parts

    def close(self) -> None:
        self._files.close()


def open_npy(path: Path, options: ReadOptions) -> ArraysRecording:
    """Open an `.npy` file of events, a structured array or an array of shape (N, 4).

    A file that was cut off is read up to its last whole row.

    Args:
        path: The file.
        options: What the caller says about the file.

    Raises:
        UserError: The array has another form, or the size of the sensor is unknown.
    """
    with open(path, "rb") as file:
        array = _read_array(path, None, file, path.stat().st_size)
    return _opened(path, _one_array(path, array, options), None, options)


def open_npz(path: Path, options: ReadOptions) -> ArraysRecording:
    """Open an `.npz` file with arrays t, x, y, p (and scalars `height`, `width`), or one array as in an `.npy` file.

    Args:
        path: The file.
        options: What the caller says about the file.

    Raises:
        UserError: The arrays have another form, or the size of the sensor is unknown.
    """
    arrays, in_file = {}, {}
    with file_errors(path, *_NO_ARCHIVE), zipfile.ZipFile(path) as archive:
        # Every member is an array, a side of the sensor, or something that is not read.
        entries = archive.infolist()
        if entries and not any(entry.filename.endswith(".npy") for entry in entries):
            advice = "unpack it"
            raise UserError("file.kind", name=path, found=f"is an archive with {entries[0].filename}", advice=advice)
        for entry in entries:
            name = entry.filename.removesuffix(".npy")
            if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                found = f"{entry.filename} is compressed in a way unknown to numpy"
                raise UserError("file.damaged", name=path, found=found, advice="save it again")
            if name in arrays or name in in_file:
                advice = "save it again"
                raise UserError("file.damaged", name=path, found=f"holds {entry.filename} twice", advice=advice)
            with archive.open(entry) as stream:
                array = _read_array(path, entry.filename, stream, entry.file_size)
                if array.dtype.hasobject:  # Python objects, such as a dictionary of notes, are not read
                    continue
                if name in _SIZE_NAMES and math.prod(array.shape) == 1 and array.dtype.kind in "iu":
                    stream.seek(array.offset)
                    in_file[name] = int(np.frombuffer(stream.read(array.dtype.itemsize), array.dtype)[0])
                else:
                    arrays[name] = array
    # One array per column, or one for all of them.
    in_file_hw = (in_file["height"], in_file["width"]) if len(in_file) == 2 else None
    rows = {}
    tables = []
    for name, array in arrays.items():
        if len(array.shape) == 1 and not array.dtype.names:
            rows[name] = array
        else:
            tables.append(array)
    has_columns = rows and (options.columns or set(matching(list(rows))[0]) == set(NAMES))
    if len(tables) == 1 and not has_columns:
        return _opened(path, _one_array(path, tables[0], options), in_file_hw, options)
    if not rows:
        held = ", ".join(f"{name} of shape {array.shape}" for name, array in arrays.items()) or "no arrays"
        advice = "save t, x, y and p as arrays of shape (N,), or one array of shape (N, 4)"
        raise UserError("file.content", name=path, found=f"holds {held}", advice=advice)
    return _opened(path, _columns_apart(path, rows, options), in_file_hw, options)


def _opened(path: Path, table: _Table, in_file_hw: tuple[int, int] | None, options: ReadOptions) -> ArraysRecording:
    height, width = sensor_size(path, in_file_hw, options)
    return ArraysRecording(table, Gate(path, height, width, table.columns.time_unit))


def _columns_apart(path: Path, arrays: dict[str, _Array], options: ReadOptions) -> _Table:
    """Return the table of an archive with one array per column."""
    columns = find_columns(path, list(arrays), options)
    chosen = columns.pick([*arrays.values()])
    check_kinds(path, [array.dtype for array in chosen])
    lengths = {array.shape[0] for array in chosen}
    if len(lengths) > 1:
        found = f"has columns of different lengths {sorted(lengths)}"
        raise UserError("file.damaged", name=path, found=found, advice="save it again")
    return _Table(chosen, Columns((0, 1, 2, 3), columns.time_unit), lengths.pop())


def _one_array(path: Path, array: _Array, options: ReadOptions) -> _Table:
    """Return the table of a file with one array."""
    if len(array.shape) == 2 and array.shape[0] == len(NAMES) < array.shape[1] and not array.dtype.names:
        array = replace(array, shape=array.shape[::-1], is_fortran=not array.is_fortran)  # four rows of events
    # A table with names, or columns whose order the values must tell.
    dtype, num_rows = array.dtype, array.shape[0] if array.shape else 0
    if dtype.names and len(array.shape) == 1:
        columns, kinds = find_columns(path, dtype.names, options), [dtype[name] for name in dtype.names]
        stripes = [array]
    elif not dtype.names and len(array.shape) == 2 and array.shape[1] >= 4:
        num_columns = array.shape[1]
        kinds = [dtype] * num_columns
        check_kinds(path, kinds[:4])
        if array.is_fortran:
            column_bytes = num_rows * dtype.itemsize
            stripes = [replace(array, offset=array.offset + i * column_bytes) for i in range(num_columns)]
        else:
            stripes = [replace(array, dtype=np.dtype((dtype, (num_columns,))))]
        columns = order_of_unnamed(path, _first_rows(path, stripes, num_rows), options, "t, x, y, p")
    else:
        found = f"holds an array of {dtype} of shape {array.shape}"
        advice = "save events as a structured array with t, x, y, p or as an array of shape (N, 4)"
        raise UserError("file.content", name=path, found=found, advice=advice)
    check_kinds(path, columns.pick(kinds))
    return _Table(stripes, columns, num_rows, array.truncated_bytes)


def _first_rows(path: Path, stripes: list[_Array], num_rows: int) -> npt.NDArray[Any]:
    opened = _OpenStripes(path, stripes)
    parts = opened.read(0, min(num_rows, FIRST_ROWS))
    opened.close()
    return np.stack(_split(parts), axis=1)


def _split(parts: list[npt.NDArray[Any]]) -> list[Column]:
    """Return the columns in the rows of all stripes."""
    columns: list[Column] = []
    for rows in parts:
        if rows.dtype.names:
            columns.extend(map(rows.__getitem__, rows.dtype.names))
        else:
            columns.extend([rows] if rows.ndim == 1 else rows.T)
    return columns


def _read_array(path: Path, member: str | None, stream: IO[bytes], num_bytes: int) -> _Array:
    """Read the header of an array. Raise UserError if it is damaged or does not fit the number of bytes."""
    # The header: type and shape, which must be of numbers.
    head = io.BytesIO(stream.read(_MAX_HEADER_BYTES))
    where = f"{path}, {_place(member, 0)}"
    with file_errors(where, " is not an array", "save it again", CONTENT_ERRORS, "file.content"):
        version = np.lib.format.read_magic(head)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, is_fortran, dtype = read(head)
    is_shape = all(isinstance(side, int) and side >= 0 for side in shape)
    if is_shape and dtype.hasobject and member is not None:
        return _Array(member, head.tell(), dtype, shape, is_fortran)
    if not is_shape or dtype.hasobject:
        found = f"an array of {dtype} of shape {shape} does not contain numbers"
        raise UserError("file.content", name=where, found=found, advice="save numbers")
    # The bytes after it: as many as the shape needs, or a file that was cut within its rows.
    offset, array_bytes = head.tell(), dtype.itemsize * math.prod(shape)
    row_bytes = dtype.itemsize * math.prod(shape[1:])
    if member is None and offset <= num_bytes < offset + array_bytes and not (is_fortran and len(shape) > 1):
        num_rows, truncated_bytes = divmod(num_bytes - offset, row_bytes)
        return _Array(member, offset, dtype, (num_rows, *shape[1:]), is_fortran, truncated_bytes)
    if offset + array_bytes != num_bytes:
        found = f"an array of {dtype} of shape {shape} takes {array_bytes} bytes, but there are {num_bytes - offset}"
        advice = "the file is cut off or damaged, copy or save it again"
        raise UserError("file.cut", name=f"{path}, {_place(member, offset)}", found=found, advice=advice)
    return _Array(member, offset, dtype, shape, is_fortran)


def _place(member: str | None, position: int) -> str:
    return f"byte {position}" if member is None else f"{member}, byte {position}"
