"""Compares several evaluations: average precision by weights and rate, with the published rows below."""

import json
from collections.abc import Mapping
from html import escape
from pathlib import Path

from rvtssm.evaluation.frequency import performance_drop, published_rows
from rvtssm.evaluation.page import document, figure, table
from rvtssm.evaluation.plots import comparison_png
from rvtssm.evaluation.result import EvaluationReport, markdown_table, percent, percents, to_json
from rvtssm.output_folder import write_files

COMPARISON_FILES = ("comparison.json", "comparison.md", "comparison.html")

_DROP = "Drop: AP at the rate of training minus the mean of the other rates of its row, in points."


def write_comparison(reports: Mapping[str, EvaluationReport], folder: Path) -> list[Path]:
    """Write COMPARISON_FILES to a folder and return their paths. `reports` has one report per name of weights."""
    if not reports:
        raise ValueError("a comparison needs at least one report; got none, name some checkpoints")
    content = (
        (json.dumps(_numbers(reports), indent=2) + "\n").encode(),
        comparison_markdown(reports).encode(),
        comparison_html(reports).encode(),
    )
    return write_files(folder, dict(zip(COMPARISON_FILES, content, strict=True)))


def comparison_markdown(reports: Mapping[str, EvaluationReport]) -> str:
    """Return a table of AP in percent over the rates of all reports, and the performance drop of each report."""
    lines = ["## AP by inference rate", "", *markdown_table(_table_by_rate(reports), "|---|"), "", _DROP, ""]
    for key, values in _settings(reports).items():
        if len(set(values.values())) == 1:
            lines.append(f"- {key}: {next(iter(values.values()))}")
        else:
            lines += [f"- {key}:", *(f"  - {name}: {value}" for name, value in values.items())]
    return "\n".join([*lines, ""])


def comparison_html(reports: Mapping[str, EvaluationReport]) -> str:
    """Return the same as a page, with a plot and with all metrics at one rate."""
    head, *rows = _table_by_rate(reports)
    ours = {name: {row.hz: row.metrics["AP"] for row in report.rows} for name, report in reports.items()}
    names = list(dict.fromkeys(name for report in reports.values() for name in report.metric_names))
    details = []
    for name, report in reports.items():
        row = next(row for row in report.rows if row.hz == report.breakdown_hz)
        details.append([name, f"{row.hz:g}", *percents(row.metrics, names)])
    parts = [
        "<h2>Average precision by inference rate</h2>",
        table("rates", head, rows, f"AP in percent. {_DROP}"),
        figure(comparison_png(ours, _published(reports)), "Average precision over the rate; dashed: published."),
        "<h2>At one rate</h2>",
        table("metrics", ["weights", "Hz", *(name.removeprefix("AP/") for name in names)], details, "percent"),
        "<h2>Conditions</h2><dl>",
    ]
    for key, values in _settings(reports).items():
        is_shared = len(set(values.values())) == 1
        said = list(values.values())[:1] if is_shared else [f"{name}: {value}" for name, value in values.items()]
        parts += [f"<dt>{escape(key)}</dt>", *(f"<dd>{escape(text)}</dd>" for text in said)]
    return document("Evaluations side by side", [*parts, "</dl>"], _numbers(reports))


def _numbers(reports: Mapping[str, EvaluationReport]) -> dict[str, object]:
    return {name: to_json(report) for name, report in reports.items()}


def _table_by_rate(reports: Mapping[str, EvaluationReport]) -> list[list[str]]:
    """Return rows of cells, the head first, the published rows last."""
    rates = sorted({row.hz for report in reports.values() for row in report.rows})
    rows = [["weights", *(f"{hz:g} Hz" for hz in rates), "drop"]]
    for name, report in reports.items():
        ap_by_hz = {row.hz: row.metrics["AP"] for row in report.rows}
        rows.append([f"{name} ({report.title})", *percents(ap_by_hz, rates), percent(report.performance_drop)])
    for name, published in _published(reports).items():
        ap_by_hz = {hz: ap for hz, ap in published.items() if hz in rates}  # so that the drop is over the same rates
        rows.append([name, *percents(ap_by_hz, rates), percent(performance_drop(ap_by_hz))])
    return rows


def _published(reports: Mapping[str, EvaluationReport]) -> dict[str, dict[float, float]]:
    return {
        f"{model} on {dataset}, published": ap_by_hz
        for dataset in dict.fromkeys(report.dataset for report in reports.values())
        for model, ap_by_hz in published_rows(dataset).items()
    }


def _settings(reports: Mapping[str, EvaluationReport]) -> dict[str, dict[str, str]]:
    """Return by setting its value for each of the weights."""
    keys = dict.fromkeys(key for report in reports.values() for key in report.settings)
    return {key: {name: report.settings.get(key, "not measured") for name, report in reports.items()} for key in keys}
