"""What is noticed about a recording and its labels although both can be used. Every verb says it in the same lines.

`LabelTimes` compares the clock of the labels with that of the events: which labels have no events, and what would mend
it. `lines_on` words what was noticed about the recordings of a split.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from rvtssm.events.labels import Boxes
from rvtssm.records import DatasetSpec
from rvtssm.system.user_error import UserError

_LATE_LABEL_US = 1_000_000  # labels may end this much later than the events, since objects can stand still at the end
_OTHER_UNITS = {1e-6: "seconds", 1e-3: "milliseconds", 1e3: "nanoseconds"}  # by their numbers relative to microseconds
_KEY = "dataset.label_offset_us"


@dataclass(frozen=True, slots=True)
class LabelTimes:
    """How many label times of a recording have no events."""

    num_times: int
    num_outside: int  # before the first event, or long after the last one
    note: str = ""  # what is unusual with them: some have no events, or they seem to have another unit
    advice: str = ""  # what to do about it

    @classmethod
    def check(
        cls, name: str, times_us: npt.NDArray[np.int64], range_us: tuple[int, int], spec: DatasetSpec
    ) -> "LabelTimes":
        """Compare label times with the first and the last event.

        Args:
            name: The recording.
            times_us: The label times, ascending and not empty.
            range_us: Times of the first and the last event.
            spec: The dataset. A label may be `label_interval_us` later than the last event.

        Raises:
            UserError: All labels lie before the events, or some more than a second after them.
        """
        first_us, last_us = range_us
        late_us = last_us + spec.label_interval_us
        where = f"events from {first_us} to {last_us} us but labels from {times_us[0]} to {times_us[-1]} us"
        unit = unit_advice(int(times_us[-1]), last_us)
        offset = _offset_advice(times_us, (first_us, late_us), spec)
        frame = _frame_advice(int(times_us[-1]), last_us, spec)
        if not first_us <= times_us[-1] <= last_us + _LATE_LABEL_US:
            missing = "events are missing, or the labels are of another recording"
            advice = "; otherwise, ".join(filter(None, (unit, offset, frame))) or missing
            raise UserError("labels.other_times", name=name, found=f"has {where}", advice=advice)
        num_outside = int(np.count_nonzero((times_us < first_us) | (times_us > late_us)))
        is_crowded = len(times_us) > 1 and 10 * (times_us[-1] - times_us[0]) < last_us - first_us
        note = ""
        advice = ""
        if num_outside:
            note = f"{name} has {where}, so {num_outside} of {len(times_us)} label times have no events"
            advice = offset or frame or "if something moved at these times, the recording lacks its events"
        elif unit and is_crowded:
            note = f"{name} has {where}"
            advice = unit
        return cls(len(times_us), num_outside, note, advice)


@dataclass(frozen=True)
class Noticed:
    """What is unusual with one recording and its labels."""

    entries: Counter[str] = field(default_factory=Counter)  # boxes left out or read in another way, by reason
    class_ids: tuple[int, ...] = ()  # the numbers of the classes in its label files
    num_labels: int = 0
    num_thinned: int = 0  # boxes that are left out because of their time
    keeps_all_us: int = 0  # the `label_interval_us` that would keep them; 0 if there is none
    times: LabelTimes | None = None  # None until the time range of the events is known
    events: tuple[str, ...] = ()  # what was left out of the events, and doubts about their times
    backward_steps: int = 0  # events that went back in time

    @classmethod
    def of(cls, boxes: Boxes, usable: Boxes, num_kept: int, entries: Counter[str], is_exact: bool) -> "Noticed":
        """Return what is unusual with the boxes of a recording.

        Args:
            boxes: (N,) of BOX_DTYPE, as they are on disk.
            usable: Those that `usable_boxes` returns.
            num_kept: How many of these `thinned_boxes` keeps.
            entries: See `unusable_boxes`.
            is_exact: Whether only the rate of labels decides which are left out, as in convention `exact`.
        """
        num_thinned = len(usable) - num_kept
        times_us = np.unique(usable["t"])
        keeps_all_us = 0
        if num_thinned and is_exact and len(times_us) > 1:
            keeps_all_us = round(float(np.median(np.diff(times_us))))
        return cls(entries, tuple(np.unique(boxes["class_id"]).tolist()), num_kept, num_thinned, keeps_all_us)


NOTHING = Noticed()


def lines_on(recordings: Mapping[str, Noticed], spec: DatasetSpec) -> list[str]:
    """Return what is unusual with recordings, one line for each kind after the name of the split.

    Args:
        recordings: What was noticed, by `split/name`.
        spec: The dataset.
    """
    by_split: dict[str, dict[str, Noticed]] = {}
    for place, noticed in recordings.items():
        split, _, name = place.partition("/")
        by_split.setdefault(split, {})[name] = noticed
    return [f"{split}: {line}" for split, of_split in by_split.items() for line in _lines_of(of_split, spec)]


def _lines_of(recordings: Mapping[str, Noticed], spec: DatasetSpec) -> list[str]:
    """Return what is unusual with the recordings of a split, given by name."""
    lines = []
    times = []
    entries: Counter[str] = Counter()
    class_ids: set[int] = set()
    for name, noticed in recordings.items():
        if noticed.backward_steps:
            text = "events went back in time and were moved to the time of the event before"
            lines.append(f"{name}: {noticed.backward_steps} {text}")
        lines += [f"{name}: {text}" for text in noticed.events]
        if noticed.times is not None:
            times.append(noticed.times)
        entries += noticed.entries
        class_ids.update(noticed.class_ids)
    lines += [f"{count} {entry}" for entry, count in entries.items()]
    of_split = _thinned_line(recordings.values()), _times_line(times), _classes_line(class_ids, spec)
    return [*lines, *filter(None, of_split)]


def _thinned_line(recordings: Collection[Noticed]) -> str:
    """Say how many labels are left out because of their time, why, and which `label_interval_us` keeps all."""
    num_thinned = sum(noticed.num_thinned for noticed in recordings)
    if not num_thinned:
        return ""
    num_labels = num_thinned + sum(noticed.num_labels for noticed in recordings)
    reason = "because only label times about label_interval_us apart are used"
    text = f"{num_thinned} of {num_labels} labels left out, {reason}"
    intervals_us = [noticed.keeps_all_us for noticed in recordings if noticed.keeps_all_us]
    return f"{text}; label_interval_us: {min(intervals_us)} keeps all" if intervals_us else text


def _times_line(recordings: Collection[LabelTimes]) -> str:
    """Return the notes on label times as one line, with the worst as an example. Advice has to hold for all of them."""
    noted = [times for times in recordings if times.note]
    if not noted:
        return ""
    worst = max(noted, key=lambda times: times.num_outside / times.num_times)
    line = worst.note
    if len(noted) > 1:
        num_outside = sum(times.num_outside for times in noted)
        num_times = sum(times.num_times for times in noted)
        line = (
            f"{num_outside} of {num_times} label times in {len(noted)} of {len(recordings)} recordings have no events "
            f"or seem to have another unit; the worst: {worst.note}"
        )
    is_for_all = len({times.advice for times in noted}) == 1
    return f"{line}; {worst.advice}" if is_for_all else line


def _classes_line(class_ids: Collection[int], spec: DatasetSpec) -> str:
    """Return a note if the class numbers of all labels of a split seem to begin with 1 in place of 0."""
    are_numbers = all(suffix.endswith((".txt", ".npy")) for suffix in spec.boxes_suffixes)
    if not are_numbers or spec.name != "custom" or spec.class_ids:
        return ""
    if spec.num_classes < 2 or min(class_ids, default=0) != 1:
        return ""
    return (
        f"no label has the class 0, {spec.class_names[0]}; if the numbers of the classes begin with 1, say "
        f"`class_ids: {list(range(1, spec.num_classes + 1))}` in dataset.yaml"
    )


def _offset_advice(times_us: npt.NDArray[np.int64], range_us: tuple[int, int], spec: DatasetSpec) -> str:
    """Return the offset that moves all labels to times with events, in words; empty if none of the usual ones does.

    Labels may count from the first event, or their first time may belong to it.

    Args:
        times_us: The label times, ascending and not empty.
        range_us: The first and the last time at which a label may be.
        spec: The dataset, which says what was added to the times in the label files.
    """
    if not isinstance(spec.label_offset_us, int):
        return ""
    first_us, last_us = range_us
    in_files_us = times_us - spec.label_offset_us
    choices = (
        (first_us, "from_start", "the labels count from the first event"),
        (first_us - int(in_files_us[0]), "", "the first label belongs to the first event"),
    )
    for offset_us, word, reason in choices:
        if offset_us and first_us <= in_files_us[0] + offset_us and in_files_us[-1] + offset_us <= last_us:
            return f"if {reason}, give {_KEY}={word or offset_us}"
    return ""


def _frame_advice(last_label_us: int, last_us: int, spec: DatasetSpec) -> str:
    """Return which frame lies beyond the recording, if names of images number them; otherwise an empty text."""
    if not spec.label_fps or last_label_us <= last_us + spec.label_interval_us:
        return ""
    frame = round(last_label_us * spec.label_fps / 1e6)
    return f"frame {frame} at label_fps={spec.label_fps:g} is beyond the recording"


def unit_advice(last_label_us: int, last_us: int) -> str:
    """Return advice if the labels seem to count time in another unit than the events, otherwise an empty text.

    Args:
        last_label_us: Time of the last label.
        last_us: Time of the last event.
    """
    ratio = last_label_us / max(last_us, 1)
    for factor, unit in _OTHER_UNITS.items():
        if factor / 3 < ratio < 3 * factor:
            return f"label times must be microseconds; these look like {unit}"
    return ""
