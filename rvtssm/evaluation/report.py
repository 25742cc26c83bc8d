"""The result of an evaluation for people and machines: console table, JSON, CSV, Markdown, plot, HTML page."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from rvtssm.atomic_files import write_together
from rvtssm.evaluation.frequency import published_sentences
from rvtssm.evaluation.page import Picture, to_html
from rvtssm.evaluation.plots import rates_png
from rvtssm.evaluation.result import EvaluationReport, percent, to_json


def console_table(report: EvaluationReport) -> Table:
    """The report as a rich table, AP in percent, the published rows and the settings below it."""
    table = Table(title=report.title, caption=_plain_settings(report), caption_justify="left", title_justify="left")
    table.add_column("Hz", justify="right", style="bold")
    for name in report.metric_names:
        table.add_column(name.replace("AP_", "AP ").replace("AP/", ""), justify="right")
    for row in report.rows:
        table.add_row(f"{row.hz:g}", *(percent(row.metrics[name]) for name in report.metric_names))
    if not math.isnan(report.performance_drop):
        table.add_section()
        table.add_row("drop", percent(report.performance_drop))
    return table


def to_csv(report: EvaluationReport) -> str:
    """One line per rate; empty cells where there was no ground truth."""
    text = io.StringIO()
    extra = list(dict.fromkeys(name for row in report.rows for name in row.extra))
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["hz", *report.metric_names, *extra])
    for row in report.rows:
        values = [
            *(row.metrics[name] for name in report.metric_names),
            *(row.extra.get(name, math.nan) for name in extra),
        ]
        writer.writerow([f"{row.hz:g}", *("" if math.isnan(value) else f"{value:.6f}" for value in values)])
    return text.getvalue()


def to_markdown(report: EvaluationReport) -> str:
    """A section with the table, the drop, the published rows where there are some, and the settings."""
    names = report.metric_names
    lines = [f"## {report.title}", "", "| Hz | " + " | ".join(names) + " |", "|--:" * (len(names) + 1) + "|"]
    lines += [
        f"| {row.hz:g} | " + " | ".join(percent(row.metrics[name]) for name in names) + " |" for row in report.rows
    ]
    if not math.isnan(report.performance_drop):
        meaning = f"AP at {report.reference_hz:g} Hz minus the mean of the other rates"
        lines += ["", f"Performance drop ({meaning}): {100 * report.performance_drop:.1f} points."]
    for sentence in published_sentences(report.dataset):
        lines += ["", sentence]
    if report.still_objects:
        values = ", ".join(f"{name} {percent(ap)}" for name, ap in report.still_objects.items())
        lines += ["", f"AP on objects that stand still: {values}."]
    return "\n".join([*lines, "", *(f"- {name}: {value}" for name, value in report.settings.items()), ""])


def write_report(
    report: EvaluationReport, out_dir: Path | str, pictures: Sequence[Picture] = (), name: str = "evaluation"
) -> dict[str, Path]:
    """Write `<name>.json`, `.csv`, `.md` and `.png` and the page `report.html`; returns their paths by kind.

    `pictures` of the worst frames go into the page.
    """
    content = {
        f"{name}.json": (json.dumps(to_json(report), indent=2) + "\n").encode(),
        f"{name}.csv": to_csv(report).encode(),
        f"{name}.md": to_markdown(report).encode(),
        f"{name}.png": rates_png(report.title, report.dataset, report.rows),
        "report.html": to_html(report, pictures).encode(),
    }
    return {path.suffix[1:]: path for path in write_together(out_dir, content)}


def _plain_settings(report: EvaluationReport) -> str:
    lines = [*published_sentences(report.dataset), *(f"{name}: {value}" for name, value in report.settings.items())]
    lines += [f"AP on objects that stand still, {name}: {percent(ap)}" for name, ap in report.still_objects.items()]
    return "\n".join(lines)
