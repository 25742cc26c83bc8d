"""Tracks in labels and detections: HOTA, MOTA and IDF1 from the package trackers, and the speed of objects.

Sources: HOTA (Luiten et al., 2021), CLEAR MOT (Bernardin and Stiefelhagen, 2008), IDF1 (Ristani et al., 2016).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import starmap

import numpy as np

from rvtssm.boxes import ltwh_to_xyxy, pairwise_iou
from rvtssm.datasets.sequence import FrameSequence
from rvtssm.detection.track_objects import Tracker
from rvtssm.evaluation.detector_run import DetectorRun
from rvtssm.evaluation.matching import ScoredRecording
from rvtssm.evaluation.protocol import is_scored, scored_detections
from rvtssm.evaluation.report import TRACK_METRICS
from rvtssm.events.labels import LONGEST_TRACK_GAP_US, annotated, ltwh_of
from rvtssm.records import DatasetSpec, Labels
from rvtssm.records.settings import SHOWN_SCORE
from rvtssm.system.extras import check_extra
from rvtssm.system.user_error import UserError


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
    from trackers import eval as scores

    # Every recording has a tracker of its own, which runs at the rate of its labels.
    frames = []
    for recording in recordings:
        if label_tracks[recording.name].any():
            intervals_us = np.diff(np.unique(recording.labels.t_us))
            hz = 1e6 / float(np.median(intervals_us)) if len(intervals_us) else 1.0
            tracker = Tracker(track, spec.num_classes, hz, memory_s, SHOWN_SCORE)
            frames.append(_compared(recording, label_tracks[recording.name], spec, tracker))
    if not frames:
        return dict.fromkeys(TRACK_METRICS, math.nan)
    # Each metric is summed over the recordings.
    hota = scores.aggregate_hota_metrics([*starmap(scores.compute_hota_metrics, frames)])
    clear = scores.aggregate_clear_metrics([*starmap(scores.compute_clear_metrics, frames)])
    identity = scores.aggregate_identity_metrics([*starmap(scores.compute_identity_metrics, frames)])
    return {"HOTA": float(hota["HOTA"]), "MOTA": float(clear["MOTA"]), "IDF1": float(identity["IDF1"])}


def _compared(
    recording: ScoredRecording, track_id: np.ndarray, spec: DatasetSpec, tracker: Tracker
) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    """Return, for every label time, the ids of the labels, the ids of the tracker, and the overlap of their boxes."""
    # Labels that are scored and have a track.
    labels = recording.labels
    counts = is_scored(labels.boxes_ltwh, labels.t_us, spec) & (track_id > 0)
    labels = labels[counts]
    track_id = track_id[counts]
    truth_ids = []
    tracked_ids = []
    overlaps = []
    for frame in sorted(recording.detections, key=lambda frame: frame.t_us):
        # The tracker sees all detections; those that are scored and have a track are compared.
        tracked = scored_detections(tracker.update(frame), spec)
        tracked_id = np.asarray(tracked.track_id)
        tracked = tracked[tracked_id > 0]
        tracked_id = tracked_id[tracked_id > 0]
        at = labels.t_us == frame.t_us
        overlap = pairwise_iou(ltwh_to_xyxy(labels.boxes_ltwh[at]), tracked.xyxy)
        truth_ids.append(track_id[at])
        tracked_ids.append(tracked_id)
        overlaps.append(np.where(labels.class_id[at, None] == tracked.class_id, overlap, 0))
    return truth_ids, tracked_ids, overlaps


def track_speeds(labels: Labels, boxes: np.ndarray, spec: DatasetSpec) -> np.ndarray:
    """Return the speed of labels in frame widths per second.

    Args:
        labels: N labels, in frame pixels.
        boxes: All boxes of the recording, with the fields t (us), x, y, w, h (sensor pixels), class_id (as on disk) and
            track_id. If all track ids are 0, there are no tracks. Track id 0 is no track either if two of its boxes
            have the same time. The box of a label is the nearest one with its time and class.
        spec: The dataset.

    Returns:
        (N,), NaN if the track does not give a speed.
    """
    if not len(boxes) or not boxes["track_id"].any():
        return np.full(len(labels), np.nan)
    # Boxes by track and time: the one before is the one before it in the array.
    boxes = boxes[np.lexsort((boxes["t"], boxes["track_id"]))]
    centre = np.stack([boxes["x"] + boxes["w"] / 2, boxes["y"] + boxes["h"] / 2], axis=1).astype(np.float64)
    gap_us = np.diff(boxes["t"], prepend=boxes["t"][0])
    moved_px = np.linalg.norm(np.diff(centre, axis=0, prepend=centre[:1]), axis=1)
    # A speed needs a box before in the same track, and not too long before.
    is_known = np.diff(boxes["track_id"].astype(np.int64), prepend=-1) == 0
    is_known &= (gap_us > 0) & (gap_us <= LONGEST_TRACK_GAP_US)
    is_known &= (boxes["track_id"] > 0) | _is_track_zero(boxes)
    speed = np.where(is_known, moved_px / spec.width / np.maximum(gap_us, 1) * 1e6, np.nan)
    place = nearest_boxes(labels, boxes, spec)
    return np.where(place < 0, np.nan, speed[place])


def label_tracks(labels: Labels, boxes: np.ndarray, spec: DatasetSpec) -> np.ndarray:
    """Return the track ids of labels.

    Track id 0 becomes a new number, unless it does not mean a track because two of its boxes have the same time.

    Args:
        labels: N labels, in frame pixels.
        boxes: All boxes of the recording, as in `track_speeds`.
        spec: The dataset.

    Returns:
        (N,), 0 for a label without a track.
    """
    if not len(boxes):
        return np.zeros(len(labels), np.int64)
    track_id = boxes["track_id"].astype(np.int64)
    if _is_track_zero(boxes):
        track_id[track_id == 0] = track_id.max() + 1
    place = nearest_boxes(labels, boxes, spec)
    return np.where(place < 0, 0, track_id[place])


def _is_track_zero(boxes: np.ndarray) -> bool:
    """Return whether track id 0 is a track: it never has two boxes at the same time."""
    times_us = boxes["t"][boxes["track_id"] == 0]
    return len(np.unique(times_us)) == len(times_us)


def nearest_boxes(labels: Labels, boxes: np.ndarray, spec: DatasetSpec) -> np.ndarray:
    """Return, for every label, the index of the nearest box with its time and class.

    Args:
        labels: N labels, in frame pixels.
        boxes: M boxes, as in `track_speeds`.
        spec: The dataset.

    Returns:
        (N,), -1 if there is no such box.
    """
    nearest = np.full(len(labels), -1)
    disk_class = np.asarray(spec.disk_class_ids)[labels.class_id]
    edges = ltwh_of(boxes)
    for t_us in np.unique(labels.t_us):
        ours = np.flatnonzero(labels.t_us == t_us)
        theirs = np.flatnonzero(boxes["t"] == t_us)
        distance = np.abs(labels.boxes_ltwh[ours, None] * spec.downsample - edges[theirs]).sum(-1)
        distance[disk_class[ours, None] != boxes["class_id"][theirs]] = np.inf
        for row, label in enumerate(ours):
            if len(theirs) and np.isfinite(distance[row].min()):
                nearest[label] = theirs[distance[row].argmin()]
    return nearest


def read_tracks(
    run: DetectorRun,
    recordings: Sequence[ScoredRecording],
    sequences: Sequence[FrameSequence],
    read: Callable[[Labels, np.ndarray, DatasetSpec], np.ndarray],
) -> dict[str, np.ndarray]:
    """Return the result of `read` on the annotated tracks, by recording; empty for prepared data, which has no tracks.

    Args:
        run: The detector on the split.
        recordings: Their labels.
        sequences: The same recordings.
        read: Called with the labels of a recording, its boxes on disk and its spec.
    """
    if run.source != "raw":
        return {}
    boxes = run.data.boxes(run.options.split)
    results = {}
    for recording, sequence in zip(recordings, sequences, strict=True):
        spec = sequence.source.plan.spec  # type: ignore[union-attr]  # of a raw recording
        results[recording.name] = read(recording.labels, annotated(boxes[recording.name]), spec)
    return results


def check_tracks(run: DetectorRun) -> None:
    """Raise UserError now, before hours of work, if tracks are asked for and cannot be scored."""
    options = run.options
    if not options.track:
        return
    # The package, recordings with tracks on disk, and tracks in them.
    check_extra(f"evaluation.track={options.track}", "tracks", "trackers")
    if run.source != "raw":
        found = f"{options.track} needs labels with tracks, which prepared recordings do not have"
        advice = "use the raw recordings (evaluation.source=raw dataset.raw_dir=DIR)"
        raise UserError("setting.conflict", name="evaluation.track", found=found, advice=advice)
    if not any(annotated(boxes)["track_id"].any() for boxes in run.data.boxes(options.split).values()):
        name = f"the labels of the {options.split} split have no track_id"
        advice = "set evaluation.track=null"
        raise UserError("labels.no_tracks", name=name, found="tracks cannot be scored", advice=advice)
