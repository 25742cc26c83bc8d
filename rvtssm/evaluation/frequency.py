"""Accuracy over inference rates: one row per rate, the performance drop, and published rows for comparison."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it imports torch, without which settings are checked
    from rvtssm.evaluation.coco import Interval, Resampled

MAX_DEVIATION = 0.05  # largest relative deviation of the actual rate from the requested one
REFERENCE_HZ = 20.0  # the rate at which the published models are trained
TRACK_METRICS = ("HOTA", "MOTA", "IDF1")  # of a row whose objects were tracked

# AP in percent at 20 / 40 / 80 / 100 / 200 Hz, trained at 20 Hz: Zubic et al., CVPR 2024, and the papers it cites
PUBLISHED_HZ = (20.0, 40.0, 80.0, 100.0, 200.0)
PUBLISHED: dict[str, dict[str, tuple[float, ...]]] = {
    "gen1": {
        "RVT": (47.16, 35.13, 21.98, 18.61, 8.35),
        "S5-ViT-B": (47.71, 46.44, 45.08, 42.49, 39.84),
        "GET": (47.90, 34.15, 19.97, 15.13, 5.35),
    },
    "onempx": {
        "RVT": (47.40, 42.51, 33.20, 30.29, 18.15),
        "S5-ViT-B": (47.80, 46.49, 46.11, 45.80, 39.70),
        "GET": (48.40, 40.51, 30.30, 28.11, 15.44),
    },
}


@dataclass(frozen=True, slots=True)
class RateRow:
    """The measurements at one inference rate."""

    hz: float  # rate of the steps that were run
    metrics: Mapping[str, float]  # from evaluate_detections, each in [0, 1]
    extra: Mapping[str, float] = field(default_factory=dict)  # further numbers, such as milliseconds per step
    resampled: "Resampled | None" = None
    windows: tuple[str, ...] = ()  # kinds of windows, see `PlannedRate`

    @property
    def window(self) -> str:
        """The kind of windows; the first one if the windows of two kinds are the same."""
        return next(iter(self.windows), "")

    @property
    def intervals(self) -> "dict[str, Interval]":
        """The metrics with their confidence intervals, by name; empty if there are none."""
        if self.resampled is None or not self.resampled.has_intervals:
            return {}
        return {name: self.resampled.interval(name) for name in self.metrics}


def is_same_rate(hz: float, other_hz: float) -> bool:
    """Return whether two rates are equal up to rounding: 30 Hz is 33333.3 us, which may be stored as 33333."""
    return math.isclose(hz, other_hz, rel_tol=1e-3)


def true_rate(asked_hz: float, step_us: float) -> float:
    """Return the rate of steps of `step_us`, to four digits; `asked_hz` itself if both are equal up to rounding."""
    if is_same_rate(1e6 / step_us, asked_hz):
        return asked_hz
    return float(f"{1e6 / step_us:.4g}")


def is_reached(asked_hz: float, hz: float) -> bool:
    """Return whether steps at the rate `hz` are close enough to report them as `asked_hz`."""
    return abs(hz / asked_hz - 1) <= MAX_DEVIATION


def nearest_reference(rates_hz: Sequence[float], reference_hz: float) -> float:
    """Return the rate that a report describes in detail: the reference rate if available, otherwise the first rate."""
    return next((hz for hz in rates_hz if is_same_rate(hz, reference_hz)), rates_hz[0])


def performance_drop(value_by_hz: Mapping[float, float], reference_hz: float = REFERENCE_HZ) -> float:
    """Return the value at the reference rate minus the mean over all other rates, in the unit of the values.

    Args:
        value_by_hz: The values by rate.
        reference_hz: The reference rate.

    Returns:
        NaN if the reference rate or every other rate is missing.
    """
    reference = [value for hz, value in value_by_hz.items() if is_same_rate(hz, reference_hz)]
    others = [value for hz, value in value_by_hz.items() if not is_same_rate(hz, reference_hz)]
    if not reference or not others:
        return math.nan
    return reference[0] - sum(others) / len(others)


def published_rows(dataset: str) -> dict[str, dict[float, float]]:
    """Return the published AP by model and rate, in [0, 1]; empty for a dataset without published numbers."""
    rows = {}
    for model, percents in PUBLISHED.get(dataset, {}).items():
        rows[model] = {hz: percent / 100 for hz, percent in zip(PUBLISHED_HZ, percents, strict=True)}
    return rows
