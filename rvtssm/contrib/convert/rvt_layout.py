"""Write prepared recordings as RVT prepares them, for those who train with its code.

A recording becomes a folder with `labels_v2` and `event_representations_v2`. Source: RVT
scripts/genx/preprocess_dataset.py; `rvtssm.datasets.store` reads the same layout.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np

from rvtssm.datasets.store import StoredSequence, open_sequence, rvt_frames_name
from rvtssm.datasets.tree import RVT_FOLDER, find_sequences
from rvtssm.events.labels import BOX_DTYPE
from rvtssm.records import DatasetSpec, Labels
from rvtssm.records.settings import SPLITS
from rvtssm.system.files import staging_folder
from rvtssm.system.user_error import UserError

_RVT_FIELDS = ["t", "x", "y", "w", "h", "class_id", "track_id", "class_confidence"]


@dataclass(frozen=True)
class Written:
    """What was written."""

    num_recordings: int
    num_frames: int
    num_left_out: int  # boxes of a detector, for whose scores the layout has no place


def write_rvt_tree(
    prepared_dir: Path, out: Path, spec: DatasetSpec, advance: Callable[[int], object] = lambda number: None
) -> Written:
    """Write all splits of a folder of prepared recordings to a new folder, which only appears when it is complete.

    Args:
        prepared_dir: Prepared recordings, in `train`, `val` and `test`.
        out: The folder to write.
        spec: The dataset.
        advance: Called with 1 after each recording.

    Raises:
        UserError: There are no prepared recordings, or the layout of RVT cannot hold their frames.
    """
    num_recordings = num_frames = num_left_out = 0
    with staging_folder(out.absolute().parent, out.name) as staged:
        for split in SPLITS:
            if not (prepared_dir / split).is_dir():
                continue
            for path in find_sequences(prepared_dir, split):
                stored = open_sequence(path, spec)
                num_left_out += write_rvt_sequence(stored, staged / out.name / split / stored.name, spec)
                num_recordings, num_frames = num_recordings + 1, num_frames + len(stored.windows)
                stored.close()
                advance(1)
        if not num_recordings:
            raise UserError(
                "file.missing", name=prepared_dir, found="no prepared recordings in train/, val/ or test/",
                advice="prepare them with `rvtssm preprocess`, or name one recording to convert",
            )  # fmt: skip
        (staged / out.name).rename(out)
    return Written(num_recordings, num_frames, num_left_out)


def write_rvt_sequence(stored: StoredSequence, folder: Path, spec: DatasetSpec) -> int:
    """Write one recording to a new folder, and return how many boxes of a detector were left out.

    Args:
        stored: The prepared recording.
        folder: The folder to write.
        spec: The dataset.

    Raises:
        UserError: The frames are no histograms, or their windows are not all of one length in whole milliseconds.
    """
    length_us = _length_us(stored, spec)
    num_bins = stored.meta["num_bins"]
    frames_dir = folder / RVT_FOLDER / f"stacked_histogram_dt={length_us // 1000}_nbins={num_bins}"
    labels_dir = folder / "labels_v2"
    frames_dir.mkdir(parents=True)
    labels_dir.mkdir()
    is_annotated = stored.labels.pseudo_score == 0
    labels = stored.labels[is_annotated]
    times_us, first_label = np.unique(labels.t_us, return_index=True)
    np.savez(
        labels_dir / "labels.npz", labels=_boxes(labels, spec), objframe_idx_2_label_idx=first_label.astype(np.int64)
    )
    np.save(labels_dir / "timestamps_us.npy", times_us)
    np.save(frames_dir / "timestamps_us.npy", stored.windows.ends_us)
    np.save(frames_dir / "objframe_idx_2_repr_idx.npy", labels.window_index[first_label].astype(np.int64))
    _write_frames(frames_dir / rvt_frames_name(spec), stored)
    return int(np.count_nonzero(~is_annotated))


def _length_us(stored: StoredSequence, spec: DatasetSpec) -> int:
    """Return the length of all windows. Raise UserError for frames that RVT cannot read."""
    settings, lengths_us = stored.settings, np.unique(np.diff(stored.windows.bounds_us, axis=1))
    if settings.representation != "histogram":
        raise UserError(
            "file.content", name=stored.path, found=f"frames of {settings.representation}",
            needed="histograms, which RVT reads",
            advice="prepare the recordings with windows.representation=histogram",
        )  # fmt: skip
    if spec.downsample > 1 and settings.reduce != "nearest":
        raise UserError(
            "file.content", name=stored.path, found=f"frames reduced by {settings.reduce}",
            needed="every second pixel, as in RVT's files",
            advice="prepare the recordings with windows.reduce=nearest",
        )  # fmt: skip
    if len(lengths_us) != 1 or lengths_us[0] % 1000:
        raise UserError(
            "file.content", name=stored.path,
            found=f"windows of {len(lengths_us)} lengths, the first of {lengths_us[0]} us",
            needed="windows of one length in whole milliseconds, as RVT reads them",
            advice="prepare the recordings with such windows",
        )  # fmt: skip
    return int(lengths_us[0])


def _boxes(labels: Labels, spec: DatasetSpec) -> np.ndarray:
    """Return labels as RVT stores them: sensor pixels, class ids as in the files of the dataset, no tracks."""
    boxes = np.zeros(len(labels), [(name, BOX_DTYPE[name]) for name in _RVT_FIELDS])
    boxes["t"], boxes["class_confidence"] = labels.t_us, 1
    for column, name in enumerate("xywh"):
        boxes[name] = labels.boxes_ltwh[:, column]
    boxes["class_id"] = np.asarray(spec.disk_class_ids)[labels.class_id]
    return boxes


def _write_frames(path: Path, stored: StoredSequence) -> None:
    shape = stored.histograms(0, 1).shape[1:]
    packing: Any = hdf5plugin.Blosc(cname="zstd", clevel=1)
    with h5py.File(path, "w") as file:
        data = file.create_dataset(
            "data", (len(stored.windows), *shape), np.uint8, maxshape=(None, *shape), chunks=(1, *shape), **packing
        )
        for start, frames in stored.batches():
            data[start : start + len(frames)] = frames
