"""One recording as T steps of the model, its histograms read from the store or counted from raw events on demand."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rvtssm.datasets.packed_batch import ChunkEvents
from rvtssm.events.cells import frame_pixels
from rvtssm.events.histogram import bin_events, fill_frames, shared_slices
from rvtssm.events.labels import clean_boxes, to_labels
from rvtssm.events.readers import Recording, open_recording
from rvtssm.events.readers.recording import join_events
from rvtssm.events.representations import Binned, Counting
from rvtssm.events.tree import find_recordings, find_sequences
from rvtssm.events.windows import label_grid
from rvtssm.preparation.prepare_recording import PreprocessConfig, check_faults, check_label_times
from rvtssm.preparation.store import open_rvt_sequence, open_sequence
from rvtssm.records import DatasetSpec, Labels, Windows, WindowSettings

_SPAN_US = 400_000  # of the events that are in memory at once
# What RVT's preparation aims at, whatever the length of its windows; the true distances are in its timestamps.
_RVT_STRIDE_US = 50_000


class HistogramSource(Protocol):
    """Where the histograms of a sequence come from; can be pickled, opens its file when it is read."""

    def histograms(self, start: int, stop: int) -> npt.NDArray[np.generic]:
        """(stop - start, C, h, w) of the windows [start, stop)."""

    def close(self) -> None:
        """Release the file; reading again opens it again."""


@dataclass(frozen=True, slots=True)
class FrameSequence:
    """T steps of one recording; windows and labels are in memory, histograms are not."""

    name: str
    windows: Windows
    labels: Labels  # frame px
    frame_shape: tuple[int, int, int]  # (C, h, w)
    settings: WindowSettings
    source: HistogramSource

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
        return self.source.histograms(start, stop)

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
    # files written before there was a choice of representations do not name one
    settings = WindowSettings(**{name: meta[name] for name in WindowSettings.__slots__ if name in meta})
    return FrameSequence(
        stored.name,
        stored.windows,
        to_frame_labels(stored.labels, spec),
        (settings.num_channels, spec.frame_height, spec.frame_width),
        replace(settings, stride_us=_RVT_STRIDE_US) if path.is_dir() else settings,
        stored,
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
class CountedHistograms:
    """Histograms counted when they are asked for."""

    recording: Recording
    windows: Windows
    downsample: int
    settings: WindowSettings

    def histograms(self, start: int, stop: int) -> npt.NDArray[np.generic]:
        events = self.events(start, stop)
        frames = np.empty((stop - start, *events.frame_shape), events.counting.dtype)
        bounds_us = events.binned.bounds_us
        ring = shared_slices(bounds_us, events.counting, frames[0, 0].size if len(frames) else 0)
        fill_frames(events.binned, events.counting, frames, np.arange(stop - start), ring)
        return frames

    def events(
        self, start: int, stop: int, sources: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None = None
    ) -> ChunkEvents:
        """The events of the windows [start, stop), with times from the start of the first of them.

        `sources` are the rows and columns of the frame that each of its rows and columns is taken from.
        """
        height, width = self.recording.height, self.recording.width
        pixels = frame_pixels(height, width, self.downsample, *(sources or (None, None)))
        counting = to_counting(self.settings)
        parts = []
        for first, last in self._groups(start, stop):
            bounds_us = self.windows.bounds_us[first:last]
            # one more microsecond, since windows of the convention `rvt` are closed
            events = self.recording.between(int(bounds_us[:, 0].min()), int(bounds_us[-1, 1]) + 1)
            parts.append(bin_events(events, bounds_us, pixels, counting))
        if not parts:
            parts.append(bin_events(join_events([]), np.zeros((0, 2), np.int64), pixels, counting))
        return ChunkEvents(_joined(parts), counting, (counting.num_channels, pixels.height, pixels.width))

    def _groups(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Windows [first, last) that are read together, so that the events in memory are bounded."""
        ends_us = self.windows.ends_us
        while start < stop:
            last = int(np.searchsorted(ends_us, ends_us[start] + _SPAN_US))
            last = min(max(last, start + 1), stop)
            yield start, last
            start = last

    def close(self) -> None:
        self.recording.close()


def to_window_settings(config: PreprocessConfig) -> WindowSettings:
    """The windows that `rvtssm preprocess` makes, and that raw recordings are counted into."""
    return WindowSettings(
        config.stride_us,
        config.length_us,
        config.convention,
        config.num_bins,
        config.count_cutoff,
        config.representation,
    )


def to_counting(settings: WindowSettings) -> Counting:
    """What the windows of such a sequence become."""
    return Counting(settings.num_bins, settings.count_cutoff, settings.convention, settings.representation)


def _joined(parts: list[Binned]) -> Binned:
    """Consecutive groups of windows as one, whose times count from the first of them."""
    first_cell = np.cumsum([0] + [len(part.cells) for part in parts])
    start_us = parts[0].bounds_us[0, 0] if len(parts[0]) else 0
    return Binned(
        np.concatenate([part.cells for part in parts]),
        np.concatenate([part.times for part in parts]) - start_us,
        np.concatenate([part.ranges + first for part, first in zip(parts, first_cell[:-1], strict=True)]),
        np.concatenate([part.bounds_us for part in parts]) - start_us,
    )


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
            kept = clean_boxes(boxes, self.spec, settings.convention, self.split == "train")
            if not len(kept):
                continue
            first_us, last_us = recording.time_range_us
            recording.close()  # a split has more recordings than a process may have open files
            check_faults(recording, recording.num_events)
            check_label_times(recording, kept, first_us, last_us)
            # the grid is that of preparation/prepare_dataset.py, so that raw and prepared agree bit for bit
            start_us = 1 if settings.convention == "rvt" else first_us
            windows = label_grid(kept["t"], settings.stride_us, settings.length_us, start_us)
            sequences.append(
                FrameSequence(
                    name,
                    windows,
                    to_frame_labels(to_labels(kept, windows), self.spec),
                    (settings.num_channels, self.spec.frame_height, self.spec.frame_width),
                    settings,
                    CountedHistograms(recording, windows, self.spec.downsample, settings),
                )
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
