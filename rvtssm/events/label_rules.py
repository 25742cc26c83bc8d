"""The rules that decide which boxes of a file are trained on and scored, and what is said about those that are not.

Source: RVT scripts/genx/preprocess_dataset.py.
"""

from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rvtssm.events.label_notes import unit_advice
from rvtssm.events.labels import Boxes, annotated, find_nothing, ltwh_of
from rvtssm.records import DatasetSpec

FASTEST_LABELS_US = 45_000  # 20 Hz with some tolerance; faster labels would force shorter windows than training uses
_LONGEST_WAIT_US = 1_000_000  # for a label time at a multiple of the base interval; a camera may have paused
_JITTER_US = 2_000  # label times jitter, because they come from the frames of another camera
_RVT_FIRST_LABEL_US = 100_000
_MOST_AT_ONCE = 20  # boxes; more at the end of a recording are rather boxes of many frames, without their times
_MANY_OVER = 0.25  # share of boxes that reach past an edge; published boxes may


class Note(str):
    """A message about something unusual that may be intended. Any other message is a fault."""


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
    boxes = _cropped(with_class_indices(boxes, spec), spec)
    is_kept = _is_large(boxes, spec)
    if is_train:
        is_kept &= boxes["w"] <= 9 * spec.width // 10
    boxes = boxes[is_kept]
    if convention == "exact":
        same = ["t", "x", "y", "w", "h", "class_id"]
        boxes = boxes[np.sort(np.unique(boxes[same], return_index=True)[1])]
    return boxes


def _cropped(boxes: Boxes, spec: DatasetSpec) -> Boxes:
    boxes = boxes.copy()
    with np.errstate(invalid="ignore", over="ignore"):
        for start, size, limit in (("x", "w", spec.width - 1), ("y", "h", spec.height - 1)):
            end = np.clip(boxes[start] + boxes[size], 0, limit)
            boxes[start] = np.clip(boxes[start], 0, limit)
            boxes[size] = end - boxes[start]
    return boxes


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
    edges_us = np.array([-np.inf, *kept_us, np.inf])
    place = np.searchsorted(kept_us, times_us)
    gap_us = np.minimum(times_us - edges_us[place], edges_us[place + 1] - times_us)
    far_us: npt.NDArray[np.int64] = times_us[gap_us >= FASTEST_LABELS_US]
    return far_us


def unusable_boxes(boxes: Boxes, spec: DatasetSpec, is_train: bool) -> Counter[str]:
    """Count the boxes of the spec's classes that `clean_boxes` drops as faulty, by reason.

    Args:
        boxes: (N,) of BOX_DTYPE, class ids as on disk.
        spec: The dataset.
        is_train: Whether the boxes are used for training.
    """
    boxes = boxes[np.isin(boxes["class_id"], spec.disk_class_ids)]
    is_box, is_visible = _find_usable(boxes, spec)
    found = {
        "have a negative or non-finite side": ~is_box,
        "are outside the sensor": is_box & ~is_visible,
        "are too wide": is_visible & is_train & (_cropped(boxes, spec)["w"] > 9 * spec.width // 10),
    }
    return +Counter({f"boxes {what}, and are left out": int(np.count_nonzero(each)) for what, each in found.items()})


def _find_usable(boxes: Boxes, spec: DatasetSpec) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return which boxes are valid, and which of these the sensor sees at least in part.

    Args:
        boxes: (N,) of BOX_DTYPE.
        spec: The dataset.

    Returns:
        Two masks (N,): the sides are finite and not negative; the box also overlaps the sensor.
    """
    x, y, w, h = ltwh_of(boxes).astype(np.float64).T
    with np.errstate(invalid="ignore"):
        is_box = np.isfinite(x + y + w + h) & (w >= 0) & (h >= 0)
        is_visible = is_box & (x < spec.width) & (y < spec.height) & (x + w > 0) & (y + h > 0)
    return is_box, is_visible


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


def span_faults(path: Path, boxes: Boxes, range_us: tuple[int, int], spec: DatasetSpec) -> list[str]:
    """Return what is wrong or unusual with the span of label times.

    Args:
        path: The file of the boxes.
        boxes: The boxes, at least one.
        range_us: Times of the first and the last event.
        spec: The dataset.
    """
    times_us = np.unique(boxes["t"])
    # One time for many boxes: probably a file without times.
    if len(times_us) == 1:
        text = (
            f"{path}: all {len(boxes)} boxes are at {times_us[0]} us; labels of several frames need their times, in "
            "YOLO text in a column time_us"
        )
        return [Note(text)] if len(boxes) > _MOST_AT_ONCE else []
    # Labels in another unit span too little of the recording, or are too dense.
    span_us = int(times_us[-1] - times_us[0])
    apart_us = int(np.median(np.diff(times_us)))
    duration_us = range_us[1] - range_us[0]
    is_short = 10 * span_us < duration_us
    is_dense = 10 * apart_us < spec.label_interval_us
    text = (
        f"{path}: labels span {span_us / 1e6:.3g} s of {duration_us / 1e6:.3g} s, {apart_us} us apart where "
        f"label_interval_us is {spec.label_interval_us}"
    )
    if is_short and is_dense:
        return [f"{text}; {unit_advice(int(times_us[-1]), range_us[1]) or 'label times must be microseconds'}"]
    return [Note(text)] if is_short or is_dense else []


def box_faults(path: Path, boxes: Boxes, spec: DatasetSpec) -> list[str]:
    """Return what is wrong or unusual with boxes, each with the first box that has it.

    Published boxes may leave the view, so it is a fault only if most are outside. Own labels were refused when they
    were read.
    """
    boxes = boxes[~find_nothing(boxes)]
    is_box, is_visible = _find_usable(boxes, spec)
    is_known = np.isin(boxes["class_id"], spec.disk_class_ids)
    is_over = is_visible & ((boxes["x"] + boxes["w"] > spec.width) | (boxes["y"] + boxes["h"] > spec.height))
    are_corners = bool(np.all((boxes["w"] > boxes["x"]) & (boxes["h"] > boxes["y"])))
    is_small = is_known & is_visible & ~_is_large(_cropped(boxes, spec), spec)
    are_fractions = bool((ltwh_of(boxes)[is_known] <= 1).all())
    fractions = "they look like fractions of the sensor, write x, y, w, h in pixels" if are_fractions else ""
    size = f"{spec.width}x{spec.height} pixels"
    scale = f"labels may be in pixels of another resolution: scale them to the sensor, or correct {size_keys(spec)}"
    small = f"a side below {spec.prepare_min_side_px:g} or a diagonal below {spec.prepare_min_diagonal_px:g} pixels"
    corners = f"are they x1, y1, x2, y2 instead of x, y, w, h? If not, {scale}"
    messages: list[str] = []

    def tell(is_one: npt.NDArray[np.bool_], what: str, advice: str, is_fault: bool = True, least: float = 0) -> None:
        """Add a message if more than a share of all boxes are such boxes."""
        if np.count_nonzero(is_one) > least * len(boxes):
            first = boxes[np.argmax(is_one)]
            numbers = ", ".join(f"{name}={first[name]:g}" for name in ("t", "x", "y", "w", "h", "class_id"))
            text = f"{path} has {np.count_nonzero(is_one)} of {len(boxes)} boxes that {what}, the first with {numbers}"
            text = "; ".join(filter(None, (text, advice)))
            messages.append(text if is_fault else Note(text))

    tell(~is_box, "have a side that is negative or not finite", "write x, y, w, h with w and h from 0 on")
    tell(is_box & ~is_visible, f"lie outside {size}", scale, least=0.5)
    tell(is_over, f"reach past the right or bottom edge of {size}", corners, are_corners, _MANY_OVER)
    # Small boxes are usual in published labels.
    tell(is_small, f"are left out by preprocess and train as too small ({small})", fractions, are_fractions)
    # A dataset that lists its class ids may leave others out on purpose.
    if not (spec.class_ids and is_known.any()):
        tell(~is_known, f"are of classes that {spec.name} does not have", "choose the dataset, or its class_ids")
    return messages


def size_keys(spec: DatasetSpec) -> str:
    """Return where the size of the sensor is set."""
    return "height and width in dataset.yaml" if spec.name == "custom" else "dataset, dataset.height and dataset.width"
