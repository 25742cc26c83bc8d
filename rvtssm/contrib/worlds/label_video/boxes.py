"""Boxes of a teacher, in rows (N, 6): left, top, right, bottom, class and score."""

from collections.abc import Callable

import numpy as np

from rvtssm.boxes import pairwise_iou
from rvtssm.contrib.worlds.rules import SPEC

MOVING = len(SPEC.class_names)  # something that the teacher did not find

LOW, UNSURE, HIGH = 0.2, 0.3, 0.4  # scores of a box that continues a track, starts an unsure one, a sure one
SAME_IOU = 0.5  # boxes of a class in a frame that are one object
INSIDE = 0.8  # share of a box within another: the smaller one is a part of it, or a person in a vehicle

# From a picture (H, W, 3) uint8, blue, green, red, to rows (N, 6) in pixels of the picture.
Teacher = Callable[[np.ndarray], np.ndarray]


def without_doubles(rows: np.ndarray) -> np.ndarray:
    """Return the boxes without those that another one of the class with a higher score covers."""
    rows = rows[np.argsort(-rows[:, 5], kind="stable")]
    best: list[int] = []
    area = np.prod(rows[:, 2:4] - rows[:, :2], axis=1)
    for i in range(len(rows)):
        better = rows[best]
        better = better[better[:, 4] == rows[i, 4]]
        inner = np.clip(np.minimum(better[:, 2:4], rows[i, 2:4]) - np.maximum(better[:, :2], rows[i, :2]), 0, None)
        is_part = (np.prod(inner, axis=1) > INSIDE * area[i]).any()
        if not is_part and not (pairwise_iou(better[:, :4], rows[i : i + 1, :4]) > SAME_IOU).any():
            best.append(i)
    return rows[best]
