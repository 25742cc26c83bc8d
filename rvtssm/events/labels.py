"""Boxes: read and written as Prophesee's `_bbox.npy`, cleaned by fixed rules, tied to windows.

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
        # 0: annotated; the score of a box that a detector made, negative if it is uncertain
        ("pseudo_score", "<f4"),
        ("still_us", "<i8"),
    ],
    align=True,
)
_OLD_NAMES = {"ts": "t", "confidence": "class_confidence"}
_DEFAULTS = {"track_id": 0, "class_confidence": 1.0, "pseudo_score": 0.0, "still_us": -1}

LONGEST_TRACK_GAP_US = 1_000_000  # between two boxes of a track that belong to one motion
FASTEST_LABELS_US = 45_000  # 20 Hz, a little early: faster ones would force windows shorter than training uses
_JITTER_US = 2_000  # labels follow the frames of another camera
_RVT_FIRST_LABEL_US = 100_000
_BEYOND_ANY = 2.0**62  # times and classes of damaged files: infinite, or not numbers

Boxes = npt.NDArray[np.void]


def read_boxes(path: Path | str) -> Boxes:
    """Return all boxes of a file as (N,) of BOX_DTYPE ordered by time: us, sensor pixels, class ids as on disk.

    Fields are found by name, old names included; a missing `still_us` is -1. Raise ValueError for any other file.
    """
    with file_errors(path, " is not a file of boxes"):
        try:
            found = np.load(path, mmap_mode="r", allow_pickle=False)  # mapped: a damaged length is found, not allocated
        except ValueError as error:
            if "pickle" in str(error) or "objects" in str(error):  # numpy would advise to run its code
                raise UserError("no numpy array of numbers") from None
            raise
    boxes = to_boxes(found, path)
    return boxes[np.argsort(boxes["t"], kind="stable")]


def to_boxes(found: npt.NDArray[Any], path: Path | str) -> Boxes:
    """Return a structured array from `path` as BOX_DTYPE. Raise ValueError if a field is missing or not a number."""
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
    """Raise UserError for a value that an integer of this kind cannot hold: casting would make it another one."""
    limits = np.iinfo(dtype)
    if dtype.kind == "i":
        is_wrong = ~(np.abs(values) < _BEYOND_ANY)
        wanted = "it has to be finite microseconds"
    else:
        is_wrong = ~((values >= limits.min) & (values <= limits.max) & (values == np.floor(values)))
        wanted = f"it has to be a whole number from {limits.min} to {limits.max}"
    if is_wrong.any():
        raise UserError(f"{what} is {values[is_wrong][0]}; {wanted}")


def write_boxes(path: Path | str, boxes: Boxes) -> None:
    """Write boxes of BOX_DTYPE as a `_bbox.npy`; the file appears when it is complete.

    The file has the field `pseudo_score` only if a detector made one of the boxes.
    """
    if boxes.dtype != BOX_DTYPE:
        raise UserError(f"boxes must have the fields of BOX_DTYPE, got {boxes.dtype}; fill np.empty(n, BOX_DTYPE)")
    if not boxes["pseudo_score"].any():
        boxes = boxes[[name for name in BOX_DTYPE.names or () if name != "pseudo_score"]]
    with atomic_file(path) as staged, open(staged, "wb") as file:
        np.save(file, boxes)


def annotated(boxes: Boxes) -> Boxes:
    """Return the boxes that no detector made."""
    kept: Boxes = boxes[boxes["pseudo_score"] == 0]
    return kept


def clean_boxes(boxes: Boxes, spec: DatasetSpec, convention: str, is_train: bool) -> Boxes:
    """Return the boxes to keep, in sensor pixels, with `class_id` the index into `spec.class_names`.

    Boxes are cropped to [0, width - 1] x [0, height - 1]. Dropped are classes that the spec does not name, boxes
    without area or below the spec's `prepare_` limits, and in training boxes wider than nine tenths of the sensor
    (faults of the published labels). `rvt` keeps label times from 100 ms on, at multiples of a base interval: the one
    in the spec, or the multiple of the interval in the file that comes nearest. `exact` keeps all label times and drops
    repeated boxes, but thins labels faster than 20 Hz in the same way. The stride does not matter, so every rate is
    scored on the same boxes. Labels of a detector do not change which annotated ones are kept, and are
    dropped within 45 ms of these.
    """
    boxes = with_class_indices(boxes, spec)
    for start, size, limit in (("x", "w", spec.width - 1), ("y", "h", spec.height - 1)):
        end = np.clip(boxes[start] + boxes[size], 0, limit)
        boxes[start] = np.clip(boxes[start], 0, limit)
        boxes[size] = end - boxes[start]
    w, h = boxes["w"], boxes["h"]
    is_kept = (w > 0) & (h > 0) & (w >= spec.prepare_min_side_px) & (h >= spec.prepare_min_side_px)
    is_kept &= w**2 + h**2 >= spec.prepare_min_diagonal_px**2
    if is_train:
        is_kept &= w <= 9 * spec.width // 10
    boxes = boxes[is_kept]
    if convention == "exact":
        same = ["t", "x", "y", "w", "h", "class_id"]
        boxes = boxes[np.sort(np.unique(boxes[same], return_index=True)[1])]
    own_us = np.unique(annotated(boxes)["t"])
    kept_us = np.array(_kept_label_times(own_us, spec, convention), np.int64)
    if boxes["pseudo_score"].any():
        others_us = np.array(_kept_label_times(np.unique(boxes["t"]), spec, convention), np.int64)
        edges_us, place = np.array([-np.inf, *kept_us, np.inf]), np.searchsorted(kept_us, others_us)
        gap_us = np.minimum(others_us - edges_us[place], edges_us[place + 1] - others_us)
        kept_us = np.concatenate([kept_us, others_us[(gap_us >= FASTEST_LABELS_US) & ~np.isin(others_us, own_us)]])
    return boxes[np.isin(boxes["t"], kept_us)]


def unusable_boxes(boxes: Boxes, spec: DatasetSpec, is_train: bool) -> str:
    """Say how many boxes of the spec's classes `clean_boxes` drops as faults, by reason; empty if there is none."""
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
    """Return which boxes have finite sides that are not negative, and which of these the sensor sees in part, (N,)."""
    x, y, w, h = (boxes[name].astype(np.float64) for name in "xywh")
    with np.errstate(invalid="ignore"):
        is_box = np.isfinite(x + y + w + h) & (w >= 0) & (h >= 0)
        is_visible = is_box & (x < spec.width) & (y < spec.height) & (x + w > 0) & (y + h > 0)
    return is_box, is_visible


def with_class_indices(boxes: Boxes, spec: DatasetSpec) -> Boxes:
    """Return the boxes of classes that the spec names, with indices into `spec.class_names` as class ids."""
    boxes = boxes[np.isin(boxes["class_id"], spec.disk_class_ids)].copy()
    order = np.argsort(spec.disk_class_ids)
    boxes["class_id"] = order[np.searchsorted(spec.disk_class_ids, boxes["class_id"], sorter=order)]
    return boxes


def to_labels(boxes: Boxes, windows: Windows, is_exact: bool = True) -> Labels:
    """Return cleaned boxes as labels of the windows that end at their times, or unless `is_exact` at the next end.

    Raise ValueError without such a window.
    """
    index = np.minimum(np.searchsorted(windows.ends_us, boxes["t"]), max(len(windows) - 1, 0))
    if is_exact and len(boxes) and (not len(windows) or np.any(windows.ends_us[index] != boxes["t"])):
        raise UserError("some boxes lie between the window ends; build the windows with label_grid from their times")
    return Labels(
        boxes_ltwh=np.stack([boxes[name] for name in "xywh"], axis=1),
        class_id=boxes["class_id"].astype(np.int64),
        t_us=boxes["t"].copy(),
        window_index=index.astype(np.int64),
        still_us=boxes["still_us"].copy(),
        pseudo_score=boxes["pseudo_score"].copy(),
    )


def interpolated_boxes(boxes: Boxes, hz: float, name: str) -> Boxes:
    """Return boxes at a fixed rate from the first label time on, interpolated linearly along tracks.

    Between two boxes of a track that are more than LONGEST_TRACK_GAP_US apart, and outside of tracks, there are none.
    The track 0 is none if it has two boxes at one time: that is what files without tracks have. Where a box was
    interpolated, `still_us` is unknown. Raise ValueError if the recording `name` has no tracks.
    """
    first_us, last_us = int(boxes["t"][0]), int(boxes["t"][-1])
    is_zero = boxes["track_id"] == 0
    if len(np.unique(boxes["t"][is_zero])) < is_zero.sum():
        boxes = boxes[~is_zero]
    if not len(boxes):
        raise UserError(
            f"the labels of {name} have no track_id, without which nothing can be interpolated; set "
            "evaluation.label_hz=null"
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
    """Return the first of increasing label times, and those at a multiple of the base interval after the last kept."""
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
        if multiple > 0 and abs(distance - multiple * base_us) <= _JITTER_US:
            kept.append(time)
    return kept
