"""The result of an evaluation: a record that does not need the model, and its numbers as plain values."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from rvtssm.evaluation.breakdown import Breakdown, to_plain
from rvtssm.evaluation.coco import LEVEL, METRICS, Interval
from rvtssm.evaluation.frequency import REFERENCE_HZ, TRACK_METRICS, RateRow, nearest_reference, performance_drop

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NO_VALUE = "–"  # shown in place of a number without ground truth


class Picture(NamedTuple):
    """A PNG with a caption."""

    caption: str
    png: bytes


@dataclass(frozen=True)
class EvaluationReport:
    """The complete result of an evaluation.

    `table` gives text to print, and `plot` a figure.
    """

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

    def table(self) -> list[list[str]]:
        """Return one row of cells per rate and kind of windows, starting with the head; AP in percent."""
        return rate_table(self)

    def plot(self) -> "Figure":
        """Return a matplotlib figure: AP over the rate with intervals, a line per kind of windows if there are two."""
        from rvtssm.evaluation import plots  # which needs the rows of this file's reports
        from rvtssm.evaluation.frequency import published_rows

        if not self.others:
            return plots.rates_figure(self.title, self.dataset, self.rows)
        rows = {f"window={window}": report.rows for window, report in self.by_window.items()}
        published = {f"{model}, published": ap_by_hz for model, ap_by_hz in published_rows(self.dataset).items()}
        return plots.comparison_figure(rows, published)

    @property
    def by_window(self) -> dict[str, "EvaluationReport"]:
        """A report for each kind of windows, slide or shrink. The one described in detail comes first."""
        reports = {self.rows[0].window: replace(self, others=())}
        for other in self.others:
            window = other.window
            if window in reports:
                continue
            shared = tuple(row for row in self.rows if window in row.windows)
            reports[window] = replace(self, rows=(*shared, *self.others), others=())
            if not shared:  # the details belong to the other kind of windows
                reports[window] = replace(reports[window], still_objects={}, breakdown=None, worst=(), time_shifts={})
        return reports

    @property
    def all_rows(self) -> tuple[RateRow, ...]:
        """Every row once, starting with the kind of windows that is described in detail."""
        return (*self.rows, *self.others)

    @property
    def metric_names(self) -> list[str]:
        """The names of all metrics: the common ones first, then one per class."""
        return list(dict.fromkeys([*METRICS, *self.rows[0].metrics]))

    @property
    def breakdown_hz(self) -> float:
        """The rate of the breakdown: the reference rate, or the first rate if the reference was not evaluated."""
        return nearest_reference([row.hz for row in self.rows], self.reference_hz)

    @property
    def breakdown_row(self) -> RateRow:
        """The row of the rate `breakdown_hz`."""
        return next(row for row in self.rows if row.hz == self.breakdown_hz)

    @property
    def performance_drop(self) -> float:
        """AP at the reference rate minus the mean AP at the other rates, in [-1, 1]; NaN with a single rate."""
        return performance_drop({row.hz: row.metrics["AP"] for row in self.rows}, self.reference_hz)

    @property
    def differences(self) -> dict[float, Interval]:
        """AP minus the AP at `breakdown_hz`, with intervals, by rate; empty without intervals."""
        by_hz = {row.hz: row.resampled for row in self.rows if row.resampled}
        reference = by_hz.pop(self.breakdown_hz, None)
        differences: dict[float, Interval] = {}
        for hz, resampled in by_hz.items():
            if reference and (difference := resampled.minus(reference, "AP")):
                differences[hz] = difference
        return differences


def to_json(report: EvaluationReport) -> dict[str, Any]:
    """Return plain values for json.dump, as fractions. None means that there was no ground truth."""
    by_window = {window: _numbers_of_rates(part) for window, part in report.by_window.items()}
    numbers = {
        "title": report.title,
        "dataset": report.dataset,
        "settings": report.settings,
        **_numbers_of_rates(report),
        "by_window": by_window,
        "reference_hz": report.reference_hz,
        "still_objects": report.still_objects,
        "without_memory": report.without_memory,
        "time_shifts_ms": {f"{shift:g}": ap for shift, ap in report.time_shifts.items()},
        "breakdown": report.breakdown and report.breakdown.to_json(),
    }
    return dict(to_plain(numbers))


def _numbers_of_rates(report: EvaluationReport) -> dict[str, Any]:
    rates, intervals, differences = {}, {}, {}
    for row in report.rows:
        rates[f"{row.hz:g}"] = {**row.metrics, **row.extra}
        if row.intervals:
            intervals[f"{row.hz:g}"] = {name: interval[1:] for name, interval in row.intervals.items()}
    for hz, interval in report.differences.items():
        differences[f"{hz:g}"] = {"AP": interval}
    return {
        "rates": rates,
        "intervals": intervals,
        "differences": differences,
        "performance_drop": report.performance_drop,
    }


def percent(value: float) -> str:
    """Return a fraction as text in percent, or a dash if there was no ground truth."""
    if math.isnan(value):
        return NO_VALUE
    return f"{100 * value:.1f}"


def percents(values: Mapping[Any, float], keys: Iterable[Any]) -> list[str]:
    """Return `percent` of the values of some keys, with a dash for a missing key."""
    return [percent(values.get(key, math.nan)) for key in keys]


def table_by_rate(head: str, cells: Mapping[str, Mapping[float, str]]) -> list[list[str]]:
    """Return a row per name with a column per rate, starting with the head; empty without names.

    Args:
        head: Head of the column of names.
        cells: Text by name and rate. A rate that a name does not have becomes a dash.
    """
    if not cells:
        return []
    rates = sorted(set().union(*cells.values()))
    table = [[head, *(f"{hz:g} Hz" for hz in rates)]]
    for name, by_hz in cells.items():
        table.append([name, *(by_hz.get(hz, NO_VALUE) for hz in rates)])
    return table


def percent_interval(interval: Interval | None) -> str:
    """Return a fraction as text in percent, with its confidence interval if it has one; a dash for None."""
    if interval is None:
        return NO_VALUE
    if math.isnan(interval.low):
        return percent(interval.value)
    return f"{percent(interval.value)} [{percent(interval.low)}, {percent(interval.high)}]"


def percent_ap(row: RateRow) -> str:
    """Return the AP of a row as text in percent, with its confidence interval if it has one."""
    if row.intervals:
        return percent_interval(row.intervals["AP"])
    return percent(row.metrics["AP"])


def citation(report: EvaluationReport) -> str:
    """Return one line for a paper: the number, its uncertainty, the weights and the program.

    The number is that at the rate of training; without it, the line names the rate of training and the kind of windows.
    """
    row = report.breakdown_row
    line = f"AP {percent_ap(row)}"
    if row.intervals and row.resampled:
        line += f" ({LEVEL:.0%} bootstrap over {len(row.resampled.recordings)} recordings)"
    line += f" at {row.hz:g} Hz"
    if row.hz != report.reference_hz:
        line += f" (window={window_name(row)}, trained at {report.reference_hz:g} Hz)"
    line += f" on {report.title}"
    if "made by" in report.settings:
        line += f"; weights SHA-256 {report.settings['weights SHA-256'][:16]}, {report.settings['made by']}"
    return line


def shift_sentence(report: EvaluationReport) -> str:
    """Describe AP with the outputs of other times; empty if that was not measured."""
    if not report.time_shifts:
        return ""
    values = ", ".join(f"{shift:+g} ms {percent(ap)}" for shift, ap in report.time_shifts.items())
    return f"AP at {report.breakdown_hz:g} Hz with the newest output at the label time plus a shift: {values}."


def rate_table(report: EvaluationReport) -> list[list[str]]:
    """Return one row of cells per rate and kind of windows, starting with the head.

    The kind of windows is only shown if there are two. Intervals and differences are only shown if there are any.
    """
    names = report.metric_names
    tracked = [name for name in TRACK_METRICS if name in report.rows[0].extra]
    has_intervals = any(row.intervals for row in report.all_rows)
    differences = {window: part.differences for window, part in report.by_window.items()}
    head = ["Hz", *_heads(names), *tracked]
    rows = [[f"{row.hz:g}", *percents(row.metrics, names), *percents(row.extra, tracked)] for row in report.all_rows]
    if any(differences.values()):
        head.append(f"AP minus {report.breakdown_hz:g} Hz")
        for row, cells in zip(report.all_rows, rows, strict=True):
            cells.append(percent_interval(differences[row.window].get(row.hz)))
    if has_intervals:
        head.insert(2, f"{LEVEL:.0%} of AP")
        for row, cells in zip(report.all_rows, rows, strict=True):
            interval = row.intervals.get("AP")
            cells.insert(2, f"{percent(interval.low)} to {percent(interval.high)}" if interval else NO_VALUE)
    if report.others:
        head.insert(1, "window")
        for row, cells in zip(report.all_rows, rows, strict=True):
            cells.insert(1, window_name(row))
    return [head, *rows]


def interval_table(report: EvaluationReport) -> list[list[str]]:
    """Return the confidence intervals of all numbers as rows of cells, starting with the head; empty without any."""
    names = report.metric_names
    head = ["Hz", *_heads(names)]
    rows = []
    for row in report.all_rows:
        if row.intervals:
            rows.append([f"{row.hz:g}", *(percent_interval(row.intervals[name]) for name in names)])
            if report.others:
                rows[-1].insert(1, window_name(row))
    if report.others:
        head.insert(1, "window")
    if not rows:
        return []
    return [head, *rows]


def _heads(names: Iterable[str]) -> list[str]:
    """Return the heads of columns: the name of a class stands for its AP."""
    return [name.removeprefix("AP/") for name in names]


def window_name(row: RateRow) -> str:
    """Return slide, shrink or both: the length of a row's windows at rates other than that of training."""
    if len(row.windows) > 1:
        return "both"
    return row.window


def drop_sentences(report: EvaluationReport) -> list[str]:
    """Describe how much accuracy other rates cost, for each kind of windows; empty with a single rate."""
    sentences = []
    for window, part in report.by_window.items():
        which = f" with window={window}" if report.others else ""
        if not math.isnan(part.performance_drop):
            sentences.append(
                f"Performance drop{which} (AP at {report.reference_hz:g} Hz minus the mean of the other rates): "
                f"{percent(part.performance_drop)} points."
            )
    return sentences
