"""Show the result of an evaluation: JSON with every number, one HTML page, one table on the terminal."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from rvtssm.evaluation.bootstrap import LEVEL
from rvtssm.evaluation.breakdown import MIN_IOU, Breakdown
from rvtssm.evaluation.coco import METRICS
from rvtssm.evaluation.frequency import published_rows
from rvtssm.evaluation.plots import precision_figure, shifts_figure, to_png
from rvtssm.evaluation.render import TerminalTable, render
from rvtssm.evaluation.result import (
    EvaluationReport,
    interval_table,
    percent,
    rate_table,
    shift_sentence,
    table_by_rate,
    to_json,
)
from rvtssm.records.settings import SHOWN_SCORE
from rvtssm.system.output_folder import write_files

REPORT_FILES = ("evaluation.json", "report.html")


def write_report(report: EvaluationReport, folder: Path) -> None:
    """Write REPORT_FILES to a folder."""
    numbers = json.dumps(to_json(report), indent=2) + "\n"
    write_files(folder, {"evaluation.json": numbers.encode(), "report.html": to_html(report).encode()})


def console_table(report: EvaluationReport) -> TerminalTable:
    """Return the report for the terminal with AP in percent. Published rows and settings follow below."""
    head, *rows = rate_table(report)
    last = len(rows) - 1
    drops = {window: part.performance_drop for window, part in report.by_window.items()}
    if not all(map(math.isnan, drops.values())):
        for window, drop in drops.items():
            cells = ["drop", *[window] * bool(report.others), percent(drop)]
            rows.append(cells + [""] * (len(head) - len(cells)))
    # APs of sizes come last: they are the first to be left out in a narrow terminal, before the classes of the user.
    order = sorted(range(len(head)), key=lambda column: head[column] in METRICS[3:])
    ordered = np.array([head, *rows], object)[:, order].tolist()
    return TerminalTable(report.title, ordered, _lines_below(report), "report.html", sections=[last])


def _lines_below(report: EvaluationReport) -> list[str]:
    lines = []
    for model, ap_by_hz in published_rows(report.dataset).items():
        values = ", ".join(f"{hz:g} Hz {100 * ap:.1f}" for hz, ap in ap_by_hz.items())
        lines.append(f"Published, {model}: {values}.")
    lines += [f"{name}: {value}" for name, value in report.settings.items()]
    if report.time_shifts:
        lines.append(shift_sentence(report))
    lines += [f"AP on objects that stand still, {name}: {percent(ap)}" for name, ap in report.still_objects.items()]
    return lines


def to_html(report: EvaluationReport) -> str:
    """Return one page that contains the tables, plots and pictures of a report, and its numbers as JSON."""
    return render(
        "report.html",
        title=report.title,
        numbers=to_json(report),
        rates=rate_table(report),
        intervals=interval_table(report),
        level=f"{LEVEL:.0%}",
        published=_beside_published(report),
        rates_png=to_png(report.plot()),
        shifts_png=to_png(shifts_figure(report.time_shifts)) if report.time_shifts else None,
        **details(report),
    )


def details(report: EvaluationReport) -> dict[str, Any]:
    """Return the values for `templates/details.html`."""
    values: dict[str, Any] = {"report": report, "shown_score": SHOWN_SCORE, "min_iou": MIN_IOU}
    if report.breakdown is None:
        return values
    return values | {
        "groups": _group_tables(report.breakdown),
        "confusion": _confusion_table(report.breakdown),
        "precision_png": to_png(precision_figure(report.breakdown.curves)),
    }


def _group_tables(breakdown: Breakdown) -> dict[str, list[list[str]]]:
    tables = {}
    for group in breakdown.groups:
        tables[group.name] = [[group.name, "boxes", "AP [%]"]]
        for part, ap in group.ap.items():
            tables[group.name].append([part, str(group.num_boxes[part]), percent(ap)])
    return tables


def _confusion_table(breakdown: Breakdown) -> list[list[str]]:
    names = [*breakdown.class_names, "nothing"]
    rows = [["is \\ found as", *names]]
    for name, counts in zip(names, breakdown.confusion, strict=True):
        rows.append([name, *map(str, counts.tolist())])
    return rows


def _beside_published(report: EvaluationReport) -> list[list[str]]:
    """Return this evaluation and the published rows as a table; empty if none are published."""
    published = published_rows(report.dataset)
    if not published:
        return []
    cells: dict[str, dict[float, str]] = {}
    for window, part in report.by_window.items():
        which = f", window={window}" if report.others else ""
        cells[f"this evaluation{which}"] = {row.hz: percent(row.metrics["AP"]) for row in part.rows}
    for model, ap_by_hz in published.items():
        cells[f"{model} (published)"] = {hz: percent(ap) for hz, ap in ap_by_hz.items()}
    return table_by_rate("", cells)
