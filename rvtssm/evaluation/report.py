"""Writes the result of an evaluation: console table, JSON, CSV, Markdown, plot, HTML page."""

import csv
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from rvtssm.evaluation.frequency import published_rows
from rvtssm.evaluation.page import Picture, to_html
from rvtssm.evaluation.plots import rates_png
from rvtssm.evaluation.result import EvaluationReport, markdown_table, percent, percents, to_json
from rvtssm.output_folder import write_files

REPORT_FILES = ("evaluation.json", "evaluation.csv", "evaluation.md", "evaluation.png", "report.html")


def console_table(report: EvaluationReport) -> Table:
    """Return the report as a rich table with AP in percent; published rows and settings are below it."""
    lines = [*_published(report), *(f"{name}: {value}" for name, value in report.settings.items())]
    lines += [f"AP on objects that stand still, {name}: {percent(ap)}" for name, ap in report.still_objects.items()]
    table = Table(title=report.title, caption="\n".join(lines), caption_justify="left", title_justify="left")
    table.add_column("Hz", justify="right", style="bold")
    for name in report.metric_names:
        table.add_column(name.replace("AP_", "AP ").replace("AP/", ""), justify="right")
    for row in report.rows:
        table.add_row(f"{row.hz:g}", *percents(row.metrics, report.metric_names))
    if not math.isnan(report.performance_drop):
        table.add_section()
        table.add_row("drop", percent(report.performance_drop))
    return table


def to_csv(report: EvaluationReport) -> str:
    """Return one line per rate; a cell is empty if there was no ground truth."""
    text = io.StringIO()
    extra = list(dict.fromkeys(name for row in report.rows for name in row.extra))
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["hz", *report.metric_names, *extra])
    for row in report.rows:
        values = [{**row.metrics, **row.extra}.get(name, math.nan) for name in (*report.metric_names, *extra)]
        writer.writerow([f"{row.hz:g}", *("" if math.isnan(value) else f"{value:.6f}" for value in values)])
    return text.getvalue()


def to_markdown(report: EvaluationReport) -> str:
    """Return a section with the table, the drop, the published rows if there are any, and the settings."""
    names = report.metric_names
    rows = [["Hz", *names], *([f"{row.hz:g}", *percents(row.metrics, names)] for row in report.rows)]
    lines = [f"## {report.title}", "", *markdown_table(rows, "|--:|")]
    if not math.isnan(report.performance_drop):
        meaning = f"AP at {report.reference_hz:g} Hz minus the mean of the other rates"
        lines += ["", f"Performance drop ({meaning}): {100 * report.performance_drop:.1f} points."]
    for sentence in _published(report):
        lines += ["", sentence]
    if report.still_objects:
        values = ", ".join(f"{name} {percent(ap)}" for name, ap in report.still_objects.items())
        lines += ["", f"AP on objects that stand still: {values}."]
    return "\n".join([*lines, "", *(f"- {name}: {value}" for name, value in report.settings.items()), ""])


def write_report(report: EvaluationReport, folder: Path, pictures: Sequence[Picture] = ()) -> dict[str, Path]:
    """Write REPORT_FILES to a folder, and return their paths by kind. `pictures` show the worst frames in the page."""
    content = (
        (json.dumps(to_json(report), indent=2) + "\n").encode(),
        to_csv(report).encode(),
        to_markdown(report).encode(),
        rates_png(report.title, report.dataset, report.rows),
        to_html(report, pictures).encode(),
    )
    return {path.suffix[1:]: path for path in write_files(folder, dict(zip(REPORT_FILES, content, strict=True)))}


def _published(report: EvaluationReport) -> list[str]:
    """Return the published rows as sentences, one per model."""
    return [
        f"Published, {model}: " + ", ".join(f"{hz:g} Hz {100 * ap:.1f}" for hz, ap in ap_by_hz.items()) + "."
        for model, ap_by_hz in published_rows(report.dataset).items()
    ]
