"""Shared parts of the readers of HDF5 files: errors, checks of damaged files, and the columns of a group `events`."""

import contextlib
import io
import itertools
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin  # noqa: F401  registers the compression filters of published files
import numpy as np
import numpy.typing as npt

from rvtssm.readers.columns import LATEST_POSSIBLE_US, NAMES, Column, keep_events
from rvtssm.readers.recording import POSITION, EventBuffer, Recording, State
from rvtssm.system.file_errors import CONTENT_ERRORS, file_errors
from rvtssm.system.user_error import UserError

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_MOST_PACKED = 1 << 16  # no known file unpacks a stored byte to more bytes than this
_MAX_CHUNK_BYTES = 1 << 28
_BLOSC, _BLOSC_VALUES = 32001, 4  # the filter reads this many settings without checking that they are there
_LARGEST_WHOLE = 2.0**62
_MOST_AT_ONCE = 1 << 16  # events that are read at once, which bounds the memory
_CACHE_BYTES = 1 << 25  # unpacked chunks kept per dataset, so that a chunk is not unpacked for every read


@contextlib.contextmanager
def reading(path: Path | str, where: str = "", advice: str = "copy it again") -> Iterator[None]:
    """Turn every error of h5py into a UserError that names the file and the place.

    Args:
        path: The file.
        where: The place in the file, such as ", events 0 to 10".
        advice: What the user should do.
    """
    fault = f"{where} are damaged" if where else " cannot be opened as HDF5"
    with file_errors(path, fault, advice, CONTENT_ERRORS):
        yield


class _OwnFile(h5py.File):  # type: ignore[misc]
    """A file that only gives data it contains. Otherwise a stranger's file could expose any file of this machine."""

    def __getitem__(self, name: str) -> Any:
        found = super().__getitem__(name)
        is_elsewhere = isinstance(found, h5py.Dataset) and (found.is_virtual or found.external)
        if is_elsewhere or h5py.h5f.get_name(found.id) != self.id.name:
            raise UserError(f"{self.filename} takes {name} from another file; copy the data into it")
        return found

    def get(self, name: str) -> Any:
        return self[name] if name in self else None  # noqa: SIM401, this is that method


def open_hdf5(path: Path | str, cache_bytes: int | None = None) -> h5py.File:
    """Open an HDF5 file for reading. All HDF5 files are opened with this function.

    Access by name raises UserError for external links, external storage and virtual datasets.

    Args:
        path: The file.
        cache_bytes: Memory for unpacked chunks, per dataset.
    """
    with open(path, "rb") as file:
        _check_driver(path, file)
    return _OwnFile(path, "r", rdcc_nbytes=cache_bytes)


def _check_driver(path: Path | str, file: io.BufferedReader) -> None:
    """Raise UserError for a driver information block, which only occurs in a file that is split into several.

    In a damaged file, libhdf5 would allocate as many bytes as that block claims to have.
    """
    start = file.read(64)
    if start.startswith(_SIGNATURE) and start[8:9] in (b"\0", b"\1"):  # versions with such an address
        size = start[13]  # bytes of an address
        at = 24 + 4 * start[8] + 3 * size
        if start[at : at + size] != b"\xff" * size:
            raise UserError(f"{path} is one of several parts of a file, or is damaged; copy it again as one file")


def read_array(file: h5py.File, name: str) -> npt.NDArray[Any]:
    """Return all of a dataset that is stored contiguously. This is faster than `file[name][()]`.

    HDF5 checks that the file is long enough for such a dataset, so it cannot claim to hold more than there is.

    Args:
        file: An open file.
        name: Name of the dataset.

    Raises:
        UserError: The dataset is not stored contiguously.
    """
    found = h5py.h5d.open(file.id, name.encode())
    shape, is_own = found.shape, h5py.h5f.get_name(found) == file.id.name
    if not is_own or (found.get_offset() is None and 0 not in shape):  # as with external storage
        raise UserError(f"{file.filename} does not hold {name} in one piece; prepare it again")
    values = np.empty(shape, found.dtype)
    found.read(h5py.h5s.ALL, h5py.h5s.ALL, values)
    return values


def read_rows(dataset: h5py.Dataset, start: int, stop: int) -> npt.NDArray[Any]:
    """Return the rows [start, stop) of a dataset.

    Args:
        dataset: The dataset.
        start: The first row.
        stop: The row after the last.

    Raises:
        UserError: The header of a blosc chunk claims another size than is stored. The filter does not check this and
            would read past the end.
    """
    properties = dataset.id.get_create_plist()
    codes = [properties.get_filter(i)[0] for i in range(properties.get_nfilters())]
    if codes[-1:] == [_BLOSC]:
        steps = dataset.chunks
        starts = range(start - start % steps[0], stop, steps[0])
        others = (range(0, size, step) for size, step in zip(dataset.shape[1:], steps[1:], strict=True))
        for corner in itertools.product(starts, *others):
            _check_blosc_chunk(dataset, corner)
    found: npt.NDArray[Any] = dataset[start:stop]
    return found


def _check_blosc_chunk(dataset: h5py.Dataset, corner: tuple[int, ...]) -> None:
    chunk = dataset.id.get_chunk_info_by_coord(corner)
    if chunk.byte_offset is None or chunk.filter_mask:  # nothing is stored, or it is not compressed
        return
    head = os.pread(dataset.file.id.get_vfd_handle(), 16, chunk.byte_offset)
    announced = int.from_bytes(head[12:], "little")
    if len(head) < 16 or announced != chunk.size:
        raise UserError(f"a chunk of {dataset.name} claims to have {announced} bytes but has {chunk.size}")


class OpenDatasets:
    """An open file and some of its datasets. Each is looked up only once, because a look-up by name is slow.

    Args:
        path: The file.
        names: Names of the datasets.
    """

    def __init__(self, path: Path, names: Iterable[str]) -> None:
        with reading(path):
            self.file = open_hdf5(path, _CACHE_BYTES)
            self.datasets: tuple[h5py.Dataset, ...] = tuple(self.file[name] for name in names)

    def close(self) -> None:
        self.file.close()


class EventGroupRecording(Recording):
    """The base class of formats that store the arrays t, x, y and p in a group `events`."""

    index_events = 1 << 16

    def _open(self) -> OpenDatasets:
        return OpenDatasets(self.path, (f"events/{name}" for name in NAMES))

    def _decode(self, state: State, buffer: EventBuffer) -> int:
        start = int(state[POSITION])
        stop = min(start + len(buffer.t), start + _MOST_AT_ONCE, self._num_units)
        columns = self._columns(start, stop)
        state[POSITION] = stop
        return keep_events(columns, state, (self.height, self.width), buffer)

    def _columns(self, start: int, stop: int) -> list[Column]:
        """Return the stored t, x, y, p of the events [start, stop)."""
        place = f", events {start} to {stop}"
        with reading(self.path, place):
            columns = [read_rows(column, start, stop) for column in self._file().datasets]
        t, x, y, p = (_whole_numbers(column, f"{self.path}{place}") for column in columns)
        if not np.all((t >= 0) & (t < LATEST_POSSIBLE_US)):
            raise UserError(f"{self.path}{place}: impossible times; copy it again")
        return [t, x, y, p]


def count_events(path: Path, file: h5py.File, kinds: str, advice: str) -> int:
    """Return the number of events in the group `events` of a file, after checking the stored columns.

    Args:
        path: The file, for messages.
        file: The opened file.
        kinds: Allowed dtype kinds, as letters of `numpy.dtype.kind`.
        advice: End of the message about missing columns.

    Raises:
        UserError: A column is missing, is not one-dimensional and numeric, or differs in length from the others.
    """
    columns: list[Any] = [file.get(f"events/{name}") for name in NAMES]
    for column in columns:
        if not isinstance(column, h5py.Dataset) or column.ndim != 1 or column.dtype.kind not in kinds:
            raise UserError(f"{path} has no events/t, x, y, p of numbers; {advice}")
        check_storage(path, column)
    lengths = {name: len(column) for name, column in zip(NAMES, columns, strict=True)}
    if len(set(lengths.values())) > 1:
        raise UserError(f"{path} has columns of different lengths {lengths}; copy it again")
    return lengths["t"]


def check_storage(path: Path, dataset: h5py.Dataset) -> None:
    """Raise UserError for sizes that only a damaged file states. Reading them would never end or would fill the memory.

    Args:
        path: The file, for messages.
        dataset: The dataset to check.
    """
    num_bytes, stored = dataset.size * dataset.dtype.itemsize, dataset.id.get_storage_size()
    chunk_bytes = math.prod(dataset.chunks or (0,)) * dataset.dtype.itemsize
    if num_bytes > _MOST_PACKED * stored or chunk_bytes > _MAX_CHUNK_BYTES:
        raise UserError(
            f"{path} claims {num_bytes} bytes of {dataset.name} in chunks of {chunk_bytes} but stores {stored}; "
            "it is damaged, copy it again"
        )
    properties = dataset.id.get_create_plist()
    for code, _, settings, _ in map(properties.get_filter, range(properties.get_nfilters())):
        if code == _BLOSC and len(settings) < _BLOSC_VALUES:
            raise UserError(f"{path} does not say how {dataset.name} was compressed; it is damaged, copy it again")


def _whole_numbers(column: npt.NDArray[Any], place: str) -> npt.NDArray[Any]:
    """Return a column in the byte order of this machine. Raise UserError if a value is not a whole number."""
    if column.dtype.kind != "f":
        return column.astype(column.dtype.newbyteorder("="), copy=False)
    if not np.all((column == np.rint(column)) & (np.abs(column) < _LARGEST_WHOLE)):
        raise UserError(
            f"{place}: times (microseconds) and pixels must be whole numbers; convert them, as in np.rint(t * 1e6) for "
            "seconds, or copy the file again if it is damaged"
        )
    return column.astype(np.int64)
