"""Average precision of the detections of whole recordings, matched with their labels by pycocotools."""

import contextlib
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from rvtssm.boxes import xyxy_to_ltwh
from rvtssm.evaluation.matches import SIZES, RecordingMatches, average_precisions
from rvtssm.evaluation.protocol import is_scored, scored_detections
from rvtssm.records import DatasetSpec, Detections, Labels
from rvtssm.system.user_error import UserError

Only = Callable[[Labels], np.ndarray] | Mapping[str, np.ndarray]


class ScoredRecording(NamedTuple):
    """The labels and detections of one recording. A plain tuple is accepted as well."""

    name: str
    labels: Labels  # in frame pixels, ordered by time
    detections: Sequence[Detections]  # one per frame


class _BoxEval(COCOeval):
    """COCOeval, but ignored ground truth is not a crowd: it has the usual overlap and matches one detection."""

    def _prepare(self) -> None:
        super()._prepare()  # sets `ignore` from `iscrowd`
        for boxes in self._gts.values():
            for box in boxes:
                box["ignore"] = box["is_ignored"]


def evaluate_detections(
    recordings: Iterable[ScoredRecording | tuple[str, Labels, Sequence[Detections]]], spec: DatasetSpec, **options: Any
) -> dict[str, float]:
    """Return the average precision over all recordings.

    Args:
        recordings: Labels and detections.
        spec: The dataset.
        options: Options of `match_detections`.

    Returns:
        The numbers of `average_precisions`.
    """
    return average_precisions(match_detections(recordings, spec, **options), spec)


def match_detections(
    recordings: Iterable[ScoredRecording | tuple[str, Labels, Sequence[Detections]]],
    spec: DatasetSpec,
    *,
    only: Only | None = None,
    is_filtered: bool = True,
    time_tolerance_us: int = 0,
    has_sizes: bool = True,
) -> list[RecordingMatches]:
    """Match the detections of each recording with its labels at ten overlap thresholds.

    The images are the label times with at least one box after filtering. A recording that occurs twice (samplers repeat
    recordings to fill up processes) counts once. A recording without an image is left out.

    Args:
        recordings: Labels and detections.
        spec: The dataset.
        only: The labels to find, as a function from labels to (N,) bool, or as such arrays by recording. Other labels
            are ignored: finding or missing them does not change the score.
        is_filtered: Apply the rules of `rvtssm.evaluation.protocol` to labels and detections.
        time_tolerance_us: A detection belongs to every image at most this far away. With 0, there must be detections at
            exactly all label times.
        has_sizes: Also match small, medium and large objects, each for themselves, which takes four times as long.

    Raises:
        UserError: Labels are not ordered by time, or a label time has no detections.
    """
    found = []
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
        if len(labels):
            sizes = SIZES if has_sizes else SIZES[:1]
            found.append(_matched(name, labels, ~is_wanted, detections, time_tolerance_us, spec, sizes))
    return found


def _check_times(name: str, labels: Labels, detections: Sequence[Detections], tolerance_us: int) -> None:
    if np.any(np.diff(labels.t_us) < 0):
        raise UserError(f"{name}: labels must be ordered by time; sort them before scoring")
    if tolerance_us == 0 and len(labels):
        missing = np.setdiff1d(labels.t_us, np.array([frame.t_us for frame in detections], np.int64))
        if len(missing):
            raise UserError(
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
    """Return boxes in the format of pycocotools. Ids start at 1, because 0 means `not matched` there."""
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


def _matched(
    name: str,
    labels: Labels,
    is_ignored: np.ndarray,
    detections: Sequence[Detections],
    tolerance_us: int,
    spec: DatasetSpec,
    sizes: Sequence[str],
) -> RecordingMatches:
    images: list[dict[str, int]] = []
    truths: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    detections = sorted(detections, key=lambda frame: frame.t_us)
    frame_us = np.array([frame.t_us for frame in detections], np.int64)
    for image, t_us in enumerate(np.unique(labels.t_us), start=1):
        images.append({"id": image, "height": spec.frame_height, "width": spec.frame_width})
        at = slice(*np.searchsorted(labels.t_us, np.array([t_us, t_us + 1])))
        truths += _annotations(image, len(truths), labels.boxes_ltwh[at], labels.class_id[at], is_ignored[at])
        first, last = np.searchsorted(frame_us, np.array([t_us - tolerance_us, t_us + tolerance_us + 1]))
        for frame in detections[first:last]:
            ltwh = xyxy_to_ltwh(frame.xyxy)
            found += _annotations(image, len(found), ltwh, frame.class_id, np.zeros(len(frame)), frame.score)
    categories = [{"id": i + 1, "name": name} for i, name in enumerate(spec.class_names)]
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints its progress
        sides = []
        for annotations in (truths, found):
            side = COCO()
            side.dataset = {"images": images, "annotations": annotations, "categories": categories}
            side.createIndex()
            sides.append(side)
        matched = _BoxEval(*sides, "bbox")
        matched.params.areaRng = matched.params.areaRng[: len(sizes)]  # in the order of SIZES
        matched.evaluate()
    # By class, size and image; None if the image has neither objects nor detections of the class.
    rows = np.array(matched.evalImgs, object).reshape(spec.num_classes, len(sizes), len(images))
    num_truths = np.zeros((len(sizes), spec.num_classes), np.int64)
    for k, size, image in np.ndindex(rows.shape):
        if rows[k, size, image]:
            num_truths[size, k] += np.count_nonzero(rows[k, size, image]["gtIgnore"] == 0)
    scores = [[row["dtScores"] for row in rows[k, 0] if row] for k in range(spec.num_classes)]
    return RecordingMatches(
        name,
        score=np.array([score for images in scores for image in images for score in image], np.float64),
        class_id=np.repeat(np.arange(spec.num_classes), [sum(map(len, images)) for images in scores]),
        is_hit=_by_size(rows, "dtMatches"),
        is_ignored=_by_size(rows, "dtIgnore"),
        num_truths=num_truths,
    )


def _by_size(rows: np.ndarray, key: str) -> np.ndarray:
    """Return the values under a key of pycocotools for the detections of all classes and images, (S, T, D) bool."""
    return np.stack(
        [np.concatenate([row[key] for row in rows[:, size].flat if row], axis=1) for size in range(rows.shape[1])]
    ).astype(bool)
