"""Prepare one raw recording: check, clean, count, compress and write it.

A long recording can be split into sections of consecutive windows, which any process can count. The resulting file is
the same, byte for byte.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from rvtssm.datasets.compress import FrameCompressor
from rvtssm.datasets.store import Meta, StoredSequence, differing, open_sequence
from rvtssm.datasets.store_writer import sequence_writer
from rvtssm.datasets.tree import RawRecording
from rvtssm.events.frame_counter import count_as_they_close
from rvtssm.events.label_rules import LabelTimes, unusable_boxes
from rvtssm.events.labels import annotated
from rvtssm.events.sequence_plan import SequencePlan, plan_sequence
from rvtssm.readers import open_with
from rvtssm.readers.faults import noted
from rvtssm.readers.recording import EventBlocks
from rvtssm.records import DatasetSpec, Events, WindowSettings
from rvtssm.system.user_error import UserError

SAMPLE_BYTES = 1 << 20  # bytes at each end of a recording whose digest tells whether the file is still the same
_FRAMES_AT_ONCE = 2  # few, so that a frame is compressed while it is still in the cache


@dataclass(frozen=True)
class Outcome:
    """What happened to one recording: written, skipped (already complete), dropped (no boxes left) or failed."""

    status: str
    message: str = ""
    backward_steps: int = 0
    unusable_boxes: str = ""  # how many boxes were dropped as faulty, by reason
    num_labels: int = 0
    num_thinned: int = 0  # boxes that were dropped because of their time
    label_times: LabelTimes | None = None
    label_notes: Counter[str] = field(default_factory=Counter)  # entries of label files, see `LabelFiles.read`
    event_notes: tuple[str, ...] = ()  # what was left out of the events, and doubts about their times
    class_ids: tuple[int, ...] = ()  # the class numbers that its label files have
    keeps_all_us: int = 0  # see `SequencePlan`


@dataclass(frozen=True)
class Recipe:
    """How the recordings of one split are prepared."""

    spec: DatasetSpec
    settings: WindowSettings
    is_train: bool = False
    is_labelled: bool = True

    @property
    def meta(self) -> Meta:
        """The metadata that a prepared file stores about its recipe."""
        spec, settings = self.spec, self.settings
        return {
            "dataset": spec.name,
            "convention": settings.convention,
            "representation": settings.representation,
            **({"time_constants_us": list(settings.time_constants_us)} if settings.warmup_us else {}),
            "reduce": settings.reduce,
            "grid": "labels" if self.is_labelled else "free",
            "stride_us": settings.stride_us,
            "length_us": settings.length_us,
            "num_bins": settings.num_bins,
            "count_cutoff": settings.count_cutoff,
            "height": spec.height,
            "width": spec.width,
            "downsample": spec.downsample,
            "class_names": list(spec.class_names),
            "min_box_px": [spec.prepare_min_side_px, spec.prepare_min_diagonal_px],
            "is_train": self.is_train,
        }


@dataclass(frozen=True)
class Plan:
    """The file that a recording will become."""

    sequence: SequencePlan
    meta: Meta  # without the values that are only known when all events have been read
    unusable_boxes: str = ""
    label_notes: Counter[str] = field(default_factory=Counter)
    event_notes: tuple[str, ...] = ()
    class_ids: tuple[int, ...] = ()

    def final_meta(self, num_events: int) -> Meta:
        """Return the complete metadata, with the number of events and the repairs."""
        return {**self.meta, "num_events": num_events, "faults": self.sequence.recording.faults.to_json()}

    def written(self, label_times: LabelTimes | None) -> Outcome:
        """Return the outcome once the file is written."""
        plan, num_moved = self.sequence, self.sequence.recording.faults.backward_steps
        of_labels = len(plan.labels), plan.num_thinned, label_times, self.label_notes, self.event_notes
        return Outcome("written", "", num_moved, self.unusable_boxes, *of_labels, self.class_ids, plan.keeps_all_us)


def prepare_recording(
    recording: RawRecording, path: Path | str, recipe: Recipe, report: Callable[[float], None] | None = None
) -> Outcome:
    """Prepare one recording in constant memory.

    Args:
        recording: The raw recording.
        path: The file to write.
        recipe: How recordings of this split are prepared.
        report: Called with the share of the windows that is done.

    Raises:
        UserError: The recording is unusable.
    """
    plan = plan_recording(recording, recipe)
    if isinstance(plan, Outcome):
        return plan
    sequence, blocks = plan.sequence, EventBlocks(plan.sequence.recording)
    with (
        noted() as event_notes,
        closing(sequence.recording),
        sequence_writer(path, sequence.windows, sequence.labels, sequence.frame_shape) as writer,
    ):
        for frames in _compressed(sequence, blocks):
            writer.append(frames)
            if report is not None:
                report(writer.num_frames / len(sequence.windows))
        label_times = sequence.label_times((blocks.first_us, blocks.last_us))
        writer.meta = plan.final_meta(blocks.num_events)
    plan = replace(plan, event_notes=(*plan.event_notes, *event_notes))
    return plan.written(label_times)


def plan_recording(recording: RawRecording, recipe: Recipe, is_cut: bool = False) -> Plan | Outcome:
    """Plan a recording, or return the outcome "dropped" if no box is left.

    Args:
        recording: The raw recording.
        recipe: How recordings of this split are prepared.
        is_cut: Read the whole recording once, so that its sections can be counted and its faults are known.

    Raises:
        UserError: The recording is unusable.
    """
    spec, boxes, unusable, notes = recipe.spec, None, "", Counter[str]()
    class_ids: tuple[int, ...] = ()
    if recipe.is_labelled:
        boxes, notes = recording.read_labels(spec)
        boxes = boxes if recipe.is_train else annotated(boxes)
        if not len(boxes):
            return Outcome("dropped", recording.why_unlabelled(spec))
        unusable = unusable_boxes(boxes, spec, recipe.is_train)
        class_ids = tuple(np.unique(boxes["class_id"]).tolist())
    with noted() as event_notes, closing(open_with(recording.events_path, spec.read_options)) as events:
        sequence = plan_sequence(events, boxes, spec, recipe.settings, recipe.is_train, is_read_later=not is_cut)
    if sequence is None:
        reason = f" ({unusable})" if unusable else ""
        return Outcome("dropped", f"{recording.boxes_path} has no box left after cleaning{reason}")
    meta = {**recipe.meta, "source": _source(recording, recipe)}
    return Plan(sequence, meta, unusable, notes, tuple(event_notes), class_ids)


def count_section(section: SequencePlan) -> list[bytes]:
    """Return the compressed frames of a section of a plan."""
    start_us, end_us = section.span_us
    with closing(section.recording) as events:
        groups = _compressed(section, events.iterate(start_us=start_us, end_us=end_us, reuse=True))
        return [frame for group in groups for frame in group]


def _compressed(sequence: SequencePlan, blocks: Iterable[Events]) -> Iterator[list[bytes]]:
    counter, compressor = sequence.counter(), FrameCompressor(math.prod(sequence.frame_shape))
    for _, frames in count_as_they_close(blocks, sequence.windows, counter, _FRAMES_AT_ONCE):
        yield [compressor.compress(frame) for frame in frames]


def is_complete(recording: RawRecording, path: Path, recipe: Recipe, overwrite: bool = False) -> bool:
    """Return whether `path` is already the result of preparing the recording.

    The digest of the whole file is checked.

    Args:
        recording: The raw recording.
        path: The prepared file.
        recipe: How recordings of this split are prepared.
        overwrite: Return False for a file that must not be replaced, instead of raising an error.

    Raises:
        UserError: `path` must not be replaced: it is damaged or made with another recipe, see `is_made_from`.
    """
    if not path.exists():
        return False
    try:
        with closing(open_sequence(path)) as sequence:
            if not is_made_from(recording, sequence, recipe):
                return False
            sequence.check_frames()
            return True
    except UserError:
        if overwrite:
            return False
        raise


def is_made_from(recording: RawRecording, sequence: StoredSequence, recipe: Recipe) -> bool:
    """Return whether a prepared sequence was made from the recording as it is now.

    Args:
        recording: The raw recording.
        sequence: The prepared sequence.
        recipe: How recordings of this split are prepared.

    Raises:
        UserError: It was made with another recipe, or the recording is shorter now.
    """
    meta, asked = sequence.meta, recipe.meta
    if recipe.spec.downsample == 1:
        asked["reduce"] = meta.get("reduce")  # both give the same frames
    if differences := differing(meta, asked, ", now "):
        raise UserError(
            "prepared.other_settings",
            f"{sequence.path} was made with {'; '.join(differences)}; use the same settings, overwrite=true or "
            "another folder",
        )
    before, now = meta["source"], _source(recording, recipe)
    if before == now:
        return True
    num_bytes = before["num_bytes"]
    if now["num_bytes"] < num_bytes:
        raise UserError(
            "prepared.other_recording",
            f"{recording.events_path} has {now['num_bytes']} bytes, but {sequence.path} was made from {num_bytes}; "
            "copy it again, or give overwrite=true if it should be shorter",
        )
    return False


def _source(recording: RawRecording, recipe: Recipe) -> Meta:
    """Return name, size and a fingerprint of the raw files, made from all label files and both ends of the events."""
    num_bytes = recording.events_path.stat().st_size
    digest = hashlib.sha256()
    with open(recording.events_path, "rb") as file:
        digest.update(file.read(SAMPLE_BYTES))
        file.seek(max(0, num_bytes - SAMPLE_BYTES))
        digest.update(file.read(SAMPLE_BYTES))
    if recipe.is_labelled and recording.labels is not None:
        for path in recording.labels.paths:
            digest.update(path.read_bytes())
        spec = recipe.spec
        said = spec.label_offset_us, spec.label_fps, spec.label_names, spec.label_columns
        if clock := [value for value in said if value not in (0, "", ())]:
            digest.update(repr(clock).encode())
    return {"name": recording.events_path.name, "num_bytes": num_bytes, "fingerprint": digest.hexdigest()}
