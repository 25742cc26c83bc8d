"""Confidence intervals of average precision: how much it would vary with other recordings of the same kind.

Whole recordings are drawn with replacement, because frames of one recording resemble each other (Efron and Tibshirani,
1993).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rvtssm.evaluation.coco import average_precisions, weighted_precisions
from rvtssm.evaluation.matching import RecordingMatches
from rvtssm.records import DatasetSpec

LEVEL = 0.95
TRUSTED_RECORDINGS = 20  # with fewer, intervals are too narrow; measured in benchmarks.coverage


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
        return len(self.recordings) > 1 and all(len(values) for values in self.replicates.values())

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
        ours, theirs = self.replicates[name], other.replicates[name]
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
    names, metrics = tuple(match.name for match in matches), average_precisions(matches, spec)
    num_objects = tuple(int(match.num_truths[0].sum()) for match in matches)
    if len(matches) < 2 or not num_replicates:
        return Resampled(names, metrics, dict.fromkeys(metrics, np.zeros(0)), num_objects)
    drawn = np.random.default_rng(seed).multinomial(len(matches), [1 / len(matches)] * len(matches), num_replicates)
    return Resampled(names, metrics, weighted_precisions(matches, spec, drawn), num_objects)


def _interval(value: float, replicates: npt.NDArray[np.float64]) -> Interval:
    known = replicates[~np.isnan(replicates)]
    if not len(known):
        return Interval(value, np.nan, np.nan)
    low, high = np.percentile(known, (50 * (1 - LEVEL), 50 * (1 + LEVEL)))
    return Interval(value, float(low), float(high))
