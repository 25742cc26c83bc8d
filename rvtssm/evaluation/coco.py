"""Average precision by the rules of COCO (Lin et al., 2014), to the last digit as in pycocotools.

The detections of each recording are matched with its labels (`matching.py`). Precision is then averaged over all
recordings together.

Confidence intervals say how much average precision would vary with other recordings of the same kind. Whole recordings
are drawn with replacement, because frames of one recording resemble each other (Efron and Tibshirani, 1993). Replicates
weight recordings without matching again.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rvtssm.evaluation.matching import (
    OVERLAPS,
    SIZES,
    Bools,
    Ints,
    RecordingMatches,
    ScoredRecording,
    match_detections,
)
from rvtssm.records import DatasetSpec, Detections, Labels

Precision = npt.NDArray[np.float64]

RECALLS = np.linspace(0, 1, 101)
AP_OF_SIZES = tuple(f"AP_{size}" for size in SIZES[1:])
METRICS = ("AP", "AP50", "AP75", *AP_OF_SIZES)
MOST_CELLS = 4_000_000  # size of an array over the weightings that are accumulated together, 32 MB
LEVEL = 0.95
TRUSTED_RECORDINGS = 20  # with fewer, intervals are too narrow; measured in benchmarks.coverage


def evaluate_detections(
    recordings: Iterable[ScoredRecording | tuple[str, Labels, Sequence[Detections]]], spec: DatasetSpec, **options: Any
) -> dict[str, float]:
    """Return the average precision over all recordings.

    >>> boxes, ids = np.array([[10, 20, 30, 40]], np.float32), np.zeros(1, np.int64)
    >>> labels = rvtssm.Labels(boxes, class_id=ids, t_us=ids + 1_000_000, window_index=ids, still_us=ids - 1)
    >>> found = rvtssm.Detections(boxes + np.float32([0, 0, 10, 20]), np.ones(1, np.float32), ids, t_us=1_000_000)
    >>> spec = rvtssm.load("street-tiny").checkpoint.spec
    >>> scores = rvtssm.average_precision([("drive", labels, [found])], spec)
    >>> round(scores["AP"], 2), round(scores["AP50"], 2)
    (1.0, 1.0)

    Args:
        recordings: Labels and detections.
        spec: The dataset.
        options: Options of `match_detections`.

    Returns:
        The numbers of `average_precisions`.
    """
    return average_precisions(match_detections(recordings, spec, **options), spec)


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
    metrics = {}
    for name, (value,) in weighted_precisions(matches, spec, weights).items():
        metrics[name] = math.nan if np.isnan(value) else float(value)  # always the same NaN, so that results are equal
    return metrics


def weighted_precisions(
    matches: Sequence[RecordingMatches], spec: DatasetSpec, weights: Ints
) -> dict[str, npt.NDArray[np.float64]]:
    """Return the numbers of `average_precisions` for each of B weightings.

    Args:
        matches: The matches of R recordings.
        spec: The dataset.
        weights: (B, R), how many times each recording counts. Copies of a detection come one after the other.

    Returns:
        Arrays (B,) by name.
    """
    columns: dict[str, list[float]] = {}
    for precision in _precisions(matches, spec.num_classes, weights):
        for name, value in _metrics(precision, spec).items():
            columns.setdefault(name, []).append(value)
    return {name: np.array(values) for name, values in columns.items()}


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
    of_all = precision[..., 0]  # (T, 101, K), objects of all sizes
    metrics = {"AP": _mean(of_all), "AP50": _mean(of_all[:1]), "AP75": _mean(of_all[5:6])}
    for size in range(1, precision.shape[-1]):
        metrics[AP_OF_SIZES[size - 1]] = _mean(precision[..., size])
    for k, name in enumerate(spec.class_names):
        metrics[f"AP/{name}"] = float(precision[:, :, k, 0].mean())
    return metrics


def _mean(values: Precision) -> float:
    """Return the mean over the classes that have ground truth."""
    known = values[~np.isnan(values)]
    if not len(known):
        return math.nan
    return float(known.mean())


def _precisions(matches: Sequence[RecordingMatches], num_classes: int, weights: Ints) -> Iterator[Precision]:
    """Yield the precision (T, 101, K, S) of each weighting; NaN for a class or size without ground truth."""
    if not matches:
        yield from np.full((len(weights), len(OVERLAPS), len(RECALLS), num_classes, len(SIZES)), np.nan)
        return

    def joined(field: str) -> Any:
        return np.concatenate([getattr(match, field) for match in matches], axis=-1)

    # The detections (N,) of all recordings one after the other.
    recording = np.repeat(np.arange(len(matches)), [len(match.score) for match in matches])
    num_truths = np.stack([match.num_truths for match in matches])  # (R, S, K)
    num_sizes = num_truths.shape[1]
    score = joined("score")
    class_id = joined("class_id")
    is_hit = joined("is_hit")
    is_counted = ~joined("is_ignored")
    # Per class, detections from the best score down; equal scores keep their order, as in pycocotools.
    best_first = []
    for k in range(num_classes):
        of_class = np.flatnonzero(class_id == k)
        best_first.append(of_class[np.argsort(-score[of_class], kind="mergesort")])
    # As many weightings at once as memory is meant for.
    table_cells = len(OVERLAPS) * len(RECALLS) * num_classes * num_sizes
    at_once = max(1, MOST_CELLS // max(table_cells, int(is_hit.sum(axis=-1).max())))
    for first in range(0, len(weights), at_once):
        some = weights[first : first + at_once]
        precision = np.full((len(some), len(OVERLAPS), len(RECALLS), num_classes, num_sizes), np.nan)
        for k, size in np.ndindex(num_classes, num_sizes):
            order = best_first[k]
            totals = some @ num_truths[:, size, k]
            if not num_truths[:, size, k].any():
                continue
            curves = _curves(is_hit[size][:, order], is_counted[size][:, order], some, recording[order], totals)
            for overlap, curve in enumerate(curves):
                precision[totals > 0, overlap, :, k, size] = curve[totals > 0]
        yield from precision


def _curves(is_hit: Bools, is_counted: Bools, weights: Ints, recording: Ints, totals: Ints) -> Iterator[Precision]:
    """Yield, for each overlap, the precision (B, 101) of detections in order of their scores.

    Precision at a recall is the best of all points at or above that recall. Between two hits precision only falls, so
    it is enough to look at hits.
    """
    # (B, 101) hits that reach each recall; rows are offset so that one search serves all of them.
    needed = _hits_for_recalls(totals)
    rows = np.arange(len(weights))[:, None]
    above = rows * (int(totals.max()) + 2)
    whole = weights.astype(np.float64)  # whole numbers, so that the products are exact
    for overlap in range(len(is_hit)):
        # Hits (B, N) so far over detections so far, at every hit.
        counted = recording[is_counted[overlap]]
        at = np.flatnonzero(is_hit[overlap][is_counted[overlap]])
        num_hits = whole @ _counts_until(np.arange(len(at)), counted[at], weights.shape[1])
        precision = num_hits / (whole @ _counts_until(at, counted, weights.shape[1]) + np.spacing(1))
        best = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
        best = np.concatenate([best, np.zeros((len(weights), 1))], axis=1)  # recalls that are not reached
        # One search for all rows, which are offset so that each lies above the previous one.
        place = np.searchsorted((num_hits + above).ravel(), (needed + above).ravel()).reshape(needed.shape)
        yield np.take_along_axis(best, place - rows * len(at), axis=1)


def _counts_until(at: Ints, recording: Ints, num_recordings: int) -> Ints:
    """Return how many detections of each recording there are up to and with each of the places `at`, (R, len(at))."""
    following = np.searchsorted(at, np.arange(len(recording)))  # the next of these places
    counts = np.bincount(recording * (len(at) + 1) + following, minlength=num_recordings * (len(at) + 1))
    return counts.reshape(num_recordings, -1)[:, :-1].cumsum(axis=1)


def _hits_for_recalls(totals: Ints) -> Ints:
    """Return the smallest numbers of hits (B, 101) whose share of the totals (B,) reaches each of RECALLS."""
    whole = np.maximum(totals, 1)[:, None]
    hits = np.maximum(np.ceil(RECALLS * whole) - 1, 0)
    for _ in range(2):  # the product may have been rounded; the quotient decides, as in pycocotools
        hits += hits / whole < RECALLS
    return hits.astype(np.int64)


class Interval(NamedTuple):
    """A number with its confidence interval at LEVEL. The limits are NaN if there are too few recordings."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Resampled:
    """The numbers of an evaluation and of its bootstrap replicates.

    Two of these can be compared replicate by replicate if they have the same recordings, replicates and seed.
    """

    recordings: tuple[str, ...]  # the recordings that replicates draw from
    metrics: Mapping[str, float]
    replicates: Mapping[str, npt.NDArray[np.float64]]  # (B,) by name
    num_objects: tuple[int, ...] = ()  # of each recording; empty if unknown

    @property
    def has_intervals(self) -> bool:
        return len(self.recordings) > 1 and all(map(len, self.replicates.values()))

    def interval(self, name: str) -> Interval:
        """Return a number with its confidence interval."""
        return _interval(self.metrics[name], self.replicates[name])

    def minus(self, other: "Resampled", name: str) -> Interval | None:
        """Return the difference between a number here and in another evaluation, with its confidence interval.

        In each replicate both numbers come from the same recordings, so that what is hard for both cancels out.

        Args:
            other: The other evaluation.
            name: The number, such as AP.

        Returns:
            None if the two cannot be compared.
        """
        # Only evaluations of the same recordings and draws are paired.
        ours = self.replicates[name]
        theirs = other.replicates[name]
        if self.recordings != other.recordings or len(ours) != len(theirs) or not self.has_intervals:
            return None
        if self.num_objects and other.num_objects and self.num_objects != other.num_objects:
            return None  # other recordings with the same names
        return _interval(self.metrics[name] - other.metrics[name], ours - theirs)

    def sentence(self) -> str:
        """Describe for a report where the intervals come from, and whether they can be trusted."""
        if not self.has_intervals:
            return "none: they need evaluation.bootstrap above 0 and at least two recordings"
        few = len(self.recordings) < TRUSTED_RECORDINGS
        return (
            f"{LEVEL:.0%}, from {len(next(iter(self.replicates.values())))} replicates in which the "
            f"{len(self.recordings)} recordings are drawn with replacement; differences are paired; trusted from "
            f"{TRUSTED_RECORDINGS} recordings on" + (", so these are too narrow" if few else "")
        )


def resample(matches: Sequence[RecordingMatches], spec: DatasetSpec, num_replicates: int, seed: int = 0) -> Resampled:
    """Return the numbers of an evaluation with bootstrap replicates.

    Args:
        matches: The matches of each recording.
        spec: The dataset.
        num_replicates: Number of replicates, may be 0.
        seed: Seed of the draws.
    """
    names = tuple(match.name for match in matches)
    metrics = average_precisions(matches, spec)
    num_objects = tuple(int(match.num_truths[0].sum()) for match in matches)
    if len(matches) < 2 or not num_replicates:
        return Resampled(names, metrics, dict.fromkeys(metrics, np.zeros(0)), num_objects)
    # (B, R): how many times each replicate takes each recording.
    drawn = np.random.default_rng(seed).multinomial(len(matches), [1 / len(matches)] * len(matches), num_replicates)
    return Resampled(names, metrics, weighted_precisions(matches, spec, drawn), num_objects)


def _interval(value: float, replicates: npt.NDArray[np.float64]) -> Interval:
    known = replicates[~np.isnan(replicates)]
    if not len(known):
        return Interval(value, np.nan, np.nan)
    low, high = np.percentile(known, (50 * (1 - LEVEL), 50 * (1 + LEVEL)))
    return Interval(value, float(low), float(high))
