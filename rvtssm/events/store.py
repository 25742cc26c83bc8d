"""The prepared sequence on disk, one HDF5 file per recording, and the folders that RVT prepares, behind one class.

Layout: `histograms` (T, C, h, w) uint8 in chunks of one step, blosc; `bounds_us` (T, 2), `dt_us` (T,); a group
`labels` with the fields of Labels; an attribute `meta`, JSON, of what the histograms were made with and from.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import numpy.typing as npt

from rvtssm.events.aside import written_aside
from rvtssm.events.labels import to_boxes, to_labels, with_class_indices
from rvtssm.events.tree import RVT_FOLDER
from rvtssm.records import DatasetSpec, Labels, Windows

FORMAT_VERSION = 1
_RVT_PUBLISHED = "stacked_histogram_dt=50_nbins=10"
Meta = dict[str, Any]


class StoredSequence:
    """One prepared recording: windows and labels (sensor pixels) in memory, histograms read on demand.

    Can be pickled; every process opens the file for itself when it first reads.
    """

    def __init__(self, name: str, path: Path, dataset: str, windows: Windows, labels: Labels, meta: Meta) -> None:
        self.name = name
        self.path = path
        self.windows = windows
        self.labels = labels
        self.meta = meta
        self._dataset = dataset
        self._file: h5py.File | None = None
        self._file_owner = 0

    def histograms(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """The histograms (stop - start, C, h, w) of the windows [start, stop); ValueError outside the recording."""
        if not 0 <= start <= stop <= len(self.windows):
            raise ValueError(f"{self.name} has {len(self.windows)} windows, asked for [{start}, {stop})")
        if self._file is None or self._file_owner != os.getpid():  # a handle must not be used on both sides of a fork
            self._file, self._file_owner = h5py.File(self.path, "r"), os.getpid()
        try:
            counts: npt.NDArray[np.uint8] = self._file[self._dataset][start:stop]
        except (OSError, KeyError) as error:
            raise ValueError(f"{self.path} is damaged ({error}); delete it and prepare it again") from None
        return counts

    def close(self) -> None:
        """Release the file; reading again opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": None}


def write_sequence(
    path: Path | str,
    windows: Windows,
    labels: Labels,
    blocks: Iterable[npt.NDArray[np.uint8]],
    frame_shape: tuple[int, int, int],
    meta: Callable[[], Meta],
) -> None:
    """Write a prepared recording; the file appears when it is complete.

    `blocks` holds the histograms (n, C, h, w) of all windows in order; `meta` is called after the last block, when
    the faults of the recording are known. An error in either leaves nothing behind.
    """
    with written_aside(path) as aside, h5py.File(aside, "w") as file:
        histograms = file.create_dataset(
            "histograms",
            shape=(len(windows), *frame_shape),
            chunks=(1, *frame_shape),
            dtype=np.uint8,
            **hdf5plugin.Blosc(cname="zstd", clevel=1, shuffle=hdf5plugin.Blosc.NOSHUFFLE),
        )
        written = 0
        for block in blocks:
            histograms[written : written + len(block)] = block
            written += len(block)
        if written != len(windows):
            raise ValueError(f"{path} was given {written} histograms for {len(windows)} windows")
        file["bounds_us"], file["dt_us"] = windows.bounds_us, windows.dt_us
        for field in fields(Labels):
            file[f"labels/{field.name}"] = getattr(labels, field.name)
        file.attrs["meta"] = json.dumps({"format_version": FORMAT_VERSION, **meta()})


def read_meta(path: Path | str) -> Meta:
    """What a prepared file was made with; ValueError for a file that is not one, or of another format version."""
    with _opened(path) as file:
        return _checked_meta(path, file)


def open_sequence(path: Path | str) -> StoredSequence:
    """Open a file written by `write_sequence`; ValueError for any other file."""
    path = Path(path)
    with _opened(path) as file:
        meta = _checked_meta(path, file)
        try:
            windows = Windows(file["bounds_us"][()], file["dt_us"][()])
            labels = Labels(**{field.name: file[f"labels/{field.name}"][()] for field in fields(Labels)})
        except (KeyError, OSError, RuntimeError, ValueError) as error:
            raise ValueError(f"{path} is damaged ({error}); delete it and prepare it again") from None
    return StoredSequence(path.stem, path, "histograms", windows, labels, meta)


def open_rvt_sequence(folder: Path | str, spec: DatasetSpec) -> StoredSequence:
    """Open a recording prepared by RVT as it is: its own timestamps end the windows, its labels are kept.

    ValueError where files are missing or contradict each other or the spec.
    """
    folder = Path(folder)
    histograms_dir, length_us, num_bins = _rvt_histograms_dir(folder / RVT_FOLDER)
    path = histograms_dir / f"event_representations{'_ds2_nearest' if spec.downsample == 2 else ''}.h5"
    ends_us = _loaded(histograms_dir / "timestamps_us.npy").astype(np.int64)
    with _opened(path) as file:
        shape = file["data"].shape
    wanted = (len(ends_us), 2 * num_bins, spec.frame_height, spec.frame_width)
    if shape != wanted or not len(ends_us):
        raise ValueError(f"{path} has shape {shape}, {spec.name} needs {wanted}; choose the dataset that fits")
    dt_us = np.diff(ends_us, prepend=ends_us[0] - length_us)
    windows = Windows(np.stack([ends_us - length_us, ends_us], axis=1), dt_us)
    labels_path = folder / "labels_v2" / "labels.npz"
    boxes = with_class_indices(to_boxes(_loaded(labels_path)["labels"], labels_path), spec)
    meta = {
        "format_version": "rvt",
        "dataset": spec.name,
        "convention": "rvt",
        "grid": "labels",
        "stride_us": int(np.median(dt_us)),
        "length_us": length_us,
        "num_bins": num_bins,
        "count_cutoff": 10,  # RVT's setting, which its files do not record
        "height": spec.height,
        "width": spec.width,
        "downsample": spec.downsample,
    }
    return StoredSequence(folder.name, path, "data", windows, to_labels(boxes, windows), meta)


def _rvt_histograms_dir(folder: Path) -> tuple[Path, int, int]:
    """The folder of histograms, their window length in us and number of bins; the published setting if several."""
    choices = {path.name: path for path in folder.glob("stacked_histogram_dt=*_nbins=*")}
    name = _RVT_PUBLISHED if _RVT_PUBLISHED in choices else next(iter(choices), "")
    if not name or (len(choices) > 1 and name != _RVT_PUBLISHED):
        raise ValueError(f"{folder} holds {sorted(choices)}; it needs one folder, for example {_RVT_PUBLISHED}")
    length_ms, num_bins = (int(number) for number in re.findall(r"=(\d+)", name))
    return choices[name], length_ms * 1000, num_bins


def _loaded(path: Path) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{path} cannot be read ({error}); copy the folder again") from None


def _opened(path: Path | str) -> h5py.File:
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise ValueError(f"{path} cannot be opened as HDF5 ({error}); delete it and prepare it again") from None


def _checked_meta(path: Path | str, file: h5py.File) -> Meta:
    try:
        meta: Meta = json.loads(file.attrs["meta"])
        version = meta["format_version"]
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{path} was not written by `rvtssm preprocess`; delete it or choose another folder") from None
    if version != FORMAT_VERSION:
        raise ValueError(
            f"{path} has format version {version}, this program reads {FORMAT_VERSION}; "
            "prepare it again with overwrite=true"
        )
    return meta
