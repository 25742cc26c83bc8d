"""What an evaluation found: a record without the model, and its numbers as plain values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rvtssm.evaluation.breakdown import Breakdown
from rvtssm.evaluation.coco import METRICS
from rvtssm.evaluation.frequency import REFERENCE_HZ, RateRow, drop_of_rows, nearest_reference

NO_VALUE = "–"  # a number without ground truth


@dataclass(frozen=True)
class EvaluationReport:
    """Everything an evaluation has to say; nothing in it needs the model any more."""

    title: str  # which weights on which recordings
    dataset: str
    rows: tuple[RateRow, ...]  # by rate, at least one
    settings: Mapping[str, str]  # what decides the numbers: score, thresholds, rules of filtering, windows, memory
    reference_hz: float = REFERENCE_HZ  # the rate the drop is counted from
    still_objects: Mapping[str, float] = field(default_factory=dict)  # AP by memory, such as carried and reset
    breakdown: Breakdown | None = None  # at the reference rate, or at the first one

    def __post_init__(self) -> None:
        if not self.rows:
            raise ValueError("a report needs at least one rate; name some in evaluation.frequencies_hz")

    @property
    def metric_names(self) -> list[str]:
        """The common names first, then one per class."""
        return [*METRICS, *(name for name in self.rows[0].metrics if name not in METRICS)]

    @property
    def breakdown_hz(self) -> float:
        """The rate that the breakdown is of."""
        return nearest_reference([row.hz for row in self.rows], self.reference_hz)

    @property
    def performance_drop(self) -> float:
        """AP at the reference rate minus the mean AP at the other rates, in [-1, 1]; NaN with a single rate."""
        return drop_of_rows(self.rows, "AP", self.reference_hz)


def to_json(report: EvaluationReport) -> dict[str, Any]:
    """Plain values for json.dump: fractions, None where there was no ground truth."""
    return {
        "title": report.title,
        "dataset": report.dataset,
        "settings": dict(report.settings),
        "rates": {
            f"{row.hz:g}": {name: _json_number(value) for name, value in {**row.metrics, **row.extra}.items()}
            for row in report.rows
        },
        "reference_hz": report.reference_hz,
        "performance_drop": _json_number(report.performance_drop),
        "still_objects": {name: _json_number(value) for name, value in report.still_objects.items()},
        "breakdown": report.breakdown.to_json() if report.breakdown else None,
    }


def percent(value: float) -> str:
    """A fraction as a person reads it, a dash where there was no ground truth."""
    return NO_VALUE if math.isnan(value) else f"{100 * value:.1f}"


def _json_number(value: float) -> float | None:
    return None if math.isnan(value) else value
