"""Shared parts of the readers of HDF5 files: errors, and checks of damaged files."""

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

from rvtssm.system.files import CONTENT_ERRORS, file_errors
from rvtssm.system.user_error import UserError

HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_MOST_PACKED = 1 << 16  # no known file unpacks a stored byte to more bytes than this
_MAX_CHUNK_BYTES = 1 << 28
_BLOSC, _BLOSC_VALUES = 32001, 4  # the filter reads this many settings without checking that they are there
_CACHE_BYTES = 1 << 25  # unpacked chunks kept per dataset, so that a chunk is not unpacked for every read


@contextlib.contextmanager
def reading(path: Path | str, where: str = "", advice: str = "copy it again") -> Iterator[None]:
    """Turn every error of h5py into a UserError that names the file and the place.

    Args:
        path: The file.
        where: The place in the file, such as ", events 0 to 10".
        advice: What the user should do.
    """
    fault = " cannot be opened as HDF5"
    if where:
        fault = f"{where} are damaged"
    with file_errors(path, fault, advice, CONTENT_ERRORS):
        try:
            yield
        except OSError as error:
            if "already open for write" not in str(error):
                raise
            found = "was not closed by the program that wrote it, or that program still runs"
            cure = f"if it has ended, `h5clear -s {path}` removes the mark"
            raise UserError("file.damaged", name=path, found=found, advice=cure) from None


class _OwnFile(h5py.File):  # type: ignore[misc]
    """A file that only gives data it contains. Otherwise a stranger's file could expose any file of this machine."""

    def __getitem__(self, name: str) -> Any:
        item = super().__getitem__(name)
        is_elsewhere = isinstance(item, h5py.Dataset) and (item.is_virtual or item.external)
        if is_elsewhere or h5py.h5f.get_name(item.id) != self.id.name:
            advice = "copy the data into it"
            raise UserError("file.content", name=self.filename, found=f"takes {name} from another file", advice=advice)
        return item

    def get(self, name: str, *default: Any, **what: Any) -> Any:
        if what:  # of a link, which is not followed
            return super().get(name, *default, **what)
        return self[name] if name in self else None  # noqa: SIM401, this is that method


def open_hdf5(path: Path | str, cache_bytes: int | None = None) -> h5py.File:
    """Open an HDF5 file for reading. All HDF5 files are opened with this function.

    Access by name raises UserError for external links, external storage and virtual datasets. The file is not locked,
    so that a file which another program has locked, or which is on a disk without locks, can be read.

    Args:
        path: The file.
        cache_bytes: Memory for unpacked chunks, per dataset.
    """
    with open(path, "rb") as file:
        _check_driver(path, file)
    return _OwnFile(path, "r", rdcc_nbytes=cache_bytes, locking=False)


def _check_driver(path: Path | str, file: io.BufferedReader) -> None:
    """Raise UserError for a driver information block, which only occurs in a file that is split into several.

    In a damaged file, libhdf5 would allocate as many bytes as that block claims to have.
    """
    start = file.read(64)
    if start.startswith(HDF5_SIGNATURE) and start[8:9] in (b"\0", b"\1"):  # versions with such an address
        size = start[13]  # bytes of an address
        at = 24 + 4 * start[8] + 3 * size
        if start[at : at + size] != b"\xff" * size:
            found = "is one of several parts of a file, or is damaged"
            raise UserError("file.damaged", name=path, found=found, advice="copy it again as one file")


def read_array(file: h5py.File, name: str) -> npt.NDArray[Any]:
    """Return all of a dataset that is stored contiguously. This is faster than `file[name][()]`.

    HDF5 checks that the file is long enough for such a dataset, so it cannot claim to hold more than there is.

    Args:
        file: An open file.
        name: Name of the dataset.

    Raises:
        UserError: The dataset is not stored contiguously.
    """
    dataset = h5py.h5d.open(file.id, name.encode())
    shape, is_own = dataset.shape, h5py.h5f.get_name(dataset) == file.id.name
    if not is_own or (dataset.get_offset() is None and 0 not in shape):  # as with external storage
        advice = "prepare it again"
        raise UserError("file.damaged", name=file.filename, found=f"does not hold {name} in one piece", advice=advice)
    values = np.empty(shape, dataset.dtype)
    dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, values)
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
    if is_blosc(dataset):
        steps = dataset.chunks
        starts = range(start - start % steps[0], stop, steps[0])
        others = (range(0, size, step) for size, step in zip(dataset.shape[1:], steps[1:], strict=True))
        for corner in itertools.product(starts, *others):
            _check_blosc_chunk(dataset, corner)
    rows: npt.NDArray[Any] = dataset[start:stop]
    return rows


def filters_of(dataset: h5py.Dataset) -> list[tuple[Any, ...]]:
    """Return code, flags, settings and name of each filter of a dataset, the first to be applied first."""
    properties = dataset.id.get_create_plist()
    return [*map(properties.get_filter, range(properties.get_nfilters()))]


def is_blosc(dataset: h5py.Dataset) -> bool:
    """Return whether the last filter of a dataset is Blosc."""
    filters = filters_of(dataset)
    return bool(filters) and filters[-1][0] == _BLOSC


def _check_blosc_chunk(dataset: h5py.Dataset, corner: tuple[int, ...]) -> None:
    chunk = dataset.id.get_chunk_info_by_coord(corner)
    if chunk.byte_offset is None or chunk.filter_mask:  # nothing is stored, or it is not compressed
        return
    head = os.pread(dataset.file.id.get_vfd_handle(), 16, chunk.byte_offset)
    announced = int.from_bytes(head[12:], "little")
    if len(head) < 16 or announced != chunk.size:
        found = f"a chunk of {dataset.name} claims to have {announced} bytes but has {chunk.size}"
        raise UserError("file.damaged", found=found)


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


def check_storage(path: Path, dataset: h5py.Dataset) -> None:
    """Raise UserError for sizes that only a damaged file states. Reading them would never end or would fill the memory.

    Args:
        path: The file, for messages.
        dataset: The dataset to check.
    """
    num_bytes, stored = dataset.size * dataset.dtype.itemsize, dataset.id.get_storage_size()
    chunk_bytes = math.prod(dataset.chunks or (0,)) * dataset.dtype.itemsize
    if num_bytes > _MOST_PACKED * stored or chunk_bytes > _MAX_CHUNK_BYTES:
        found = f"claims {num_bytes} bytes of {dataset.name} in chunks of {chunk_bytes} but stores {stored}"
        raise UserError("file.damaged", name=path, found=found, advice="it is damaged, copy it again")
    for code, _, settings, _ in filters_of(dataset):
        if code == _BLOSC and len(settings) < _BLOSC_VALUES:
            found = f"does not say how {dataset.name} was compressed"
            raise UserError("file.damaged", name=path, found=found, advice="it is damaged, copy it again")
