"""What the readers of HDF5 files share: the library's errors under one name, and a look at what a file announces."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin  # noqa: F401  registers the compression filters of published files
import numpy as np
import numpy.typing as npt

_ERRORS = (OSError, RuntimeError, KeyError, TypeError, ValueError, MemoryError, OverflowError)  # a damaged file's
_MOST_PACKED = 1 << 16  # bytes from one stored byte, for increasing numbers: more was never written
_MAX_CHUNK_BYTES = 1 << 28
_BLOSC, _BLOSC_VALUES = 32001, 4  # its filter reads so many settings, without looking how many there are
_BEYOND_ANY = 2.0**62
_CACHE_BYTES = 1 << 25  # per dataset, of unpacked chunks: reading on within one does not unpack it again


@contextlib.contextmanager
def reading(path: Path, where: str = "") -> Iterator[None]:
    """Turn every error of h5py into a ValueError that names the file and the place."""
    try:
        yield
    except _ERRORS as error:
        if isinstance(error, ValueError) and str(error).startswith(str(path)):
            raise
        fault = f"{where} are damaged" if where else " cannot be opened as HDF5"
        raise ValueError(f"{path}{fault} ({error}); copy it again") from None


class OpenDatasets:
    """Some datasets of a file, looked up once: finding them by name costs more than reading a little."""

    def __init__(self, path: Path, names: Iterable[str]) -> None:
        with reading(path):
            self._file = h5py.File(path, "r", rdcc_nbytes=_CACHE_BYTES)
            self.datasets: tuple[h5py.Dataset, ...] = tuple(self._file[name] for name in names)

    def close(self) -> None:
        self._file.close()


def check_storage(path: Path, dataset: h5py.Dataset) -> None:
    """ValueError for a size that only a damaged file announces: it would be read for ever, or fill the memory."""
    num_bytes, stored = dataset.size * dataset.dtype.itemsize, dataset.id.get_storage_size()
    chunk_bytes = math.prod(dataset.chunks or (0,)) * dataset.dtype.itemsize
    if num_bytes > _MOST_PACKED * stored or chunk_bytes > _MAX_CHUNK_BYTES:
        raise ValueError(
            f"{path} announces {num_bytes} bytes of {dataset.name} in chunks of {chunk_bytes} and stores {stored}; "
            "it is damaged, copy it again"
        )
    properties = dataset.id.get_create_plist()
    for code, _, settings, _ in map(properties.get_filter, range(properties.get_nfilters())):
        if code == _BLOSC and len(settings) < _BLOSC_VALUES:
            raise ValueError(f"{path} has lost how {dataset.name} was packed; it is damaged, copy it again")


def whole_numbers(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The values of a column in the byte order of this machine; ValueError for fractions and for what is no number."""
    if column.dtype.kind != "f":
        return column.astype(column.dtype.newbyteorder("="), copy=False)
    if not np.all((column == np.rint(column)) & (np.abs(column) < _BEYOND_ANY)):
        raise ValueError("not whole numbers, which times in microseconds and pixels are")
    return column.astype(np.int64)


def is_column(item: Any) -> bool:
    """Whether an item of a file is one row of numbers."""
    return isinstance(item, h5py.Dataset) and item.ndim == 1 and item.dtype.kind in "iufb"
