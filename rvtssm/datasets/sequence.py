"""One recording as T steps of the model, its frames read from the store or counted from raw events on demand."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rvtssm.datasets.augment import Placement
from rvtssm.datasets.packed_batch import ChunkEvents, DenseFrames
from rvtssm.events.labels import annotated, clean_boxes, interpolated_boxes, to_labels
from rvtssm.events.readers import open_recording
from rvtssm.events.sequence_plan import SequencePlan, plan_sequence
from rvtssm.events.tree import find_recordings, find_sequences
from rvtssm.preparation.store import StoredSequence, open_sequence
from rvtssm.records import DatasetSpec, Labels, Windows, WindowSettings
from rvtssm.remote.mirror import load_ends, local_path
from rvtssm.system.user_error import UserError

_SPAN_US = 400_000  # of the events that are decoded at once
# What RVT's preparation aims at, whatever the length of its windows; the true distances are in its timestamps.
_RVT_STRIDE_US = 50_000


@dataclass(frozen=True, slots=True)
class FrameSequence:
    """T steps of one recording: windows and labels are in memory, frames come from a source that can be pickled."""

    name: str
    windows: Windows
    labels: Labels  # frame px
    frame_shape: tuple[int, int, int]  # (C, h, w)
    settings: WindowSettings
    source: StoredFrames | CountedFrames
    asked: npt.NDArray[np.int64] | None = None  # steps whose outputs are wanted, ascending; None: those with labels

    @property
    def label_steps(self) -> npt.NDArray[np.int64]:
        """The steps with at least one box, ascending."""
        return np.unique(self.labels.window_index)

    @property
    def wanted_steps(self) -> npt.NDArray[np.int64]:
        """The steps whose outputs are wanted, ascending."""
        return self.label_steps if self.asked is None else self.asked

    def read(self, start: int, stop: int) -> npt.NDArray[np.generic]:
        """Return the frames (stop - start, C, h, w) of the steps [start, stop), uint8 if they are histograms."""
        frames = self.source.frames(start, stop)
        if isinstance(frames, DenseFrames):
            return frames.frames
        return frames.stack([frames], stop - start).counted()[:, 0].numpy()

    def close(self) -> None:
        self.source.close()

    def taking(self, steps: npt.NDArray[np.int64]) -> FrameSequence:
        """Return the sequence as a detector sees it that takes only some steps, the first among them.

        Windows that are as long as their step begin at the end of the window that was taken before. Labels stay as
        they are. Raise ValueError for prepared frames if a step is left out.
        """
        if len(steps) == len(self.windows):
            return self
        ends_us = self.windows.ends_us[steps]
        dt_us = np.diff(ends_us, prepend=ends_us[0] - self.windows.dt_us[0])
        lengths_us = dt_us if self.settings.length_us is None else self.settings.length_us
        windows = Windows(np.stack([ends_us - lengths_us, ends_us], axis=1), dt_us)
        return replace(self, windows=windows, source=self.source.counted_anew(windows))

    def check_settings(self, wanted: WindowSettings) -> None:
        """Raise ValueError if the frames were counted with other settings."""
        for field in fields(WindowSettings):
            found, asked = getattr(self.settings, field.name), getattr(wanted, field.name)
            # a stride of 1e6 / 30 us is stored as whole microseconds
            if found != asked and not (field.name == "stride_us" and math.isclose(found, asked, rel_tol=1e-3)):
                raise UserError(
                    f"{self.name} was prepared with {field.name}={found} but the run asks for {asked}; prepare it "
                    "again with `rvtssm preprocess`, or use the raw recordings (source=raw dataset.raw_dir=DIR)"
                )


def open_prepared(path: Path | str, spec: DatasetSpec) -> FrameSequence:
    """Open a prepared recording: a file of ours or a folder of RVT. Raise ValueError if it is of another dataset."""
    path = Path(path)
    stored = open_sequence(path, spec)
    meta, labels = stored.meta, stored.labels
    if meta.get("dataset") not in (spec.name, *spec.disk_names):
        raise UserError(f"{path} was prepared as dataset {meta.get('dataset')!r}, the run asks for {spec.name!r}")
    wanted = {name: getattr(spec, name) for name in ("height", "width", "downsample")}
    wanted["class_names"] = list(spec.class_names)
    found = {key: meta.get(key, value) for key, value in wanted.items()}
    if found != wanted:
        raise UserError(
            f"{path} was prepared with {found}, the run asks for {wanted}; set dataset.height and dataset.width "
            "to those of the recordings, or prepare them again"
        )
    known = (labels.class_id >= 0) & (labels.class_id < len(spec.class_names))
    if not known.all():
        raise UserError(
            f"{path} holds class {labels.class_id[~known][0]}, but {spec.name} has {len(spec.class_names)} classes "
            f"({', '.join(spec.class_names)}), counted from 0; name them all, or prepare the recordings again"
        )
    if not np.isfinite(labels.boxes_ltwh).all():
        raise UserError(f"{path} holds boxes that are not finite; prepare the recordings again")
    settings = replace(stored.settings, stride_us=_RVT_STRIDE_US) if path.is_dir() else stored.settings
    return FrameSequence(
        stored.name,
        stored.windows,
        to_frame_labels(labels, spec),
        (settings.num_channels, spec.frame_height, spec.frame_width),
        settings,
        StoredFrames(stored),
    )


def has_sequences(prepared_dir: Path | str, split: str) -> bool:
    """Return whether a split was prepared."""
    folder = local_path(prepared_dir)
    return (folder / split).is_dir() and bool(find_sequences(folder, split))


def open_prepared_split(prepared_dir: Path | str, split: str, spec: DatasetSpec) -> list[FrameSequence]:
    """Open all prepared recordings of a split, by name. Raise ValueError if there is none."""
    paths = find_sequences(prepared_dir, split)
    if not paths:
        raise UserError(f"{prepared_dir}/{split} holds no prepared recording; run `rvtssm preprocess`")
    load_ends(paths)
    return [open_prepared(path, spec) for path in paths]


@dataclass(frozen=True, slots=True)
class StoredFrames:
    """The frames of a prepared recording, which were counted when it was prepared."""

    stored: StoredSequence

    @property
    def path(self) -> Path:
        return self.stored.path

    def counted_anew(self, windows: Windows) -> StoredFrames:
        raise UserError(
            f"{self.path} is prepared, so its frames cannot be counted for a detector that skips windows; use the raw "
            "recordings (evaluation.source=raw dataset.raw_dir=DIR), or evaluation.when_late=queue"
        )

    def frames(self, start: int, stop: int, placement: Placement | None = None) -> DenseFrames:
        hist = self.stored.histograms(start, stop)
        return DenseFrames(placement.histograms(hist) if placement else hist)

    def close(self) -> None:
        self.stored.close()


@dataclass(frozen=True, slots=True)
class CountedFrames:
    """The frames of a raw recording, which are counted when they are needed.

    If frames need events before their windows, those of `WindowSettings.warmup_us` are counted and earlier ones left
    out. Then frames are counted here, because their events would be more to send than the frames.
    """

    plan: SequencePlan

    @property
    def path(self) -> Path:
        return self.plan.recording.path

    def counted_anew(self, windows: Windows) -> CountedFrames:
        """Return frames of other windows of the same recording."""
        return CountedFrames(replace(self.plan, windows=windows))

    def frames(self, start: int, stop: int, placement: Placement | None = None) -> ChunkEvents | DenseFrames:
        plan = replace(self.plan, windows=self.plan.windows[start:stop])
        counter = plan.counter(*(placement.sources() if placement else ()))
        if len(plan.windows):
            first_us, stop_us = plan.span_us
            for begin_us in range(first_us, stop_us, _SPAN_US):
                counter.push(plan.recording.between(begin_us, min(begin_us + _SPAN_US, stop_us)))
        if plan.settings.warmup_us:
            return DenseFrames(counter.take(plan.windows.bounds_us))
        return ChunkEvents(counter.pack(plan.windows.bounds_us), plan.settings, counter.frame_shape)

    def close(self) -> None:
        self.plan.recording.close()


class RawSplit:
    """The labelled raw recordings of a split, opened and indexed once for any number of window settings."""

    def __init__(self, raw_dir: Path | str, split: str, spec: DatasetSpec) -> None:
        """Raise ValueError if the split is empty or if a recording has no file of boxes."""
        self.spec = spec
        self.split = split
        found = find_recordings(raw_dir, split, spec)
        if not found:
            raise UserError(
                f"{raw_dir}/{split} holds no recording that ends in {' '.join(spec.event_suffixes)}; "
                "data_prep/README.md shows where recordings of each dataset lie"
            )
        self._recordings = []
        for raw in found:
            boxes = raw.read_boxes(spec)
            self._recordings.append(
                (raw.name, open_recording(raw.events_path, spec.height, spec.width, spec.repair), boxes)
            )

    def sequences(
        self,
        settings: WindowSettings,
        grid: str = "labels",
        label_hz: float | None = None,
        has_pseudo_labels: bool = False,
    ) -> list[FrameSequence]:
        """Return the recordings, by name, on the label grid as `rvtssm preprocess` would make them, or on the free one.

        With `label_hz` the labels are interpolated to this rate on the same grid, see `interpolated_boxes`. Labels that
        a detector made are left out unless `has_pseudo_labels`.

        Recordings without a box after cleaning are left out. Raise ValueError if none remains, and for recordings that
        could not be prepared either.
        """
        if label_hz is not None and not any(boxes["track_id"].any() for _, _, boxes in self._recordings):
            raise UserError(
                f"the labels of the {self.split} split have no track_id, without which nothing can be interpolated; "
                "set evaluation.label_hz=null"
            )
        sequences = []
        for name, recording, all_boxes in self._recordings:
            boxes = all_boxes if has_pseudo_labels else annotated(all_boxes)
            plan = plan_sequence(recording, boxes, self.spec, settings, self.split == "train", grid=grid)
            recording.close()  # a split has more recordings than a process may have open files
            if plan is not None:
                labels = plan.labels
                if label_hz is not None:
                    kept = clean_boxes(boxes, self.spec, settings.convention, self.split == "train")
                    labels = to_labels(interpolated_boxes(kept, label_hz, name), plan.windows, is_exact=False)
                labels = to_frame_labels(labels, self.spec)
                sequences.append(
                    FrameSequence(name, plan.windows, labels, plan.frame_shape, settings, CountedFrames(plan))
                )
        if not sequences:
            raise UserError(
                f"no recording of the {self.split} split has a box left after cleaning; `rvtssm verify` says why"
            )
        return sequences


def to_frame_labels(labels: Labels, spec: DatasetSpec) -> Labels:
    """Return labels in pixels of the frame from labels in sensor pixels.

    Boxes are cropped to the last pixel of the frame, and dropped if they have no area left.
    """
    if spec.downsample == 1:
        return labels
    last = np.array([spec.frame_width - 1, spec.frame_height - 1], np.float32)
    start = labels.boxes_ltwh[:, :2] / np.float32(spec.downsample)
    end = np.minimum((labels.boxes_ltwh[:, :2] + labels.boxes_ltwh[:, 2:]) / np.float32(spec.downsample), last)
    scaled = replace(labels, boxes_ltwh=np.concatenate([start, end - start], axis=1))
    return scaled[(end > start).all(axis=1)]
