"""Writes the result of an evaluation: console table, JSON, CSV, Markdown, plot, HTML page."""

import csv
import io
import json
import math
from pathlib import Path

from rich.table import Table

from rvtssm.evaluation.frequency import RateRow, published_rows
from rvtssm.evaluation.result import (
    EvaluationReport,
    citation,
    markdown_table,
    percent,
    rate_table,
    shift_sentence,
    to_json,
)
from rvtssm.reports.page import to_html
from rvtssm.reports.plots import rates_png
from rvtssm.system.output_folder import write_files

REPORT_FILES = ("evaluation.json", "evaluation.csv", "evaluation.md", "evaluation.png", "report.html")


def console_table(report: EvaluationReport) -> Table:
    """Return the report as a rich table with AP in percent; published rows and settings are below it."""
    lines = [*_published(report), *(f"{name}: {value}" for name, value in report.settings.items())]
    lines += [shift_sentence(report)] if report.time_shifts else []
    lines += [f"AP on objects that stand still, {name}: {percent(ap)}" for name, ap in report.still_objects.items()]
    table = Table(title=report.title, caption="\n".join(lines), caption_justify="left", title_justify="left")
    head, *rows = rate_table(report)
    for number, name in enumerate(head):
        table.add_column(name, justify="right", style=None if number else "bold")
    for row in rows:
        table.add_row(*row)
    if not math.isnan(report.performance_drop):
        table.add_section()
        table.add_row("drop", percent(report.performance_drop))
    return table


def to_csv(report: EvaluationReport) -> str:
    """Return one line per rate; a cell is empty if there was no ground truth."""
    text = io.StringIO()
    lines = [{**row.metrics, **row.extra, **_limits(row)} for row in report.rows]
    names = list(dict.fromkeys([*report.metric_names, *(name for line in lines for name in line)]))
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["hz", *names])
    for row, line in zip(report.rows, lines, strict=True):
        values = [line.get(name, math.nan) for name in names]
        writer.writerow([f"{row.hz:g}", *("" if math.isnan(value) else f"{value:.6f}" for value in values)])
    return text.getvalue()


def to_markdown(report: EvaluationReport) -> str:
    """Return a section with the table, the drop, the published rows if there are any, and the settings."""
    lines = [f"## {report.title}", "", *markdown_table(rate_table(report), "|--:|")]
    if not math.isnan(report.performance_drop):
        meaning = f"AP at {report.reference_hz:g} Hz minus the mean of the other rates"
        lines += ["", f"Performance drop ({meaning}): {100 * report.performance_drop:.1f} points."]
    for sentence in _published(report):
        lines += ["", sentence]
    lines += ["", f"To cite: {citation(report)}."]
    if report.time_shifts:
        lines += ["", shift_sentence(report)]
    if report.still_objects:
        values = ", ".join(f"{name} {percent(ap)}" for name, ap in report.still_objects.items())
        lines += ["", f"AP on objects that stand still: {values}."]
    return "\n".join([*lines, "", *(f"- {name}: {value}" for name, value in report.settings.items()), ""])


def write_report(report: EvaluationReport, folder: Path) -> dict[str, Path]:
    """Write REPORT_FILES to a folder, and return their paths by kind."""
    content = (
        (json.dumps(to_json(report), indent=2) + "\n").encode(),
        to_csv(report).encode(),
        to_markdown(report).encode(),
        rates_png(report.title, report.dataset, report.rows),
        to_html(report).encode(),
    )
    return {path.suffix[1:]: path for path in write_files(folder, dict(zip(REPORT_FILES, content, strict=True)))}


def _limits(row: RateRow) -> dict[str, float]:
    """Return the ends of all intervals by name."""
    ends = {f"{name}_low": found.low for name, found in row.intervals.items()}
    return ends | {f"{name}_high": found.high for name, found in row.intervals.items()}


def _published(report: EvaluationReport) -> list[str]:
    """Return the published rows as sentences, one per model."""
    return [
        f"Published, {model}: " + ", ".join(f"{hz:g} Hz {100 * ap:.1f}" for hz, ap in ap_by_hz.items()) + "."
        for model, ap_by_hz in published_rows(report.dataset).items()
    ]
