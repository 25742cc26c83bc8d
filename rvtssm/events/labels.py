"""Read and write boxes as Prophesee's `_bbox.npy`, assign them to windows, and interpolate them along tracks.

Source of the files: prophesee-automotive-dataset-toolbox.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rvtssm.records import Labels, Windows
from rvtssm.system.files import atomic_file, file_errors
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
_FIELDS = tuple(BOX_DTYPE.names or ())
_OLD_NAMES = {"ts": "t", "confidence": "class_confidence"}
_DEFAULTS = {"track_id": 0, "class_confidence": 1.0, "pseudo_score": 0.0, "still_us": -1}

LONGEST_TRACK_GAP_US = 1_000_000  # boxes of a track that are further apart are not joined by interpolation
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
            rows = np.load(path, mmap_mode="r", allow_pickle=False)  # mapped: a damaged length is not allocated
        except ValueError as error:
            if "pickle" in str(error) or "objects" in str(error):  # numpy suggests to unpickle, which would run code
                raise UserError("file.kind", found="it is not a numpy array of numbers") from None
            raise
    boxes = to_boxes(rows, path)
    return boxes[np.argsort(boxes["t"], kind="stable")]


def to_boxes(rows: npt.NDArray[Any], path: Path | str) -> Boxes:
    """Convert a structured array to BOX_DTYPE.

    Args:
        rows: (N,), a structured array.
        path: The file of the array, for messages.

    Raises:
        UserError: A field is missing or is not a number.
    """
    names = {_OLD_NAMES.get(name, name): name for name in getattr(rows, "dtype", np.dtype("u1")).names or ()}
    needed = [name for name in _FIELDS if name not in _DEFAULTS]
    if missing := [name for name in needed if name not in names]:
        found = f"has no fields {', '.join(missing)} of boxes"
        raise UserError("labels.form", name=path, found=found, needed=f"it needs {', '.join(needed)}")
    kinds = {rows.dtype[names[name]].kind for name in _FIELDS if name in names}
    if rows.ndim != 1 or not kinds <= set("iuf"):
        found = f"is not one row of numbers per box; its shape is {rows.shape}"
        raise UserError("labels.form", name=path, found=found)
    # Columns by our names; what a cast would change is refused.
    columns = {name: rows[names[name]] for name in _FIELDS if name in names}
    if "track_id" in columns:
        columns["track_id"] = np.where(_is_no_track(columns["track_id"]), 0, columns["track_id"])
    for name in ("t", "class_id", "track_id", "still_us"):
        if name in columns:
            _check_whole(columns[name], BOX_DTYPE[name], f"{path} has boxes whose {names[name]}")
    boxes = np.empty(len(rows), BOX_DTYPE)
    for name in _FIELDS:
        with np.errstate(over="ignore"):  # infinite boxes are removed or reported later
            boxes[name] = columns.get(name, _DEFAULTS.get(name))
    return boxes


def _is_no_track(track_id: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return which ids say that a box has no track: -1, NaN, or a -1 that was stored without a sign."""
    is_none: npt.NDArray[np.bool_] = np.isin(track_id, (-1, 2**32 - 1, 2**64 - 1)) | (track_id != track_id)
    return is_none


def number_of_track(track_id: Any) -> int:
    """Return the track of a box as labels write it: a number, text or nothing. 0 means that the box has no track.

    Raises:
        ValueError: It is not a whole number of up to 32 bits.
    """
    number = np.array(float(track_id or 0))
    if _is_no_track(number):
        return 0
    _check_whole(number[None], BOX_DTYPE["track_id"], "the track")
    return int(number)


def _check_whole(values: npt.NDArray[Any], dtype: np.dtype[Any], what: str) -> None:
    """Raise UserError for a value that an integer of this dtype cannot hold, because a cast would change it."""
    limits = np.iinfo(dtype)
    if dtype.kind == "i":
        is_wrong = ~((np.abs(values) < _BEYOND_ANY) & (values == np.floor(values)))
        advice = "it must be a whole number of microseconds; if it is in seconds, give np.rint(t * 1e6)"
    else:
        is_wrong = ~((values >= limits.min) & (values <= limits.max) & (values == np.floor(values)))
        advice = f"it must be a whole number from {limits.min} to {limits.max}"
    if is_wrong.any():
        raise UserError("labels.form", found=f"{what} is {values[is_wrong][0]}", needed=advice)


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
        found = f"their fields are {boxes.dtype}"
        raise UserError("array.form", name="boxes", found=found, advice="fill np.empty(n, BOX_DTYPE)")
    if not boxes["pseudo_score"].any():
        boxes = boxes[[name for name in _FIELDS if name != "pseudo_score"]]
    with atomic_file(path) as staged, open(staged, "wb") as file:
        np.save(file, boxes)


def annotated(boxes: Boxes) -> Boxes:
    """Return the boxes that were annotated, without those that a detector made."""
    annotated: Boxes = boxes[boxes["pseudo_score"] == 0]
    return annotated


def ltwh_of(boxes: Boxes) -> npt.NDArray[np.float32]:
    """Return left, top, width and height of boxes in pixels, (N, 4)."""
    return np.stack([boxes[name] for name in "xywh"], axis=1)


def nothing_at(times_us: npt.NDArray[np.int64]) -> Boxes:
    """Return entries that say that no object was there at these label times: boxes without size and confidence.

    Training reads what they say, and evaluation if `DatasetSpec.scores_empty_images`, see `nothing_times_us`.
    """
    entries: Boxes = np.zeros(len(times_us), BOX_DTYPE)
    entries["t"] = times_us
    entries["x"] = 1
    entries["y"] = 1
    entries["still_us"] = -1
    return entries


def find_nothing(boxes: Boxes) -> npt.NDArray[np.bool_]:
    """Return which entries say that no object was there, see `nothing_at`: a mask (N,)."""
    is_nothing: npt.NDArray[np.bool_] = (boxes["w"] == 0) & (boxes["h"] == 0) & (boxes["class_confidence"] == 0)
    return is_nothing


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
        raise UserError("labels.between_windows")
    if not is_exact:
        index[boxes["t"] < windows.ends_us[0] - windows.dt_us[0]] = -1
    return Labels(
        boxes_ltwh=ltwh_of(boxes),
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
    # A track of number 0 is one track only if it never has two boxes at once.
    is_zero = boxes["track_id"] == 0
    if len(np.unique(boxes["t"][is_zero])) < is_zero.sum():
        boxes = boxes[~is_zero]
    if not len(boxes):
        raise UserError("labels.no_tracks", name=name, advice="set evaluation.label_hz=null")
    times = np.rint(first_us + 1e6 / hz * np.arange(int((last_us - first_us) * hz / 1e6) + 1)).astype(np.int64)
    parts = []
    # Each track between its own boxes, linearly.
    for track in np.unique(boxes["track_id"]):
        known = boxes[boxes["track_id"] == track]
        known = known[np.sort(np.unique(known["t"], return_index=True)[1])]
        before = np.searchsorted(known["t"], times, side="right") - 1
        is_inside = (before >= 0) & (times <= known["t"][-1])
        at = times[is_inside]
        before = before[is_inside]
        after = np.minimum(before + 1, len(known) - 1)
        gap_us = known["t"][after] - known["t"][before]
        share = (at - known["t"][before]) / np.maximum(gap_us, 1)
        between = known[before].copy()
        between["t"] = at
        for side in "xywh":
            between[side] += (share * (known[side][after].astype(np.float64) - known[side][before])).astype(np.float32)
        between["still_us"][share > 0] = -1
        parts.append(between[(share == 0) | (gap_us <= LONGEST_TRACK_GAP_US)])
    together = np.concatenate(parts)
    return together[np.argsort(together["t"], kind="stable")]
