"""How often detections flicker: switches between found and missed per second that a labelled object is in view.

An object is found in a frame if a detection of its class with a score of at least SHOWN overlaps its label by at least
OVERLAP. Labels need no tracks: the labels of consecutive times that overlap most belong to one object.
"""

from collections.abc import Iterable

import numpy as np

from rvtssm.boxes import ltwh_to_xyxy, pairwise_iou
from rvtssm.evaluation.coco import ScoredRecording

SHOWN = 0.3  # score from which boxes are drawn by default
OVERLAP = 0.5
_SAME = 0.3  # overlap of the labels of one object at consecutive times


def switches_per_second(recordings: Iterable[ScoredRecording], class_id: int) -> float | None:
    """Return the switches per second of the objects of a class; None if no object is labelled twice in a row."""
    switches, seconds = 0, 0.0
    for _, labels, detections in recordings:
        mine = labels[labels.class_id == class_id]
        found = {frame.t_us: frame.xyxy[(frame.class_id == class_id) & (frame.score >= SHOWN)] for frame in detections}
        before_us, before, was_found = 0, np.zeros((0, 4)), np.zeros(0, np.bool_)
        for t_us in np.unique(labels.t_us).tolist():
            now = ltwh_to_xyxy(mine.boxes_ltwh[mine.t_us == t_us])
            is_found = (pairwise_iou(now, found.get(t_us, now[:0])) >= OVERLAP).any(axis=1)
            if len(before) and len(now):
                overlap = pairwise_iou(before, now)
                best = overlap.argmax(axis=1)
                rows = np.arange(len(before))
                same = (overlap[rows, best] >= _SAME) & (overlap.argmax(axis=0)[best] == rows)
                switches += int(np.count_nonzero(was_found[same] != is_found[best[same]]))
                seconds += np.count_nonzero(same) * (t_us - before_us) / 1e6
            before_us, before, was_found = t_us, now, is_found
    return switches / seconds if seconds else None
