"""Compare several evaluations: average precision by weights and rate, with the published rows below."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rvtssm.evaluation.bootstrap import LEVEL, Interval
from rvtssm.evaluation.breakdown import to_plain
from rvtssm.evaluation.frequency import performance_drop, published_rows
from rvtssm.evaluation.plots import comparison_figure, to_png
from rvtssm.evaluation.render import TerminalTable, render
from rvtssm.evaluation.result import (
    NO_VALUE,
    EvaluationReport,
    percent,
    percent_ap,
    percent_interval,
    percents,
    table_by_rate,
    to_json,
)
from rvtssm.system.output_folder import write_files
from rvtssm.system.user_error import UserError

COMPARISON_FILES = ("comparison.json", "comparison.html")
_DROP = "Drop: AP at the rate of training minus the mean of the other rates of its row, in points."


def write_comparison(reports: Mapping[str, EvaluationReport], folder: Path) -> None:
    """Write COMPARISON_FILES to a folder.

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
    numbers = json.dumps(_numbers(reports), indent=2) + "\n"
    page = comparison_html(reports)
    write_files(folder, {"comparison.json": numbers.encode(), "comparison.html": page.encode()})


def comparison_table(reports: Mapping[str, EvaluationReport]) -> TerminalTable:
    """Return AP in percent over the rates of all reports, and the paired differences to the first one below."""
    lines = [_DROP]
    for name, by_hz in _differences(reports).items():
        numbers = ", ".join(f"{hz:g} Hz {percent_interval(difference)}" for hz, difference in by_hz.items())
        lines.append(f"{name} minus {next(iter(reports))}, in points, paired: {numbers}")
    return TerminalTable("AP in percent", rates_table(reports), lines, "comparison.html")


def comparison_html(reports: Mapping[str, EvaluationReport]) -> str:
    """Return one page: AP over the rates of all reports, paired differences, and all metrics at one rate."""
    names = list(dict.fromkeys(name for report in reports.values() for name in report.metric_names))
    metrics = [["weights", "Hz", *(name.removeprefix("AP/") for name in names)]]
    for name, report in reports.items():
        row = report.breakdown_row
        metrics.append([name, f"{row.hz:g}", *percents(row.metrics, names)])
    figure = comparison_figure({name: report.rows for name, report in _named(reports).items()}, _published(reports))
    return render(
        "comparison.html",
        title="Evaluations side by side",
        numbers=_numbers(reports),
        rates=rates_table(reports),
        rates_png=to_png(figure),
        metrics=metrics,
        drop=_DROP,
        differences=difference_table(reports),
        paired=f"AP minus that of {next(iter(reports))}, in points, with {LEVEL:.0%} intervals: each replicate "
        "takes the same recordings for both.",
        settings=_settings(reports),
    )


def rates_table(reports: Mapping[str, EvaluationReport]) -> list[list[str]]:
    """Return rows of cells, starting with the head and ending with the published rows."""
    rates = sorted({row.hz for report in reports.values() for row in report.rows})
    table = [["weights", *(f"{hz:g} Hz" for hz in rates), "drop"]]
    for name, report in _named(reports).items():
        cells = dict.fromkeys(rates, NO_VALUE)
        for row in report.rows:
            cells[row.hz] = percent_ap(row)
        table.append([f"{name} ({report.title})", *cells.values(), percent(report.performance_drop)])
    for name, published in _published(reports).items():
        ap_by_hz = {hz: ap for hz, ap in published.items() if hz in rates}  # so that the drop uses the same rates
        table.append([name, *percents(ap_by_hz, rates), percent(performance_drop(ap_by_hz))])
    return table


def difference_table(reports: Mapping[str, EvaluationReport]) -> list[list[str]]:
    """Return the paired differences to the first report as rows of cells; empty if no report is comparable."""
    cells = {}
    for name, by_hz in _differences(reports).items():
        cells[name] = {hz: percent_interval(difference) for hz, difference in by_hz.items()}
    return table_by_rate("weights", cells)


def _named(reports: Mapping[str, EvaluationReport]) -> dict[str, EvaluationReport]:
    """Return a report for each of the weights and each kind of windows, by name."""
    named = {}
    for name, report in reports.items():
        for window, part in report.by_window.items():
            named[f"{name}, window={window}" if report.others else name] = part
    return named


def _differences(reports: Mapping[str, EvaluationReport]) -> dict[str, dict[float, Interval]]:
    """Return the AP of each of the weights minus the AP of the first, by name and rate, if they are comparable."""
    first, *others = reports.items()
    base_of = {}
    for row in first[1].all_rows:
        for window in row.windows or ("",):
            base_of[row.hz, window] = row.resampled
    differences: dict[str, dict[float, Interval]] = {}
    for name, report in _named(dict(others)).items():
        for row in report.rows:
            base = base_of.get((row.hz, row.window))
            if row.resampled and base and (difference := row.resampled.minus(base, "AP")):
                differences.setdefault(name, {})[row.hz] = difference
    return differences


def _numbers(reports: Mapping[str, EvaluationReport]) -> dict[str, Any]:
    """Return the numbers of every report, with the paired differences to the first one, as plain values."""
    paired = {}
    for name, by_hz in _differences(reports).items():
        paired[name] = {"minus_the_first": {f"{hz:g}": {"AP": pair} for hz, pair in by_hz.items()}}
    numbers = {}
    for name, report in reports.items():
        plain = to_json(report)
        names = list(_named({name: report}))
        for part_name, by_window in zip(names, plain["by_window"].values(), strict=True):
            by_window.update(paired.get(part_name, {}))
        numbers[name] = plain | paired.get(names[0], {})
    return dict(to_plain(numbers))


def _published(reports: Mapping[str, EvaluationReport]) -> dict[str, dict[float, float]]:
    published = {}
    for dataset in dict.fromkeys(report.dataset for report in reports.values()):
        for model, ap_by_hz in published_rows(dataset).items():
            published[f"{model} on {dataset}, published"] = ap_by_hz
    return published


def _settings(reports: Mapping[str, EvaluationReport]) -> dict[str, list[str]]:
    """Return each setting once if all weights share it, otherwise one value per name of weights."""
    settings = {}
    for key in dict.fromkeys(key for report in reports.values() for key in report.settings):
        values = {name: report.settings.get(key, "not measured") for name, report in reports.items()}
        settings[key] = [f"{name}: {text}" for name, text in values.items()]
        if len(set(values.values())) == 1:
            settings[key] = list(values.values())[:1]
    return settings
