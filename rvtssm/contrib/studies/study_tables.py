"""The result of a study as tables: the score of each training in each condition, over rates.

The rows are what was varied. A number is the mean over the seeds of a row, with its standard deviation. Its interval is
that of the mean over recordings. Differences between rows are paired: each replicate draws the same recordings for all
trainings.
"""

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from rvtssm.evaluation.bootstrap import LEVEL, Interval, Resampled
from rvtssm.evaluation.breakdown import SPEED, json_number
from rvtssm.evaluation.frequency import performance_drop
from rvtssm.evaluation.plots import study_png
from rvtssm.evaluation.render import render
from rvtssm.evaluation.result import NO_VALUE, EvaluationReport, json_interval, percent_interval
from rvtssm.system.output_folder import write_files

_TEMPLATES = Path(__file__).with_name("templates")
STUDY_FILES = ("study.json", "study.csv", "study.md", "study.tex", "study.png")


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
        return performance_drop({hz: found.metrics["AP"] for hz, found in self.rates.items()}, self.reference_hz)


def to_score(row: str, seed: str, condition: str, report: EvaluationReport, cost: tuple[int, float]) -> Score:
    """Return the score of a training from its report.

    Args:
        row: What was varied, apart from the seed.
        seed: The seed.
        condition: How it was evaluated.
        report: The report.
        cost: Number of parameters, and seconds of training.
    """
    rates = {}
    for each in report.rows:
        assert each.resampled is not None
        rates[each.hz] = replace(each.resampled, replicates={"AP": each.resampled.replicates["AP"]})
    weights = report.settings["weights SHA-256"]
    return Score(row, seed, condition, report.reference_hz, *cost, weights, rates, _objects(report))


def _objects(report: EvaluationReport) -> dict[str, float]:
    """Return AP on objects that stand still and on objects by speed, if the labels tell.

    It is empty if the rate of training was not evaluated.
    """
    if report.breakdown_hz != report.reference_hz:
        return {}
    found = {"still": report.still_objects["carried"]} if "carried" in report.still_objects else {}
    for group in report.breakdown.groups if report.breakdown else ():
        if group.name == SPEED:
            found |= {f"{SPEED} {part}": ap for part, ap in group.ap.items()}
    return found


def score_to_json(score: Score, has_replicates: bool) -> dict[str, Any]:
    """Return plain values. None means that there was no ground truth.

    Args:
        score: The score.
        has_replicates: Whether to include the bootstrap replicates.
    """
    plain = {name: value for name, value in vars(score).items() if name not in ("objects", "rates")}
    plain["objects"] = {name: json_number(value) for name, value in score.objects.items()}
    plain["rates"] = {}
    for hz, found in score.rates.items():
        kept: dict[str, Any] = {name: json_number(value) for name, value in found.metrics.items()}
        if has_replicates:
            replicates = [json_number(value) for value in found.replicates["AP"].tolist()]
            kept = {"metrics": kept, "recordings": list(found.recordings), "replicates": replicates}
            kept["num_objects"] = list(found.num_objects)
        plain["rates"][f"{hz:g}"] = kept
    return plain


def score_from_json(plain: Mapping[str, Any]) -> Score:
    """Return the score from the result of `score_to_json`."""
    rates = {}
    objects = {name: math.nan if value is None else value for name, value in plain.get("objects", {}).items()}
    for hz, kept in plain["rates"].items():
        kept = kept if "metrics" in kept else {"metrics": kept, "recordings": (), "replicates": ()}
        metrics = {name: math.nan if value is None else value for name, value in kept["metrics"].items()}
        replicates = np.array([math.nan if value is None else value for value in kept["replicates"]], np.float64)
        num_objects = tuple(kept.get("num_objects", ()))
        rates[float(hz)] = Resampled(tuple(kept["recordings"]), metrics, {"AP": replicates}, num_objects)
    return Score(**{**plain, "rates": rates, "objects": objects})


def write_study(
    scores: Sequence[Score],
    settings: Mapping[str, str],
    folder: Path,
    beside: Mapping[str, Mapping[float, float]] | None = None,
) -> list[Path]:
    """Write STUDY_FILES to a folder and return their paths.

    Args:
        scores: The scores of all trainings.
        settings: What the study compares, and how.
        folder: The folder to write to.
        beside: Published AP in percent, by name and rate.
    """
    lines = _lines(scores)
    plain = {
        "settings": dict(settings),
        "scores": [score_to_json(score, has_replicates=False) for score in scores],
        "rows": [line.to_json() for line in lines],
        "beside": {name: {f"{hz:g}": ap for hz, ap in ap_by_hz.items()} for name, ap_by_hz in (beside or {}).items()},
    }
    content = (
        (json.dumps(plain, indent=1) + "\n").encode(),
        _csv(lines).encode(),
        study_markdown(scores, settings, beside).encode(),
        study_latex(scores).encode(),
        study_png({condition: _points(part) for condition, part in _by(lines, "condition").items()}),
    )
    return write_files(folder, dict(zip(STUDY_FILES, content, strict=True)))


def study_rows(scores: Sequence[Score]) -> Iterator[tuple[str, list[list[str]]]]:
    """Yield the name of each condition and the rows of its table: AP over rates, starting with the column names."""
    for condition, lines in _by(_lines(scores), "condition").items():
        yield condition, _table(lines)


@dataclass(frozen=True)
class _Line:
    """One row in one condition, with all its seeds."""

    row: str
    condition: str
    scores: Sequence[Score]
    first: "_Line | None"  # the first row of the condition, with which this one is compared

    @property
    def rates(self) -> list[float]:
        """The rates at which all seeds were scored, ascending."""
        return sorted(set.intersection(*(set(score.rates) for score in self.scores)))

    def ap(self, hz: float) -> list[float]:
        return [score.rates[hz].metrics["AP"] for score in self.scores]

    def mean_of_seeds(self, hz: float) -> Resampled | None:
        """Return the mean AP with its replicates; None if the seeds were scored on different draws."""
        found = [score.rates[hz] for score in self.scores if hz in score.rates]
        draws = {(each.recordings, len(each.replicates["AP"])) for each in found}
        if len(draws) != 1 or not found[0].has_intervals:
            return None
        replicates = np.mean([each.replicates["AP"] for each in found], axis=0)
        return replace(found[0], metrics={"AP": mean(self.ap(hz))}, replicates={"AP": replicates})

    def interval(self, hz: float) -> Interval | None:
        found = self.mean_of_seeds(hz)
        return found.interval("AP") if found else None

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
                "AP": json_number(mean(self.ap(hz))),
                "deviation": _deviation(self.ap(hz)),
                "interval": json_interval(interval)[1:] if interval else None,
                "minus_the_first": json_interval(difference) if difference else None,
            }
        return {
            "row": self.row,
            "condition": self.condition,
            "seeds": [score.seed for score in self.scores],
            "drop": json_number(mean(score.drop for score in self.scores)),
            "rates": rates,
        }


def study_markdown(
    scores: Sequence[Score],
    settings: Mapping[str, str] | None = None,
    beside: Mapping[str, Mapping[float, float]] | None = None,
) -> str:
    """Return the tables of each condition (means over seeds, intervals, differences), the costs and the settings.

    Args:
        scores: The scores of all trainings.
        settings: What the study compares, and how.
        beside: Published AP in percent, by name and rate.
    """
    conditions = [
        {"name": condition, "table": _table(lines), "others": [*_with_intervals(lines), *_by_object(lines)]}
        for condition, lines in _by(_lines(scores), "condition").items()
    ]
    rates = sorted({hz for ap_by_hz in (beside or {}).values() for hz in ap_by_hz})
    others = [["model", *(f"{hz:g} Hz" for hz in rates)]]
    for name, ap_by_hz in (beside or {}).items():
        others.append([name, *(f"{ap_by_hz[hz]:.1f}" if hz in ap_by_hz else NO_VALUE for hz in rates)])
    return render(
        _TEMPLATES / "study.md", conditions=conditions, beside=others, costs=_costs(scores), settings=settings or {}
    )


def study_latex(scores: Sequence[Score]) -> str:
    """Return one tabular per condition, with the rules of the package booktabs."""
    tables = {condition: _table(lines) for condition, lines in _by(_lines(scores), "condition").items()}
    return render(_TEMPLATES / "study.tex", tables=tables)


def spread(values: Sequence[float]) -> str:
    """Return mean and standard deviation of fractions in percent; only the value if there is one."""
    if any(map(math.isnan, values)):
        return NO_VALUE
    percents = [100 * value for value in values]
    return f"{mean(percents):.1f}" + (f" ± {stdev(percents):.1f}" if len(percents) > 1 else "")


def _deviation(values: Sequence[float]) -> float | None:
    """Return the standard deviation; None for a single value, or if a value is not a number."""
    return None if len(values) < 2 or any(map(math.isnan, values)) else stdev(values)


def _lines(scores: Sequence[Score]) -> list[_Line]:
    lines: list[_Line] = []
    for condition, of_condition in _by(scores, "condition").items():
        first = None
        for row, of_row in _by(of_condition, "row").items():
            lines.append(_Line(row, condition, of_row, first))
            first = first or lines[-1]
    return lines


def _table(lines: Sequence[_Line]) -> list[list[str]]:
    rates = _rates(lines)
    has_drop = not all(math.isnan(score.drop) for line in lines for score in line.scores)
    rows = [["model", "seeds", *(f"{hz:g} Hz" for hz in rates), *(["drop"] if has_drop else [])]]
    for line in lines:
        cells = [spread(line.ap(hz)) if hz in line.rates else NO_VALUE for hz in rates]
        cells += [spread([score.drop for score in line.scores])] if has_drop else []
        rows.append([line.row, str(len(line.scores)), *cells])
    return rows


def _with_intervals(lines: Sequence[_Line]) -> Iterator[tuple[str, list[list[str]]]]:
    """Yield titles and rows of the tables with confidence intervals; none if there are no intervals."""
    rates = _rates(lines)
    if any(line.interval(hz) for line in lines for hz in line.rates):
        numbers = {f"With {LEVEL:.0%} intervals over recordings:": _Line.interval}
        if len(lines) > 1:
            numbers[f"Minus {lines[0].row}, in points, paired:"] = _Line.minus_the_first
        for title, number in numbers.items():
            rows = ([line.row, *(_cell(line, hz, number) for hz in rates)] for line in lines)
            yield title, [["model", *(f"{hz:g} Hz" for hz in rates)], *rows]


def _cell(line: _Line, hz: float, number: Callable[[_Line, float], Interval | None]) -> str:
    found = number(line, hz) if hz in line.rates else None
    return percent_interval(found) if found else NO_VALUE


def _by_object(lines: Sequence[_Line]) -> Iterator[tuple[str, list[list[str]]]]:
    """Yield title and rows of the table of object groups, if there is one."""
    if names := list(dict.fromkeys(name for line in lines for score in line.scores for name in score.objects)):
        trained = {score.reference_hz for line in lines for score in line.scores}
        rate = f"{trained.pop():g} Hz" if len(trained) == 1 else "the rate of each training"
        rows = (
            [line.row, *(spread([score.objects.get(name, math.nan) for score in line.scores]) for name in names)]
            for line in lines
        )
        yield (
            f"On objects that stand still, and by speed in frame widths per second, at {rate}:",
            [["model", *names], *rows],
        )


def _costs(scores: Sequence[Score]) -> list[list[str]]:
    rows = [["model", "parameters", "seconds of training"]]
    for row, of_row in _by((score for score in scores if score.train_seconds), "row").items():
        seconds = {score.seed: score.train_seconds for score in of_row}
        rows.append([row, f"{of_row[0].parameters / 1e6:.2f} M", f"{mean(seconds.values()):.0f}"])
    return rows


def _csv(lines: Sequence[_Line]) -> str:
    """Return one line per row, condition and rate."""
    names = ("AP", "deviation", "low", "high", "minus_the_first", "minus_low", "minus_high")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", "condition", "hz", "seeds", *names])
    for line in lines:
        for hz, found in line.to_json()["rates"].items():
            values = [found["AP"], found["deviation"], *(found["interval"] or [None] * 2)]
            values += found["minus_the_first"] or [None] * 3
            cells = ["" if value is None else f"{value:.6f}" for value in values]
            writer.writerow([line.row, line.condition, hz, len(line.scores), *cells])
    return text.getvalue()


def _points(lines: Sequence[_Line]) -> dict[str, dict[float, tuple[float, float]]]:
    """Return mean and standard deviation in percent by row and rate."""
    return {
        line.row: {hz: (100 * mean(line.ap(hz)), 100 * (_deviation(line.ap(hz)) or 0.0)) for hz in line.rates}
        for line in lines
    }


def _rates(lines: Sequence[_Line]) -> list[float]:
    return sorted({hz for line in lines for hz in line.rates})


def _by(found: Iterable[Any], name: str) -> dict[str, list[Any]]:
    """Return the items by the value of a field, in the order in which values first occur."""
    groups: dict[str, list[Any]] = {}
    for each in found:
        groups.setdefault(getattr(each, name), []).append(each)
    return groups
