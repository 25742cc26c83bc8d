"""The result of a study: the score of each training in each condition over rates, as JSON, a page and tables.

The rows are what was varied. A number is the mean over the seeds of a row, with its standard deviation. Its interval is
that of the mean over recordings and trainings: each replicate draws both with replacement. Differences between rows are
paired over recordings, which are the same for all trainings of a replicate; trainings are drawn for each row.
"""

import json
import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rvtssm.drawing import figure_png
from rvtssm.evaluation.breakdown import SPEED, to_plain
from rvtssm.evaluation.coco import LEVEL, TRUSTED_RECORDINGS, Interval, Resampled
from rvtssm.evaluation.protocol import performance_drop
from rvtssm.evaluation.render import TerminalTable, label_rates, render, show_names_as_they_are
from rvtssm.evaluation.report import NO_VALUE, EvaluationReport, in_hz, percent_interval, table_by_rate
from rvtssm.system.output_folder import write_files

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TEMPLATES = Path(__file__).with_name("templates")
_DROP = "drop"  # head of a column
STUDY_FILES = ("study.json", "study.html")


@dataclass(frozen=True)
class Score:
    """One training in one condition, at every rate."""

    row: str  # what was varied, apart from the seed
    seed: str
    condition: str  # how it was evaluated; empty if there is only one way
    reference_hz: float
    parameters: int
    train_seconds: float
    weights: str  # SHA-256 of the weights
    rates: Mapping[float, Resampled]  # numbers by rate, with replicates of AP or none
    objects: Mapping[str, float] = field(default_factory=dict)  # AP by group of objects, at `reference_hz`

    @property
    def drop(self) -> float:
        """AP at the rate of training minus the mean AP at the other rates."""
        ap_by_hz = {hz: resampled.metrics["AP"] for hz, resampled in self.rates.items()}
        return performance_drop(ap_by_hz, self.reference_hz)


def to_score(
    row: str, seed: str, condition: str, report: EvaluationReport, window: str, cost: tuple[int, float]
) -> Score:
    """Return the score of a training from its report.

    Args:
        row: What was varied, apart from the seed.
        seed: The seed.
        condition: How it was evaluated.
        report: The report.
        window: The kind of windows.
        cost: Number of parameters, and seconds of training.
    """
    rates = {}
    for scored in report.of(window):
        metrics = {name: scored[name] for name in report.metric_names}
        rates[scored["hz"]] = replace(report.resampled[scored["hz"], window], metrics=metrics)
    weights = report.conditions["weights SHA-256"]
    return Score(row, seed, condition, report.reference_hz, *cost, weights, rates, _objects(report, window))


def _objects(report: EvaluationReport, window: str) -> dict[str, float]:
    """Return AP on objects that stand still and on objects by speed, if the labels tell.

    It is empty if the rate of training was not evaluated, or was evaluated with other windows.
    """
    described = report.reference()
    if described["hz"] != report.reference_hz or report.reference(window)["AP"] != described["AP"]:
        return {}
    objects = {"still": report.still_objects["carried"]} if "carried" in report.still_objects else {}
    for group in report.breakdown.groups if report.breakdown else ():
        if group.name == SPEED:
            objects |= {f"{SPEED} {part}": ap for part, ap in group.ap.items()}
    return objects


def score_to_json(score: Score, has_replicates: bool) -> dict[str, Any]:
    """Return plain values. None means that there was no ground truth.

    Args:
        score: The score.
        has_replicates: Whether to include the bootstrap replicates.
    """
    plain = {name: value for name, value in vars(score).items() if name not in ("objects", "rates")}
    plain |= {"objects": score.objects, "rates": {}}
    for hz, resampled in score.rates.items():
        numbers: Mapping[str, Any] = resampled.metrics
        if has_replicates:
            numbers = {
                "metrics": numbers,
                "recordings": resampled.recordings,
                "replicates": resampled.replicates["AP"].tolist(),
                "num_objects": resampled.num_objects,
            }
        plain["rates"][f"{hz:g}"] = numbers
    return dict(to_plain(plain))


def score_from_json(plain: Mapping[str, Any]) -> Score:
    """Return the score from the result of `score_to_json`."""
    rates = {}
    for hz, numbers in plain["rates"].items():
        if "metrics" not in numbers:
            numbers = {"metrics": numbers, "recordings": (), "replicates": ()}
        replicates = np.array(numbers["replicates"], np.float64)  # None becomes NaN
        num_objects = tuple(numbers.get("num_objects", ()))
        metrics = _from_json(numbers["metrics"])
        rates[float(hz)] = Resampled(tuple(numbers["recordings"]), metrics, {"AP": replicates}, num_objects)
    return Score(**{**plain, "rates": rates, "objects": _from_json(plain.get("objects", {}))})


def _from_json(numbers: Mapping[str, float | None]) -> dict[str, float]:
    return {name: math.nan if value is None else value for name, value in numbers.items()}


@dataclass(frozen=True)
class StudyRow:
    """One row in one condition, with all its seeds."""

    row: str
    condition: str
    scores: Sequence[Score]
    first: "StudyRow | None"  # the first row of the condition, with which this one is compared

    @property
    def rates(self) -> list[float]:
        """The rates at which all seeds were scored, ascending."""
        return sorted(set.intersection(*(set(score.rates) for score in self.scores)))

    @property
    def drop(self) -> float:
        return mean(score.drop for score in self.scores)

    def ap(self, hz: float) -> list[float]:
        return [score.rates[hz].metrics["AP"] for score in self.scores]

    def mean_of_seeds(self, hz: float) -> Resampled | None:
        """Return the mean AP with its replicates, each of other recordings and trainings.

        It is None if the seeds were scored on different draws of recordings.
        """
        of_seeds = [score.rates[hz] for score in self.scores if hz in score.rates]
        draws = {(resampled.recordings, len(resampled.replicates["AP"])) for resampled in of_seeds}
        if len(draws) != 1 or not of_seeds[0].has_intervals:
            return None
        ap = np.stack([resampled.replicates["AP"] for resampled in of_seeds])  # (S, B)
        # The same trainings at every rate of a row, and others for another row.
        rng = np.random.default_rng(zlib.crc32(f"{self.condition}/{self.row}".encode()))
        drawn = rng.integers(0, len(ap), ap.shape)
        replicates = np.take_along_axis(ap, drawn, axis=0).mean(axis=0)
        return replace(of_seeds[0], metrics={"AP": mean(self.ap(hz))}, replicates={"AP": replicates})

    def interval(self, hz: float) -> Interval | None:
        resampled = self.mean_of_seeds(hz)
        return resampled.interval("AP") if resampled else None

    def minus_the_first(self, hz: float) -> Interval | None:
        if self.first is None or hz not in self.first.rates:
            return None
        ours, first = self.mean_of_seeds(hz), self.first.mean_of_seeds(hz)
        return ours.minus(first, "AP") if ours and first else None

    def to_json(self) -> dict[str, Any]:
        rates = {}
        for hz in self.rates:
            interval, difference = self.interval(hz), self.minus_the_first(hz)
            rates[f"{hz:g}"] = {
                "AP": mean(self.ap(hz)),
                "deviation": _deviation(self.ap(hz)),
                "interval": interval and interval[1:],
                "minus_the_first": difference,
            }
        numbers = {
            "row": self.row,
            "condition": self.condition,
            "seeds": [score.seed for score in self.scores],
            "drop": self.drop,
            "rates": rates,
        }
        return dict(to_plain(numbers))


class Table(NamedTuple):
    """Rows of cells, starting with the head, and what they mean."""

    caption: str
    rows: list[list[str]]


@dataclass(frozen=True)
class StudyReport:
    """The result of a study.

    `table` gives text to print, and `plot` a figure.
    """

    scores: Sequence[Score]
    settings: Mapping[str, str] = field(default_factory=dict)  # what the study compares, and how
    beside: Mapping[str, Mapping[float, float]] = field(default_factory=dict)  # published AP in percent, by name and Hz

    @property
    def conditions(self) -> dict[str, list[StudyRow]]:
        """The rows of each condition, in the order of the scores."""
        conditions: dict[str, list[StudyRow]] = {}
        for condition, of_condition in _by(self.scores, "condition").items():
            rows: list[StudyRow] = []
            for name, of_row in _by(of_condition, "row").items():
                rows.append(StudyRow(name, condition, of_row, rows[0] if rows else None))
            conditions[condition] = rows
        return conditions

    def table(self, condition: str | None = None) -> list[list[str]]:
        """Return the mean AP over seeds in percent by row and rate, starting with the head.

        Args:
            condition: One of `conditions`; None takes the first one.
        """
        rows = self.conditions[next(iter(self.conditions)) if condition is None else condition]
        return _mean_table(rows)

    def plot(self) -> "Figure":
        """Return a matplotlib figure: AP over the rate, a panel per condition, a line per row."""
        points = {}
        for condition, rows in self.conditions.items():
            points[condition] = {row.row: _points(row) for row in rows}
        return _panels_figure(points)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for json.dump, as fractions. None means that there was no ground truth."""
        rows, beside = [], {}
        for of_condition in self.conditions.values():
            rows += [row.to_json() for row in of_condition]
        for name, ap_by_hz in self.beside.items():
            beside[name] = {f"{hz:g}": ap for hz, ap in ap_by_hz.items()}
        return {
            "settings": dict(self.settings),
            "scores": [score_to_json(score, has_replicates=False) for score in self.scores],
            "rows": rows,
            "beside": beside,
        }


def write_study(report: StudyReport, folder: Path) -> None:
    """Write STUDY_FILES to a folder."""
    numbers = json.dumps(report.to_json(), indent=1) + "\n"
    write_files(folder, {"study.json": numbers.encode(), "study.html": study_html(report).encode()})


def study_html(report: StudyReport) -> str:
    """Return one page: means over seeds, intervals, paired differences, groups of objects, costs, settings."""
    conditions, beside = {}, {}
    for name, ap_by_hz in report.beside.items():
        beside[name] = {hz: f"{ap:.1f}" for hz, ap in ap_by_hz.items()}
    for condition, rows in report.conditions.items():
        conditions[condition] = [Table("AP in percent.", _mean_table(rows)), *_interval_tables(rows), *_by_object(rows)]
    return render(
        _TEMPLATES / "study.html",
        title="Average precision over inference rates",
        numbers=report.to_json(),
        conditions=conditions,
        rates_png=figure_png(report.plot()),
        beside=table_by_rate("model", beside),
        costs=_cost_table(report.scores),
        settings=report.settings,
    )


def console_tables(report: StudyReport) -> list[TerminalTable]:
    """Return a table for the terminal per condition, with the paired differences to the first row below."""
    tables = []
    for condition, rows in report.conditions.items():
        lines = []
        for row in rows[1:]:
            numbers = {hz: row.minus_the_first(hz) for hz in row.rates}
            cells = [f"{in_hz(hz)} {percent_interval(pair)}" for hz, pair in numbers.items() if pair]
            if cells:
                lines.append(f"{row.row} minus {rows[0].row}, in points, paired: {', '.join(cells)}")
        lines += [f"Note: {note}." for note in _notes(rows)]
        table = _mean_table(rows)
        if table[0][-1] == _DROP:  # beside the names, since a narrow terminal has no room for the last columns
            table = [[row[0], row[-1], *row[1:-1]] for row in table]
        tables.append(TerminalTable(condition or "AP in percent", table, lines, "study.html"))
    return tables


def _mean_table(rows: Sequence[StudyRow]) -> list[list[str]]:
    """Return mean and deviation of AP over seeds by row and rate, and the drop if there is one."""
    has_drop = not all(math.isnan(score.drop) for row in rows for score in row.scores)
    means = {}
    for row in rows:
        means[row.row] = {hz: spread(row.ap(hz)) for hz in row.rates}
    table = table_by_rate("model", means)
    head, *lines = table
    head.insert(1, "seeds")
    if has_drop:
        head.append(_DROP)
    for cells, row in zip(lines, rows, strict=True):
        cells.insert(1, str(len(row.scores)))
        if has_drop:
            cells.append(spread([score.drop for score in row.scores]))
    return table


def _panels_figure(points: Mapping[str, Mapping[str, Mapping[float, tuple[float, float]]]]) -> "Figure":
    """Draw AP over the rate, with one panel per condition and one line per row.

    Args:
        points: Mean and standard deviation in percent, by condition, row and rate.
    """
    from matplotlib.figure import Figure

    columns = min(2, max(1, len(points)))
    rows = max(1, math.ceil(len(points) / columns))
    figure = Figure(figsize=(5.5 * columns + 1.5, 3.5 * rows + 0.4), dpi=120, layout="constrained")
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    rates: set[float] = set()
    lines: dict[str, Any] = {}
    for axes, (condition, by_row) in zip(panels.flat, points.items(), strict=False):
        for name, by_hz in by_row.items():
            color = lines[name][0].get_color() if name in lines else f"C{len(lines)}"  # the same in every panel
            percents, deviations = zip(*by_hz.values(), strict=True)
            lines[name] = axes.errorbar(list(by_hz), percents, deviations, marker="o", capsize=3, color=color)
            rates.update(by_hz)
        axes.set_title(condition, parse_math=False)
    for axes in list(panels.flat)[: len(points)]:
        label_rates(axes, sorted(rates))
        axes.label_outer()
        axes.grid(alpha=0.25)
    for axes in list(panels.flat)[len(points) :]:
        axes.set_axis_off()
    legend = figure.legend(list(lines.values()), list(lines), loc="outside right center", frameon=False)
    show_names_as_they_are(legend)
    return figure


def _interval_tables(rows: Sequence[StudyRow]) -> list[Table]:
    """Return the tables with confidence intervals; none if there are no intervals."""
    if not any(row.interval(hz) for row in rows for hz in row.rates):
        return []
    notes = " ".join(f"Note: {note}." for note in _notes(rows))
    caption = f"With {LEVEL:.0%} intervals over recordings and trainings. {notes}".strip()
    tables = [Table(caption, _numbers_table(rows, StudyRow.interval))]
    if len(rows) > 1:
        caption = f"Minus {rows[0].row}, in points, paired over recordings. {notes}".strip()
        tables.append(Table(caption, _numbers_table(rows, StudyRow.minus_the_first)))
    return tables


def _notes(rows: Sequence[StudyRow]) -> list[str]:
    """Return what to know of the intervals of rows, each as a clause; nothing without intervals."""
    notes = []
    resampled = [row.mean_of_seeds(hz) for row in rows for hz in row.rates]
    numbers = [len(each.recordings) for each in resampled if each is not None]
    single = [row.row for row in rows if len(row.scores) == 1]
    if not numbers:
        return []
    if single:
        notes.append(f"{', '.join(single)}: one training, so intervals and differences are those of single trainings")
    if min(numbers) < TRUSTED_RECORDINGS:
        notes.append(f"only {min(numbers)} recordings, so intervals are too narrow")
    return notes


def _numbers_table(rows: Sequence[StudyRow], number: Callable[[StudyRow, float], Interval | None]) -> list[list[str]]:
    cells: dict[str, dict[float, str]] = {}
    for row in rows:
        cells[row.row] = {hz: percent_interval(number(row, hz)) for hz in row.rates}
    return table_by_rate("model", cells)


def _by_object(rows: Sequence[StudyRow]) -> list[Table]:
    """Return the table of object groups, if there is one."""
    scores = [score for row in rows for score in row.scores]
    names = list(dict.fromkeys(name for score in scores for name in score.objects))
    if not names:
        return []
    trained_hz = {score.reference_hz for score in scores}
    rate = in_hz(trained_hz.pop()) if len(trained_hz) == 1 else "the rate of each training"
    table = [["model", *names]]
    for row in rows:
        cells = [row.row]
        for name in names:
            cells.append(spread([score.objects.get(name, math.nan) for score in row.scores]))
        table.append(cells)
    return [Table(f"On objects that stand still, and by speed in frame widths per second, at {rate}.", table)]


def _cost_table(scores: Sequence[Score]) -> list[list[str]]:
    """Return parameters and seconds of training by row; empty if nothing was trained."""
    table = [["model", "parameters", "seconds of training"]]
    for row, of_row in _by([score for score in scores if score.train_seconds], "row").items():
        seconds = {score.seed: score.train_seconds for score in of_row}
        table.append([row, f"{of_row[0].parameters / 1e6:.2f} M", f"{mean(seconds.values()):.0f}"])
    return table if len(table) > 1 else []


def spread(values: Sequence[float]) -> str:
    """Return mean and standard deviation of fractions in percent; only the value if there is one."""
    if any(map(math.isnan, values)):
        return NO_VALUE
    percents = [100 * value for value in values]
    deviation = f" ± {stdev(percents):.1f}" if len(percents) > 1 else ""
    return f"{mean(percents):.1f}{deviation}"


def _deviation(values: Sequence[float]) -> float | None:
    """Return the standard deviation; None for a single value, or if a value is not a number."""
    return None if len(values) < 2 or any(map(math.isnan, values)) else stdev(values)


def _points(row: StudyRow) -> dict[float, tuple[float, float]]:
    """Return mean and standard deviation in percent by rate."""
    return {hz: (100 * mean(row.ap(hz)), 100 * (_deviation(row.ap(hz)) or 0.0)) for hz in row.rates}


def _by(items: Iterable[Any], name: str) -> dict[str, list[Any]]:
    """Return the items by the value of a field, in the order in which values first occur."""
    groups: dict[str, list[Any]] = {}
    for item in items:
        groups.setdefault(getattr(item, name), []).append(item)
    return groups
