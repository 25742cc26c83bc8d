"""Explain an average precision: confusions, precision over recall, groups of objects, the worst frames."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rvtssm.boxes import ltwh_to_xyxy, pairwise_iou
from rvtssm.evaluation.coco import average_precisions, precision_curves
from rvtssm.evaluation.matching import RecordingMatches, ScoredRecording, match_detections
from rvtssm.evaluation.protocol import image_times_us, scored_detections, scored_labels
from rvtssm.events.labels import LONGEST_TRACK_GAP_US
from rvtssm.records import DatasetSpec, Detections, Labels
from rvtssm.records.settings import SHOWN_SCORE, STILL_US

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
        # Groups and frames as plain dicts.
        groups = {}
        worst = []
        for group in self.groups:
            parts = {}
            for part, ap in group.ap.items():
                parts[part] = {"boxes": group.num_boxes[part], "AP": ap}
            groups[group.name] = {"meaning": group.meaning, "parts": parts}
        for frame in self.worst:
            errors = {"missed": frame.num_missed, "false": frame.num_false}
            worst.append({"recording": frame.recording, "t_us": frame.t_us, **errors})
        numbers = {
            "min_score": SHOWN_SCORE,
            "highest_score": self.highest_score,
            "min_iou": MIN_IOU,
            "classes": list(self.class_names),
            "confusion": self.confusion.tolist(),
            "precision_at_recall": {name: curve.tolist() for name, curve in self.curves.items()},
            "groups": groups,
            "worst_frames": worst,
        }
        return dict(to_plain(numbers))


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
    if matched is None:
        matched = match_detections(recordings, spec)
    # Errors of single frames, then AP of groups of objects.
    confusion, frames, highest_score = _errors(recordings, spec)
    groups = [_by_size(recordings, average_precisions(matched, spec), spec)]
    # By time since the last motion, and by speed.
    still_s = {}
    speed = {}
    for name, labels, _ in recordings:
        still_s[name] = np.where(labels.still_us < 0, np.nan, labels.still_us / 1e6)
        speed[name] = (speeds or {}).get(name, np.full(len(labels), np.nan))
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
        highest_score,
    )


def _errors(recordings: Sequence[ScoredRecording], spec: DatasetSpec) -> tuple[np.ndarray, list[WorstFrame], float]:
    """Return the confusions of all frames, the frames with errors, and the highest score of all detections."""
    confusion = np.zeros((spec.num_classes + 1,) * 2, np.int64)
    frames = []
    highest_score = 0.0
    for name, labels, detections in recordings:
        scored = scored_labels(labels, spec)
        images_us = set(image_times_us(labels, spec).tolist())
        for frame in detections:
            highest_score = max(highest_score, float(frame.score.max(initial=0)))
            if frame.t_us not in images_us:  # AP does not score such a frame either
                continue
            truth = scored[scored.t_us == frame.t_us]
            pairs = confusions(truth, scored_detections(frame, spec), spec.num_classes)
            np.add.at(confusion, tuple(pairs.T), 1)
            # Frames with errors, of which the worst are shown.
            wrong = pairs[pairs[:, 0] != pairs[:, 1]]
            missed, false = (wrong < spec.num_classes).sum(axis=0).tolist()
            if missed + false:
                frames.append(WorstFrame(name, frame.t_us, missed, false))
    return confusion, frames, highest_score


def confusions(truth: Labels, frame: Detections, nothing: int) -> np.ndarray:
    """Return rows (true class, detected class) in which every object and every detection occurs once.

    Each detection, best score first, takes the free object of any class that it overlaps most. `nothing` is the class
    of a missing object or detection.
    """
    # The detections that a person would see, best first.
    chosen = np.flatnonzero(frame.score >= SHOWN_SCORE)
    chosen = chosen[np.argsort(-frame.score[chosen], kind="stable")]
    iou = pairwise_iou(frame.xyxy[chosen], ltwh_to_xyxy(truth.boxes_ltwh))
    is_free = np.ones(len(truth), bool)
    pairs = []
    # The best detection first takes the free object that it overlaps most.
    for row, detection in zip(iou, chosen, strict=True):
        class_id = int(frame.class_id[detection])
        overlap = np.where(is_free & (row >= MIN_IOU), row, 0)
        best = int(overlap.argmax()) if len(overlap) else -1  # an image may be empty
        if best >= 0 and overlap[best] > 0:
            is_free[best] = False
            pairs.append((int(truth.class_id[best]), class_id))
        else:
            pairs.append((nothing, class_id))
    pairs += [(int(class_id), nothing) for class_id in truth.class_id[is_free]]
    return np.array(pairs, np.int64).reshape(-1, 2)


def _worst(frames: list[WorstFrame], count: int) -> tuple[WorstFrame, ...]:
    chosen: list[WorstFrame] = []
    # Most errors first, and no frame beside one that was chosen.
    for frame in sorted(frames, key=lambda frame: (-frame.num_missed - frame.num_false, frame.recording, frame.t_us)):
        if len(chosen) == count:
            break
        times_us = np.array([other.t_us for other in chosen if other.recording == frame.recording])
        if not np.any(np.abs(times_us - frame.t_us) < _MIN_DISTANCE_US):
            chosen.append(frame)
    return tuple(chosen)


def _by_size(recordings: Sequence[ScoredRecording], metrics: Mapping[str, float], spec: DatasetSpec) -> Group:
    counts = np.zeros(len(_AREAS_PX) - 1, np.int64)
    for recording in recordings:
        sides = scored_labels(recording.labels, spec).boxes_ltwh[:, 2:]
        counts += np.histogram(sides[:, 0] * sides[:, 1], _AREAS_PX)[0]
    names = ("small", "medium", "large")
    return Group(
        "size",
        "area of the box: small below 32 x 32 pixels of the frame, large from 96 x 96",
        dict(zip(names, counts.tolist(), strict=True)),
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
    counts = {}
    ap = {}
    for part, (low, high) in parts.items():
        is_in_part = {}
        counts[part] = 0
        ap[part] = math.nan
        for recording in recordings:
            # The objects of all other parts are ignored in the matching.
            value = values[recording.name]
            is_in_part[recording.name] = (value >= low) & (value < high)
            counts[part] += len(scored_labels(recording.labels[is_in_part[recording.name]], spec))
        if counts[part]:
            matched = match_detections(recordings, spec, only=is_in_part, has_sizes=False)
            ap[part] = average_precisions(matched, spec)["AP"]
    return Group(name, meaning, counts, ap)


def to_plain(values: Any) -> Any:
    """Return nested values for json.dump: None for NaN, which means that there was no ground truth, and no tuples."""
    if isinstance(values, Mapping):
        return {name: to_plain(value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return list(map(to_plain, values))
    if isinstance(values, float) and math.isnan(values):
        return None
    return values
