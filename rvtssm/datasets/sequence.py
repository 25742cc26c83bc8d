"""One recording as T steps of the model, its histograms read from the store or counted from raw events on demand."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rvtssm.events.histogram import count_windows
from rvtssm.events.labels import clean_boxes, read_boxes, to_labels
from rvtssm.events.prepare import check_faults, check_label_times
from rvtssm.events.readers import Recording, open_recording
from rvtssm.events.store import open_rvt_sequence, open_sequence
from rvtssm.events.tree import find_recordings, find_sequences
from rvtssm.events.windows import label_grid
from rvtssm.records import DatasetSpec, Labels, Windows, WindowSettings

_WINDOWS_AT_ONCE = 8  # bounds the events in memory
# What RVT's preparation aims at, whatever the length of its windows; the true distances are in its timestamps.
_RVT_STRIDE_US = 50_000


class HistogramSource(Protocol):
    """Where the histograms of a sequence come from; can be pickled, opens its file when it is read."""

    def histograms(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """(stop - start, C, h, w) uint8 of the windows [start, stop)."""

    def close(self) -> None:
        """Release the file; reading again opens it again."""


@dataclass(frozen=True, slots=True)
class Sequence:
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

    def read(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Histograms (stop - start, C, h, w) uint8 of the steps [start, stop)."""
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
                    "again with `rvtssm preprocess`, or evaluate from the raw recordings (source=raw)"
                )


def open_prepared(path: Path | str, spec: DatasetSpec) -> Sequence:
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
    settings = WindowSettings(**{field.name: meta[field.name] for field in fields(WindowSettings)})
    return Sequence(
        stored.name,
        stored.windows,
        to_frame_labels(stored.labels, spec),
        (2 * meta["num_bins"], spec.frame_height, spec.frame_width),
        replace(settings, stride_us=_RVT_STRIDE_US) if path.is_dir() else settings,
        stored,
    )


def open_prepared_split(prepared_dir: Path | str, split: str, spec: DatasetSpec) -> list[Sequence]:
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

    def histograms(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        groups = [self._counted(i, min(i + _WINDOWS_AT_ONCE, stop)) for i in range(start, stop, _WINDOWS_AT_ONCE)]
        return np.concatenate(groups)

    def _counted(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        bounds_us = self.windows.bounds_us[start:stop]
        # one more microsecond, since windows of the convention `rvt` are closed
        events = self.recording.between(int(bounds_us[:, 0].min()), int(bounds_us[-1, 1]) + 1)
        return count_windows(
            events,
            Windows(bounds_us, self.windows.dt_us[start:stop]),
            self.recording.height,
            self.recording.width,
            num_bins=self.settings.num_bins,
            count_cutoff=self.settings.count_cutoff,
            downsample=self.downsample,
            convention=self.settings.convention,
        )

    def close(self) -> None:
        self.recording.close()


class RawSplit:
    """The labelled raw recordings of a split, opened and indexed once for any number of window settings."""

    def __init__(self, raw_dir: Path | str, split: str, spec: DatasetSpec) -> None:
        """ValueError when the split is empty or a recording has no boxes."""
        self.spec = spec
        self.split = split
        found = find_recordings(raw_dir, split, spec)
        if not found:
            raise ValueError(f"{Path(raw_dir) / split} holds no recording that ends in {' '.join(spec.event_suffixes)}")
        self._recordings = []
        for raw in found:
            if raw.boxes_path is None:
                raise ValueError(
                    f"{raw.events_path} has no boxes beside it; evaluation needs {raw.name}{spec.boxes_suffix}"
                )
            recording = open_recording(raw.events_path, spec.height, spec.width)
            self._recordings.append((raw.name, recording, read_boxes(raw.boxes_path)))

    def sequences(self, settings: WindowSettings) -> list[Sequence]:
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
            # the grid is that of events/preprocess.py, so that raw and prepared agree bit for bit
            start_us = 1 if settings.convention == "rvt" else first_us
            windows = label_grid(kept["t"], settings.stride_us, settings.length_us, start_us)
            sequences.append(
                Sequence(
                    name,
                    windows,
                    to_frame_labels(to_labels(kept, windows), self.spec),
                    (2 * settings.num_bins, self.spec.frame_height, self.spec.frame_width),
                    settings,
                    CountedHistograms(recording, windows, self.spec.downsample, settings),
                )
            )
        if not sequences:
            raise ValueError(f"no recording of the {self.split} split has a box left after cleaning; choose another")
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
