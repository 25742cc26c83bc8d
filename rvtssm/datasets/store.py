"""Prepared sequences are read here: one HDF5 file per recording, or a folder prepared by RVT.

Layout: `frames` (bytes,) uint8, the compressed frames one after another, with their shape (C, h, w) and dtype as
attributes; `offsets` (T + 1,) int64, where each frame begins and the last one ends; `bounds_us` (T, 2), `dt_us` (T,); a
group `labels` with the fields of Labels (`pseudo_score` only if a detector made a label, `empty_us` only if any
times); an attribute `meta`, JSON, which records the settings and the source of the frames. Its `digest` holds two
CRC-32: one of `frames`, and one of all other content and the name of the file.
"""

import contextlib
import json
import math
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import h5py
import numpy as np
import numpy.typing as npt

from rvtssm.datasets.augment import Placement
from rvtssm.datasets.compress import decompress_into
from rvtssm.datasets.tree import RVT_FOLDER
from rvtssm.events.label_rules import with_class_indices
from rvtssm.events.labels import to_boxes, to_labels
from rvtssm.readers.hdf5 import check_storage, open_hdf5, read_array, read_rows, reading
from rvtssm.records import DatasetSpec, Labels, Windows, WindowSettings
from rvtssm.system.files import CONTENT_ERRORS, file_errors
from rvtssm.system.limits import field_names, values_of
from rvtssm.system.machine import check_memory
from rvtssm.system.user_error import UserError

FORMAT_VERSION = 2
_AGAIN = "delete it and prepare it again"
_CHECK_BYTES = 1 << 24
_FRAMES_AT_ONCE = 16
TABLES = ("offsets", "bounds_us", "dt_us", *(f"labels/{name}" for name in field_names(Labels)))
# A file without them means that all boxes are annotated, and that no label time is known to be without an object.
OPTIONAL = ("labels/pseudo_score", "labels/empty_us")
_RVT_PUBLISHED = "stacked_histogram_dt=50_nbins=10"
Meta = dict[str, Any]


@dataclass(eq=False)
class StoredSequence:
    """A prepared recording. Windows and labels (sensor pixels) are in memory, frames are read on demand.

    It can be pickled. Every process opens the file itself when it first reads.
    """

    name: str
    path: Path
    windows: Windows
    labels: Labels
    meta: Meta
    offsets: npt.NDArray[np.int64] | None = None  # None: a file of RVT with frames in `data` (T, C, h, w)
    frames_crc: int | None = None  # None: a file of RVT, which has no digest
    _file: h5py.File | None = None
    _file_owner: int = 0

    def histograms(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return the frames of the windows [start, stop).

        Args:
            start: The first window.
            stop: The window after the last.

        Returns:
            (stop - start, C, h, w) of the dtype of the representation, uint8 for histograms.

        Raises:
            UserError: The recording has no such windows, or the file is damaged.
        """
        if not 0 <= start <= stop <= len(self.windows):
            found = f"{len(self.windows)} windows, of which [{start}, {stop}) was requested"
            raise UserError("setting.out_of_range", name=self.name, found=found)
        with self._opened() as file:
            if self.offsets is None:
                return read_rows(file["data"], start, stop)
            return _decompressed(file["frames"], self.offsets[start : stop + 1])

    def frames(self, start: int, stop: int, placement: Placement | None = None) -> npt.NDArray[Any]:
        """Return the frames of the windows [start, stop), moved by `placement`."""
        frames = self.histograms(start, stop)
        return frames if placement is None else placement.histograms(frames)

    def counted_anew(self, windows: Windows) -> NoReturn:
        """Raise UserError, since prepared frames cannot be counted again."""
        found = "a detector that skips windows needs its events; evaluation.when_late=queue does not"
        raise UserError("prepared.fixed", name=self.path, found=found)

    def batches(self) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Yield all frames in order, a few at a time, each time after the number of the first one."""
        for start in range(0, len(self.windows), _FRAMES_AT_ONCE):
            yield start, self.histograms(start, min(start + _FRAMES_AT_ONCE, len(self.windows)))

    def check_frames(self, at_once: int = _CHECK_BYTES) -> None:
        """Raise UserError if the frames have changed since they were written. All else is checked on opening.

        Args:
            at_once: Bytes of frames that are read at once.
        """
        if self.frames_crc is None:
            return
        crc = 0
        with self._opened() as file:
            for start in range(0, len(file["frames"]), at_once):
                crc = zlib.crc32(file["frames"][start : start + at_once], crc)
        if crc != self.frames_crc:
            raise UserError("prepared.damaged", name=self.path, found="its frames have changed", advice=_AGAIN)

    @property
    def settings(self) -> WindowSettings:
        """How the frames were counted.

        Raises:
            UserError: The file does not describe its settings correctly.
        """
        with file_errors(self.path, advice=_AGAIN, errors=CONTENT_ERRORS):
            return WindowSettings(**{name: self.meta[name] for name in WindowSettings.__slots__ if name in self.meta})

    def close(self) -> None:
        """Close the file. Reading opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    @contextlib.contextmanager
    def _opened(self) -> Iterator[h5py.File]:
        """Yield the open file. Errors name it."""
        if self._file is None or self._file_owner != os.getpid():  # a handle must not be shared across a fork
            with reading(self.path, advice=_AGAIN):
                self._file = open_hdf5(self.path)
                self._file_owner = os.getpid()
        with file_errors(self.path, advice=_AGAIN, errors=CONTENT_ERRORS):
            yield self._file

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": None}


def sensor_meta(spec: DatasetSpec) -> Meta:
    """Return the metadata on the sensor and the classes, which a prepared file shares with its dataset."""
    return {**values_of(spec, ("height", "width", "downsample")), "class_names": list(spec.class_names)}


def shared_settings(meta: Meta) -> Meta:
    """Return the metadata that all prepared files of a dataset share, from the metadata of one file."""
    return {name: value for name, value in meta.items() if name not in ("source", "num_events", "faults", "is_train")}


def differing(stored: Mapping[str, Any], asked: Mapping[str, Any], link: str) -> list[str]:
    """Return in words which stored values are not those that are asked for, such as "num_bins=5, now 10".

    Args:
        stored: Values by name; a missing one is None.
        asked: Values by name.
        link: What stands between the two values, such as ", now ".
    """
    return [f"{name}={stored.get(name)}{link}{value}" for name, value in asked.items() if stored.get(name) != value]


def read_meta(path: Path | str) -> Meta:
    """Return the metadata of a prepared file. Raise UserError for another file or another format version."""
    return _read_tables(Path(path), [])[0]


def open_sequence(path: Path | str, spec: DatasetSpec | None = None) -> StoredSequence:
    """Open a prepared recording.

    Args:
        path: A file written with `sequence_writer`, or a folder prepared by RVT.
        spec: The dataset; needed for a folder of RVT.

    Raises:
        UserError: The path is anything else, or is damaged.
    """
    path = Path(path)
    if path.is_dir():
        if spec is None:
            found = "was prepared by RVT, which does not store the dataset's name"
            raise UserError("setting.missing", name=path, needed=found, advice="give dataset=NAME")
        with file_errors(path, advice="copy the folder again", errors=CONTENT_ERRORS):
            return open_rvt_sequence(path, spec)
    # The digest over everything but the frames, which are checked when they are read.
    meta, digest, tables = _read_tables(path, TABLES)
    with file_errors(path, advice=_AGAIN, errors=CONTENT_ERRORS):
        windows = Windows(tables["bounds_us"], tables["dt_us"])
        labels = Labels(**{name.partition("/")[2]: table for name, table in tables.items() if "/" in name})
        frames_crc, crc_of_all = digest
        if not any(crc_of_all_but_frames(name, frames_crc, meta, tables) == crc_of_all for name in _names(path, meta)):
            found = "its labels, times or settings have changed since it was written"
            raise UserError("prepared.damaged", name=path, found=found, advice=_AGAIN)
    return StoredSequence(path.stem, path, windows, labels, meta, tables["offsets"], frames_crc)


def _names(path: Path, meta: Meta) -> Iterator[str]:
    """Yield the names under which a file may have been written: its own, and those that its recording may have had.

    A file that was renamed, or a link to it, is still whole.
    """
    yield path.stem
    yield path.resolve().stem
    source = str((meta.get("source") or {}).get("name", ""))
    for end in re.finditer(r"\.|_td", source):
        yield source[: end.start()]


def open_rvt_sequence(folder: Path, spec: DatasetSpec) -> StoredSequence:
    """Open a recording prepared by RVT with its original windows and labels.

    Args:
        folder: The folder of the recording.
        spec: The dataset.

    Raises:
        UserError: Files are missing, or contradict each other or the spec.
    """
    histograms_dir, length_us, num_bins = _rvt_histograms_dir(folder / RVT_FOLDER)
    path = histograms_dir / rvt_frames_name(spec)
    ends_us = _loaded(histograms_dir / "timestamps_us.npy").astype(np.int64)
    with reading(path, advice=_AGAIN), open_hdf5(path) as file:
        check_storage(path, file["data"])
        shape = file["data"].shape
    expected = (len(ends_us), 2 * num_bins, spec.frame_height, spec.frame_width)
    if shape != expected or not len(ends_us):
        found = f"has shape {shape}, but {spec.name} needs {expected}"
        raise UserError("prepared.other", name=path, found=found, advice="choose the dataset that fits")
    # RVT stores the ends of windows; their length is in the name of the folder.
    dt_us = np.diff(ends_us, prepend=ends_us[0] - length_us)
    windows = Windows(np.stack([ends_us - length_us, ends_us], axis=1), dt_us)
    labels_path = folder / "labels_v2" / "labels.npz"
    boxes = with_class_indices(to_boxes(_loaded(labels_path, "labels"), labels_path), spec)
    meta = {
        "format_version": "rvt",
        "dataset": spec.name,
        "convention": "rvt",
        "grid": "labels",
        "stride_us": int(np.median(dt_us)),
        "length_us": length_us,
        "num_bins": num_bins,
        "count_cutoff": 10,  # RVT's setting, which its files do not record
        **sensor_meta(spec),
    }
    return StoredSequence(folder.name, path, windows, to_labels(boxes, windows), meta)


def rvt_frames_name(spec: DatasetSpec) -> str:
    """Return the name of the file with the frames of a recording prepared by RVT."""
    if spec.downsample == 2:
        return "event_representations_ds2_nearest.h5"
    return "event_representations.h5"


def _decompressed(stored: h5py.Dataset, offsets: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    # A text would be a sequence of numbers as well.
    shape = tuple(map(int, np.atleast_1d(stored.attrs["shape"])))
    dtype = np.dtype(stored.attrs["dtype"].decode())
    num_frames = len(offsets) - 1
    num_bytes = int(offsets[-1] - offsets[0])
    if num_bytes > stored.id.get_storage_size():
        raise UserError("prepared.damaged", found=f"it claims {num_bytes} bytes of frames but stores fewer")
    check_memory(num_frames * math.prod(shape) * dtype.itemsize, f"{num_frames} frames of {shape}")
    frames = np.zeros((num_frames, *shape), dtype)
    data = memoryview(stored[offsets[0] : offsets[-1]])
    for frame, start, stop in zip(frames, offsets - offsets[0], offsets[1:] - offsets[0], strict=False):
        decompress_into(data[start:stop], frame)
    return frames


def crc_of_all_but_frames(name: str, frames_crc: int, meta: Meta, tables: Mapping[str, npt.NDArray[Any]]) -> int:
    crc = zlib.crc32(f"{name} {frames_crc} {json.dumps(meta)}".encode())
    for key, table in tables.items():
        crc = zlib.crc32(f"{key} {table.dtype.str} {table.shape}".encode(), crc)
        crc = zlib.crc32(np.ascontiguousarray(table).data, crc)
    return crc


def _rvt_histograms_dir(folder: Path) -> tuple[Path, int, int]:
    """Return the folder of histograms, its window length in us and its number of bins. Prefer the published one."""
    choices = {path.name: path for path in folder.glob("stacked_histogram_dt=*_nbins=*")}
    name = _RVT_PUBLISHED if _RVT_PUBLISHED in choices else next(iter(choices), "")
    if not name or (len(choices) > 1 and name != _RVT_PUBLISHED):
        needed = f"one folder of histograms, such as {_RVT_PUBLISHED}"
        raise UserError("file.ambiguous", name=folder, found=f"holds {sorted(choices)}", needed=needed)
    length_ms, num_bins = map(int, re.findall(r"=(\d+)", name))
    return choices[name], length_ms * 1000, num_bins


def _loaded(path: Path, member: str | None = None) -> npt.NDArray[Any]:
    with file_errors(path, " cannot be read", "copy the folder again"):
        content: Any = np.load(path, allow_pickle=False)
        return content if member is None else content[member]


def _read_tables(path: Path, names: Sequence[str]) -> tuple[Meta, list[int], dict[str, npt.NDArray[Any]]]:
    """Return the metadata, the digest and the tables of a file written with `sequence_writer`."""
    with reading(path, advice=_AGAIN), open_hdf5(path) as file:
        meta, digest = _checked_meta(path, file)
        stored = [name for name in names if name not in OPTIONAL or name in file]
        return meta, digest, {name: read_array(file, name) for name in stored}


def _is_unbounded(attribute: Any) -> bool:
    """Return whether a value is anything but integers or a text of fixed length, as other programs may write it.

    libhdf5 would allocate as many bytes as such a value claims to have.
    """
    kind = attribute.get_type()
    is_fixed_text = isinstance(kind, h5py.h5t.TypeStringID) and not kind.is_variable_str()
    return not is_fixed_text and not isinstance(kind, h5py.h5t.TypeIntegerID)


def _checked_meta(path: Path | str, file: h5py.File) -> tuple[Meta, list[int]]:
    """Return the metadata and the digest. Raise UserError for another format version."""
    # A damaged length in an attribute must not allocate memory.
    places = [(file.attrs, "meta")]
    if "frames" in file:
        places += [(file["frames"].attrs, "shape"), (file["frames"].attrs, "dtype")]
    for attributes, name in places:
        if name in attributes and _is_unbounded(attributes.get_id(name)):
            found = f"{name} is neither integers nor a text of fixed length"
            raise UserError("prepared.damaged", name=path, found=found, advice=_AGAIN)
    try:
        meta: Meta = json.loads(file.attrs["meta"].decode())
        version = meta["format_version"]
        digest = meta.pop("digest")
    except (KeyError, TypeError, ValueError, RecursionError, AttributeError):
        found = "was not written by `rvtssm preprocess`"
        raise UserError("file.kind", name=path, found=found, advice="choose another folder") from None
    if version != FORMAT_VERSION:
        found = f"has format version {version}, but this program reads {FORMAT_VERSION}"
        raise UserError("prepared.other", name=path, found=found, advice="prepare it again with overwrite=true")
    return meta, digest
