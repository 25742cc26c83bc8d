"""Read and write boxes as Prophesee's `_bbox.npy`, clean them by fixed rules, and assign them to windows.

Sources: prophesee-automotive-dataset-toolbox (the files), RVT scripts/genx/preprocess_dataset.py (the rules).
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rvtssm.records import DatasetSpec, Labels, Windows
from rvtssm.system.atomic_files import atomic_file
from rvtssm.system.file_errors import file_errors
from rvtssm.system.user_error import UserError

BOX_DTYPE = np.dtype(
    [
        ("t", "<i8"),
        ("x", "<f4"),
        ("y", "<f4"),
        ("w", "<f4"),
        ("h", "<f4"),
        ("class_id", "<u4"),
        ("track_id", "<u4"),
        ("class_confidence", "<f4"),
        # 0: an annotated box; otherwise the score of a detector's box, negative if the box is uncertain
        ("pseudo_score", "<f4"),
        ("still_us", "<i8"),
    ],
    align=True,
)
_OLD_NAMES = {"ts": "t", "confidence": "class_confidence"}
_DEFAULTS = {"track_id": 0, "class_confidence": 1.0, "pseudo_score": 0.0, "still_us": -1}

LONGEST_TRACK_GAP_US = 1_000_000  # boxes of a track that are further apart are not joined by interpolation
FASTEST_LABELS_US = 45_000  # 20 Hz with some tolerance; faster labels would force shorter windows than training uses
_LONGEST_WAIT_US = 1_000_000  # for a label time at a multiple of the base interval; a camera may have paused
_JITTER_US = 2_000  # label times jitter, because they come from the frames of another camera
_RVT_FIRST_LABEL_US = 100_000
_BEYOND_ANY = 2.0**62  # larger times only occur in damaged files

Boxes = npt.NDArray[np.void]


def read_boxes(path: Path | str) -> Boxes:
    """Return all boxes of a `_bbox.npy` in order of time.

    Fields are found by their names, including the names of older files. A missing `still_us` becomes -1.

    Args:
        path: The file.

    Returns:
        (N,) of BOX_DTYPE: microseconds, sensor pixels, class ids as on disk.

    Raises:
        UserError: The file is not an array of boxes.
    """
    with file_errors(path, " is not a file of boxes"):
        try:
            found = np.load(path, mmap_mode="r", allow_pickle=False)  # mapped: a damaged length is not allocated
        except ValueError as error:
            if "pickle" in str(error) or "objects" in str(error):  # numpy suggests to unpickle, which would run code
                raise UserError("it is not a numpy array of numbers") from None
            raise
    boxes = to_boxes(found, path)
    return boxes[np.argsort(boxes["t"], kind="stable")]


def to_boxes(found: npt.NDArray[Any], path: Path | str) -> Boxes:
    """Convert a structured array to BOX_DTYPE.

    Args:
        found: (N,), a structured array.
        path: The file of the array, for messages.

    Raises:
        UserError: A field is missing or is not a number.
    """
    names = {_OLD_NAMES.get(name, name): name for name in getattr(found, "dtype", np.dtype("u1")).names or ()}
    needed = [name for name in BOX_DTYPE.names or () if name not in _DEFAULTS]
    if missing := [name for name in needed if name not in names]:
        raise UserError(f"{path} has no box fields {', '.join(missing)}; it needs {', '.join(needed)}")
    kinds = {found.dtype[names[name]].kind for name in BOX_DTYPE.names or () if name in names}
    if found.ndim != 1 or not kinds <= set("iuf"):
        raise UserError(f"{path} is not one row of numbers per box (its shape is {found.shape}); copy it again")
    for name in ("t", "class_id", "track_id", "still_us"):
        if name in names:
            _check_whole(found[names[name]], BOX_DTYPE[name], f"{path} has boxes whose {names[name]}")
    boxes = np.empty(len(found), BOX_DTYPE)
    for name in BOX_DTYPE.names or ():
        with np.errstate(over="ignore"):  # infinite boxes are removed or reported later
            boxes[name] = found[names[name]] if name in names else _DEFAULTS[name]
    return boxes


def _check_whole(values: npt.NDArray[Any], dtype: np.dtype[Any], what: str) -> None:
    """Raise UserError for a value that an integer of this dtype cannot hold, because a cast would change it."""
    limits = np.iinfo(dtype)
    if dtype.kind == "i":
        is_wrong = ~((np.abs(values) < _BEYOND_ANY) & (values == np.floor(values)))
        wanted = "it must be a whole number of microseconds; if it is in seconds, give np.rint(t * 1e6)"
    else:
        is_wrong = ~((values >= limits.min) & (values <= limits.max) & (values == np.floor(values)))
        wanted = f"it must be a whole number from {limits.min} to {limits.max}"
    if is_wrong.any():
        raise UserError(f"{what} is {values[is_wrong][0]}; {wanted}")


def write_boxes(path: Path | str, boxes: Boxes) -> None:
    """Write boxes as a `_bbox.npy`. The file only appears when it is complete.

    The file contains the field `pseudo_score` only if at least one box came from a detector.

    Args:
        path: The file to write.
        boxes: (N,) of BOX_DTYPE.

    Raises:
        UserError: The boxes have another dtype.
    """
    if boxes.dtype != BOX_DTYPE:
        raise UserError(f"boxes must have the fields of BOX_DTYPE, got {boxes.dtype}; fill np.empty(n, BOX_DTYPE)")
    if not boxes["pseudo_score"].any():
        boxes = boxes[[name for name in BOX_DTYPE.names or () if name != "pseudo_score"]]
    with atomic_file(path) as staged, open(staged, "wb") as file:
        np.save(file, boxes)


def annotated(boxes: Boxes) -> Boxes:
    """Return the boxes that were annotated, without those that a detector made."""
    kept: Boxes = boxes[boxes["pseudo_score"] == 0]
    return kept


def nothing_at(times_us: npt.NDArray[np.int64]) -> Boxes:
    """Return entries that say that no object was there at these label times: boxes without size and confidence.

    Only training on raw recordings reads what they say, see `nothing_times_us`.
    """
    entries: Boxes = np.zeros(len(times_us), BOX_DTYPE)
    entries["t"], entries["x"], entries["y"], entries["still_us"] = times_us, 1, 1, -1
    return entries


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


def find_nothing(boxes: Boxes) -> npt.NDArray[np.bool_]:
    """Return which entries say that no object was there, see `nothing_at`: a mask (N,)."""
    is_nothing: npt.NDArray[np.bool_] = (boxes["w"] == 0) & (boxes["h"] == 0) & (boxes["class_confidence"] == 0)
    return is_nothing


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
    return _thinned(_usable(boxes, spec, convention, is_train), spec, convention)


def num_thinned(boxes: Boxes, spec: DatasetSpec, convention: str, is_train: bool) -> int:
    """Return how many usable boxes `clean_boxes` drops because of their time. The arguments are the same."""
    boxes = _usable(boxes, spec, convention, is_train)
    return len(boxes) - len(_thinned(boxes, spec, convention))


def _usable(boxes: Boxes, spec: DatasetSpec, convention: str, is_train: bool) -> Boxes:
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


def _thinned(boxes: Boxes, spec: DatasetSpec, convention: str) -> Boxes:
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
    return ", ".join(f"{np.count_nonzero(found)} {reason}" for reason, found in counts.items() if found.any())


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


def to_labels(boxes: Boxes, windows: Windows, is_exact: bool = True) -> Labels:
    """Convert cleaned boxes to labels.

    Args:
        boxes: (N,) of BOX_DTYPE, cleaned.
        windows: The windows of the recording.
        is_exact: A window must end at the time of every box. Otherwise a box belongs to the first window that does not
            end before it, or to the last window; before the first window begins, it belongs to none (-1).

    Raises:
        UserError: `is_exact`, and no window ends at the time of a box.
    """
    index = np.minimum(np.searchsorted(windows.ends_us, boxes["t"]), max(len(windows) - 1, 0))
    if is_exact and len(boxes) and (not len(windows) or np.any(windows.ends_us[index] != boxes["t"])):
        raise UserError("some boxes lie between the window ends; build the windows with label_grid from their times")
    if not is_exact:
        index[boxes["t"] < windows.ends_us[0] - windows.dt_us[0]] = -1
    return Labels(
        boxes_ltwh=np.stack([boxes[name] for name in "xywh"], axis=1),
        class_id=boxes["class_id"].astype(np.int64),
        t_us=boxes["t"].copy(),
        window_index=index.astype(np.int64),
        still_us=boxes["still_us"].copy(),
        pseudo_score=boxes["pseudo_score"].copy(),
    )


def interpolated_boxes(boxes: Boxes, hz: float, name: str) -> Boxes:
    """Interpolate boxes linearly along their tracks, at a fixed rate from the first label time on.

    There are no boxes outside of tracks, or between two boxes of a track that are more than LONGEST_TRACK_GAP_US apart.
    Boxes with track id 0 do not count as a track if two of them have the same time, because files without tracks use 0
    for every box. `still_us` of an interpolated box is unknown.

    Args:
        boxes: (N,) of BOX_DTYPE, in order of time.
        hz: The rate of the interpolated labels.
        name: The recording, for messages.

    Raises:
        UserError: The recording has no tracks.
    """
    first_us, last_us = int(boxes["t"][0]), int(boxes["t"][-1])
    is_zero = boxes["track_id"] == 0
    if len(np.unique(boxes["t"][is_zero])) < is_zero.sum():
        boxes = boxes[~is_zero]
    if not len(boxes):
        raise UserError(
            f"the labels of {name} have no track_id, so they cannot be interpolated; set evaluation.label_hz=null"
        )
    times = np.rint(first_us + 1e6 / hz * np.arange(int((last_us - first_us) * hz / 1e6) + 1)).astype(np.int64)
    parts = []
    for track in np.unique(boxes["track_id"]):
        known = boxes[boxes["track_id"] == track]
        known = known[np.sort(np.unique(known["t"], return_index=True)[1])]
        before = np.searchsorted(known["t"], times, side="right") - 1
        is_inside = (before >= 0) & (times <= known["t"][-1])
        at, before = times[is_inside], before[is_inside]
        after = np.minimum(before + 1, len(known) - 1)
        gap_us = known["t"][after] - known["t"][before]
        share = (at - known["t"][before]) / np.maximum(gap_us, 1)
        found = known[before].copy()
        found["t"] = at
        for side in "xywh":
            found[side] += (share * (known[side][after].astype(np.float64) - known[side][before])).astype(np.float32)
        found["still_us"][share > 0] = -1
        parts.append(found[(share == 0) | (gap_us <= LONGEST_TRACK_GAP_US)])
    together = np.concatenate(parts)
    return together[np.argsort(together["t"], kind="stable")]


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
    base_us = int(multiple * interval_us) if multiple > 1 else spec.label_interval_us
    kept = candidates[:1]
    for time in candidates[1:]:
        distance = time - kept[-1]
        multiple = round(distance / base_us)
        is_multiple = multiple > 0 and abs(distance - multiple * base_us) <= _JITTER_US
        if is_multiple or (convention == "exact" and distance > _LONGEST_WAIT_US):
            kept.append(time)
    return kept
