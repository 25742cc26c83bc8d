"""Events in numpy files: a structured array, an array of shape (N, 4), or an `.npz` with one array per column.

Columns are found by name if the file has names. An array of shape (N, 4) without names is [t, x, y, p], as in PEDRo.
Only the rows that are needed are read; an `.npz` is always read from its start.
Source: numpy.lib.format.
"""

import io
import lzma
import math
import tokenize
import zipfile
import zlib
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from rvtssm.readers.columns import Column, EventColumns, check_kinds, find_columns
from rvtssm.readers.header import sensor_size
from rvtssm.readers.recording import POSITION, EventBuffer, Recording, State
from rvtssm.system.user_error import UserError

NPY_SIGNATURE, NPZ_SIGNATURE = b"\x93NUMPY", b"PK\x03\x04"
_MAX_HEADER_BYTES = 1 << 16
_SIZE_NAMES = ("height", "width")
_UNREADABLE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, NotImplementedError, RuntimeError)

_NO_HEADER = (ValueError, KeyError, TypeError, SyntaxError, tokenize.TokenError, RecursionError, MemoryError)


@dataclass(frozen=True, slots=True)
class _Array:
    """One array on disk, in an `.npy` file or in a member of an archive."""

    member: str | None
    offset: int  # byte of the first row
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_fortran: bool


@dataclass(frozen=True, slots=True)
class _Stripe:
    """Consecutive rows of one dtype, which hold one column or all columns."""

    member: str | None
    offset: int
    dtype: np.dtype[Any]


class ArraysRecording(Recording):
    """A numpy file of events.

    Args:
        path: The file.
        stripes: One stripe with all columns, or one stripe per column.
        num_rows: Number of events.
        events: The conversion of columns to events.
    """

    def __init__(self, path: Path, stripes: list[_Stripe], num_rows: int, events: EventColumns) -> None:
        super().__init__(path, events.height, events.width, num_rows)
        self.format = "npy" if stripes[0].member is None else "npz"
        self._stripes = stripes
        self._events = events

    def _open(self) -> Any:
        return _OpenStripes(self.path, self._stripes)

    def _decode(self, state: State, buffer: EventBuffer) -> int:
        start = int(state[POSITION])
        stop = min(start + len(buffer.t), self._num_units)
        columns = [column for rows in self._file().read(start, stop) for column in _split(rows)]
        state[POSITION] = stop
        raw = [columns[i] for i in self._events.columns.index]
        return self._events.keep(raw, f"in rows {start} to {stop}", state, buffer)


class _OpenStripes:
    """A file that is opened once per stripe, so that each stripe is read forwards."""

    def __init__(self, path: Path, stripes: list[_Stripe]) -> None:
        self._path = path
        self._stripes = stripes
        self._files = ExitStack()
        try:
            if stripes[0].member is None:
                streams: list[IO[bytes]] = [open(path, "rb") for _ in stripes]  # noqa: SIM115  closed by `_files`
            else:
                archive = self._files.enter_context(zipfile.ZipFile(path))
                streams = [archive.open(str(stripe.member)) for stripe in stripes]
            self._streams = [self._files.enter_context(stream) for stream in streams]
        except _UNREADABLE as error:
            self.close()
            raise UserError(f"{path} cannot be opened as an archive of arrays ({error}); copy it again") from None

    def read(self, start: int, stop: int) -> list[npt.NDArray[Any]]:
        """Return the rows [start, stop) of every stripe."""
        found = []
        for stripe, stream in zip(self._stripes, self._streams, strict=True):
            position, wanted = stripe.offset + start * stripe.dtype.itemsize, (stop - start) * stripe.dtype.itemsize
            try:
                stream.seek(position)
                data = stream.read(wanted)
            except _UNREADABLE as error:
                raise UserError(f"{self._path}, {_place(stripe.member, position)}: {error}; copy it again") from None
            if len(data) != wanted:
                raise UserError(
                    f"{self._path}, {_place(stripe.member, position)}: {wanted} bytes are missing; copy it again"
                )
            found.append(np.frombuffer(data, stripe.dtype))
        return found

    def close(self) -> None:
        self._files.close()


def open_npy(path: Path, height: int | None, width: int | None) -> ArraysRecording:
    """Open an `.npy` file of events, a structured array or an array of shape (N, 4).

    Args:
        path: The file.
        height: Height of the sensor, pixels.
        width: Width of the sensor, pixels.

    Raises:
        UserError: The array has another form, or the size of the sensor is unknown.
    """
    with open(path, "rb") as file:
        array = _read_array(path, None, file, path.stat().st_size)
    return _opened(path, [array], None, None, (height, width))


def open_npz(path: Path, height: int | None, width: int | None) -> ArraysRecording:
    """Open an `.npz` file with arrays t, x, y, p (and scalars `height`, `width`), or one array as in an `.npy` file.

    Args:
        path: The file.
        height: Height of the sensor in pixels, if the file does not state it.
        width: Width of the sensor in pixels, if the file does not state it.

    Raises:
        UserError: The arrays have another form, or the size of the sensor is unknown.
    """
    arrays, in_file = {}, {}
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                name = entry.filename.removesuffix(".npy")
                if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise UserError(f"{path}: {entry.filename} is compressed in a way unknown to numpy; save it again")
                if name in arrays or name in in_file:
                    raise UserError(f"{path} holds {entry.filename} twice; save it again")
                with archive.open(entry) as stream:
                    array = _read_array(path, entry.filename, stream, entry.file_size)
                    if name in _SIZE_NAMES and math.prod(array.shape) == 1 and array.dtype.kind in "iu":
                        stream.seek(array.offset)
                        in_file[name] = int(np.frombuffer(stream.read(array.dtype.itemsize), array.dtype)[0])
                    else:
                        arrays[name] = array
    except _UNREADABLE as error:
        raise UserError(f"{path} cannot be opened as an archive of arrays ({error}); copy it again") from None
    in_file_hw = (in_file["height"], in_file["width"]) if len(in_file) == 2 else None
    rows = {name: array for name, array in arrays.items() if len(array.shape) == 1 and not array.dtype.names}
    if len(arrays) == 1 and not rows:
        return _opened(path, list(arrays.values()), None, in_file_hw, (height, width))
    if not rows:
        held = ", ".join(f"{name} of shape {array.shape}" for name, array in arrays.items()) or "no arrays"
        raise UserError(
            f"{path} holds {held}; save t, x, y and p as arrays of shape (N,), or one array of shape (N, 4)"
        )
    return _opened(path, list(rows.values()), list(rows), in_file_hw, (height, width))


def _opened(
    path: Path,
    arrays: list[_Array],
    names: list[str] | None,
    in_file_hw: tuple[int, int] | None,
    asked_hw: tuple[int | None, int | None],
) -> ArraysRecording:
    """Return the recording of one array with all columns (`names` is None) or of one array per column."""
    if names is not None:
        found = find_columns(path, names)
        arrays = [arrays[i] for i in found.index]
        found = replace(found, index=(0, 1, 2, 3))
        kinds = [array.dtype for array in arrays]
        stripes = [_Stripe(array.member, array.offset, array.dtype) for array in arrays]
    else:
        (array,) = arrays
        dtype = array.dtype
        found = find_columns(path, dtype.names)
        if dtype.names and len(array.shape) == 1:
            kinds = [dtype[name] for name in dtype.names]
            stripes = [_Stripe(array.member, array.offset, dtype)]
        elif not dtype.names and len(array.shape) == 2 and array.shape[1] == 4:
            kinds = [dtype] * 4
            if array.is_fortran:
                starts = [array.offset + i * array.shape[0] * dtype.itemsize for i in range(4)]
                stripes = [_Stripe(array.member, start, dtype) for start in starts]
            else:
                stripes = [_Stripe(array.member, array.offset, np.dtype((dtype, (4,))))]
        else:
            raise UserError(
                f"{path} holds an array of {dtype} of shape {array.shape}; save events as a structured array "
                "with t, x, y, p or as an array of shape (N, 4)"
            )
    check_kinds(path, [kinds[i] for i in found.index])
    lengths = {array.shape[0] for array in arrays}
    if len(lengths) > 1:
        raise UserError(f"{path} has columns of different lengths {sorted(lengths)}; save it again")
    height, width = sensor_size(path, in_file_hw, asked_hw)
    return ArraysRecording(path, stripes, lengths.pop(), EventColumns(path, found, height, width))


def _split(rows: npt.NDArray[Any]) -> list[Column]:
    """Return the columns in the rows of a stripe."""
    if rows.dtype.names:
        return [rows[name] for name in rows.dtype.names]
    return [rows] if rows.ndim == 1 else list(rows.T)


def _read_array(path: Path, member: str | None, stream: IO[bytes], num_bytes: int) -> _Array:
    """Read the header of an array. Raise UserError if it is damaged or does not fit the number of bytes."""
    head = io.BytesIO(stream.read(_MAX_HEADER_BYTES))
    try:
        version = np.lib.format.read_magic(head)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, is_fortran, dtype = read(head)
    except _NO_HEADER as error:
        raise UserError(f"{path}, {_place(member, 0)}: this is not an array ({error}); save it again") from None
    if not all(isinstance(side, int) and side >= 0 for side in shape) or dtype.hasobject:
        raise UserError(
            f"{path}, {_place(member, 0)}: an array of {dtype} of shape {shape} does not contain numbers; save numbers"
        )
    offset, wanted = head.tell(), dtype.itemsize * math.prod(shape)
    if offset + wanted != num_bytes:
        raise UserError(
            f"{path}, {_place(member, offset)}: an array of {dtype} of shape {shape} takes {wanted} bytes, "
            f"but there are {num_bytes - offset}; the file is cut off or damaged, copy it again"
        )
    return _Array(member, offset, dtype, shape, is_fortran)


def _place(member: str | None, position: int) -> str:
    return f"byte {position}" if member is None else f"{member}, byte {position}"
