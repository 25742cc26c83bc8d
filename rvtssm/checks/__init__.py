"""Describe recordings and datasets, and check a whole dataset in parallel: every event, frame and label is decoded."""

from contextlib import closing
from dataclasses import dataclass, field, fields
from pathlib import Path

import numpy as np

from rvtssm.checks.inspect_dataset import Part, measured, noticed_lines, raw_tasks
from rvtssm.datasets import PreprocessConfig
from rvtssm.datasets.agreement import RECORDING_IS_ELSEWHERE, name_of, prepared_lines, raw_lines
from rvtssm.datasets.prepare_recording import Plan, Recipe, is_made_from, plan_recording
from rvtssm.datasets.store import StoredSequence, open_sequence
from rvtssm.datasets.tree import (
    RawRecording,
    find_boxes_without_events,
    find_sequences,
    nothing_there,
    recordings_by_name,
)
from rvtssm.events.frame_counter import count_as_they_close
from rvtssm.events.label_rules import Note
from rvtssm.events.sequence_plan import SequencePlan
from rvtssm.records import DatasetSpec, WindowSettings
from rvtssm.system.remote import local_path
from rvtssm.system.user_error import UserError, in_one_line
from rvtssm.system.workers import Task

_FRAMES_AT_ONCE = 16


@dataclass
class Verification:
    """What was found in a dataset. Names are `raw/split/name` and `prepared/split/name`."""

    num_checked: int = 0
    faults: list[tuple[str, str]] = field(default_factory=list)  # names and faults, one line each
    notes: list[tuple[str, str]] = field(default_factory=list)  # the same for what is unusual but may be intended


def verify_dataset(
    spec: DatasetSpec,
    raw_dir: Path | str | None,
    prepared_dir: Path | str | None,
    settings: WindowSettings,
    config: PreprocessConfig,
) -> Verification:
    """Check the splits of `config` in the given folders.

    If both folders are given, prepared files are compared with their recordings and with `settings`. Without
    recordings, they are compared with each other.

    Args:
        spec: The dataset.
        raw_dir: Folder or URL of the raw recordings, or None.
        prepared_dir: Folder or URL of the prepared files, or None.
        settings: How events become frames.
        config: Which splits to check, and how many workers to use.

    Raises:
        UserError: There is nothing to check.
    """
    found = Verification()
    tasks: list[Task] = []
    # What the files say of each other, and a task for each of them.
    notes: list[str] = []
    if raw_dir is not None:
        raw_dir = local_path(raw_dir)
        notes += raw_lines(raw_dir, spec)
    if prepared_dir is not None:
        prepared_dir = local_path(prepared_dir)
        found.faults += [("prepared", line) for line in prepared_lines(prepared_dir, raw_dir, spec)]
    for split in config.splits:
        recipe = Recipe(spec, settings, split == "train", config.is_labelled)
        recordings = {}
        if raw_dir is not None:
            recordings = recordings_by_name(raw_dir, split, spec)
            if not recordings:
                found.faults.append((f"raw/{split}", f"{raw_dir} holds no recordings of {spec.name} in {split}"))
            for path in find_boxes_without_events(raw_dir, split, spec) if config.is_labelled else ():
                text = f"{path} belongs to no recording; {RECORDING_IS_ELSEWHERE}"
                found.faults.append((f"raw/{split}/{path.name}", text))
            tasks += raw_tasks(recordings.values(), split, recipe)
        for path in find_sequences(prepared_dir, split) if prepared_dir is not None else ():
            name = name_of(path)
            arguments = (split, name, path, recordings.get(name), recipe)
            tasks.append((("prepared", split, name), _verify_prepared, arguments))
    if not tasks and not found.faults:
        raise nothing_there(raw_dir or prepared_dir, f"nothing in {', '.join(config.splits)}")
    # What each of them has by itself.
    parts = measured(tasks, config.workers, "checking")
    found.num_checked = len(parts)
    for key, part in parts.items():
        for message in (*part.messages, *filter(None, [part.error])):
            told = found.notes if isinstance(message, Note) else found.faults
            told.append(("/".join(key), message))
    raw = [part for key, part in parts.items() if key[0] == "raw"]
    found.notes += [("raw", line) for line in (*notes, *noticed_lines(raw, spec))]
    found.faults.sort()
    found.notes.sort()
    return found


def _verify_prepared(split: str, name: str, path: Path, recording: RawRecording | None, recipe: Recipe) -> Part:
    """Return the faults of a prepared sequence. If `recording` is given, the sequence must be made from it."""
    spec = recipe.spec
    with closing(open_sequence(path, spec)) as sequence:
        sequence.check_frames()
        faults = _rvt_faults(sequence, spec) if path.is_dir() else _source_faults(sequence, recording, recipe)
    if sequence.meta.get("dataset") != spec.name:
        faults.append(f"{path} holds {sequence.meta.get('dataset')}, not {spec.name}; choose the dataset that fits")
    return Part(split, name, messages=tuple(faults))


def _source_faults(sequence: StoredSequence, recording: RawRecording | None, recipe: Recipe) -> list[str]:
    if recording is None:
        return []
    path = sequence.path
    try:
        if not is_made_from(recording, sequence, recipe):
            return [f"{path} was made from another {recording.events_path.name} or other labels; prepare it again"]
    except UserError as error:
        return [in_one_line(error)]
    # The recording as it would be prepared today.
    plan = plan_recording(recording, recipe, is_cut=True)
    if not isinstance(plan, Plan):
        return [f"{path} should not be there: {plan.message}; delete it"]
    faults = []
    num_events = sequence.meta.get("num_events")
    now = plan.sequence.recording.num_events
    if num_events not in (None, now):
        faults.append(f"{recording.events_path} has {now} events, not {num_events} as before; copy it again")
    # Windows and labels are compared whole, frames up to the first that differs.
    for name in ("windows", "labels"):
        stored = getattr(sequence, name)
        planned = getattr(plan.sequence, name)
        if not all(np.array_equal(getattr(stored, f.name), getattr(planned, f.name)) for f in fields(planned)):
            faults.append(f"{path} has other {name} than its recording gives; prepare it again")
    if not faults and (window := _first_other_frame(sequence, plan.sequence)) is not None:
        faults.append(
            f"{path} has other frames than {recording.events_path} gives, from window {window} on: one of them has "
            "changed; copy the recording again, or prepare it again"
        )
    return faults


def _first_other_frame(sequence: StoredSequence, plan: SequencePlan) -> int | None:
    """Return the first window whose frame differs when its events are counted again; None if all are equal."""
    start = 0
    with closing(plan.recording) as events:
        for windows, frames in count_as_they_close(
            events.iterate(reuse=True), plan.windows, plan.counter(), _FRAMES_AT_ONCE
        ):
            stored = sequence.histograms(start, start + len(windows))
            if not np.array_equal(stored, frames):
                return start + int(np.argmax((stored != frames).any(axis=(1, 2, 3))))
            start += len(windows)
    return None


def _rvt_faults(sequence: StoredSequence, spec: DatasetSpec) -> list[str]:
    """Return the faults of a folder of RVT that opening it does not notice. It has no digest."""
    faults = []
    path = sequence.path
    if np.any(sequence.windows.dt_us <= 0):
        faults.append(f"{path} has windows that are empty or do not follow each other; prepare it again")
    x, y, w, h = sequence.labels.boxes_ltwh.T
    is_good = (x >= 0) & (y >= 0) & (w > 0) & (h > 0) & (x + w <= spec.width) & (y + h <= spec.height)
    if not is_good.all():  # also true if a coordinate is not a number
        count = np.count_nonzero(~is_good)
        faults.append(f"{path} has {count} boxes outside {spec.width}x{spec.height} pixels or without area")
    for start, frames in sequence.batches():
        if not frames.max() <= sequence.settings.count_cutoff:  # also true of a value that is not a number
            return [*faults, f"{path} has frames that its settings do not allow, from window {start} on"]
    return faults
