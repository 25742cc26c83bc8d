"""The rules that decide which boxes of a file are trained on and scored: sizes, classes and times of labels.

Source: RVT scripts/genx/preprocess_dataset.py.
"""

from collections import Counter

import numpy as np
import numpy.typing as npt

from rvtssm.events.labels import Boxes, annotated, find_nothing
from rvtssm.records import DatasetSpec

FASTEST_LABELS_US = 45_000  # 20 Hz with some tolerance; faster labels would force shorter windows than training uses
_LONGEST_WAIT_US = 1_000_000  # for a label time at a multiple of the base interval; a camera may have paused
_JITTER_US = 2_000  # label times jitter, because they come from the frames of another camera
_RVT_FIRST_LABEL_US = 100_000


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
    is_box, is_visible = find_usable(boxes, spec)
    x, w = (boxes[name].astype(np.float64) for name in "xw")
    with np.errstate(invalid="ignore"):
        width = np.clip(x + w, 0, spec.width - 1) - np.clip(x, 0, spec.width - 1)
        is_huge = is_visible & is_train & (width > 9 * spec.width // 10)
    is_outside = is_box & ~is_visible
    found = {
        "have a negative or non-finite side": ~is_box,
        "are outside the sensor": is_outside,
        "are too wide": is_huge,
    }
    return +Counter({f"boxes {what}, and are left out": int(np.count_nonzero(each)) for what, each in found.items()})


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
