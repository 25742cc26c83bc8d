"""Write the result of an evaluation: console table, JSON, CSV, Markdown, plot, HTML page."""

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

from rvtssm.evaluation.bootstrap import LEVEL
from rvtssm.evaluation.breakdown import MIN_IOU
from rvtssm.evaluation.frequency import RateRow, published_rows
from rvtssm.evaluation.matches import METRICS
from rvtssm.evaluation.plots import comparison_png, precision_png, rates_png, shifts_png
from rvtssm.evaluation.render import render
from rvtssm.evaluation.result import (
    EvaluationReport,
    percent,
    percent_interval,
    percents,
    rate_table,
    shift_sentence,
    to_json,
    window_name,
)
from rvtssm.evaluation.terminal_table import TerminalTable
from rvtssm.records import SHOWN_SCORE
from rvtssm.system.output_folder import write_files

REPORT_FILES = ("evaluation.json", "evaluation.csv", "evaluation.md", "evaluation.png", "report.html")


def console_table(report: EvaluationReport) -> TerminalTable:
    """Return the report for the terminal with AP in percent. Published rows and settings follow below."""
    lines = [*_published(report), *(f"{name}: {value}" for name, value in report.settings.items())]
    lines += [shift_sentence(report)] if report.time_shifts else []
    lines += [f"AP on objects that stand still, {name}: {percent(ap)}" for name, ap in report.still_objects.items()]
    head, *rows = rate_table(report)
    last = len(rows) - 1
    drops = {window: each.performance_drop for window, each in report.by_window.items()}
    if not all(map(math.isnan, drops.values())):
        for window, drop in drops.items():
            cells = ["drop", *([window] if report.others else []), percent(drop)]
            rows.append(cells + [""] * (len(head) - len(cells)))
    # APs of sizes come last: they are the first to be left out in a narrow terminal, before the classes of the user.
    order = sorted(range(len(head)), key=lambda column: head[column] in METRICS[3:])
    rows = [[row[column] for column in order] for row in [head, *rows]]
    return TerminalTable(report.title, rows, lines, "evaluation.md", 0, [last])


def to_csv(report: EvaluationReport) -> str:
    """Return one line per rate and kind of windows. A cell is empty if there was no ground truth."""
    text = io.StringIO()
    lines = [{**row.metrics, **row.extra, **_limits(row)} for row in report.all_rows]
    names = list(dict.fromkeys([*report.metric_names, *(name for line in lines for name in line)]))
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["hz", "window", *names])
    for row, line in zip(report.all_rows, lines, strict=True):
        values = [line.get(name, math.nan) for name in names]
        writer.writerow(
            [f"{row.hz:g}", window_name(row), *("" if math.isnan(value) else f"{value:.6f}" for value in values)]
        )
    return text.getvalue()


def to_markdown(report: EvaluationReport) -> str:
    """Return a section with the table, the drop, the published rows if there are any, and the settings."""
    return render("report.md", report=report, rates=rate_table(report), published=_published(report))


def to_html(report: EvaluationReport) -> str:
    """Return one page that contains the tables, plots and pictures of a report, and its numbers as JSON."""
    return render(
        "report.html",
        title=report.title,
        numbers=to_json(report),
        rates=rate_table(report),
        intervals=_intervals(report),
        level=f"{LEVEL:.0%}",
        published=_beside_published(report),
        rates_png=_rates_png(report),
        shifts_png=shifts_png(report.time_shifts) if report.time_shifts else None,
        **details(report),
    )


def details(report: EvaluationReport) -> dict[str, Any]:
    """Return the values for `templates/details.html`."""
    values: dict[str, Any] = {"report": report, "shown_score": SHOWN_SCORE, "min_iou": MIN_IOU}
    if (broken := report.breakdown) is None:
        return values
    groups = {
        group.name: [
            [group.name, "boxes", "AP [%]"],
            *([part, str(group.num_boxes[part]), percent(ap)] for part, ap in group.ap.items()),
        ]
        for group in broken.groups
    }
    names = [*broken.class_names, "nothing"]
    rows = ([name, *map(str, row)] for name, row in zip(names, broken.confusion.tolist(), strict=True))
    confusion = [["is \\ found as", *names], *rows]
    return values | {"groups": groups, "confusion": confusion, "precision_png": precision_png(broken.curves)}


def write_report(report: EvaluationReport, folder: Path) -> dict[str, Path]:
    """Write REPORT_FILES to a folder, and return their paths by kind."""
    content = (
        (json.dumps(to_json(report), indent=2) + "\n").encode(),
        to_csv(report).encode(),
        to_markdown(report).encode(),
        _rates_png(report),
        to_html(report).encode(),
    )
    return {path.suffix[1:]: path for path in write_files(folder, dict(zip(REPORT_FILES, content, strict=True)))}


def _rates_png(report: EvaluationReport) -> bytes:
    """Draw AP over the rate, with one line per kind of windows if there are two."""
    if not report.others:
        return rates_png(report.title, report.dataset, report.rows)
    published = {f"{model}, published": ap_by_hz for model, ap_by_hz in published_rows(report.dataset).items()}
    return comparison_png({f"window={name}": each.rows for name, each in report.by_window.items()}, published)


def _limits(row: RateRow) -> dict[str, float]:
    """Return the limits of all confidence intervals by name."""
    ends = {f"{name}_low": found.low for name, found in row.intervals.items()}
    return ends | {f"{name}_high": found.high for name, found in row.intervals.items()}


def _intervals(report: EvaluationReport) -> list[list[str]]:
    """Return the confidence intervals of all numbers as a table; empty if there are none."""
    names, is_named = report.metric_names, bool(report.others)
    rows = [
        [
            f"{row.hz:g}",
            *([window_name(row)] if is_named else []),
            *(percent_interval(row.intervals[name]) for name in names),
        ]
        for row in report.all_rows
        if row.intervals
    ]
    head = ["Hz", *(["window"] if is_named else []), *(name.removeprefix("AP/") for name in names)]
    return [head, *rows] if rows else []


def _beside_published(report: EvaluationReport) -> list[list[str]]:
    """Return this evaluation and the published rows as a table; empty if none are published."""
    published = published_rows(report.dataset)
    if not published:
        return []
    rows = {
        "this evaluation" + (f", window={window}" if report.others else ""): {
            row.hz: row.metrics["AP"] for row in each.rows
        }
        for window, each in report.by_window.items()
    }
    rows |= {f"{model} (published)": ap_by_hz for model, ap_by_hz in published.items()}
    rates = sorted({hz for ap_by_hz in rows.values() for hz in ap_by_hz})
    return [
        ["", *(f"{hz:g} Hz" for hz in rates)],
        *([name, *percents(ap_by_hz, rates)] for name, ap_by_hz in rows.items()),
    ]


def _published(report: EvaluationReport) -> list[str]:
    """Return the published rows as sentences, one per model."""
    return [
        f"Published, {model}: " + ", ".join(f"{hz:g} Hz {100 * ap:.1f}" for hz, ap in ap_by_hz.items()) + "."
        for model, ap_by_hz in published_rows(report.dataset).items()
    ]
