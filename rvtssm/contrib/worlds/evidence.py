"""Labels of what the events of a recording show: an object that caused no events cannot be detected."""

from collections.abc import Collection

import numpy as np

from rvtssm.contrib.demo.simulation_config import CameraConfig
from rvtssm.events.labels import Boxes, nothing_at
from rvtssm.records import Events

_SEEN_US = 50_000  # time span whose events must show an object
_SEEN_PER_PX = 0.02  # events per pixel of its box that show an object


def labelled(boxes: Boxes, blocks: list[Events], camera: CameraConfig, label_times_us: Collection[int]) -> Boxes:
    """Return the boxes of objects that the events show, and entries for the label times at which there is none.

    Args:
        boxes: The boxes.
        blocks: The events.
        camera: The camera, whose noise is not an object.
        label_times_us: In training, the label times; otherwise empty, and no entries are added.
    """
    boxes = with_events(boxes, blocks, camera.shot_rate_hz + camera.background_rate_hz + camera.leak_rate_hz)
    if label_times_us:
        boxes = np.concatenate([boxes, nothing_at(np.setdiff1d(np.array(label_times_us), boxes["t"]))])
        boxes = boxes[np.argsort(boxes["t"], kind="stable")]
    return boxes


def with_events(boxes: Boxes, blocks: list[Events], noise_rate_hz: float) -> Boxes:
    """Return the boxes of every track from the first one that contains clearly more events than noise.

    Objects that are too dark, or that have not moved yet, cannot be detected, so they get no label.

    Args:
        boxes: The boxes.
        blocks: The events. For each box, the last 50 ms count.
        noise_rate_hz: Noise events per pixel and second.
    """
    t = np.concatenate([events.t for events in blocks])
    x = np.concatenate([events.x for events in blocks])
    y = np.concatenate([events.y for events in blocks])
    keep, seen = np.zeros(len(boxes), np.bool_), set()
    for i in np.argsort(boxes["t"], kind="stable"):
        box = boxes[i]
        if box["track_id"] not in seen:
            start, end = np.searchsorted(t, (box["t"] - _SEEN_US, box["t"]))
            inside = (x[start:end] >= box["x"]) & (x[start:end] < box["x"] + box["w"])
            inside &= (y[start:end] >= box["y"]) & (y[start:end] < box["y"] + box["h"])
            area = float(box["w"] * box["h"])
            noise = noise_rate_hz * area * _SEEN_US * 1e-6
            if np.count_nonzero(inside) < 2 * noise + 4 * noise**0.5 + _SEEN_PER_PX * area + 5:
                continue
            seen.add(box["track_id"])
        keep[i] = True
    return boxes[keep]
