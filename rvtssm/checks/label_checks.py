"""Check a recording against its sensor, and its boxes against its time range, its sensor and the dataset's classes."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from rvtssm.events.label_notes import unit_advice
from rvtssm.events.label_rules import find_small, find_usable
from rvtssm.events.labels import Boxes, find_nothing
from rvtssm.readers import Recording
from rvtssm.readers.faults import MANY_EVENTS
from rvtssm.records import DatasetSpec

_LEAST_SHARE = 0.9  # of the width and of the height of a sensor, which many events reach
_MOST_AT_ONCE = 20  # boxes; more at the end of a recording are rather boxes of many frames, without their times
_MANY_OVER = 0.25  # share of boxes that reach past an edge; published boxes may


class Note(str):
    """A message about something unusual that may be intended. Any other message is a fault."""


def sensor_notes(recording: Recording, pixels: npt.NDArray[np.uint32], spec: DatasetSpec) -> list[str]:
    """Return a note if the events leave a large part of the sensor out, as they do if its size is named too large.

    Args:
        recording: The recording.
        pixels: (H, W) events per pixel.
        spec: The dataset.
    """
    height, width = pixels.shape
    y, x = (int(places.max(initial=0)) for places in np.nonzero(pixels))
    if pixels.sum() < MANY_EVENTS or (x + 1 > _LEAST_SHARE * width and y + 1 > _LEAST_SHARE * height):
        return []
    return [
        Note(
            f"{recording.path} has no events beyond x={x}, y={y}, but its sensor is said to have {width}x{height} "
            f"(width x height) pixels; if it is smaller, correct {_size_keys(spec)}"
        )
    ]


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
    is_box, is_visible = find_usable(boxes, spec)
    is_known = np.isin(boxes["class_id"], spec.disk_class_ids)
    is_over = is_visible & ((boxes["x"] + boxes["w"] > spec.width) | (boxes["y"] + boxes["h"] > spec.height))
    are_corners = bool(np.all((boxes["w"] > boxes["x"]) & (boxes["h"] > boxes["y"])))
    is_small = is_known & find_small(boxes, spec)
    are_fractions = all((boxes[side][is_known] <= 1).all() for side in "xywh")
    fractions = "they look like fractions of the sensor, write x, y, w, h in pixels" if are_fractions else ""
    size = f"{spec.width}x{spec.height} pixels"
    scale = f"labels may be in pixels of another resolution: scale them to the sensor, or correct {_size_keys(spec)}"
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


def _size_keys(spec: DatasetSpec) -> str:
    """Return where the size of the sensor is set."""
    return "height and width in dataset.yaml" if spec.name == "custom" else "dataset, dataset.height and dataset.width"
