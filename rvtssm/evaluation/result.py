"""The result of an evaluation: a record that does not need the model, and its numbers as plain values."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from rvtssm.evaluation.bootstrap import LEVEL, Interval
from rvtssm.evaluation.breakdown import Breakdown, json_number
from rvtssm.evaluation.frequency import REFERENCE_HZ, RateRow, nearest_reference, performance_drop
from rvtssm.evaluation.matches import METRICS
from rvtssm.evaluation.tracking import TRACK_METRICS
from rvtssm.system.user_error import UserError

NO_VALUE = "–"  # shown in place of a number without ground truth


class Picture(NamedTuple):
    """A PNG with a caption."""

    caption: str
    png: bytes


@dataclass(frozen=True)
class EvaluationReport:
    """The complete result of an evaluation."""

    title: str  # which weights on which recordings
    dataset: str
    rows: tuple[RateRow, ...]  # at least one, one per rate, with the kind of windows that is described in detail
    settings: Mapping[str, str]  # everything that influences the numbers: score, thresholds, filters, windows, memory
    reference_hz: float = REFERENCE_HZ  # the performance drop is relative to this rate
    still_objects: Mapping[str, float] = field(default_factory=dict)  # AP by kind of memory, such as carried and reset
    without_memory: Interval | None = None  # AP at `reference_hz` with the state reset at every step
    breakdown: Breakdown | None = None  # breakdown of the AP at the rate `breakdown_hz`
    worst: Sequence[Picture] = ()  # the worst frames of the breakdown
    time_shifts: Mapping[float, float] = field(default_factory=dict)  # AP at `breakdown_hz` by shift in milliseconds
    others: tuple[RateRow, ...] = ()  # rates with the other kind of windows, unless the windows are the same

    def __post_init__(self) -> None:
        if not self.rows:
            raise UserError("evaluation.no_rate", "a report needs at least one rate; name some in evaluation.hz")

    def table(self) -> list[list[str]]:
        """Return one row of cells per rate and kind of windows, starting with the head; AP in percent."""
        return rate_table(self)

    @property
    def by_window(self) -> dict[str, "EvaluationReport"]:
        """A report for each kind of windows, slide or shrink. The one described in detail comes first."""
        own = self.rows[0].windows[0] if self.rows[0].windows else ""
        found = {own: replace(self, others=())}
        for window in dict.fromkeys(row.windows[0] for row in self.others):
            shared = tuple(row for row in self.rows if window in row.windows)
            found[window] = replace(self, rows=(*shared, *self.others), others=())
            if not shared:  # the details belong to the other kind of windows
                found[window] = replace(found[window], still_objects={}, breakdown=None, worst=(), time_shifts={})
        return found

    @property
    def all_rows(self) -> tuple[RateRow, ...]:
        """Every row once, starting with the kind of windows that is described in detail."""
        return (*self.rows, *self.others)

    @property
    def metric_names(self) -> list[str]:
        """The names of all metrics: the common ones first, then one per class."""
        return [*METRICS, *(name for name in self.rows[0].metrics if name not in METRICS)]

    @property
    def breakdown_hz(self) -> float:
        """The rate of the breakdown: the reference rate, or the first rate if the reference was not evaluated."""
        return nearest_reference([row.hz for row in self.rows], self.reference_hz)

    @property
    def performance_drop(self) -> float:
        """AP at the reference rate minus the mean AP at the other rates, in [-1, 1]; NaN with a single rate."""
        return performance_drop({row.hz: row.metrics["AP"] for row in self.rows}, self.reference_hz)

    @property
    def differences(self) -> dict[float, Interval]:
        """AP minus the AP at `breakdown_hz`, with intervals, by rate; empty without intervals."""
        by_hz = {row.hz: row.resampled for row in self.rows if row.resampled}
        reference = by_hz.pop(self.breakdown_hz, None)
        found = {hz: resampled.minus(reference, "AP") for hz, resampled in by_hz.items()} if reference else {}
        return {hz: difference for hz, difference in found.items() if difference}


def to_json(report: EvaluationReport) -> dict[str, Any]:
    """Return plain values for json.dump, as fractions. None means that there was no ground truth."""
    return {
        "title": report.title,
        "dataset": report.dataset,
        "settings": dict(report.settings),
        **_rates_to_json(report),
        "by_window": {window: _rates_to_json(each) for window, each in report.by_window.items()},
        "reference_hz": report.reference_hz,
        "still_objects": {name: json_number(value) for name, value in report.still_objects.items()},
        "time_shifts_ms": {f"{shift:g}": json_number(ap) for shift, ap in report.time_shifts.items()},
        "breakdown": report.breakdown.to_json() if report.breakdown else None,
    }


def _rates_to_json(report: EvaluationReport) -> dict[str, Any]:
    return {
        "rates": {
            f"{row.hz:g}": {name: json_number(value) for name, value in {**row.metrics, **row.extra}.items()}
            for row in report.rows
        },
        "intervals": {
            f"{row.hz:g}": {name: json_interval(found)[1:] for name, found in row.intervals.items()}
            for row in report.rows
            if row.intervals
        },
        "differences": {f"{hz:g}": {"AP": json_interval(found)} for hz, found in report.differences.items()},
        "performance_drop": json_number(report.performance_drop),
    }


def percent(value: float) -> str:
    """Return a fraction as text in percent, or a dash if there was no ground truth."""
    return NO_VALUE if math.isnan(value) else f"{100 * value:.1f}"


def percent_interval(found: Interval) -> str:
    """Return a fraction as text in percent, with its confidence interval if it has one."""
    interval = "" if math.isnan(found.low) else f" [{percent(found.low)}, {percent(found.high)}]"
    return percent(found.value) + interval


def citation(report: EvaluationReport) -> str:
    """Return one line for a paper: the number, its uncertainty, the weights and the program.

    The number is that at the rate of training; without it, the line names the rate of training and the kind of windows.
    """
    row = next(row for row in report.rows if row.hz == report.breakdown_hz)
    found = row.intervals.get("AP")
    number = percent_interval(found) if found else percent(row.metrics["AP"])
    sure = (
        f" ({LEVEL:.0%} bootstrap over {len(row.resampled.recordings)} recordings)" if found and row.resampled else ""
    )
    other = f" (window={window_name(row)}, trained at {report.reference_hz:g} Hz)"
    rate = f"{row.hz:g} Hz{'' if row.hz == report.reference_hz else other}"
    line = f"AP {number}{sure} at {rate} on {report.title}"
    if "made by" in report.settings:
        line += f"; weights SHA-256 {report.settings['weights SHA-256'][:16]}, {report.settings['made by']}"
    return line


def shift_sentence(report: EvaluationReport) -> str:
    """Describe AP with the outputs of other times; empty if that was not measured."""
    if not report.time_shifts:
        return ""
    values = ", ".join(f"{shift:+g} ms {percent(ap)}" for shift, ap in report.time_shifts.items())
    return f"AP at {report.breakdown_hz:g} Hz with the newest output at the label time plus a shift: {values}."


def json_interval(found: Interval) -> list[float | None]:
    """Return value, low and high as plain values. None means that there was no ground truth."""
    return [json_number(value) for value in found]


def rate_table(report: EvaluationReport) -> list[list[str]]:
    """Return one row of cells per rate and kind of windows, starting with the head.

    The kind of windows is only shown if there are two. Intervals and differences are only shown if there are any.
    """
    names, all_rows = report.metric_names, report.all_rows
    head = ["Hz", *(name.removeprefix("AP/") for name in names)]
    rows = [[f"{row.hz:g}", *percents(row.metrics, names)] for row in all_rows]
    if any(row.intervals for row in all_rows):
        head.insert(2, f"{LEVEL:.0%} of AP")
        for row, cells in zip(all_rows, rows, strict=True):
            found = row.intervals.get("AP")
            cells.insert(2, f"{percent(found.low)} to {percent(found.high)}" if found else NO_VALUE)
    if tracked := [name for name in TRACK_METRICS if name in report.rows[0].extra]:
        head += tracked
        for row, cells in zip(all_rows, rows, strict=True):
            cells += percents(row.extra, tracked)
    differences = {window: each.differences for window, each in report.by_window.items()}
    if any(differences.values()):
        head.append(f"AP minus {report.breakdown_hz:g} Hz")
        for row, cells in zip(all_rows, rows, strict=True):
            found = differences[row.windows[0] if row.windows else ""].get(row.hz)
            cells.append(percent_interval(found) if found else NO_VALUE)
    if report.others:
        head.insert(1, "window")
        for row, cells in zip(all_rows, rows, strict=True):
            cells.insert(1, window_name(row))
    return [head, *rows]


def window_name(row: RateRow) -> str:
    """Return slide, shrink or both: the length of a row's windows at rates other than that of training."""
    return "both" if len(row.windows) > 1 else "".join(row.windows)


def drop_sentences(report: EvaluationReport) -> list[str]:
    """Describe how much accuracy other rates cost, for each kind of windows; empty with a single rate."""
    return [
        f"Performance drop{f' with window={window}' if report.others else ''} (AP at {report.reference_hz:g} Hz minus "
        f"the mean of the other rates): {percent(each.performance_drop)} points."
        for window, each in report.by_window.items()
        if not math.isnan(each.performance_drop)
    ]


def percents(values: Mapping[Any, float], keys: Iterable[Any]) -> list[str]:
    """Return `percent` of the values of some keys, with a dash for a missing key."""
    return [percent(values.get(key, math.nan)) for key in keys]


def markdown_table(rows: Sequence[Sequence[str]], first_column: str) -> list[str]:
    """Return the lines of a Markdown table with right-aligned numbers. Bars in cells are escaped.

    Args:
        rows: The cells; the first row is the head.
        first_column: Alignment of the first column, "|---|" or "|--:|".
    """
    head, *body = (f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows)
    return [head, first_column + "--:|" * (len(rows[0]) - 1), *body]
