"""Check a raw or prepared dataset completely and in parallel: every event, frame and label is decoded."""

from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path

import numpy as np

from rvtssm.checks.label_checks import Note, box_faults, sensor_notes, time_faults
from rvtssm.datasets.agreement import name_in, prepared_lines, raw_lines
from rvtssm.datasets.data_config import PreprocessConfig
from rvtssm.datasets.prepare_recording import Plan, Recipe, is_made_from, plan_recording
from rvtssm.datasets.store import Meta, StoredSequence, differing, open_sequence, read_meta, shared_settings
from rvtssm.datasets.tree import RawRecording, find_boxes_without_events, find_recordings, find_sequences
from rvtssm.events.frame_counter import count_as_they_close
from rvtssm.events.sequence_plan import SequencePlan
from rvtssm.readers import open_with
from rvtssm.readers.faults import noted
from rvtssm.readers.recording import EventBlocks
from rvtssm.records import DatasetSpec, WindowSettings
from rvtssm.system.progress import run_all
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
    verification = Verification()
    # Everything that is checked, as tasks for the workers.
    tasks = []
    raw_dir, prepared_dir = (folder and local_path(folder) for folder in (raw_dir, prepared_dir))
    if raw_dir is not None:
        verification.notes += [("raw", line) for line in raw_lines(raw_dir, spec)]
        tasks += list(_raw_tasks(spec, raw_dir, config, verification))
    if prepared_dir is not None:
        verification.notes += [("prepared", line) for line in prepared_lines(prepared_dir, raw_dir, spec)]
        tasks += list(_prepared_tasks(spec, raw_dir, prepared_dir, settings, config, verification))
    if not tasks and not verification.faults:
        raise UserError(
            "file.missing",
            name=raw_dir or prepared_dir,
            found=f"it holds nothing in {', '.join(config.splits)}",
            advice="see data_prep/README.md",
        )
    # A fault makes the set unfit; a note is only told.
    for done in run_all(tasks, config.workers, "checking"):
        verification.num_checked += 1
        messages = done.result
        if done.error is not None:
            messages = [in_one_line(done.error)]
        for message in messages:
            found = verification.notes if isinstance(message, Note) else verification.faults
            found.append((done.key, message))
    verification.faults.sort()
    verification.notes.sort()
    return verification


def _raw_tasks(
    spec: DatasetSpec, raw_dir: Path | str, config: PreprocessConfig, verification: Verification
) -> Iterator[Task]:
    for split in config.splits:
        recordings = find_recordings(raw_dir, split, spec)
        if not recordings:
            verification.faults.append((f"raw/{split}", f"{raw_dir} holds no recordings of {spec.name} in {split}"))
        for recording in recordings:
            yield f"raw/{split}/{recording.name}", _verify_raw, (recording, spec, config.is_labelled, split == "train")
        for path in find_boxes_without_events(raw_dir, split, spec) if config.is_labelled else ():
            message = f"{path} belongs to no recording; copy the recording there"
            verification.faults.append((f"raw/{split}/{path.name}", message))


def _prepared_tasks(
    spec: DatasetSpec,
    raw_dir: Path | str | None,
    prepared_dir: Path | str,
    settings: WindowSettings,
    config: PreprocessConfig,
    verification: Verification,
) -> Iterator[Task]:
    shared: Meta | None = None
    for split in config.splits:
        recipe = Recipe(spec, settings, split == "train", config.is_labelled)
        paths = {name_in(Path(prepared_dir) / split, path): path for path in find_sequences(prepared_dir, split)}
        if not paths:
            verification.faults.append((f"prepared/{split}", f"{prepared_dir} holds no prepared sequences in {split}"))
        # Prepared files against their recordings, if both are there.
        recordings: dict[str, RawRecording] = {}
        if raw_dir is not None:
            recordings = {recording.name: recording for recording in find_recordings(raw_dir, split, spec)}
        for name in sorted({*paths, *recordings}):
            key = f"prepared/{split}/{name}"
            path = paths.get(name)
            recording = recordings.get(name)
            if path is None:
                yield key, _verify_absence, (recording, recipe)
                continue
            if raw_dir is not None and recording is None:
                verification.faults.append(
                    (key, f"{path} belongs to no recording in {raw_dir}; remove it, or copy the recording there")
                )
            if shared is None and raw_dir is None and path.is_file():
                with suppress(ValueError):  # an unreadable file is reported when it is checked
                    shared = shared_settings(read_meta(path))
            yield key, _verify_prepared, (path, recording, recipe, shared)


def _verify_raw(recording: RawRecording, spec: DatasetSpec, is_labelled: bool, is_train: bool) -> list[str]:
    """Return the faults of a recording and its labels, and notes on them."""
    with closing(open_with(recording.events_path, spec.read_options)) as events:
        blocks = EventBlocks(events)
        reach_xy = (0, 0)
        # Every event is read once, whatever its file says of itself.
        with noted() as event_notes:
            for block in blocks:
                reach_xy = max(reach_xy[0], int(block.x.max())), max(reach_xy[1], int(block.y.max()))
        if not blocks.num_events:
            raise events.error_without_events()
        faults: list[str] = [Note(text) for text in event_notes]
        faults += sensor_notes(events, blocks.num_events, reach_xy, spec)
        if not is_labelled:
            return faults
        try:
            # Then the labels, against the time and the size of the events.
            boxes, notes = recording.read_labels(spec)
        except UserError as error:
            return [*faults, in_one_line(error)]
        if not len(boxes):
            return [*faults, Note(recording.why_unlabelled(spec))]
        faults += [Note(f"{recording.boxes_path}: {count} {note}") for note, count in notes.items()]
        faults += time_faults(recording, boxes, (blocks.first_us, blocks.last_us), spec)
        return faults + box_faults(recording, boxes, spec, is_train)


def _verify_prepared(path: Path, recording: RawRecording | None, recipe: Recipe, shared: Meta | None) -> list[str]:
    """Return the faults of a prepared sequence.

    If `recording` is given, the sequence must be made from it. If `shared` is given, its settings must match those of
    the other files.
    """
    spec = recipe.spec
    with closing(open_sequence(path, spec)) as sequence:
        sequence.check_frames()
        faults = _rvt_faults(sequence, spec) if path.is_dir() else _source_faults(sequence, recording, recipe)
    if sequence.meta.get("dataset") != spec.name:
        faults.append(f"{path} holds {sequence.meta.get('dataset')}, not {spec.name}; choose the dataset that fits")
    mine = shared_settings(sequence.meta)
    if shared is not None and mine != shared:
        differences = "; ".join(differing(mine, {**dict.fromkeys(mine), **shared}, ", others with "))
        faults.append(f"{path} was made with {differences}; prepare it again")
    return faults


def _verify_absence(recording: RawRecording, recipe: Recipe) -> list[str]:
    """Return a fault if a recording was not prepared although it has boxes that would be kept."""
    if isinstance(plan_recording(recording, recipe), Plan):
        return [f"{recording.events_path} is not prepared; run `rvtssm preprocess` again"]
    return []


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
