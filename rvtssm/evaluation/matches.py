"""Average precision from matches that are kept per recording, so that recordings can be weighted.

Precision is accumulated by the rules of pycocotools, and the numbers agree with it to the last digit.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rvtssm.records import DatasetSpec

OVERLAPS = np.linspace(0.5, 0.95, 10)  # smallest overlaps of a match
RECALLS = np.linspace(0, 1, 101)
SIZES = ("all", "small", "medium", "large")  # sizes of the objects that count
METRICS = ("AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large")
MOST_CELLS = 4_000_000  # size of an array over the weightings that are accumulated together, 32 MB

Precision = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RecordingMatches:
    """The matches of one recording's detections, ordered by class, frame and score.

    Letters: D detections, S of SIZES (all of them, or only the first), T of OVERLAPS, K classes.
    """

    name: str
    score: npt.NDArray[np.float64]  # (D,)
    class_id: npt.NDArray[np.int64]  # (D,)
    is_hit: npt.NDArray[np.bool_]  # (S, T, D) the detection matches an object
    is_ignored: npt.NDArray[np.bool_]  # (S, T, D) the detection counts as neither right nor wrong
    num_truths: npt.NDArray[np.int64]  # (S, K) number of objects that count


def average_precisions(matches: Sequence[RecordingMatches], spec: DatasetSpec) -> dict[str, float]:
    """Return the average precision over all recordings.

    Args:
        matches: The matches of each recording.
        spec: The dataset.

    Returns:
        {AP, AP50, AP75, AP_small, AP_medium, AP_large, AP/<class>}, each in [0, 1], NaN without ground truth. Matches
        without sizes have no AP_small, AP_medium and AP_large.
    """
    weights = np.ones((1, len(matches)), np.int64)
    values = {name: float(found[0]) for name, found in weighted_precisions(matches, spec, weights).items()}
    # always the same NaN object, so that results compare equal
    return {name: math.nan if math.isnan(value) else value for name, value in values.items()}


def weighted_precisions(
    matches: Sequence[RecordingMatches], spec: DatasetSpec, weights: npt.NDArray[np.int64]
) -> dict[str, npt.NDArray[np.float64]]:
    """Return the numbers of `average_precisions` for each of B weightings.

    Args:
        matches: The matches of R recordings.
        spec: The dataset.
        weights: (B, R), how many times each recording counts. Copies of a detection come one after the other.

    Returns:
        Arrays (B,) by name.
    """
    rows = [_metrics(precision, spec) for precision in _precisions(matches, spec.num_classes, weights)]
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def precision_curves(matches: Sequence[RecordingMatches], spec: DatasetSpec) -> dict[str, Precision]:
    """Return the precision at overlap 0.5 and recall 0, 0.01, ..., 1.

    Args:
        matches: The matches of each recording.
        spec: The dataset.

    Returns:
        Arrays (101,) by class, NaN without ground truth.
    """
    (precision,) = _precisions(matches, spec.num_classes, np.ones((1, len(matches)), np.int64))
    return {name: precision[0, :, k, 0] for k, name in enumerate(spec.class_names)}


def _metrics(precision: Precision, spec: DatasetSpec) -> dict[str, float]:
    """Return all numbers of one table of precisions (T, 101, K, S)."""
    parts = [precision[..., 0], precision[:1, :, :, 0], precision[5:6, :, :, 0]]
    parts += [precision[..., size] for size in range(1, precision.shape[-1])]
    found = dict(zip(METRICS, map(_mean, parts), strict=False))
    return found | {f"AP/{name}": float(precision[:, :, k, 0].mean()) for k, name in enumerate(spec.class_names)}


def _mean(values: Precision) -> float:
    """Return the mean over the classes that have ground truth."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def _precisions(
    matches: Sequence[RecordingMatches], num_classes: int, weights: npt.NDArray[np.int64]
) -> Iterator[Precision]:
    """Yield the precision (T, 101, K, S) of each weighting; NaN for a class or size without ground truth."""
    recording = np.repeat(np.arange(len(matches)), [len(each.score) for each in matches])
    num_sizes = len(matches[0].num_truths) if matches else len(SIZES)
    num_truths = np.array([each.num_truths for each in matches]).reshape(len(matches), num_sizes, num_classes)
    score, class_id, is_hit, is_ignored = (
        np.concatenate([getattr(each, name) for each in matches], axis=-1) if matches else np.zeros(shape)
        for name, shape in (("score", 0), ("class_id", 0), ("is_hit", (4, 10, 0)), ("is_ignored", (4, 10, 0)))
    )
    of_class = []
    for k in range(num_classes):
        chosen = np.flatnonzero(class_id == k)
        of_class.append(chosen[np.argsort(-score[chosen], kind="mergesort")])
    table_cells = len(OVERLAPS) * len(RECALLS) * num_classes * num_sizes
    at_once = max(1, MOST_CELLS // max(table_cells, int(is_hit.sum(axis=-1).max())))
    for first in range(0, len(weights), at_once):
        some = weights[first : first + at_once]
        found = np.full((len(some), len(OVERLAPS), len(RECALLS), num_classes, num_sizes), np.nan)
        for k, order in enumerate(of_class):
            for size in range(num_sizes):
                if not num_truths[:, size, k].any():
                    continue
                totals = some @ num_truths[:, size, k]
                hits, ignored = is_hit[size][:, order].astype(bool), is_ignored[size][:, order].astype(bool)
                curves = _curves(hits, ~ignored, some, recording[order], totals)
                for overlap, curve in enumerate(curves):
                    found[totals > 0, overlap, :, k, size] = curve[totals > 0]
        yield from found


def _curves(
    is_hit: npt.NDArray[np.bool_],
    is_counted: npt.NDArray[np.bool_],
    weights: npt.NDArray[np.int64],
    recording: npt.NDArray[np.int64],
    totals: npt.NDArray[np.int64],
) -> Iterator[Precision]:
    """Yield, for each overlap, the precision (B, 101) of detections in order of their scores.

    Precision at a recall is the best of all points at or above that recall. Between two hits precision only falls, so
    it is enough to look at hits.
    """
    needed = _hits_for_recalls(totals)
    rows = np.arange(len(weights))[:, None]
    above = rows * (int(totals.max()) + 2)
    whole = weights.astype(np.float64)  # whole numbers, so that the products are exact
    for overlap in range(len(is_hit)):
        counted = recording[is_counted[overlap]]
        at = np.flatnonzero(is_hit[overlap][is_counted[overlap]])
        num_hits = whole @ _counts_until(np.arange(len(at)), counted[at], weights.shape[1])
        precision = num_hits / (whole @ _counts_until(at, counted, weights.shape[1]) + np.spacing(1))
        best = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
        best = np.concatenate([best, np.zeros((len(weights), 1))], axis=1)  # recalls that are not reached
        # One search for all rows, which are offset so that each lies above the previous one.
        place = np.searchsorted((num_hits + above).ravel(), (needed + above).ravel()).reshape(needed.shape)
        yield np.take_along_axis(best, place - rows * len(at), axis=1)


def _counts_until(
    at: npt.NDArray[np.int64], recording: npt.NDArray[np.int64], num_recordings: int
) -> npt.NDArray[np.int64]:
    """Return how many detections of each recording there are up to and with each of the places `at`, (R, len(at))."""
    following = np.searchsorted(at, np.arange(len(recording)))  # the next of these places
    counts = np.bincount(recording * (len(at) + 1) + following, minlength=num_recordings * (len(at) + 1))
    return counts.reshape(num_recordings, -1)[:, :-1].cumsum(axis=1)


def _hits_for_recalls(totals: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the smallest numbers of hits (B, 101) whose share of the totals (B,) reaches each of RECALLS."""
    whole = np.maximum(totals, 1)[:, None]
    hits = np.maximum(np.ceil(RECALLS * whole) - 1, 0)
    for _ in range(2):  # the product may have been rounded; the quotient decides, as in pycocotools
        hits += hits / whole < RECALLS
    return hits.astype(np.int64)
