"""Average precision of the detections of whole recordings, computed by pycocotools."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from rvtssm.boxes import xyxy_to_ltwh
from rvtssm.evaluation.protocol import is_scored, scored_detections
from rvtssm.records import DatasetSpec, Detections, Labels

Only = Callable[[Labels], np.ndarray] | Mapping[str, np.ndarray]
METRICS = ("AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large")


class ScoredRecording(NamedTuple):
    """The labels and detections of one recording; a plain tuple is accepted as well."""

    name: str
    labels: Labels  # pixels of the frame, ordered by time
    detections: Sequence[Detections]  # one per frame


class _BoxEval(COCOeval):
    """COCOeval in which ignored ground truth is not a crowd: it has the usual overlap and matches one detection."""

    def _prepare(self) -> None:
        super()._prepare()  # sets `ignore` from `iscrowd`
        for boxes in self._gts.values():
            for box in boxes:
                box["ignore"] = box["is_ignored"]


def evaluate_detections(
    recordings: Iterable[ScoredRecording | tuple[str, Labels, Sequence[Detections]]],
    spec: DatasetSpec,
    **options: Any,
) -> dict[str, float]:
    """Return {AP, AP50, AP75, AP_small, AP_medium, AP_large, AP/<class>} over all recordings, each in [0, 1].

    `match_detections` explains the options. A number without ground truth is NaN.
    """
    return average_precisions(match_detections(recordings, spec, **options), spec)


def match_detections(
    recordings: Iterable[ScoredRecording | tuple[str, Labels, Sequence[Detections]]],
    spec: DatasetSpec,
    *,
    only: Only | None = None,
    is_filtered: bool = True,
    time_tolerance_us: int = 0,
) -> COCOeval:
    """Match detections with labels at ten thresholds of overlap, over all recordings.

    The images are the label times with at least one box after filtering (`is_filtered`). A detection belongs to every
    image at most `time_tolerance_us` away; with 0, there must be detections exactly at all label times. `only` selects
    the labels to find, as a function from labels to (N,) bool, or as such arrays by recording. The other labels are
    ignored: finding or missing them does not change the score. A recording that occurs twice (samplers repeat
    recordings to pad ranks) counts once.
    """
    images: list[dict[str, int]] = []
    truths: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    by_name = {name: (labels, detections) for name, labels, detections in recordings}
    for name, (labels, detections) in by_name.items():
        is_wanted = np.ones(len(labels), bool)
        if only is not None:
            is_wanted = np.asarray(only[name] if isinstance(only, Mapping) else only(labels), bool)
        if is_filtered:
            is_kept = is_scored(labels.boxes_ltwh, labels.t_us, spec)
            labels, is_wanted = labels[is_kept], is_wanted[is_kept]
            detections = [scored_detections(frame, spec) for frame in detections]
        _check_times(name, labels, detections, time_tolerance_us)
        is_ignored = ~is_wanted
        detections = sorted(detections, key=lambda frame: frame.t_us)
        frame_us = np.array([frame.t_us for frame in detections], np.int64)
        for t_us in np.unique(labels.t_us):
            image = len(images) + 1
            images.append({"id": image, "height": spec.frame_height, "width": spec.frame_width})
            at = slice(*np.searchsorted(labels.t_us, np.array([t_us, t_us + 1])))
            truths += _annotations(image, len(truths), labels.boxes_ltwh[at], labels.class_id[at], is_ignored[at])
            first, last = np.searchsorted(frame_us, np.array([t_us - time_tolerance_us, t_us + time_tolerance_us + 1]))
            for frame in detections[first:last]:
                ltwh = xyxy_to_ltwh(frame.xyxy)
                found += _annotations(image, len(found), ltwh, frame.class_id, np.zeros(len(frame)), frame.score)
    return _matched(images, truths, found, spec)


def _check_times(name: str, labels: Labels, detections: Sequence[Detections], tolerance_us: int) -> None:
    if np.any(np.diff(labels.t_us) < 0):
        raise ValueError(f"{name}: labels must be ordered by time; sort them before scoring")
    if tolerance_us == 0 and len(labels):
        missing = np.setdiff1d(labels.t_us, np.array([frame.t_us for frame in detections], np.int64))
        if len(missing):
            raise ValueError(
                f"{name}: no detections were made at label time {missing[0]} us ({len(missing)} of "
                f"{len(np.unique(labels.t_us))} label times); give one Detections per label time, empty or not, "
                "or set time_tolerance_us"
            )


def _annotations(
    image: int,
    count: int,
    ltwh: np.ndarray,
    class_id: np.ndarray,
    is_ignored: np.ndarray,
    score: np.ndarray | None = None,
) -> list[dict[str, Any]]:
    """Return boxes in the form of pycocotools. Ids start at 1, because 0 means `not matched` there."""
    return [
        {
            "id": count + i + 1,
            "image_id": image,
            "category_id": int(class_id[i]) + 1,
            "bbox": ltwh[i].tolist(),
            "area": float(ltwh[i, 2] * ltwh[i, 3]),
            "iscrowd": 0,
            "is_ignored": bool(is_ignored[i]),
            "score": 1.0 if score is None else float(score[i]),
        }
        for i in range(len(ltwh))
    ]


def average_precisions(matched: COCOeval, spec: DatasetSpec) -> dict[str, float]:
    """Return the numbers of `evaluate_detections`."""
    metrics = dict(zip(METRICS, map(float, matched.stats), strict=False))
    precision = _all_sizes(matched)
    for k, name in enumerate(spec.class_names):
        metrics[f"AP/{name}"] = float(precision[:, :, k].mean())
    return {name: math.nan if value < 0 else value for name, value in metrics.items()}


def precision_curves(matched: COCOeval, spec: DatasetSpec) -> dict[str, np.ndarray]:
    """Return by class the precision (101,) at overlap 0.5 and recall 0, 0.01, ..., 1; NaN without ground truth."""
    precision = _all_sizes(matched)[0]
    return {name: np.where(precision[:, k] < 0, np.nan, precision[:, k]) for k, name in enumerate(spec.class_names)}


def _all_sizes(matched: COCOeval) -> np.ndarray:
    """Return the precision by threshold, recall and class, for boxes of all sizes and the most detections."""
    precision: np.ndarray = matched.eval["precision"][:, :, :, 0, -1]
    return precision


def _matched(
    images: list[dict[str, int]], truths: list[dict[str, Any]], found: list[dict[str, Any]], spec: DatasetSpec
) -> COCOeval:
    categories = [{"id": i + 1, "name": name} for i, name in enumerate(spec.class_names)]
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints its progress
        sides = []
        for annotations in (truths, found):
            side = COCO()
            side.dataset = {"images": images, "annotations": annotations, "categories": categories}
            side.createIndex()
            sides.append(side)
        matched = _BoxEval(*sides, "bbox")
        matched.evaluate()
        matched.accumulate()
        matched.summarize()
    return matched
