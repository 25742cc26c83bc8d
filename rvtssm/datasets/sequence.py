"""One recording as T steps of the model, its frames read from the store or counted from raw events on demand."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rvtssm.datasets.augment import Placement
from rvtssm.datasets.packed_batch import ChunkEvents, ChunkFrames, DenseFrames
from rvtssm.events.cells import frame_pixels
from rvtssm.events.frame_counter import FrameCounter
from rvtssm.events.readers import open_recording
from rvtssm.events.sequence_plan import SequencePlan, plan_sequence
from rvtssm.events.tree import find_recordings, find_sequences
from rvtssm.preparation.store import StoredSequence, open_rvt_sequence, open_sequence
from rvtssm.records import DatasetSpec, Labels, Windows, WindowSettings

_SPAN_US = 400_000  # of the events that are decoded at once
# What RVT's preparation aims at, whatever the length of its windows; the true distances are in its timestamps.
_RVT_STRIDE_US = 50_000


class FrameSource(Protocol):
    """Where the frames of a sequence come from; can be pickled, opens its file when it is read."""

    @property
    def path(self) -> Path:
        """The file that is read."""

    def frames(self, start: int, stop: int, placement: Placement | None = None) -> ChunkFrames:
        """Those of the windows [start, stop), moved as the placement says."""

    def close(self) -> None:
        """Release the file; reading again opens it again."""


@dataclass(frozen=True, slots=True)
class FrameSequence:
    """T steps of one recording; windows and labels are in memory, frames are not."""

    name: str
    windows: Windows
    labels: Labels  # frame px
    frame_shape: tuple[int, int, int]  # (C, h, w)
    settings: WindowSettings
    source: FrameSource

    @property
    def num_steps(self) -> int:
        return len(self.windows)

    @property
    def dt_us(self) -> npt.NDArray[np.int64]:
        """(T,) distance of each step from the one before."""
        return self.windows.dt_us

    @property
    def label_steps(self) -> npt.NDArray[np.int64]:
        """Steps with at least one box, ascending."""
        return np.unique(self.labels.window_index)

    def read(self, start: int, stop: int) -> npt.NDArray[np.generic]:
        """Frames (stop - start, C, h, w) of the steps [start, stop), uint8 where they are histograms."""
        frames = self.source.frames(start, stop)
        return frames.stack([frames], stop - start).counted()[:, 0].numpy()

    def close(self) -> None:
        self.source.close()

    def check_settings(self, wanted: WindowSettings) -> None:
        """ValueError where the histograms were counted otherwise."""
        for field in fields(WindowSettings):
            found, asked = getattr(self.settings, field.name), getattr(wanted, field.name)
            # a stride of 1e6 / 30 us is stored as whole microseconds
            if found != asked and not (field.name == "stride_us" and math.isclose(found, asked, rel_tol=1e-3)):
                raise ValueError(
                    f"{self.name} was prepared with {field.name}={found} but the run asks for {asked}; prepare it "
                    "again with `rvtssm preprocess`, or use the raw recordings (source=raw dataset.raw_dir=DIR)"
                )


def open_prepared(path: Path | str, spec: DatasetSpec) -> FrameSequence:
    """A prepared recording, written by us (a file) or by RVT (a folder); ValueError if it is of another dataset."""
    path = Path(path)
    stored = open_rvt_sequence(path, spec) if path.is_dir() else open_sequence(path)
    meta = stored.meta
    if meta["dataset"] not in (spec.name, *spec.disk_names):
        raise ValueError(f"{path} was prepared as dataset {meta['dataset']!r}, the run asks for {spec.name!r}")
    wanted = {
        "height": spec.height,
        "width": spec.width,
        "downsample": spec.downsample,
        "class_names": list(spec.class_names),
    }
    found = {key: meta.get(key, value) for key, value in wanted.items()}
    if found != wanted:
        raise ValueError(
            f"{path} was prepared with {found}, the run asks for {wanted}; set dataset.height and dataset.width "
            "to those of the recordings, or prepare them again"
        )
    _check_labels(path, stored.labels, spec)
    settings = replace(stored.settings, stride_us=_RVT_STRIDE_US) if path.is_dir() else stored.settings
    return FrameSequence(
        stored.name,
        stored.windows,
        to_frame_labels(stored.labels, spec),
        (settings.num_channels, spec.frame_height, spec.frame_width),
        settings,
        StoredFrames(stored),
    )


def _check_labels(path: Path, labels: Labels, spec: DatasetSpec) -> None:
    """ValueError for classes that the dataset does not have, and for boxes that are not finite."""
    known = (labels.class_id >= 0) & (labels.class_id < len(spec.class_names))
    if not known.all():
        raise ValueError(
            f"{path} holds class {labels.class_id[~known][0]}, but {spec.name} has {len(spec.class_names)} classes "
            f"({', '.join(spec.class_names)}), counted from 0; name them all, or prepare the recordings again"
        )
    if not np.isfinite(labels.boxes_ltwh).all():
        raise ValueError(f"{path} holds boxes that are not finite; prepare the recordings again")


def has_sequences(prepared_dir: Path | str, split: str) -> bool:
    """Whether a split was prepared."""
    return (Path(prepared_dir) / split).is_dir() and bool(find_sequences(prepared_dir, split))


def open_prepared_split(prepared_dir: Path | str, split: str, spec: DatasetSpec) -> list[FrameSequence]:
    """All prepared recordings of a split, by name; ValueError when there is none."""
    paths = find_sequences(prepared_dir, split)
    if not paths:
        raise ValueError(f"{Path(prepared_dir) / split} holds no prepared recording; run `rvtssm preprocess`")
    return [open_prepared(path, spec) for path in paths]


@dataclass(frozen=True, slots=True)
class StoredFrames:
    """Frames that were counted when the recording was prepared."""

    stored: StoredSequence

    @property
    def path(self) -> Path:
        return self.stored.path

    def frames(self, start: int, stop: int, placement: Placement | None = None) -> DenseFrames:
        hist = self.stored.histograms(start, stop)
        return DenseFrames(placement.histograms(hist) if placement else hist)

    def close(self) -> None:
        self.stored.close()


@dataclass(frozen=True, slots=True)
class CountedFrames:
    """Frames that are counted when they are asked for."""

    plan: SequencePlan

    @property
    def path(self) -> Path:
        return self.plan.recording.path

    def frames(self, start: int, stop: int, placement: Placement | None = None) -> ChunkEvents:
        recording, settings = self.plan.recording, self.plan.settings
        sources = placement.sources() if placement else (None, None)
        pixels = frame_pixels(recording.height, recording.width, self.plan.spec.downsample, *sources)
        counter, windows = FrameCounter(settings, pixels), self.plan.windows[start:stop]
        if len(windows):
            first_us = int(windows.bounds_us[:, 0].min())
            stop_us = int(windows.ends_us[-1]) + 1  # one more microsecond, since windows of `rvt` are closed
            for begin_us in range(first_us, stop_us, _SPAN_US):
                counter.push(recording.between(begin_us, min(begin_us + _SPAN_US, stop_us)))
        return ChunkEvents(counter.pack(windows.bounds_us), settings, counter.frame_shape)

    def close(self) -> None:
        self.plan.recording.close()


class RawSplit:
    """The labelled raw recordings of a split, opened and indexed once for any number of window settings."""

    def __init__(self, raw_dir: Path | str, split: str, spec: DatasetSpec) -> None:
        """ValueError when the split is empty or a recording has no boxes."""
        self.spec = spec
        self.split = split
        found = find_recordings(raw_dir, split, spec)
        if not found:
            raise ValueError(
                f"{Path(raw_dir) / split} holds no recording that ends in {' '.join(spec.event_suffixes)}; "
                "data_prep/README.md shows where recordings of each dataset lie"
            )
        self._recordings = []
        for raw in found:
            if raw.boxes_path is None:
                raise ValueError(
                    f"{raw.events_path} has no boxes beside it; evaluation needs {raw.name}{spec.boxes_suffix}"
                )
            recording = open_recording(raw.events_path, spec.height, spec.width)
            self._recordings.append((raw.name, recording, raw.read_boxes(spec)))

    def sequences(self, settings: WindowSettings) -> list[FrameSequence]:
        """The recordings on the label grid, by name, as `rvtssm preprocess` would make them.

        Recordings of which no box is left after cleaning are left out; ValueError when none remains, and for
        recordings that cannot be prepared either.
        """
        sequences = []
        for name, recording, boxes in self._recordings:
            plan = plan_sequence(recording, boxes, self.spec, settings, self.split == "train")
            recording.close()  # a split has more recordings than a process may have open files
            if plan is not None:
                labels = to_frame_labels(plan.labels, self.spec)
                sequences.append(
                    FrameSequence(name, plan.windows, labels, plan.frame_shape, settings, CountedFrames(plan))
                )
        if not sequences:
            raise ValueError(
                f"no recording of the {self.split} split has a box left after cleaning; `rvtssm verify` says why"
            )
        return sequences


def to_frame_labels(labels: Labels, spec: DatasetSpec) -> Labels:
    """Labels in sensor pixels -> pixels of the frame, cropped to its last pixel; boxes without area are dropped."""
    if spec.downsample == 1:
        return labels
    last = np.array([spec.frame_width - 1, spec.frame_height - 1], np.float32)
    start = labels.boxes_ltwh[:, :2] / np.float32(spec.downsample)
    end = np.minimum((labels.boxes_ltwh[:, :2] + labels.boxes_ltwh[:, 2:]) / np.float32(spec.downsample), last)
    scaled = replace(labels, boxes_ltwh=np.concatenate([start, end - start], axis=1))
    return scaled[(end > start).all(axis=1)]
