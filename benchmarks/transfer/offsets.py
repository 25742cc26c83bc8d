"""How far boxes lie from labels as a rule, and the same boxes without that.

Labels of one source can be drawn around the trunk and those of another around hands and feet. AP asks for overlaps of
up to 0.95 and counts such a habit as an error, which a few labels of the source would remove. The offset is measured on
the labels that are scored, so that AP without it says where errors come from, and is no score of the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rvtssm.boxes import ltwh_to_xyxy, pairwise_iou
from rvtssm.evaluation.coco import ScoredRecording

MATCHING = 0.4  # overlap of a box and a label that are compared


def offsets(scored: Sequence[ScoredRecording], num_classes: int) -> np.ndarray:
    """Return the median of (box - label) / side of the box for left, top, right and bottom, (num_classes, 4) float64.

    A label is compared with the box of its class and time that overlaps it most, if that is by MATCHING or more. A
    class without such a pair has zeros.
    """
    found: list[list[np.ndarray]] = [[] for _ in range(num_classes)]
    for recording in scored:
        labels = recording.labels
        for frame in recording.detections:
            for number in np.flatnonzero(labels.t_us == frame.t_us):
                boxes = frame.xyxy[frame.class_id == labels.class_id[number]].astype(np.float64)
                label = ltwh_to_xyxy(labels.boxes_ltwh[number : number + 1]).astype(np.float64)
                overlaps = pairwise_iou(boxes, label)[:, 0]
                if len(boxes) and overlaps.max() >= MATCHING:
                    best = boxes[overlaps.argmax()]
                    found[labels.class_id[number]].append((best - label[0]) / _sides(best))
    return np.stack([np.median(each, axis=0) if each else np.zeros(4) for each in found])


def without_offsets(scored: Sequence[ScoredRecording], offset: np.ndarray) -> list[ScoredRecording]:
    """Return the recordings with every box moved by the offset (num_classes, 4) of its class."""
    return [
        ScoredRecording(
            recording.name,
            recording.labels,
            [
                replace(frame, xyxy=(frame.xyxy - offset[frame.class_id] * _sides(frame.xyxy)).astype(np.float32))
                for frame in recording.detections
            ],
        )
        for recording in scored
    ]


def _sides(xyxy: np.ndarray) -> np.ndarray:
    """Return width, height, width and height of boxes (..., 4)."""
    return np.tile(xyxy[..., 2:] - xyxy[..., :2], 2)
