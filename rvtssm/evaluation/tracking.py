"""How well a detector's tracks agree with the tracks of the labels: HOTA, MOTA and IDF1, from the package trackers.

Sources: HOTA (Luiten et al., 2021), CLEAR MOT (Bernardin and Stiefelhagen, 2008), IDF1 (Ristani et al., 2016).
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from rvtssm.boxes import ltwh_to_xyxy, pairwise_iou
from rvtssm.detection.track_objects import Tracker
from rvtssm.evaluation.coco import ScoredRecording
from rvtssm.evaluation.protocol import is_scored, scored_detections
from rvtssm.records import SHOWN_SCORE, DatasetSpec

TRACK_METRICS = ("HOTA", "MOTA", "IDF1")


def track_metrics(
    recordings: Sequence[ScoredRecording],
    label_tracks: Mapping[str, np.ndarray],
    spec: DatasetSpec,
    track: str,
    memory_s: float,
) -> dict[str, float]:
    """Return TRACK_METRICS over all recordings. HOTA and IDF1 lie in [0, 1], MOTA is at most 1.

    Every recording has its own tracker, which sees the detections at the label times. A tracked box only agrees with
    labels of its class. Recordings without tracks are left out.

    Args:
        recordings: Labels and detections.
        label_tracks: Track ids of the labels (N,) by recording, 0 for a label without a track.
        spec: The dataset.
        track: Name of the tracker, see `Tracker`.
        memory_s: How long a lost object keeps its number, in seconds.

    Returns:
        The metrics by name, NaN if no recording has tracks.
    """
    from trackers.eval import (
        aggregate_clear_metrics,
        aggregate_hota_metrics,
        aggregate_identity_metrics,
        compute_clear_metrics,
        compute_hota_metrics,
        compute_identity_metrics,
    )

    frames = []
    for recording in recordings:
        if label_tracks[recording.name].any():
            intervals_us = np.diff(np.unique(recording.labels.t_us))
            hz = 1e6 / float(np.median(intervals_us)) if len(intervals_us) else 1.0
            tracker = Tracker(track, spec.num_classes, hz, memory_s, SHOWN_SCORE)
            frames.append(_compared(recording, label_tracks[recording.name], spec, tracker))
    if not frames:
        return dict.fromkeys(TRACK_METRICS, math.nan)
    hota = aggregate_hota_metrics([compute_hota_metrics(*each) for each in frames])
    clear = aggregate_clear_metrics([compute_clear_metrics(*each) for each in frames])
    identity = aggregate_identity_metrics([compute_identity_metrics(*each) for each in frames])
    return {"HOTA": float(hota["HOTA"]), "MOTA": float(clear["MOTA"]), "IDF1": float(identity["IDF1"])}


def _compared(
    recording: ScoredRecording, track_id: np.ndarray, spec: DatasetSpec, tracker: Tracker
) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    """Return, for every label time, the ids of the labels, the ids of the tracker, and the overlap of their boxes."""
    labels = recording.labels
    is_kept = is_scored(labels.boxes_ltwh, labels.t_us, spec) & (track_id > 0)
    labels, track_id = labels[is_kept], track_id[is_kept]
    truth_ids, found_ids, overlaps = [], [], []
    for frame in sorted(recording.detections, key=lambda frame: frame.t_us):
        tracked = scored_detections(tracker.update(frame), spec)
        found_id = np.asarray(tracked.track_id)
        tracked, found_id = tracked[found_id > 0], found_id[found_id > 0]
        at = labels.t_us == frame.t_us
        overlap = pairwise_iou(ltwh_to_xyxy(labels.boxes_ltwh[at]), tracked.xyxy)
        truth_ids.append(track_id[at])
        found_ids.append(found_id)
        overlaps.append(np.where(labels.class_id[at, None] == tracked.class_id, overlap, 0))
    return truth_ids, found_ids, overlaps
