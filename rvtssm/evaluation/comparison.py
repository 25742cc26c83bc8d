"""Compare several evaluations: average precision by weights and rate, with the published rows below."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rvtssm.evaluation.bootstrap import LEVEL, Interval
from rvtssm.evaluation.frequency import performance_drop, published_rows
from rvtssm.evaluation.plots import comparison_png
from rvtssm.evaluation.render import render
from rvtssm.evaluation.result import (
    NO_VALUE,
    EvaluationReport,
    json_interval,
    percent,
    percent_interval,
    percents,
    to_json,
)
from rvtssm.system.output_folder import write_files
from rvtssm.system.user_error import UserError

COMPARISON_FILES = ("comparison.json", "comparison.md", "comparison.html")


def write_comparison(reports: Mapping[str, EvaluationReport], folder: Path) -> list[Path]:
    """Write COMPARISON_FILES to a folder and return their paths.

    Args:
        reports: One report per name of weights.
        folder: The folder to write to.

    Raises:
        UserError: There are no reports.
    """
    if not reports:
        raise UserError(
            "evaluation.no_report", "a comparison needs at least one report; got none, name some checkpoints"
        )
    content = (
        (json.dumps(_numbers(reports), indent=2) + "\n").encode(),
        comparison_markdown(reports).encode(),
        comparison_html(reports).encode(),
    )
    return write_files(folder, dict(zip(COMPARISON_FILES, content, strict=True)))


def comparison_markdown(reports: Mapping[str, EvaluationReport]) -> str:
    """Return a table of AP in percent over the rates of all reports, and the performance drop of each report."""
    return render("comparison.md", **_values(reports))


def comparison_html(reports: Mapping[str, EvaluationReport]) -> str:
    """Return the same as a page, with a plot and with all metrics at one rate."""
    names = list(dict.fromkeys(name for report in reports.values() for name in report.metric_names))
    metrics = [["weights", "Hz", *(name.removeprefix("AP/") for name in names)]]
    for name, report in reports.items():
        row = next(row for row in report.rows if row.hz == report.breakdown_hz)
        metrics.append([name, f"{row.hz:g}", *percents(row.metrics, names)])
    return render(
        "comparison.html",
        title="Evaluations side by side",
        numbers=_numbers(reports),
        rates_png=comparison_png({name: each.rows for name, each in _named(reports).items()}, _published(reports)),
        metrics=metrics,
        **_values(reports),
    )


def _values(reports: Mapping[str, EvaluationReport]) -> dict[str, Any]:
    """Return the values that both templates show."""
    differences = _differences(reports)
    return {
        "rates": _table_by_rate(reports),
        "drop": "Drop: AP at the rate of training minus the mean of the other rates of its row, in points.",
        "differences": _table_of(differences) if differences else [],
        "paired": f"AP minus that of {next(iter(reports))}, in points, with {LEVEL:.0%} intervals: each replicate "
        "takes the same recordings for both.",
        "settings": _settings(reports),
    }


def _named(reports: Mapping[str, EvaluationReport]) -> dict[str, EvaluationReport]:
    """Return a report for each of the weights and each kind of windows, by name."""
    return {
        name + (f", window={window}" if report.others else ""): each
        for name, report in reports.items()
        for window, each in report.by_window.items()
    }


def _numbers(reports: Mapping[str, EvaluationReport]) -> dict[str, object]:
    paired = {
        name: {"minus_the_first": {f"{hz:g}": {"AP": json_interval(found)} for hz, found in by_hz.items()}}
        for name, by_hz in _differences(reports).items()
    }
    numbers: dict[str, object] = {}
    for name, report in reports.items():
        plain, of_windows = to_json(report), [paired.get(each, {}) for each in _named({name: report})]
        for by_window, differences in zip(plain["by_window"].values(), of_windows, strict=True):
            by_window.update(differences)
        numbers[name] = plain | of_windows[0]
    return numbers


def _differences(reports: Mapping[str, EvaluationReport]) -> dict[str, dict[float, Interval]]:
    """Return the AP of each of the weights minus the AP of the first, by name and rate, if they are comparable."""
    first, *others = reports.items()
    base_of = {(row.hz, window): row.resampled for row in first[1].all_rows for window in row.windows or ("",)}
    found: dict[str, dict[float, Interval]] = {}
    for name, report in _named(dict(others)).items():
        for row in report.rows:
            base = base_of.get((row.hz, row.windows[0] if row.windows else ""))
            if row.resampled and base and (difference := row.resampled.minus(base, "AP")):
                found.setdefault(name, {})[row.hz] = difference
    return found


def _table_of(paired: Mapping[str, Mapping[float, Interval]]) -> list[list[str]]:
    rates = sorted({hz for by_hz in paired.values() for hz in by_hz})
    rows = [["weights", *(f"{hz:g} Hz" for hz in rates)]]
    for name, by_hz in paired.items():
        rows.append([name, *(percent_interval(by_hz[hz]) if hz in by_hz else NO_VALUE for hz in rates)])
    return rows


def _table_by_rate(reports: Mapping[str, EvaluationReport]) -> list[list[str]]:
    """Return rows of cells, starting with the head and ending with the published rows."""
    rates = sorted({row.hz for report in reports.values() for row in report.rows})
    rows = [["weights", *(f"{hz:g} Hz" for hz in rates), "drop"]]
    for name, report in _named(reports).items():
        ap_by_hz = {row.hz: row.metrics["AP"] for row in report.rows}
        intervals = {row.hz: row.intervals["AP"] for row in report.rows if row.intervals}
        cells = [
            percent_interval(intervals[hz]) if hz in intervals else percent(ap_by_hz.get(hz, math.nan)) for hz in rates
        ]
        rows.append([f"{name} ({report.title})", *cells, percent(report.performance_drop)])
    for name, published in _published(reports).items():
        ap_by_hz = {hz: ap for hz, ap in published.items() if hz in rates}  # so that the drop uses the same rates
        rows.append([name, *percents(ap_by_hz, rates), percent(performance_drop(ap_by_hz))])
    return rows


def _published(reports: Mapping[str, EvaluationReport]) -> dict[str, dict[float, float]]:
    return {
        f"{model} on {dataset}, published": ap_by_hz
        for dataset in dict.fromkeys(report.dataset for report in reports.values())
        for model, ap_by_hz in published_rows(dataset).items()
    }


def _settings(reports: Mapping[str, EvaluationReport]) -> dict[str, list[str]]:
    """Return each setting once if all weights share it, otherwise one value per name of weights."""
    found = {}
    for key in dict.fromkeys(key for report in reports.values() for key in report.settings):
        values = {name: report.settings.get(key, "not measured") for name, report in reports.items()}
        is_shared = len(set(values.values())) == 1
        found[key] = list(values.values())[:1] if is_shared else [f"{name}: {text}" for name, text in values.items()]
    return found
