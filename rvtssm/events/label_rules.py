"""The rules that decide which boxes of a file are trained on and scored: sizes, classes and times of labels.

Source: RVT scripts/genx/preprocess_dataset.py. `LabelTimes` compares the clock of labels with that of events: which
labels have no events, and which offset would mend it.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rvtssm.events.labels import Boxes, annotated, find_nothing
from rvtssm.records import DatasetSpec
from rvtssm.system.user_error import UserError

FASTEST_LABELS_US = 45_000  # 20 Hz with some tolerance; faster labels would force shorter windows than training uses
_LONGEST_WAIT_US = 1_000_000  # for a label time at a multiple of the base interval; a camera may have paused
_JITTER_US = 2_000  # label times jitter, because they come from the frames of another camera
_RVT_FIRST_LABEL_US = 100_000
_LATE_LABEL_US = 1_000_000  # labels may end this much later than the events, since objects can stand still at the end
_OTHER_UNITS = {1e-6: "seconds", 1e-3: "milliseconds", 1e3: "nanoseconds"}  # by their numbers relative to microseconds
_KEY = "dataset.label_offset_us"


def nothing_times_us(boxes: Boxes, kept_us: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the times at which labels say that there is no object, ascending.

    Times within 45 ms of each other or of a label time that is kept are thinned, since windows end at all of them.

    Args:
        boxes: (N,) of BOX_DTYPE, before cleaning.
        kept_us: Times of the cleaned boxes, ascending.
    """
    is_nothing = find_nothing(boxes)
    thinned_us: list[int] = []
    for time_us in _apart_from(kept_us, np.setdiff1d(boxes["t"][is_nothing], boxes["t"][~is_nothing])).tolist():
        if not thinned_us or time_us - thinned_us[-1] >= FASTEST_LABELS_US:
            thinned_us.append(time_us)
    return np.array(thinned_us, np.int64)


def clean_boxes(boxes: Boxes, spec: DatasetSpec, convention: str, is_train: bool) -> Boxes:
    """Return the boxes that are kept for training and scoring.

    Boxes are cropped to [0, width - 1] x [0, height - 1]. Dropped are classes that the spec does not name, boxes
    without area or below the `prepare_` limits of the spec and, in training only, boxes wider than nine tenths of the
    sensor (errors in the published labels).

    Convention `rvt` keeps label times from 100 ms on that are multiples of a base interval apart. The base interval is
    the one in the spec or, if the file has faster labels, the nearest multiple of the interval in the file. Convention
    `exact` keeps all label times and removes duplicate boxes; it thins only labels faster than 20 Hz, in the same way,
    but counts multiples anew after a second without a label that is kept.
    The stride plays no role, so every rate is scored on the same boxes.

    Boxes that a detector made never change which annotated boxes are kept. They are dropped within 45 ms of a label
    time that was kept.

    Args:
        boxes: (N,) of BOX_DTYPE in sensor pixels, class ids as on disk.
        spec: The dataset.
        convention: `exact` or `rvt`.
        is_train: Whether the boxes are used for training.

    Returns:
        (M,) of BOX_DTYPE; `class_id` is now the index into `spec.class_names`.
    """
    return thinned_boxes(usable_boxes(boxes, spec, convention, is_train), spec, convention)


def usable_boxes(boxes: Boxes, spec: DatasetSpec, convention: str, is_train: bool) -> Boxes:
    """Return the boxes that `clean_boxes` keeps if their time allows it. The arguments are the same."""
    boxes = with_class_indices(boxes, spec)
    _crop(boxes, spec)
    is_kept = _is_large(boxes, spec)
    if is_train:
        is_kept &= boxes["w"] <= 9 * spec.width // 10
    boxes = boxes[is_kept]
    if convention == "exact":
        same = ["t", "x", "y", "w", "h", "class_id"]
        boxes = boxes[np.sort(np.unique(boxes[same], return_index=True)[1])]
    return boxes


def _crop(boxes: Boxes, spec: DatasetSpec) -> None:
    for start, size, limit in (("x", "w", spec.width - 1), ("y", "h", spec.height - 1)):
        end = np.clip(boxes[start] + boxes[size], 0, limit)
        boxes[start] = np.clip(boxes[start], 0, limit)
        boxes[size] = end - boxes[start]


def _is_large(boxes: Boxes, spec: DatasetSpec) -> npt.NDArray[np.bool_]:
    w, h = boxes["w"], boxes["h"]
    is_large: npt.NDArray[np.bool_] = (w > 0) & (h > 0) & (np.minimum(w, h) >= spec.prepare_min_side_px)
    is_large &= w**2 + h**2 >= spec.prepare_min_diagonal_px**2
    return is_large


def thinned_boxes(boxes: Boxes, spec: DatasetSpec, convention: str) -> Boxes:
    """Return those of the usable boxes that `clean_boxes` keeps: those at the label times that it keeps."""
    own_us = np.unique(annotated(boxes)["t"])
    kept_us = np.array(_kept_label_times(own_us, spec, convention), np.int64)
    if boxes["pseudo_score"].any():
        others_us = np.array(_kept_label_times(np.unique(boxes["t"]), spec, convention), np.int64)
        others_us = _apart_from(kept_us, others_us)
        kept_us = np.concatenate([kept_us, others_us[~np.isin(others_us, own_us)]])
    return boxes[np.isin(boxes["t"], kept_us)]


def _apart_from(kept_us: npt.NDArray[np.int64], times_us: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the times that are at least FASTEST_LABELS_US from every time in `kept_us`, which are ascending."""
    edges_us, place = np.array([-np.inf, *kept_us, np.inf]), np.searchsorted(kept_us, times_us)
    gap_us = np.minimum(times_us - edges_us[place], edges_us[place + 1] - times_us)
    far_us: npt.NDArray[np.int64] = times_us[gap_us >= FASTEST_LABELS_US]
    return far_us


def unusable_boxes(boxes: Boxes, spec: DatasetSpec, is_train: bool) -> str:
    """Describe how many boxes of the spec's classes `clean_boxes` drops as faulty, by reason.

    Args:
        boxes: (N,) of BOX_DTYPE, class ids as on disk.
        spec: The dataset.
        is_train: Whether the boxes are used for training.

    Returns:
        Counts and reasons as text, empty if no box is faulty.
    """
    boxes = boxes[np.isin(boxes["class_id"], spec.disk_class_ids)]
    is_box, is_visible = find_usable(boxes, spec)
    x, w = (boxes[name].astype(np.float64) for name in "xw")
    with np.errstate(invalid="ignore"):
        width = np.clip(x + w, 0, spec.width - 1) - np.clip(x, 0, spec.width - 1)
        is_huge = is_visible & is_train & (width > 9 * spec.width // 10)
    is_outside = is_box & ~is_visible
    counts = {"with a negative or non-finite side": ~is_box, "outside the sensor": is_outside, "too wide": is_huge}
    reasons = []
    for reason, is_counted in counts.items():
        if is_counted.any():
            reasons.append(f"{np.count_nonzero(is_counted)} {reason}")
    return ", ".join(reasons)


def find_usable(boxes: Boxes, spec: DatasetSpec) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return which boxes are valid, and which of these the sensor sees at least in part.

    Args:
        boxes: (N,) of BOX_DTYPE.
        spec: The dataset.

    Returns:
        Two masks (N,): the sides are finite and not negative; the box also overlaps the sensor.
    """
    x, y, w, h = (boxes[name].astype(np.float64) for name in "xywh")
    with np.errstate(invalid="ignore"):
        is_box = np.isfinite(x + y + w + h) & (w >= 0) & (h >= 0)
        is_visible = is_box & (x < spec.width) & (y < spec.height) & (x + w > 0) & (y + h > 0)
    return is_box, is_visible


def find_small(boxes: Boxes, spec: DatasetSpec) -> npt.NDArray[np.bool_]:
    """Return which boxes the sensor sees, but `clean_boxes` drops as too small after it cropped them: a mask (N,)."""
    cropped = boxes.copy()
    with np.errstate(invalid="ignore", over="ignore"):
        _crop(cropped, spec)
        is_small: npt.NDArray[np.bool_] = find_usable(boxes, spec)[1] & ~_is_large(cropped, spec)
    return is_small


def with_class_indices(boxes: Boxes, spec: DatasetSpec) -> Boxes:
    """Return the boxes whose class the spec names, with `class_id` as the index into `spec.class_names`."""
    boxes = boxes[np.isin(boxes["class_id"], spec.disk_class_ids)].copy()
    order = np.argsort(spec.disk_class_ids)
    boxes["class_id"] = order[np.searchsorted(spec.disk_class_ids, boxes["class_id"], sorter=order)]
    return boxes


def _kept_label_times(times_us: npt.NDArray[np.int64], spec: DatasetSpec, convention: str) -> list[int]:
    """Return the first label time, and every later one at a multiple of the base interval after the last kept.

    In convention `exact`, multiples are counted anew after a second without a label that is kept.
    """
    first_us = _RVT_FIRST_LABEL_US if convention == "rvt" else 0
    candidates: list[int] = times_us[times_us >= first_us].tolist()
    if len(times_us) < 2:
        return candidates
    interval_us = float(np.median(np.diff(times_us)))
    if convention == "exact" and interval_us >= FASTEST_LABELS_US:
        return candidates
    multiple = round(spec.label_interval_us / interval_us)
    base_us = spec.label_interval_us
    if multiple > 1:
        base_us = int(multiple * interval_us)
    times = candidates[:1]
    for time in candidates[1:]:
        distance = time - times[-1]
        multiple = round(distance / base_us)
        is_multiple = multiple > 0 and abs(distance - multiple * base_us) <= _JITTER_US
        if is_multiple or (convention == "exact" and distance > _LONGEST_WAIT_US):
            times.append(time)
    return times


def interval_that_keeps_all(times_us: npt.NDArray[np.int64]) -> int:
    """Return the `label_interval_us` with which no label time is left out because of its rate.

    Args:
        times_us: The label times, ascending, at least two.
    """
    return round(float(np.median(np.diff(times_us))))


@dataclass(frozen=True, slots=True)
class LabelTimes:
    """How many label times of a recording have no events."""

    name: str  # of the recording
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
        offset = offset_advice(times_us, (first_us, late_us), spec)
        frame = frame_advice(int(times_us[-1]), last_us, spec)
        if not first_us <= times_us[-1] <= last_us + _LATE_LABEL_US:
            missing = "events are missing, or the labels are of another recording"
            advice = "; otherwise, ".join(filter(None, (unit, offset, frame))) or missing
            raise UserError("labels.other_times", name=name, found=f"has {where}", advice=advice)
        num_outside = int(np.count_nonzero((times_us < first_us) | (times_us > late_us)))
        is_crowded = len(times_us) > 1 and 10 * (times_us[-1] - times_us[0]) < last_us - first_us
        note, advice = "", ""
        if num_outside:
            note = f"{name} has {where}, so {num_outside} of {len(times_us)} label times have no events"
            advice = offset or frame or "if something moved at these times, the recording lacks its events"
        elif unit and is_crowded:
            note, advice = f"{name} has {where}", unit
        return cls(name, len(times_us), num_outside, note, advice)

    @property
    def line(self) -> str:
        """The note and the advice in one line; empty if nothing is unusual."""
        return "; ".join(filter(None, (self.note, self.advice)))


def summary(recordings: Sequence[LabelTimes]) -> str:
    """Return the notes of the recordings of a split as one line, with the worst as an example; empty without a note.

    Advice that does not hold for all of them is left out.

    Args:
        recordings: The label times of each recording.
    """
    noted = [times for times in recordings if times.note]
    if len(noted) < 2:
        return "".join(times.line for times in noted)
    num_outside = sum(times.num_outside for times in noted)
    num_times = sum(times.num_times for times in noted)
    worst = max(noted, key=lambda times: times.num_outside / times.num_times)
    line = (
        f"{num_outside} of {num_times} label times in {len(noted)} of {len(recordings)} recordings have no events or "
        f"seem to have another unit; the worst: {worst.note}"
    )
    is_for_all = len({times.advice for times in noted}) == 1
    return f"{line}; {worst.advice}" if is_for_all else line


def offset_advice(times_us: npt.NDArray[np.int64], range_us: tuple[int, int], spec: DatasetSpec) -> str:
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


def frame_advice(last_label_us: int, last_us: int, spec: DatasetSpec) -> str:
    """Return which frame lies beyond the recording, if names of images number them; otherwise an empty text."""
    if not spec.label_fps or last_label_us <= last_us + spec.label_interval_us:
        return ""
    return (
        f"frame {round(last_label_us * spec.label_fps / 1e6)} at label_fps={spec.label_fps:g} is beyond the recording"
    )


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


def thinned_in_words(num_thinned: int, num_kept: int, keep_all_us: Iterable[int] = ()) -> str:
    """Say how many labels are left out because of their time, why, and which `label_interval_us` keeps all."""
    text = (
        f"{num_thinned} of {num_thinned + num_kept} labels left out, because only label times about label_interval_us "
        "apart are used"
    )
    if intervals_us := [interval_us for interval_us in keep_all_us if interval_us]:
        text += f"; label_interval_us: {min(intervals_us)} keeps all"
    return text


def classes_note(class_ids: Collection[int], spec: DatasetSpec) -> str:
    """Return a note if the class numbers of all labels seem to begin with 1 in place of 0; otherwise an empty text.

    Args:
        class_ids: The numbers of all boxes of a split, as label files have them.
        spec: The dataset.
    """
    are_numbers = spec.boxes_suffix.endswith((".txt", ".npy")) and spec.name == "custom" and not spec.class_ids
    if not are_numbers or spec.num_classes < 2 or min(class_ids, default=0) != 1:
        return ""
    ids = list(range(1, spec.num_classes + 1))
    return (
        f"no label has the class 0, {spec.class_names[0]}; if the numbers of the classes begin with 1, say "
        f"`class_ids: {ids}` in dataset.yaml"
    )
