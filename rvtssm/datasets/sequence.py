"""One recording as T steps of the model. Frames are read from a prepared file or counted from raw events on demand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rvtssm.datasets.augment import Placement
from rvtssm.datasets.packed_batch import count_frames
from rvtssm.datasets.store import StoredSequence, differing, open_sequence, sensor_meta
from rvtssm.datasets.tree import find_recordings, find_sequences, nothing_there, suffixes_of
from rvtssm.events.label_notes import Noticed, lines_on
from rvtssm.events.label_rules import clean_boxes
from rvtssm.events.labels import annotated, interpolated_boxes, to_labels
from rvtssm.events.sequence_plan import SequencePlan, plan_sequence
from rvtssm.readers import open_with
from rvtssm.readers.faults import say
from rvtssm.records import DatasetSpec, Labels, PackedEvents, Windows, WindowSettings
from rvtssm.system.user_error import UserError

_SPAN_US = 400_000  # length of the block of events that is decoded at once
# The stride that RVT's preparation aims at for any window length. The true distances are in its timestamps.
_RVT_STRIDE_US = 50_000


@dataclass(frozen=True, slots=True)
class FrameSequence:
    """T steps of one recording. Windows and labels are in memory, and frames come from a source that can be pickled."""

    name: str
    windows: Windows
    labels: Labels  # in frame pixels
    frame_shape: tuple[int, int, int]  # (C, h, w)
    settings: WindowSettings
    source: StoredSequence | CountedFrames
    asked: npt.NDArray[np.int64] | None = None  # steps whose outputs are wanted, ascending; None: all with labels

    @property
    def nothing(self) -> npt.NDArray[np.int64]:
        """The steps that are known to have no box, ascending."""
        ends_us = self.windows.ends_us
        empty_us = self.labels.empty_us
        steps = np.searchsorted(ends_us, empty_us[empty_us <= ends_us[-1]] if len(ends_us) else empty_us[:0])
        return np.setdiff1d(steps, self.labels.window_index)

    @property
    def label_steps(self) -> npt.NDArray[np.int64]:
        """The steps with at least one box, or known to have none, ascending."""
        return np.union1d(self.labels.window_index, self.nothing)

    @property
    def wanted_steps(self) -> npt.NDArray[np.int64]:
        """The steps whose outputs are wanted, ascending."""
        return self.label_steps if self.asked is None else self.asked

    def read(self, start: int, stop: int) -> npt.NDArray[np.generic]:
        """Return the frames (stop - start, C, h, w) of the steps [start, stop); uint8 for histograms."""
        frames = self.source.frames(start, stop)
        return count_frames(frames).numpy() if isinstance(frames, PackedEvents) else frames

    def close(self) -> None:
        self.source.close()

    def taking(self, steps: npt.NDArray[np.int64]) -> FrameSequence:
        """Return the sequence as seen by a detector that skips steps.

        If windows are as long as the stride, each begins at the end of the last window that was taken. Labels stay as
        they are.

        Args:
            steps: The steps that are taken, ascending, including the first one.

        Raises:
            UserError: A step is left out and the frames are prepared, so that they cannot be counted again.
        """
        if len(steps) == len(self.windows):
            return self
        ends_us = self.windows.ends_us[steps]
        dt_us = np.diff(ends_us, prepend=ends_us[0] - self.windows.dt_us[0])
        lengths_us = dt_us if self.settings.length_us is None else self.settings.length_us
        windows = Windows(np.stack([ends_us - lengths_us, ends_us], axis=1), dt_us)
        return replace(self, windows=windows, source=self.source.counted_anew(windows))

    def check_settings(self, asked_settings: WindowSettings, downsample: int) -> None:
        """Raise UserError if the frames were counted with other settings than `asked_settings`."""
        own = asdict(self.settings)
        asked = asdict(asked_settings)
        if downsample == 1:
            asked["reduce"] = own["reduce"]
        if math.isclose(own["stride_us"], asked["stride_us"], rel_tol=1e-3):  # 1e6 / 30 us is stored in whole ones
            asked["stride_us"] = own["stride_us"]
        differences = differing(own, asked, " but the run asks for ")
        if differences:
            found = f"it was prepared with {', and with '.join(differences)}"
            raise UserError("prepared.fixed", name=self.name, found=found)


def steps_of(sequences: Sequence[FrameSequence]) -> npt.NDArray[np.int64]:
    """Return the steps of sequences in microseconds, one sequence after the other."""
    return np.concatenate([sequence.windows.dt_us for sequence in sequences])


def open_prepared(path: Path | str, spec: DatasetSpec) -> FrameSequence:
    """Open a prepared recording.

    Args:
        path: A file of this package or a folder of RVT.
        spec: The dataset.

    Raises:
        UserError: The recording is damaged or belongs to another dataset.
    """
    path = Path(path)
    stored = open_sequence(path, spec)
    meta = stored.meta
    labels = stored.labels
    # The same dataset, frames of the same size, and classes that it has.
    if meta.get("dataset") not in (spec.name, *spec.disk_names):
        found = f"it was prepared as dataset {meta.get('dataset')!r}, but the run asks for {spec.name!r}"
        raise UserError("prepared.other", name=path, found=found)
    expected = sensor_meta(spec)
    if differences := differing({**expected, **meta}, expected, " but the run asks for "):
        advice = "set dataset.height and dataset.width to the size of the recordings, or prepare them again"
        raise UserError("prepared.other", name=path, found="; ".join(differences), advice=advice)
    is_known = np.isin(labels.class_id, range(spec.num_classes))
    if not (is_known.all() and np.isfinite(labels.boxes_ltwh).all()):
        found = f"it holds boxes that are not finite, or of other classes than {', '.join(spec.class_names)}"
        raise UserError("prepared.damaged", name=path, found=found, advice="prepare it again")
    settings = replace(stored.settings, stride_us=_RVT_STRIDE_US) if path.is_dir() else stored.settings
    labels = to_frame_labels(labels, spec)
    shape = (settings.num_channels, spec.frame_height, spec.frame_width)
    return FrameSequence(stored.name, stored.windows, labels, shape, settings, stored)


def open_prepared_split(prepared_dir: Path | str, split: str, spec: DatasetSpec) -> list[FrameSequence]:
    """Open all prepared recordings of a split, sorted by name.

    Args:
        prepared_dir: Folder or URL of the prepared files.
        split: train, val or test.
        spec: The dataset.

    Raises:
        UserError: There are none, or one of them is damaged or of another dataset.
    """
    paths = find_sequences(prepared_dir, split)
    if not paths:
        found = "it holds no prepared recording"
        raise UserError("file.missing", name=f"{prepared_dir}/{split}", found=found, advice="run `rvtssm preprocess`")
    return [open_prepared(path, spec) for path in paths]


@dataclass(frozen=True, slots=True)
class CountedFrames:
    """The frames of a raw recording, which are counted when they are needed.

    If frames need events before their windows, the events of the last `WindowSettings.warmup_us` are counted and
    earlier ones are left out. Such frames are counted in the loader worker, since their events would be more data than
    the frames.
    """

    plan: SequencePlan

    @property
    def path(self) -> Path:
        return self.plan.recording.path

    def counted_anew(self, windows: Windows) -> CountedFrames:
        """Return the frames of other windows of the same recording."""
        return CountedFrames(replace(self.plan, windows=windows))

    def frames(
        self, start: int, stop: int, placement: Placement | None = None
    ) -> npt.NDArray[np.generic] | PackedEvents:
        """Return the events or frames of the steps [start, stop), moved by `placement`."""
        plan = replace(self.plan, windows=self.plan.windows[start:stop])
        counter = plan.counter(*(placement.sources() if placement else ()))
        if len(plan.windows):
            first_us, stop_us = plan.span_us
            for begin_us in range(first_us, stop_us, _SPAN_US):
                counter.push(plan.recording.between(begin_us, min(begin_us + _SPAN_US, stop_us)))
        if plan.settings.warmup_us:
            return counter.take(plan.windows.bounds_us)
        return counter.pack(plan.windows.bounds_us)

    def close(self) -> None:
        self.plan.recording.close()


class RawSplit:
    """The labelled raw recordings of a split, opened and indexed once for any number of window settings.

    Args:
        raw_dir: Folder or URL of the dataset.
        split: train, val or test.
        spec: The dataset.

    Raises:
        UserError: The split is empty, or labels cannot be read.
    """

    def __init__(self, raw_dir: Path | str, split: str, spec: DatasetSpec) -> None:
        self.spec = spec
        self.split = split
        recordings = find_recordings(raw_dir, split, spec)
        if not recordings:
            raise nothing_there(f"{raw_dir}/{split}", f"no recording that ends in {' '.join(suffixes_of(spec))}")
        self._recordings = []
        self._noticed: dict[str, Noticed] = {}
        self._said: set[str] = set()
        for raw in recordings:
            boxes, entries = raw.read_labels(spec)
            self._noticed[raw.name] = Noticed(entries)
            self._recordings.append((raw.name, open_with(raw.events_path, spec.read_options), boxes))
        self.boxes = {name: boxes for name, _, boxes in self._recordings}
        if not any(map(len, self.boxes.values())):
            found = f"no label; {recordings[0].why_unlabelled(spec)}"
            raise UserError("labels.missing", name=f"{split} split", found=found)

    def sequences(
        self,
        settings: WindowSettings,
        grid: str = "labels",
        label_hz: float | None = None,
        has_pseudo_labels: bool = False,
    ) -> list[FrameSequence]:
        """Return the recordings as sequences, sorted by name.

        On the label grid they equal the files of `rvtssm preprocess`. Recordings without a box after cleaning are left
        out.

        Args:
            settings: How events become frames.
            grid: labels or free.
            label_hz: Interpolate the labels to this rate, see `interpolated_boxes`; None keeps the annotated ones.
            has_pseudo_labels: Keep labels that a detector made.

        Raises:
            UserError: No recording remains, or a recording cannot be used.
        """
        if label_hz is not None and not any(annotated(boxes)["track_id"].any() for _, _, boxes in self._recordings):
            raise UserError("labels.no_tracks", name=f"{self.split} split", advice="set evaluation.label_hz=null")
        sequences = []
        noticed = dict(self._noticed)
        spec = self.spec
        for name, recording, all_boxes in self._recordings:
            boxes = all_boxes if has_pseudo_labels else annotated(all_boxes)
            with closing(recording):  # a split has more recordings than a process may have open files
                plan = plan_sequence(recording, boxes, spec, settings, self.split == "train", grid=grid)
                if plan is None:
                    continue
                found = plan.noticed_within(recording.time_range_us)
                noticed[name] = replace(found, entries=noticed[name].entries + found.entries)
            labels = plan.labels
            if label_hz is not None:
                cleaned = clean_boxes(boxes, spec, settings.convention, self.split == "train")
                labels = to_labels(interpolated_boxes(cleaned, label_hz, name), plan.windows, is_exact=False)
            steps = plan.windows, to_frame_labels(labels, spec), plan.frame_shape, settings
            sequences.append(FrameSequence(name, *steps, CountedFrames(plan)))
        if not sequences:
            advice = "`rvtssm inspect DIR full=true` says why"
            nothing = "no recording has a box left after cleaning"
            raise UserError("labels.missing", name=f"{self.split} split", found=nothing, advice=advice)
        # Once, although an evaluation asks for the same recordings at many rates.
        for line in lines_on({f"{self.split}/{name}": one for name, one in noticed.items()}, spec):
            if line not in self._said:
                self._said.add(line)
                say(line)
        return sequences


def to_frame_labels(labels: Labels, spec: DatasetSpec) -> Labels:
    """Convert labels from sensor pixels to frame pixels.

    Boxes are cropped to the last pixel of the frame, and dropped if no area is left.

    Args:
        labels: The labels, in sensor pixels.
        spec: The dataset.
    """
    if spec.downsample == 1:
        return labels
    last = np.array([spec.frame_width - 1, spec.frame_height - 1], np.float32)
    start = labels.boxes_ltwh[:, :2] / np.float32(spec.downsample)
    end = np.minimum((labels.boxes_ltwh[:, :2] + labels.boxes_ltwh[:, 2:]) / np.float32(spec.downsample), last)
    scaled = replace(labels, boxes_ltwh=np.concatenate([start, end - start], axis=1))
    return scaled[(end > start).all(axis=1)]
