"""What each split of a raw or prepared dataset contains: recordings, time, events, and labels by class and size."""

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rvtssm.checks.inspect_recording import MARGINS, blank_figure, inspect_recording, sensor_notes
from rvtssm.datasets.agreement import lines_on_files, named, raw_lines
from rvtssm.datasets.prepare_recording import Plan, Recipe, plan_recording
from rvtssm.datasets.store import Meta, open_sequence, shared_settings
from rvtssm.datasets.tree import RawRecording, find_all_sequences, find_recordings, has_split, nothing_there
from rvtssm.events.label_notes import NOTHING, LabelTimes, Noticed, lines_on
from rvtssm.events.label_rules import Note, box_faults, span_faults, with_class_indices
from rvtssm.events.labels import BOX_DTYPE, find_nothing
from rvtssm.readers import open_with
from rvtssm.readers.faults import noted
from rvtssm.readers.hdf5 import open_hdf5, reading
from rvtssm.records import DatasetSpec, WindowSettings
from rvtssm.records.settings import SPLITS
from rvtssm.system.user_error import UserError, in_one_line
from rvtssm.system.workers import Task, run_all

SIZES = ("small", "medium", "large")
_SIZE_COLOURS = ("#bbccee", "#6699cc", "#225588")
_AREAS_PX = (32**2, 96**2)  # the limits between the sizes, as in COCO


@dataclass(frozen=True)
class Part:
    """The numbers of one recording of a dataset. If they could not be measured, `error` says why."""

    split: str
    name: str
    num_bytes: int = 0
    duration_us: int = 0
    # in prepared histograms from the counts, which miss events beyond saturation; 0 for other prepared frames
    num_events: int = 0
    num_windows: int = 0
    repaired: int = 0  # number of events that were moved in time or dropped
    num_label_times: int = 0
    class_names: tuple[str, ...] = ()
    # (K, 3) number of boxes by class and size
    labels: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 3), np.int64))
    noticed: Noticed = NOTHING
    messages: tuple[str, ...] = ()  # faults and notes on the recording and its boxes
    error: str = ""
    settings: Meta = field(default_factory=dict)  # of the preparation; empty for a raw recording


@dataclass(frozen=True)
class TreeInspection:
    """The numbers of a dataset, recording by recording."""

    name: str
    kind: str  # raw or prepared
    dataset: str
    class_names: tuple[str, ...]
    parts: tuple[Part, ...]
    settings: Meta  # settings of the preparation; empty for raw datasets
    notes: tuple[str, ...] = ()  # what is unusual, one line each

    @property
    def splits(self) -> list[str]:
        return list(dict.fromkeys(part.split for part in self.parts))

    @property
    def errors(self) -> list[tuple[str, str]]:
        return [(f"{part.split}/{part.name}", part.error) for part in self.parts if part.error]

    def labels(self, split: str) -> npt.NDArray[np.int64]:
        """Return the number of boxes (K, 3) by class and size, of the recordings that have these classes."""
        counts = np.zeros((len(self.class_names), 3), np.int64)
        for part in self.parts:
            if part.split == split and part.class_names == self.class_names:
                counts += part.labels
        return counts

    def totals(self, split: str) -> dict[str, int]:
        """Return the sums over the readable recordings of a split."""
        parts = [part for part in self.parts if part.split == split and not part.error]
        names = ("num_bytes", "duration_us", "num_events", "num_windows", "repaired", "num_label_times")
        sums = {name: sum(map(attrgetter(name), parts)) for name in names}
        return {"recordings": len(parts), **sums}

    def to_json(self) -> dict[str, Any]:
        """Return plain values for json.dumps."""
        splits = {}
        for split in self.splits:
            rows = [dict(zip(SIZES, row, strict=True)) for row in self.labels(split).tolist()]
            splits[split] = {**self.totals(split), "labels": dict(zip(self.class_names, rows, strict=True))}
        return {
            "kind": self.kind,
            "dataset": self.dataset,
            "settings": self.settings,
            "splits": splits,
            "notes": self.notes,
            "errors": dict(self.errors),
        }


def is_sequence(path: Path) -> bool:
    """Return whether a file was written by `rvtssm preprocess`."""
    try:
        with reading(path), open_hdf5(path) as file:
            return "meta" in file.attrs
    except UserError:
        return False


def is_prepared(folder: Path) -> bool:
    """Return whether a folder with splits holds prepared sequences, of this package or of RVT."""
    first_of_split = dict(reversed(find_all_sequences(folder)))
    return any(path.is_dir() or is_sequence(path) for path in first_of_split.values())


def inspect_prepared(path: Path, spec: DatasetSpec | None) -> TreeInspection:
    """Inspect a prepared file, or a folder of splits with such files, by reading every frame once.

    If a recording is damaged, its part gets an `error`.

    Args:
        path: The file or folder.
        spec: The dataset; needed for folders prepared by RVT.

    Raises:
        UserError: There is nothing to read.
    """
    entries = [("", path)] if path.is_file() else find_all_sequences(path)
    if not entries:
        raise nothing_there(path, f"no prepared sequences in {', '.join(SPLITS)}")
    tasks = [(("prepared", split, entry.stem), _prepared_part, (split, entry, spec)) for split, entry in entries]
    parts = tuple(measured(tasks, 1, path.name).values())
    settings = next((part.settings for part in parts if part.settings), None)
    if settings is None:
        found = f"none of the {len(entries)} prepared sequences can be read"
        raise UserError("prepared.damaged", found=found, advice=parts[0].error)
    # What the files do not agree on; boxes of other classes are in no table.
    classes = tuple(settings["class_names"])
    notes = [] if path.is_file() else lines_on_files(path)
    if others := [f"{part.split}/{part.name}" for part in parts if not part.error and part.class_names != classes]:
        notes.append(
            f"the boxes of {len(others)} of {len(parts)} recordings are not counted, because their classes are not "
            f"{', '.join(classes)} ({named(others)})"
        )
    dataset = str(settings.get("dataset", ""))
    return TreeInspection(path.name, "prepared", dataset, classes, parts, settings, tuple(notes))


def inspect_raw(path: Path, spec: DatasetSpec) -> TreeInspection:
    """Inspect a raw dataset by reading every recording once, and all labels as they are on disk.

    If a recording is damaged, its part gets an `error`.

    Args:
        path: The folder of the dataset.
        spec: The dataset.

    Raises:
        UserError: There is nothing to read.
    """
    tasks: list[Task] = []
    for split in SPLITS:
        if has_split(path, split, spec):
            recipe = Recipe(spec, WindowSettings(), split == "train")
            tasks += raw_tasks(find_recordings(path, split, spec), split, recipe)
    if not tasks:
        raise nothing_there(path, f"no recordings of {spec.name} in {', '.join(SPLITS)}")
    parts = tuple(measured(tasks, 1, path.name).values())
    notes = (*raw_lines(path, spec), *noticed_lines(parts, spec))
    return TreeInspection(path.name, "raw", spec.name, spec.class_names, parts, {}, notes)


def raw_tasks(recordings: Iterable[RawRecording], split: str, recipe: Recipe) -> list[Task]:
    """Return the tasks that measure the recordings of a split, see `raw_part`."""
    return [(("raw", split, each.name), raw_part, (split, each, recipe)) for each in recordings]


def measured(tasks: Sequence[Task], num_workers: int | None, description: str) -> dict[tuple[str, str, str], Part]:
    """Return the parts that tasks return, in the order of the tasks. An error becomes the `error` of its part.

    Args:
        tasks: The tasks. A key has the kind of the recording, its split and its name.
        num_workers: Number of processes; None for one per core.
        description: Text beside the progress bar.
    """
    parts = {key: Part(*key[1:]) for key, _, _ in tasks}
    for done in run_all(tasks, num_workers, description):
        if done.error is None:
            parts[done.key] = done.result
        else:
            parts[done.key] = replace(parts[done.key], error=in_one_line(done.error))
    return parts


def noticed_lines(parts: Iterable[Part], spec: DatasetSpec) -> list[str]:
    """Return what was noticed about recordings, in the lines that every verb says."""
    return lines_on({f"{part.split}/{part.name}": part.noticed for part in parts}, spec)


def count_labels(
    class_id: npt.NDArray[Any], w: npt.NDArray[Any], h: npt.NDArray[Any], num_classes: int
) -> npt.NDArray[np.int64]:
    """Count boxes by class and size.

    Args:
        class_id: (N,), class indices.
        w: (N,), sensor pixels.
        h: (N,), sensor pixels.
        num_classes: K.

    Returns:
        (K, 3); sizes are areas in sensor pixels.
    """
    table = np.zeros((num_classes, len(SIZES)), np.int64)
    np.add.at(table, (class_id.astype(np.int64), np.searchsorted(_AREAS_PX, w * h, side="right")), 1)
    return table


def _prepared_part(split: str, path: Path, spec: DatasetSpec | None) -> Part:
    with closing(open_sequence(path, spec)) as sequence:
        num_events = 0
        # Only histograms count events; surfaces do not say how many there were.
        is_counted = sequence.meta.get("representation", "histogram") == "histogram"
        for _, frames in sequence.batches():
            if is_counted:
                num_events += int(frames.sum(dtype=np.int64))
    labels = sequence.labels
    num_classes = len(sequence.meta["class_names"])
    faults = sequence.meta.get("faults", {})
    duration_us = int(sequence.windows.dt_us.sum())
    counted_us = int(np.diff(sequence.windows.bounds_us).sum())
    return Part(
        split,
        sequence.name,
        num_bytes=sequence.path.stat().st_size,
        duration_us=duration_us,
        num_events=round(num_events * duration_us / max(counted_us, 1)),
        num_windows=len(sequence.windows),
        repaired=faults.get("backward_steps", 0) + faults.get("out_of_frame", 0),
        num_label_times=len(np.unique(labels.t_us)),
        class_names=tuple(sequence.meta["class_names"]),
        labels=count_labels(labels.class_id, labels.boxes_ltwh[:, 2], labels.boxes_ltwh[:, 3], num_classes),
        settings=shared_settings(sequence.meta),
    )


def raw_part(split: str, recording: RawRecording, recipe: Recipe) -> Part:
    """Measure a recording and its labels, and check both as `preprocess` and a training do.

    Args:
        split: train, val or test.
        recording: The recording.
        recipe: How it would be prepared.

    Raises:
        UserError: The recording cannot be read.
    """
    spec = recipe.spec
    with noted() as event_notes:
        inspected = inspect_recording(open_with(recording.events_path, spec.read_options))
    range_us = inspected.t_first_us, inspected.t_last_us
    faults = inspected.recording.faults
    noticed = Noticed()
    error = ""
    messages = sensor_notes(inspected, spec)
    if refusal := inspected.recording.refusal(inspected.num_events, bool(spec.repair)):
        messages.append(f"{recording.events_path} {refusal}")
    boxes = np.empty(0, BOX_DTYPE)
    if recipe.is_labelled:
        try:
            # The labels as they are on disk, against the time and the size of the events.
            boxes, entries = recording.read_labels(spec)
            times = None
            if recording.boxes_path is not None and len(boxes):
                messages += box_faults(recording.boxes_path, boxes, spec)
                times = LabelTimes.check(str(recording.events_path), np.unique(boxes["t"]), range_us, spec)
                messages += span_faults(recording.boxes_path, boxes, range_us, spec)
            # Then what `preprocess` would say.
            plan = plan_recording(recording, recipe, labels=(boxes, entries))
            if isinstance(plan, Plan):
                noticed = plan.sequence.noticed_within(range_us)
                if noticed.times is not None and not noticed.times.note:  # labels that are left out may be unusual
                    noticed = replace(noticed, times=times)
            else:
                messages.append(Note(plan.message))
                noticed = plan.noticed
        except UserError as wrong:
            error = in_one_line(wrong)
    times_us = np.unique(boxes["t"])
    boxes = with_class_indices(boxes[~find_nothing(boxes)], spec)
    return Part(
        split,
        recording.name,
        num_bytes=inspected.recording.num_bytes,
        duration_us=inspected.duration_us,
        num_events=inspected.num_events,
        repaired=faults.backward_steps + faults.out_of_frame,
        num_label_times=len(times_us),
        class_names=spec.class_names,
        labels=count_labels(boxes["class_id"], boxes["w"], boxes["h"], spec.num_classes),
        noticed=replace(noticed, events=tuple(event_notes), backward_steps=faults.backward_steps),
        messages=tuple(messages),
        error=error,
    )


def tree_figure(inspection: TreeInspection) -> Any:
    """Draw the number of boxes by class and size, and the duration and mean rate of every recording, by split."""
    figure = blank_figure()
    labels, recordings = figure.subplots(2, gridspec_kw=MARGINS)
    below = np.zeros(len(inspection.splits) * len(inspection.class_names))
    ticks = [f"{name}\n{split}" for split in inspection.splits for name in inspection.class_names]
    tables = np.concatenate([np.zeros((0, len(SIZES))), *map(inspection.labels, inspection.splits)])
    # Above: boxes by class and split, stacked by size.
    for i, size in enumerate(SIZES):
        labels.bar(np.arange(len(ticks)), tables[:, i], bottom=below, label=size, color=_SIZE_COLOURS[i])
        below = below + tables[:, i]
    labels.set_xticks(np.arange(len(ticks)), ticks, parse_math=False)  # names may have dollar signs
    labels.set_title(f"{inspection.name}: {inspection.kind} {inspection.dataset}", parse_math=False)
    labels.set_ylabel("boxes")
    labels.legend(title="area (COCO)")
    for split in inspection.splits:
        # Below: each recording by its length and rate.
        parts = [part for part in inspection.parts if part.split == split and part.num_events]
        durations_us = np.array([*map(attrgetter("duration_us"), parts)])
        num_events = np.array([*map(attrgetter("num_events"), parts)])
        rates = num_events / np.maximum(durations_us, 1)  # million events per second
        recordings.scatter(durations_us / 1e6, rates, label=split or inspection.name, alpha=0.7)
    limits = {"xlim": (0, None), "ylim": (0, None)}
    recordings.set(xlabel="seconds", ylabel="million events per second", title="recordings", **limits)
    for text in recordings.legend().get_texts():
        text.set_parse_math(False)
    return figure
