"""The result of an evaluation: a row of plain numbers per rate and kind of windows, which all tables and files show."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rvtssm.evaluation.breakdown import Breakdown, to_plain
from rvtssm.evaluation.coco import LEVEL, METRICS, TRUSTED_RECORDINGS, Interval, Resampled
from rvtssm.evaluation.protocol import REFERENCE_HZ, performance_drop, published_rows
from rvtssm.records.settings import is_same_rate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NO_VALUE = "–"  # shown in place of a number without ground truth
TRACK_METRICS = ("HOTA", "MOTA", "IDF1")  # of a row whose objects were tracked
Row = dict[str, Any]


class Picture(NamedTuple):
    """A PNG with a caption."""

    caption: str
    png: bytes


@dataclass(frozen=True)
class EvaluationReport:
    """The complete result of an evaluation.

    Each row has the keys `hz`, `window` (slide or shrink), `AP` and the other metrics, each in [0, 1], and what was
    measured beside them, such as `step_ms`. With intervals it has `low` and `high` of AP, `intervals` of all metrics,
    and `difference`: AP minus AP at the rate of training, low, high.

    `table` gives text to print, and `plot` a figure.
    """

    title: str  # which weights on which recordings
    dataset: str
    rows: Sequence[Row]  # at least one; the kind of windows that is described in detail comes first
    conditions: Mapping[str, str]  # everything that influences the numbers: score, thresholds, filters, windows, memory
    reference_hz: float = REFERENCE_HZ  # drops and differences are relative to this rate
    resampled: Mapping[tuple[float, str], Resampled] = field(default_factory=dict)  # AP by rate and windows
    inputs: Mapping[str, Any] = field(default_factory=dict)  # everything that the rows were computed from
    still_objects: Mapping[str, float] = field(default_factory=dict)  # AP by kind of memory, such as carried and reset
    without_memory: Interval | None = None  # AP at `reference_hz` with the state reset at every step
    breakdown: Breakdown | None = None  # of the AP of the row `reference()`
    worst: Sequence[Picture] = ()  # the worst frames of the breakdown
    time_shifts: Mapping[float, float] = field(default_factory=dict)  # AP at this rate by shift in milliseconds

    def table(self) -> list[list[str]]:
        """Return one row of cells per rate and kind of windows, starting with the head; AP in percent."""
        has_differences = any("difference" in row for row in self.rows)
        rows = []
        for row in self.rows:
            cells = _started(self, row)
            for name in self.metric_names:
                cells[name] = percent(row[name])
                if name == "AP" and "low" in row:
                    cells["interval"] = f"{percent(row['low'])} to {percent(row['high'])}"
            if has_differences:
                cells["minus"] = percent_interval(row.get("difference"))
            rows.append(cells)
        return to_table(rows, _heads(self))

    def plot(self) -> "Figure":
        """Return a matplotlib figure: AP over the rate with intervals, a line per kind of windows if there are two."""
        from rvtssm.evaluation import render  # which imports this file

        if len(self.windows) == 1:
            return render.rates_figure(self.title, self.dataset, self.rows)
        lines = {f"window={window}": self.of(window) for window in self.windows}
        published = {f"{model}, published": ap_by_hz for model, ap_by_hz in published_rows(self.dataset).items()}
        return render.comparison_figure(lines, published)

    @property
    def windows(self) -> list[str]:
        """The kinds of windows; the one described in detail comes first."""
        return list(dict.fromkeys(column(self.rows, "window")))

    @property
    def metric_names(self) -> list[str]:
        """The names of all metrics in percent: the common ones, one per class, and those of tracks."""
        named = [*METRICS, *(name for name in self.rows[0] if name.startswith("AP/")), *TRACK_METRICS]
        return [name for name in named if name in self.rows[0]]

    def of(self, window: str) -> list[Row]:
        """Return the rows of one kind of windows."""
        return [row for row in self.rows if row["window"] == window]

    def reference(self, window: str | None = None) -> Row:
        """Return the row of the rate of training, or the first row if that was not evaluated.

        Args:
            window: The kind of windows; None: the one described in detail.
        """
        rows = self.of(window or self.windows[0])
        return next((row for row in rows if is_same_rate(row["hz"], self.reference_hz)), rows[0])

    def drop(self, window: str | None = None) -> float:
        """Return AP at the rate of training minus the mean AP at the other rates; NaN without both."""
        rows = self.of(window or self.windows[0])
        ap_by_hz = dict(zip(column(rows, "hz"), column(rows, "AP"), strict=True))
        return performance_drop(ap_by_hz, self.reference_hz)

    @property
    def drops(self) -> dict[str, float]:
        """The drop of each kind of windows."""
        return {window: self.drop(window) for window in self.windows}

    @property
    def warnings(self) -> list[str]:
        """What a reader must know of the intervals, each as a clause."""
        if "low" not in self.rows[0]:
            return []
        number = len(next(iter(self.resampled.values())).recordings)
        warnings = ["one training, so the interval does not say how other trainings differ"]
        if number < TRUSTED_RECORDINGS:
            warnings.append(f"only {number} recordings, so the interval is too narrow")
        return warnings

    def to_json(self) -> dict[str, Any]:
        """Return plain values for json.dump, as fractions. None means that there was no ground truth."""
        numbers = {
            "title": self.title,
            "dataset": self.dataset,
            "rows": list(self.rows),
            "drop": self.drops,
            "reference_hz": self.reference_hz,
            "still_objects": self.still_objects,
            "without_memory": self.without_memory,
            "time_shifts_ms": {f"{shift:g}": ap for shift, ap in self.time_shifts.items()},
            "conditions": self.conditions,
            "warnings": self.warnings,
            "breakdown": self.breakdown and self.breakdown.to_json(),
        }
        return dict(to_plain(numbers))


def to_row(hz: float, window: str, resampled: Resampled, measured: Mapping[str, float]) -> Row:
    """Return the row of a rate with one kind of windows.

    Args:
        hz: The rate.
        window: The kind of windows.
        resampled: The metrics with their replicates.
        measured: Further numbers by name.
    """
    row = {"hz": hz, "window": window, **resampled.metrics, **measured}
    if resampled.has_intervals:
        intervals = {name: list(resampled.interval(name)[1:]) for name in resampled.metrics}
        low, high = intervals["AP"]
        row |= {"low": low, "high": high, "intervals": intervals}
    return row


def with_differences(
    rows: Sequence[Row], resampled: Mapping[tuple[float, str], Resampled], reference_hz: float
) -> list[Row]:
    """Return rows with the paired difference of each to the rate of training with the same kind of windows.

    Args:
        rows: The rows.
        resampled: AP with its replicates, by rate and kind of windows.
        reference_hz: The rate of training.
    """
    # The row of the rate of training, for each kind of windows.
    reference_of = {}
    for row in rows:
        if is_same_rate(row["hz"], reference_hz):
            reference_of[row["window"]] = resampled[row["hz"], row["window"]]
    found = []
    for row in rows:
        ours = resampled[row["hz"], row["window"]]
        reference = reference_of.get(row["window"])
        if reference is not None and ours is not reference and (difference := ours.minus(reference, "AP")):
            row = {**row, "difference": list(difference)}
        found.append(row)
    return found


def minus_the_first(reports: Mapping[str, EvaluationReport]) -> dict[str, dict[tuple[float, str], Interval]]:
    """Return the AP of each report minus that of the first one, by name, and by rate and kind of windows.

    Rows that cannot be compared are left out, and so is the first report.

    Args:
        reports: The reports by name.
    """
    first, *others = reports
    differences = {}
    for name in others:
        pairs = {}
        for place, ours in reports[name].resampled.items():
            theirs = reports[first].resampled.get(place)
            if theirs is not None and (difference := ours.minus(theirs, "AP")):
                pairs[place] = difference
        differences[name] = pairs
    return differences


def rounded_hz(hz: float) -> float:
    """Return a rate to four digits; rates that differ by less are the same, see `is_same_rate`."""
    return float(f"{hz:.4g}")


def in_hz(hz: float) -> str:
    """Return a rate as text; only `AP` if it is unknown, as for boxes that come from elsewhere."""
    return "AP" if math.isnan(hz) else f"{rounded_hz(hz):g} Hz"


def percent(value: float) -> str:
    """Return a fraction as text in percent, or a dash if there was no ground truth."""
    if math.isnan(value):
        return NO_VALUE
    return f"{100 * value:.1f}"


def percent_interval(interval: Sequence[float] | None) -> str:
    """Return a fraction as text in percent, with its confidence interval if it has one; a dash for None.

    Args:
        interval: The value and its limits.
    """
    if interval is None:
        return NO_VALUE
    value, low, high = interval
    if math.isnan(low):
        return percent(value)
    return f"{percent(value)} [{percent(low)}, {percent(high)}]"


def percent_of(row: Row, name: str = "AP") -> str:
    """Return a metric of a row as text in percent, with its confidence interval if it has one."""
    limits = row.get("intervals", {}).get(name, (math.nan, math.nan))
    return percent_interval((row.get(name, math.nan), *limits))


def column(rows: Iterable[Row], name: str) -> list[Any]:
    """Return one entry of each row."""
    return [row[name] for row in rows]


def to_table(rows: Sequence[Mapping[str, str]], heads: Mapping[str, str] | None = None) -> list[list[str]]:
    """Return rows of cells, starting with the head; a cell that a row does not have becomes a dash.

    Args:
        rows: Text by the name of its column.
        heads: Heads of the columns that are not called by their name.
    """
    names = list(dict.fromkeys(itertools.chain.from_iterable(rows)))
    table = [[(heads or {}).get(name, name) for name in names]]
    for row in rows:
        table.append([row.get(name, NO_VALUE) for name in names])
    return table


def table_by_rate(head: str, cells: Mapping[str, Mapping[float, str]]) -> list[list[str]]:
    """Return a row per name with a column per rate, starting with the head; empty without names.

    Args:
        head: Head of the column of names.
        cells: Text by name and rate. A rate that a name does not have becomes a dash.
    """
    if not cells:
        return []
    rates = sorted(set().union(*cells.values()))
    table = [[head, *map(in_hz, rates)]]
    for name, by_hz in cells.items():
        table.append([name, *(by_hz.get(hz, NO_VALUE) for hz in rates)])
    return table


def _started(report: EvaluationReport, row: Row) -> dict[str, str]:
    """Return the cells that say which row it is; the kind of windows only if there are two."""
    cells = {}
    if not math.isnan(row["hz"]):
        cells["hz"] = f"{rounded_hz(row['hz']):g}"
    if len(report.windows) > 1:
        cells["window"] = row["window"]
    return cells


def _heads(report: EvaluationReport) -> dict[str, str]:
    """Return the heads of columns: the name of a class stands for its AP."""
    heads = {name: name.removeprefix("AP/") for name in report.metric_names}
    return heads | {"hz": "Hz", "interval": f"{LEVEL:.0%} of AP", "minus": f"AP minus {in_hz(report.reference_hz)}"}


def interval_table(report: EvaluationReport) -> list[list[str]]:
    """Return the confidence intervals of all metrics as rows of cells, starting with the head; empty without any."""
    if not any("low" in row for row in report.rows):
        return []
    rows = []
    for row in report.rows:
        named = {name: percent_of(row, name) for name in report.metric_names if name not in TRACK_METRICS}
        rows.append(_started(report, row) | named)
    return to_table(rows, _heads(report))


def citation(report: EvaluationReport) -> str:
    """Return one line for a paper: the number, its uncertainty and what to know of it, the weights and the program.

    The number is that at the rate of training; without it, the line names the rate of training and the kind of windows.
    """
    row = report.reference()
    # The number, with what to know of it.
    line = f"AP {percent_of(row)}"
    if "low" in row:
        number = len(report.resampled[row["hz"], row["window"]].recordings)
        line += f" ({'; '.join([f'{LEVEL:.0%} bootstrap over {number} recordings', *report.warnings])})"
    if not math.isnan(row["hz"]):
        line += f" at {in_hz(row['hz'])}"
    if row["hz"] != report.reference_hz and not math.isnan(row["hz"]):
        line += f" (window={row['window']}, trained at {in_hz(report.reference_hz)})"
    line += f" on {report.title}"
    # Where the number comes from.
    origin = []
    if digest := report.conditions.get("weights SHA-256"):
        origin.append(f"weights SHA-256 {digest[:16]}")
    if program := report.conditions.get("made by"):
        origin.append(program)
    if origin:
        line += f"; {', '.join(origin)}"
    return line


def shift_sentence(report: EvaluationReport) -> str:
    """Describe AP with the outputs of other times; empty if that was not measured."""
    if not report.time_shifts:
        return ""
    values = ", ".join(f"{shift:+g} ms {percent(ap)}" for shift, ap in report.time_shifts.items())
    return f"AP at {in_hz(report.reference()['hz'])} with the newest output at the label time plus a shift: {values}."


def drop_sentences(report: EvaluationReport) -> list[str]:
    """Describe how much accuracy other rates cost, for each kind of windows; empty with a single rate."""
    sentences = []
    for window in report.windows:
        which = f" with window={window}" if len(report.windows) > 1 else ""
        drop = report.drop(window)
        if not math.isnan(drop):
            sentences.append(
                f"Performance drop{which} (AP at {in_hz(report.reference_hz)} minus the mean of the other rates): "
                f"{percent(drop)} points."
            )
    return sentences


def only_ap(resampled: Resampled) -> Resampled:
    """Return only the AP of an evaluation with its replicates, which is all that is compared."""
    metrics = {"AP": resampled.metrics["AP"]}
    replicates: dict[str, np.ndarray] = {"AP": resampled.replicates["AP"]}
    return Resampled(resampled.recordings, metrics, replicates, resampled.num_objects)
