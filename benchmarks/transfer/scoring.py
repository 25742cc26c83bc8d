"""Scores of weights on labelled recordings, and how often they are sure where nothing is labelled, by reduction.

A reduction of n keeps one pixel in n x n, as `downsample` does. Boxes are compared in pixels of the sensor, by
the rules of the dataset of the training. They are cut at the edges of the frame, as those that `rvtssm predict` writes.
Apart from that, and from regions without labels, the scores are those of `rvtssm evaluate`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from rvtssm.boxes import ltwh_to_xyxy, pairwise_iou
from rvtssm.datasets.tree import find_recordings
from rvtssm.detection import DetectionConfig, PredictConfig
from rvtssm.detection.engine import StreamDetector, detect
from rvtssm.detection.predict_recording import predict_recording
from rvtssm.detection.track_objects import TRACK_MEMORY_S, Tracker
from rvtssm.evaluation.coco import average_precisions, precision_curves, resample
from rvtssm.evaluation.matching import ScoredRecording, match_detections
from rvtssm.events.sequence_plan import plan_sequence
from rvtssm.models import PostprocessConfig
from rvtssm.models.checkpoint_meta import LoadedCheckpoint, usual_downsample
from rvtssm.readers import open_recording, usual_sensor
from rvtssm.records import DatasetSpec, Detections, Labels, ReadOptions, Windows, WindowSettings
from rvtssm.records.settings import SHOWN_SCORE

CONFIDENT = 0.5  # the score from which a box counts as confident
MATCHING = 0.5  # overlap of a box that is one of the labels
COMPARED = 0.4  # overlap of a box and a label whose distance counts for the offset
SAME_OBJECT = 0.3  # overlap of the labels of one object at consecutive times
COVERED = 0.5  # share of a box that lies in a region without labels
REPLICATES = 1000  # of an interval
SECOND_US = 1_000_000
WINDOWS_PER_CALL = 8  # that go through the detector together


@dataclass(frozen=True)
class LabelledRecording:
    """A recording and its labels, whose classes are those of the weights. Boxes are in pixels of the sensor."""

    name: str
    path: Path
    sensor_hw: tuple[int, int]
    labels: Labels
    windows: Windows  # one ends at every label time
    settings: WindowSettings
    unsure: Mapping[int, np.ndarray] = field(default_factory=dict)  # regions (N, 4) ltwh without labels, by time in us


def read_split(
    raw_dir: Path,
    split: str,
    spec: DatasetSpec,
    checkpoint: LoadedCheckpoint,
    *,
    unsure: Mapping[int, np.ndarray] | None = None,
    hz: float | None = None,
    window: str = "shrink",
) -> list[LabelledRecording]:
    """Return the labelled recordings of a split, to be seen at a rate, by default that of the training.

    At another rate, windows `slide`, with the length of the training, or `shrink` to the stride.

    Raise ValueError if the weights do not know one of its classes.
    """
    settings = checkpoint.windows_at(hz, window)
    known = checkpoint.spec.class_names
    if missing := [name for name in spec.class_names if name not in known]:
        raise ValueError(f"the weights know {', '.join(known)}; {raw_dir} has {missing[0]}, which cannot be scored")
    classes = np.array([known.index(name) for name in spec.class_names], np.int64)
    found = []
    for raw in find_recordings(raw_dir, split, spec):
        if raw.boxes_path is None:
            continue
        with closing(open_recording(raw.events_path, spec.height, spec.width)) as recording:
            plan = plan_sequence(recording, raw.read_boxes(spec), spec, settings, is_train=False)
        if plan is not None:
            labels = replace(plan.labels, class_id=classes[plan.labels.class_id])
            what = raw.name, raw.events_path, (spec.height, spec.width), labels, plan.windows, settings
            found.append(LabelledRecording(*what, unsure or {}))
    return found


def score(
    checkpoint: LoadedCheckpoint,
    recordings: Sequence[LabelledRecording],
    reduction: int,
    *,
    skip_us: int | None = None,
    smooth_s: float = 0.0,
    against: LoadedCheckpoint | None = None,
) -> list[dict[str, Any]]:
    """Return AP, AP50 and the number of labels for each class that has some, and for `all` if these are several.

    A class also has its switches between found and missed per second, its offset, and AP without the offsets. Labels up
    to `skip_us` are not scored, by default as in the training. With `smooth_s`, scores are averaged along tracks,
    as `SmoothingTracker` does. With `against`, the last row tells what AP50 gains over these other weights.
    """
    height = max(recording.sensor_hw[0] for recording in recordings)
    width = max(recording.sensor_hw[1] for recording in recordings)
    skip_us = checkpoint.spec.skip_us if skip_us is None else skip_us
    spec = replace(checkpoint.spec, height=height, width=width, downsample=1, skip_us=skip_us)
    scored = [detected(checkpoint, recording, reduction, smooth_s) for recording in recordings]
    matches = match_detections(scored, spec)
    metrics, curves = average_precisions(matches, spec), precision_curves(matches, spec)
    offset = offsets(scored, spec.num_classes)
    moved = average_precisions(match_detections(without_offsets(scored, offset), spec), spec)
    counts = sum((each.num_truths[0] for each in matches), np.zeros(spec.num_classes, np.int64))
    rows: list[dict[str, Any]] = []
    for number, name in enumerate(spec.class_names):
        if counts[number]:
            row = _row(name, counts[number], curves[name].mean(), metrics[f"AP/{name}"], moved[f"AP/{name}"])
            flicker = {"switches_per_s": switches_per_second(scored, number)}
            rows.append(row | {"offset": offset[number].round(3).tolist()} | flicker)
    if not rows:
        raise ValueError(f"none of the labels is scored: they are too early or too small for {spec.name}")
    if len(rows) > 1:
        rows.append(_row("all", counts.sum(), metrics["AP50"], metrics["AP"], moved["AP"]))
    if against is not None:
        others = [detected(against, recording, reduction, smooth_s) for recording in recordings]
        rows[-1]["AP50_gain"] = gain(scored, others, spec)
    size = {"reduction": reduction, "frame": [width // reduction, height // reduction]}
    usual = {"is_usual": usual_downsample(checkpoint.spec, height, width) == reduction}
    return [size | usual | row for row in rows]


def gain(scored: Sequence[ScoredRecording], others: Sequence[ScoredRecording], spec: DatasetSpec) -> list[float]:
    """Return the difference in AP50 from other detections of the same recordings, and its 95 % interval.

    Replicates draw seconds of the recordings, the same ones for both. With a single second the list is empty.
    """
    ours, theirs = (resample(match_detections(in_seconds(each), spec), spec, REPLICATES) for each in (scored, others))
    difference = ours.minus(theirs, "AP50")
    return [] if difference is None else [float(value) for value in difference]


def in_seconds(scored: Sequence[ScoredRecording]) -> list[ScoredRecording]:
    """Return each second of each recording, from its first label on, as a recording of its own."""
    parts = []
    for recording in scored:
        labels = recording.labels
        number = (labels.t_us - labels.t_us.min()) // SECOND_US
        for second in np.unique(number):
            own = labels[number == second]
            times = set(own.t_us.tolist())
            frames = [frame for frame in recording.detections if frame.t_us in times]
            parts.append(ScoredRecording(f"{recording.name} {second}", own, frames))
    return parts


def _row(class_name: str, num_labels: int, ap50: float, ap: float, moved: float) -> dict[str, Any]:
    scores = {"AP50": float(ap50), "AP": float(ap), "AP_without_offset": float(moved)}
    return {"class": class_name, "labels": int(num_labels)} | scores


class SmoothingTracker(Tracker):
    """A tracker that replaces each score by an exponential average over its track; boxes and track ids stay.

    Args:
        num_classes: Number of classes.
        hz: The usual rate of windows.
        smooth_s: Time constant of the average, in seconds.
    """

    def __init__(self, num_classes: int, hz: float, smooth_s: float) -> None:
        super().__init__("bytetrack", num_classes, hz, TRACK_MEMORY_S, SHOWN_SCORE)
        self._smooth_us, self._memory_us = 1e6 * smooth_s, 1e6 * (TRACK_MEMORY_S + 1 / hz)
        self._scores: dict[int, tuple[int, float]] = {}  # by track: time and smoothed score of its last box

    def reset(self) -> None:
        super().reset()
        self._scores = {}

    def update(self, detections: Detections) -> Detections:
        detections = super().update(detections)
        assert detections.track_id is not None
        score = detections.score.copy()
        for row in np.flatnonzero(detections.track_id).tolist():
            before_us, before = self._scores.get(
                track := int(detections.track_id[row]), (detections.t_us, float(score[row]))
            )
            share = math.exp(-(detections.t_us - before_us) / self._smooth_us)
            score[row] = share * before + (1 - share) * score[row]
            self._scores[track] = detections.t_us, float(score[row])
        alive = {track: last for track, last in self._scores.items() if detections.t_us - last[0] <= self._memory_us}
        self._scores = alive
        return replace(detections, score=score)[np.argsort(-score, kind="stable")]


def detected(
    checkpoint: LoadedCheckpoint, recording: LabelledRecording, reduction: int, smooth_s: float = 0.0
) -> ScoredRecording:
    """Return what is found at the label times, except in regions without labels."""
    labels, found = recording.labels, []
    wanted = set(labels.t_us.tolist())
    tracker = None
    if smooth_s:
        tracker = SmoothingTracker(checkpoint.spec.num_classes, recording.settings.hz, smooth_s)
    with closing(open_recording(recording.path, *recording.sensor_hw)) as opened:
        detector = StreamDetector(
            checkpoint,
            *recording.sensor_hw,
            windows=recording.settings,
            grid=recording.windows,
            downsample=reduction,
            config=PostprocessConfig(),
            windows_per_call=WINDOWS_PER_CALL,
            skip="never",
            tracker=tracker,
        )
        for result in detect(opened, detector):
            frame = result.detections
            if frame.t_us in wanted:
                truth = ltwh_to_xyxy(labels.boxes_ltwh[labels.t_us == frame.t_us])
                regions = ltwh_to_xyxy(recording.unsure.get(frame.t_us, np.zeros((0, 4), np.float32)))
                found.append(without_regions(frame, truth, regions))
    return ScoredRecording(recording.name, labels, found)


def without_regions(frame: Detections, truth: np.ndarray, regions: np.ndarray) -> Detections:
    """Return the detections that a label overlaps by at least a half, or of which less than a half lies in a region.

    truth (N, 4) and regions (M, 4) are left, top, right, bottom.
    """
    is_true = (pairwise_iou(frame.xyxy, truth) >= MATCHING).any(axis=1)
    a, b = frame.xyxy[:, None], regions[None]
    inner = np.maximum(np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2]), 0).prod(axis=-1)
    area = (frame.xyxy[:, 2:] - frame.xyxy[:, :2]).prod(axis=-1)
    is_covered = (inner >= COVERED * np.maximum(area, 1e-6)[:, None]).any(axis=1)
    return frame[is_true | ~is_covered]


def count_confident(frames: Iterable[Detections]) -> int:
    """Return the number of boxes of all frames with a score of at least CONFIDENT."""
    return sum(int((frame.score >= CONFIDENT).sum()) for frame in frames)


def watch(checkpoint: LoadedCheckpoint, path: Path, reduction: int, out: Path) -> dict[str, Any]:
    """Return how many confident boxes a recording without labels gets, and write pictures of it to `out`.

    Boxes per second are those of the windows, the last of which can be longer than the recording.
    """
    frames: list[Detections] = []
    usual = usual_sensor(path)
    found = predict_recording(
        checkpoint,
        str(path),
        out,
        DetectionConfig(downsample=reduction, min_score=CONFIDENT),
        PredictConfig(formats=["png"]),
        options=ReadOptions(*usual[1]) if usual else None,
        on_window=lambda result: frames.append(result.detections),
        progress=False,
    )
    seconds, confident = found.num_windows / found.hz, count_confident(frames)
    height, width = found.sensor_hw
    return {
        "reduction": reduction,
        "frame": [found.frame_hw[1], found.frame_hw[0]],
        "is_usual": usual_downsample(checkpoint.spec, height, width) == reduction,
        "seconds": seconds,
        "confident": confident,
        "confident_per_s": confident / seconds,
    }


def switches_per_second(recordings: Iterable[ScoredRecording], class_id: int) -> float | None:
    """Return how often the objects of a class switch between found and missed, per second that they are in view.

    An object is found in a frame if a detection of its class with a score of at least SHOWN_SCORE overlaps its label by
    MATCHING or more. Labels need no tracks: the labels of consecutive times that overlap most belong to one object.
    Return None if no object is labelled twice in a row.
    """
    switches, seconds = 0, 0.0
    for _, labels, detections in recordings:
        mine = labels[labels.class_id == class_id]
        boxes_at = {}
        for frame in detections:
            boxes_at[frame.t_us] = frame.xyxy[(frame.class_id == class_id) & (frame.score >= SHOWN_SCORE)]
        before_us, before, was_found = 0, np.zeros((0, 4)), np.zeros(0, np.bool_)
        for t_us in np.unique(labels.t_us).tolist():
            now = ltwh_to_xyxy(mine.boxes_ltwh[mine.t_us == t_us])
            is_found = (pairwise_iou(now, boxes_at.get(t_us, now[:0])) >= MATCHING).any(axis=1)
            if len(before) and len(now):
                overlap = pairwise_iou(before, now)
                best = overlap.argmax(axis=1)
                rows = np.arange(len(before))
                same = (overlap[rows, best] >= SAME_OBJECT) & (overlap.argmax(axis=0)[best] == rows)
                switches += int(np.count_nonzero(was_found[same] != is_found[best[same]]))
                seconds += np.count_nonzero(same) * (t_us - before_us) / 1e6
            before_us, before, was_found = t_us, now, is_found
    return switches / seconds if seconds else None


def offsets(scored: Sequence[ScoredRecording], num_classes: int) -> np.ndarray:
    """Return the median of (box - label) / side of the box for left, top, right and bottom, (num_classes, 4) float64.

    Labels of one source can be drawn around the trunk and those of another around hands and feet. AP asks for overlaps
    of up to 0.95 and counts such a habit as an error, which a few labels of the source would remove. The offset is
    measured on the labels that are scored, so that AP without it says where errors come from, and is no score of the
    weights. A label is compared with the box of its class and time that overlaps it most, if that is by COMPARED or
    more. A class without such a pair has zeros.
    """
    distances: list[list[np.ndarray]] = [[] for _ in range(num_classes)]
    for recording in scored:
        labels = recording.labels
        for frame in recording.detections:
            for number in np.flatnonzero(labels.t_us == frame.t_us):
                boxes = frame.xyxy[frame.class_id == labels.class_id[number]].astype(np.float64)
                label = ltwh_to_xyxy(labels.boxes_ltwh[number : number + 1]).astype(np.float64)
                overlaps = pairwise_iou(boxes, label)[:, 0]
                if len(boxes) and overlaps.max() >= COMPARED:
                    best = boxes[overlaps.argmax()]
                    distances[labels.class_id[number]].append((best - label[0]) / _sides(best))
    medians = np.zeros((num_classes, 4))
    for class_id, of_class in enumerate(distances):
        if of_class:
            medians[class_id] = np.median(of_class, axis=0)
    return medians


def without_offsets(scored: Sequence[ScoredRecording], offset: np.ndarray) -> list[ScoredRecording]:
    """Return the recordings with every box moved by the offset (num_classes, 4) of its class."""
    moved = []
    for recording in scored:
        frames = []
        for frame in recording.detections:
            xyxy = frame.xyxy - offset[frame.class_id] * _sides(frame.xyxy)
            frames.append(replace(frame, xyxy=xyxy.astype(np.float32)))
        moved.append(ScoredRecording(recording.name, recording.labels, frames))
    return moved


def _sides(xyxy: np.ndarray) -> np.ndarray:
    """Return width, height, width and height of boxes (..., 4)."""
    return np.tile(xyxy[..., 2:] - xyxy[..., :2], 2)
