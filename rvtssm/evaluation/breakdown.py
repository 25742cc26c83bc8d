"""Explain an average precision: confusions, precision over recall, groups of objects, the worst frames."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rvtssm.boxes import ltwh_to_xyxy, pairwise_iou
from rvtssm.evaluation.coco import ScoredRecording, match_detections
from rvtssm.evaluation.matches import RecordingMatches, average_precisions, precision_curves
from rvtssm.evaluation.protocol import scored_detections, scored_labels
from rvtssm.events.labels import LONGEST_TRACK_GAP_US
from rvtssm.records import SHOWN_SCORE, STILL_US, DatasetSpec, Detections, Labels

MIN_IOU = 0.5
_AREAS_PX = (0, 32**2, 96**2, math.inf)  # limits between the sizes, as in COCO
_STILL_S = {
    f"moved within {STILL_US / 1e6:g} s": (0, STILL_US / 1e6),
    f"{STILL_US / 1e6:g} to 1 s ago": (STILL_US / 1e6, 1),
    "1 s ago or longer": (1, math.inf),
}
SPEED = "speed"  # name of a group
_SPEEDS = {"below 0.05": (0, 0.05), "0.05 to 0.25": (0.05, 0.25), "0.25 and above": (0.25, math.inf)}
_MIN_DISTANCE_US = 500_000  # shortest time between worst frames of a recording, since close frames look alike


@dataclass(frozen=True)
class Group:
    """Objects grouped by one property. While one part is scored, the objects of all other parts are ignored."""

    name: str
    meaning: str
    num_boxes: Mapping[str, int]  # by part
    ap: Mapping[str, float]  # by part


@dataclass(frozen=True)
class WorstFrame:
    """A frame with many errors. An object that is detected as another class counts as both missed and false."""

    recording: str
    t_us: int
    num_missed: int
    num_false: int


@dataclass(frozen=True)
class Breakdown:
    """The breakdown at one inference rate."""

    class_names: tuple[str, ...]
    # by class, precision (101,) over recall at an overlap of MIN_IOU; NaN without ground truth
    curves: Mapping[str, np.ndarray]
    confusion: np.ndarray  # (K + 1, K + 1) int64 by true and detected class; index K means none
    groups: tuple[Group, ...]
    worst: tuple[WorstFrame, ...]  # most errors first, at least half a second apart
    highest_score: float  # of all detections; 0 if there are none

    def to_json(self) -> dict[str, Any]:
        """Return plain values for json.dump. None means that there was no ground truth."""
        return {
            "min_score": SHOWN_SCORE,
            "highest_score": self.highest_score,
            "min_iou": MIN_IOU,
            "classes": list(self.class_names),
            "confusion": self.confusion.tolist(),
            "precision_at_recall": {
                name: list(map(json_number, curve.tolist())) for name, curve in self.curves.items()
            },
            "groups": {
                group.name: {
                    "meaning": group.meaning,
                    "parts": {
                        part: {"boxes": group.num_boxes[part], "AP": json_number(ap)} for part, ap in group.ap.items()
                    },
                }
                for group in self.groups
            },
            "worst_frames": [
                {"recording": f.recording, "t_us": f.t_us, "missed": f.num_missed, "false": f.num_false}
                for f in self.worst
            ],
        }


def break_down(
    recordings: Sequence[ScoredRecording],
    spec: DatasetSpec,
    speeds: Mapping[str, np.ndarray] | None = None,
    num_worst: int = 6,
    matched: Sequence[RecordingMatches] | None = None,
) -> Breakdown:
    """Break down the scores of recordings.

    Args:
        recordings: Labels and detections.
        spec: The dataset.
        speeds: Results of `track_speeds` by recording; recordings may be missing.
        num_worst: Number of worst frames.
        matched: The matches of the recordings, if they are already known.
    """
    matched = match_detections(recordings, spec) if matched is None else matched
    confusion, frames = np.zeros((spec.num_classes + 1,) * 2, np.int64), []
    for name, labels, detections in recordings:
        kept = scored_labels(labels, spec)
        for frame in (scored_detections(frame, spec) for frame in detections):
            truth = kept[kept.t_us == frame.t_us]
            if not len(truth):  # AP does not score such a frame either
                continue
            pairs = _confusions(truth, frame, spec.num_classes)
            np.add.at(confusion, tuple(pairs.T), 1)
            wrong = pairs[pairs[:, 0] != pairs[:, 1]]
            missed, false = (int((wrong[:, side] < spec.num_classes).sum()) for side in (0, 1))
            if missed + false:
                frames.append(WorstFrame(name, frame.t_us, missed, false))
    groups = [_by_size(recordings, average_precisions(matched, spec), spec)]
    speeds = speeds or {}
    speed = {r.name: speeds.get(r.name, np.full(len(r.labels), np.nan)) for r in recordings}
    still_s = {r.name: np.where(r.labels.still_us < 0, np.nan, r.labels.still_us / 1e6) for r in recordings}
    meaning = "time since the object last moved over the image"
    groups.append(_group("time since last motion", meaning, _STILL_S, still_s, recordings, spec))
    meaning = (
        "in frame widths per second: the distance between the centres of this box and the box before in its track, "
        f"at most {LONGEST_TRACK_GAP_US / 1e6:g} s earlier; boxes that the edge of the frame cuts appear slower"
    )
    groups.append(_group(SPEED, meaning, _SPEEDS, speed, recordings, spec))
    return Breakdown(
        spec.class_names,
        precision_curves(matched, spec),
        confusion,
        tuple(group for group in groups if any(group.num_boxes.values())),
        _worst(frames, num_worst),
        max((float(frame.score.max(initial=0)) for each in recordings for frame in each.detections), default=0.0),
    )


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
    boxes = boxes[np.lexsort((boxes["t"], boxes["track_id"]))]
    centre = np.stack([boxes["x"] + boxes["w"] / 2, boxes["y"] + boxes["h"] / 2], axis=1).astype(np.float64)
    gap_us = np.diff(boxes["t"], prepend=boxes["t"][0])
    moved_px = np.linalg.norm(np.diff(centre, axis=0, prepend=centre[:1]), axis=1)
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
    found = np.full(len(labels), -1)
    disk_class = np.asarray(spec.disk_class_ids)[labels.class_id]
    edges = np.stack([boxes[name] for name in "xywh"], axis=1)
    for t_us in np.unique(labels.t_us):
        ours, theirs = np.flatnonzero(labels.t_us == t_us), np.flatnonzero(boxes["t"] == t_us)
        distance = np.abs(labels.boxes_ltwh[ours, None] * spec.downsample - edges[theirs]).sum(-1)
        distance[disk_class[ours, None] != boxes["class_id"][theirs]] = np.inf
        for row, label in enumerate(ours):
            if len(theirs) and np.isfinite(distance[row].min()):
                found[label] = theirs[distance[row].argmin()]
    return found


def _confusions(truth: Labels, frame: Detections, nothing: int) -> np.ndarray:
    """Return rows (true class, detected class) in which every object and every detection occurs once.

    Each detection, best score first, takes the free object of any class that it overlaps most. `nothing` is the class
    of a missing object or detection.
    """
    chosen = np.flatnonzero(frame.score >= SHOWN_SCORE)
    chosen = chosen[np.argsort(-frame.score[chosen], kind="stable")]
    iou = pairwise_iou(frame.xyxy[chosen], ltwh_to_xyxy(truth.boxes_ltwh))
    is_free, pairs = np.ones(len(truth), bool), []
    for row, detection in zip(iou, chosen, strict=True):
        class_id = int(frame.class_id[detection])
        overlap = np.where(is_free & (row >= MIN_IOU), row, 0)
        best = int(overlap.argmax())
        if overlap[best] > 0:
            is_free[best] = False
            pairs.append((int(truth.class_id[best]), class_id))
        else:
            pairs.append((nothing, class_id))
    pairs += [(int(class_id), nothing) for class_id in truth.class_id[is_free]]
    return np.array(pairs, np.int64).reshape(-1, 2)


def _worst(frames: list[WorstFrame], count: int) -> tuple[WorstFrame, ...]:
    chosen: list[WorstFrame] = []
    for frame in sorted(frames, key=lambda f: (-f.num_missed - f.num_false, f.recording, f.t_us)):
        near = (f for f in chosen if f.recording == frame.recording and abs(f.t_us - frame.t_us) < _MIN_DISTANCE_US)
        if len(chosen) < count and not any(near):
            chosen.append(frame)
    return tuple(chosen)


def _by_size(recordings: Sequence[ScoredRecording], metrics: Mapping[str, float], spec: DatasetSpec) -> Group:
    kept = [scored_labels(recording.labels, spec) for recording in recordings]
    areas = np.concatenate([labels.boxes_ltwh[:, 2] * labels.boxes_ltwh[:, 3] for labels in kept] or [np.zeros(0)])
    counts = np.histogram(areas, _AREAS_PX)[0].tolist()
    names = ("small", "medium", "large")
    return Group(
        "size",
        "area of the box: small below 32 x 32 pixels of the frame, large from 96 x 96",
        dict(zip(names, counts, strict=True)),
        {name: metrics[f"AP_{name}"] for name in names},
    )


def _group(
    name: str,
    meaning: str,
    parts: Mapping[str, tuple[float, float]],
    values: Mapping[str, np.ndarray],
    recordings: Sequence[ScoredRecording],
    spec: DatasetSpec,
) -> Group:
    """Return the AP of the objects whose value lies in [low, high) of each part."""
    counts, ap = {}, {}
    for part, (low, high) in parts.items():
        wanted = {key: (value >= low) & (value < high) for key, value in values.items()}
        counts[part] = sum(
            len(scored_labels(recording.labels[wanted[recording.name]], spec)) for recording in recordings
        )
        matched = match_detections(recordings, spec, only=wanted, has_sizes=False) if counts[part] else None
        ap[part] = average_precisions(matched, spec)["AP"] if matched else math.nan
    return Group(name, meaning, counts, ap)


def json_number(value: float) -> float | None:
    """Return a number as a plain value for JSON: None for NaN, which means that there was no ground truth."""
    return None if math.isnan(value) else value
