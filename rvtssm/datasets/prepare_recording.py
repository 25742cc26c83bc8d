"""Prepare one raw recording: check, clean, count, compress and write it.

A long recording can be split into sections of consecutive windows, which any process can count. The resulting file is
the same, byte for byte.
"""

import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from rvtssm.datasets import DATASETS
from rvtssm.datasets.compress import FrameCompressor
from rvtssm.datasets.store import Meta, StoredSequence, differing, open_sequence, sensor_meta
from rvtssm.datasets.store_writer import SequenceWriter, sequence_writer
from rvtssm.datasets.tree import RawRecording
from rvtssm.events.frame_counter import count_as_they_close
from rvtssm.events.label_notes import NOTHING, Noticed
from rvtssm.events.label_rules import unusable_boxes
from rvtssm.events.labels import Boxes, annotated
from rvtssm.events.sequence_plan import SequencePlan, plan_sequence
from rvtssm.readers import open_with
from rvtssm.readers.faults import noted
from rvtssm.readers.recording import EventBlocks
from rvtssm.records import DatasetSpec, Events, WindowSettings
from rvtssm.system.limits import values_of
from rvtssm.system.output_folder import changed_keys
from rvtssm.system.user_error import UserError

SAMPLE_BYTES = 1 << 20  # bytes at each end of a recording whose digest tells whether the file is still the same
# Fields of a dataset that decide which events and boxes are read, besides those in `Recipe.meta`.
_OF_EVENTS = ("time_unit", "format", "columns", "key")
_OF_LABELS = ("class_ids", "ignored_classes", "label_interval_us", "scores_empty_images")
_FRAMES_AT_ONCE = 2  # few, so that a frame is compressed while it is still in the cache


@dataclass(frozen=True)
class Outcome:
    """What happened to one recording: written, skipped (already complete), dropped (no boxes left) or failed."""

    status: str
    message: str = ""
    noticed: Noticed = NOTHING


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
        settings = self.settings
        counting = values_of(settings, ("stride_us", "length_us", "num_bins", "count_cutoff"))
        return {
            "dataset": self.spec.name,
            "convention": settings.convention,
            "representation": settings.representation,
            **({"time_constants_us": list(settings.time_constants_us)} if settings.warmup_us else {}),
            "reduce": settings.reduce,
            "grid": "labels" if self.is_labelled else "free",
            **counting,
            **sensor_meta(self.spec),
            "min_box_px": [self.spec.prepare_min_side_px, self.spec.prepare_min_diagonal_px],
            "is_train": self.is_train,
        }


@dataclass(frozen=True)
class Plan:
    """The file that a recording will become."""

    sequence: SequencePlan
    meta: Meta  # without the values that are only known when all events have been read

    def complete(
        self, writer: SequenceWriter, num_events: int, range_us: tuple[int, int], event_notes: Sequence[str] = ()
    ) -> Outcome:
        """Give the file its complete metadata, and return the outcome.

        Args:
            writer: The writer of the file, which has all frames.
            num_events: Number of events.
            range_us: Times of the first and the last event.
            event_notes: What was noticed about the events since the recording was planned.

        Raises:
            UserError: The labels do not fit the events.
        """
        noticed = self.sequence.noticed_within(range_us)
        events = tuple(dict.fromkeys((*noticed.events, *event_notes)))
        faults = self.sequence.recording.faults
        writer.meta = {**self.meta, "num_events": num_events, "faults": faults.to_json()}
        return Outcome("written", noticed=replace(noticed, events=events, backward_steps=faults.backward_steps))


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
    sequence = plan.sequence
    blocks = EventBlocks(sequence.recording)
    with (
        noted() as event_notes,
        closing(sequence.recording),
        sequence_writer(path, sequence.windows, sequence.labels, sequence.frame_shape) as writer,
    ):
        for frames in _compressed(sequence, blocks):
            writer.append(frames)
            if report is not None:
                report(len(writer.lengths) / len(sequence.windows))
        # Only now all events are known. If the labels do not fit them, the file is not completed.
        return plan.complete(writer, blocks.num_events, (blocks.first_us, blocks.last_us), event_notes)


def plan_recording(
    recording: RawRecording, recipe: Recipe, is_cut: bool = False, labels: tuple[Boxes, Counter[str]] | None = None
) -> Plan | Outcome:
    """Plan a recording, or return the outcome "dropped" if no box is left.

    Args:
        recording: The raw recording.
        recipe: How recordings of this split are prepared.
        is_cut: Read the whole recording once, so that its sections can be counted and its faults are known.
        labels: What `read_labels` returns, if it was read already.

    Raises:
        UserError: The recording is unusable.
    """
    spec = recipe.spec
    boxes = None
    entries = Counter[str]()
    if recipe.is_labelled:
        boxes, entries = labels or recording.read_labels(spec)
        boxes = boxes if recipe.is_train else annotated(boxes)
        if not len(boxes):
            return Outcome("dropped", recording.why_unlabelled(spec), Noticed(entries))
    with noted() as event_notes, closing(open_with(recording.events_path, spec.read_options)) as events:
        sequence = plan_sequence(events, boxes, spec, recipe.settings, recipe.is_train, is_read_later=not is_cut)
    # No box is left: say which ones there were.
    if sequence is None:
        assert boxes is not None, "a recording without boxes has the free grid"
        counts = unusable_boxes(boxes, spec, recipe.is_train)
        reason = f" ({', '.join(f'{count} {what}' for what, count in counts.items())})" if counts else ""
        return Outcome("dropped", f"{recording.boxes_path} has no box left after cleaning{reason}")
    meta = {**recipe.meta, "source": _source(recording, recipe)}
    noticed = replace(sequence.noticed, entries=entries + sequence.noticed.entries, events=tuple(event_notes))
    return Plan(replace(sequence, noticed=noticed), meta)


def count_section(section: SequencePlan) -> list[bytes]:
    """Return the compressed frames of a section of a plan."""
    start_us, end_us = section.span_us
    with closing(section.recording) as events:
        groups = _compressed(section, events.iterate(start_us=start_us, end_us=end_us, reuse=True))
        return list(itertools.chain.from_iterable(groups))


def _compressed(sequence: SequencePlan, blocks: Iterable[Events]) -> Iterator[list[bytes]]:
    counter = sequence.counter()
    compressor = FrameCompressor(math.prod(sequence.frame_shape))
    for _, frames in count_as_they_close(blocks, sequence.windows, counter, _FRAMES_AT_ONCE):
        yield [*map(compressor.compress, frames)]


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
    except UserError as error:
        if overwrite and error.key != "file.kind":  # a file that was not prepared is someone else's
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
    meta = sequence.meta
    asked = recipe.meta
    if recipe.spec.downsample == 1:
        asked["reduce"] = meta.get("reduce")  # both give the same frames
    if differences := differing(meta, asked, ", now "):
        advice = "use the same settings, overwrite=true or another folder"
        found = f"was made with {'; '.join(differences)}"
        raise UserError("prepared.other", name=sequence.path, found=found, advice=advice)
    # The same settings; now whether it is the same file.
    before = meta["source"]
    now = _source(recording, recipe)
    if before == now:
        return True
    if now["num_bytes"] < before["num_bytes"]:
        found = f"it has {now['num_bytes']} bytes, but {sequence.path} was made from {before['num_bytes']}"
        raise UserError("file.cut", name=recording.events_path, found=found, advice="copy it again, or overwrite=true")
    return False


def _source(recording: RawRecording, recipe: Recipe) -> Meta:
    """Return name, size and a fingerprint of the raw files, made from all label files and both ends of the events.

    How events and labels are read belongs to the fingerprint where it is not as usual for the dataset.
    """
    digest = digest_of_ends(recording.events_path)
    spec = recipe.spec
    decisive: tuple[str, ...] = _OF_EVENTS
    if recipe.is_labelled and recording.labels is not None:
        decisive += _OF_LABELS
        for path in recording.labels.paths:
            digest.update(path.read_bytes())
        said = spec.label_offset_us, spec.label_fps, spec.label_names, spec.label_columns
        if clock := [value for value in said if value not in (0, "", ())]:
            digest.update(repr(clock).encode())
    usual = DATASETS.get(spec.name, spec)
    if changed := changed_keys(values_of(usual, decisive), values_of(spec, decisive)):
        digest.update(repr(values_of(spec, changed)).encode())
    num_bytes = recording.events_path.stat().st_size
    return {"name": recording.events_path.name, "num_bytes": num_bytes, "fingerprint": digest.hexdigest()}


def digest_of_ends(path: Path) -> "hashlib._Hash":
    """Return the digest of the first and the last bytes of a recording."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        digest.update(file.read(SAMPLE_BYTES))
        file.seek(max(0, path.stat().st_size - SAMPLE_BYTES))
        digest.update(file.read(SAMPLE_BYTES))
    return digest
