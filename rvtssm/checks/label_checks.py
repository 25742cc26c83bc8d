"""Check a recording against its sensor, and its boxes against its time range, its sensor and the dataset's classes."""

import numpy as np

from rvtssm.datasets.tree import RawRecording
from rvtssm.events.label_rules import LabelTimes, find_small, find_usable, unit_advice, unusable_boxes
from rvtssm.events.labels import Boxes, find_nothing
from rvtssm.readers.faults import MANY_EVENTS
from rvtssm.readers.recording import Recording
from rvtssm.records import DatasetSpec
from rvtssm.system.user_error import UserError

_LEAST_SHARE = 0.9  # of the width and of the height of a sensor, which many events reach
_MOST_AT_ONCE = 20  # boxes; more at the end of a recording are rather boxes of many frames, without their times


class Note(str):
    """A message about something unusual that may be intended."""


def sensor_notes(recording: Recording, num_events: int, reach_xy: tuple[int, int], spec: DatasetSpec) -> list[str]:
    """Return a note if the events leave a large part of the sensor out, as they do if its size is named too large.

    Args:
        recording: The recording.
        num_events: Number of its events.
        reach_xy: The largest x and the largest y of an event.
        spec: The dataset.
    """
    x, y = reach_xy
    width = recording.width
    height = recording.height
    if num_events < MANY_EVENTS or (x + 1 > _LEAST_SHARE * width and y + 1 > _LEAST_SHARE * height):
        return []
    return [
        Note(
            f"{recording.path} has no events beyond x={x}, y={y}, but its sensor is said to have {width}x{height} "
            f"(width x height) pixels; if it is smaller, correct {_size_keys(spec)}"
        )
    ]


def time_faults(recording: RawRecording, boxes: Boxes, range_us: tuple[int, int], spec: DatasetSpec) -> list[str]:
    """Return what is wrong or unusual with label times.

    Args:
        recording: The recording.
        boxes: Its boxes, at least one.
        range_us: Times of the first and the last event.
        spec: The dataset.
    """
    path = recording.boxes_path
    times_us = np.unique(boxes["t"])
    try:
        times = LabelTimes.check(str(recording.events_path), times_us, range_us, spec)
    except UserError as error:
        return [str(error)]
    notes: list[str] = []
    if times.num_outside:
        notes.append(Note(times.line))
    # One time for many boxes: probably a file without times.
    if len(times_us) == 1:
        if len(boxes) > _MOST_AT_ONCE:
            text = (
                f"{path}: all {len(boxes)} boxes are at {times_us[0]} us; labels of several frames need their times, "
                "in YOLO text as the first number of each line"
            )
            notes.append(Note(text))
        return notes
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
        notes.append(f"{text}; {unit_advice(int(times_us[-1]), range_us[1]) or 'label times must be microseconds'}")
    elif is_short or is_dense:
        notes.append(Note(text))
    return notes


def box_faults(recording: RawRecording, boxes: Boxes, spec: DatasetSpec, is_train: bool) -> list[str]:
    """Return what is wrong or unusual with boxes.

    Published boxes may leave the view, so it is a fault only if most are outside; in own labels, a single one is.
    """
    boxes = boxes[~find_nothing(boxes)]
    if not len(boxes):
        return []
    is_box, is_visible = find_usable(boxes, spec)
    num_outside = np.count_nonzero(is_box & ~is_visible)
    path = recording.boxes_path
    faults = []
    advice = f"labels may be in pixels of another resolution: scale them to the sensor, or correct {_size_keys(spec)}"
    # Boxes that are none.
    if not is_box.all():
        count = np.count_nonzero(~is_box)
        first = int(np.argmin(is_box))
        faults.append(
            f"{path} has {count} of {len(boxes)} boxes with a side that is negative or not finite, the first at "
            f"{boxes['t'][first]} us; write x, y, w, h with w and h from 0 on"
        )
    # Boxes of another resolution.
    if 2 * num_outside > len(boxes):
        x, y = (np.max(boxes[side][is_box]) for side in "xy")
        faults.append(
            f"{path} has {num_outside} of {len(boxes)} boxes outside {spec.width}x{spec.height} pixels, up to x={x:g}, "
            f"y={y:g}; {advice}"
        )
    elif left_out := unusable_boxes(boxes[is_box], spec, is_train):
        text = f"{path}: preprocess and train leave out boxes: {left_out} (of {len(boxes)})"
        faults.append(f"{text}; {advice}" if num_outside and spec.name == "custom" else Note(text))
    # Corners in place of sizes.
    is_over = (boxes["x"] + boxes["w"] > spec.width) | (boxes["y"] + boxes["h"] > spec.height)
    if 4 * (num_over := np.count_nonzero(is_visible & is_over)) > len(boxes):
        kind = str if np.all((boxes["w"] > boxes["x"]) & (boxes["h"] > boxes["y"])) else Note
        faults.append(
            kind(
                f"{path} has {num_over} of {len(boxes)} boxes that reach past the right or bottom edge of "
                f"{spec.width}x{spec.height} pixels; are they x1, y1, x2, y2 instead of x, y, w, h? If not, {advice}"
            )
        )
    # Classes and sizes that are left out.
    is_known = np.isin(boxes["class_id"], spec.disk_class_ids)
    objects = boxes[is_known]
    if num_small := np.count_nonzero(find_small(objects, spec)):
        text = (
            f"{path}: preprocess and train leave out {num_small} of {len(boxes)} boxes as too small (a side below "
            f"{spec.prepare_min_side_px:g} or a diagonal below {spec.prepare_min_diagonal_px:g} pixels)"
        )
        if all((objects[side] <= 1).all() for side in "xywh"):
            faults.append(f"{text}; they look like fractions of the sensor, write x, y, w, h in pixels")
        else:  # which is usual in published labels
            faults.append(Note(text))
    # A dataset that lists its class ids may leave others out on purpose.
    if not is_known.any() or not (spec.class_ids or is_known.all()):
        ids = ", ".join(map(str, np.unique(boxes["class_id"][~is_known])[:9]))
        faults.append(
            f"{path} has {np.count_nonzero(~is_known)} of {len(boxes)} boxes of classes that {spec.name} does not have "
            f"({ids}); choose the dataset, or its class_ids"
        )
    return faults


def _size_keys(spec: DatasetSpec) -> str:
    """Return where the size of the sensor is set."""
    return "height and width in dataset.yaml" if spec.name == "custom" else "dataset, dataset.height and dataset.width"
