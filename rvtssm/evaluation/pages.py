"""Show the result of an evaluation, or of several together: JSON with every number, an HTML page, a terminal table."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rvtssm.drawing import figure_png
from rvtssm.evaluation.breakdown import MIN_IOU, Breakdown, to_plain
from rvtssm.evaluation.coco import AP_OF_SIZES, LEVEL
from rvtssm.evaluation.protocol import performance_drop, published_rows
from rvtssm.evaluation.render import TerminalTable, comparison_figure, precision_figure, render, shifts_figure
from rvtssm.evaluation.report import (
    EvaluationReport,
    Row,
    in_hz,
    interval_table,
    minus_the_first,
    percent,
    percent_interval,
    percent_of,
    shift_sentence,
    table_by_rate,
    to_table,
)
from rvtssm.records.settings import SHOWN_SCORE
from rvtssm.system.output_folder import write_files

REPORT_FILES = ("evaluation.json", "report.html")
COMPARISON_FILES = ("comparison.json", "comparison.html")
_DROP = "Drop: AP at the rate of training minus the mean of the other rates of its row, in points."


def write_report(report: EvaluationReport, folder: Path, kept: Mapping[str, Any]) -> None:
    """Write REPORT_FILES to a folder.

    Args:
        report: The report.
        folder: The folder to write to.
        kept: Further values of `evaluation.json`, with which a later evaluation goes on.
    """
    numbers = json.dumps(report.to_json() | dict(kept), indent=2) + "\n"
    write_files(folder, {"evaluation.json": numbers.encode(), "report.html": to_html(report).encode()})


def console_table(report: EvaluationReport) -> TerminalTable:
    """Return the report for the terminal with AP in percent. Published rows and conditions follow below."""
    head, *rows = report.table()
    last = len(rows) - 1
    # The drops stand in rows of their own.
    drops = report.drops
    if not all(map(math.isnan, drops.values())):
        for window, drop in drops.items():
            cells = ["drop", percent(drop)]
            if len(drops) > 1:
                cells.insert(1, window)
            rows.append(cells + [""] * (len(head) - len(cells)))
    # APs of sizes come last: they are the first to be left out in a narrow terminal, before the classes of the user.
    order = sorted(range(len(head)), key=lambda column: head[column] in AP_OF_SIZES)
    ordered = []
    for cells in (head, *rows):
        ordered.append([cells[column] for column in order])
    return TerminalTable(report.title, ordered, _lines_below(report), "report.html", sections=[last])


def _lines_below(report: EvaluationReport) -> list[str]:
    lines = [f"Note: {warning}." for warning in report.warnings]
    for model, ap_by_hz in published_rows(report.dataset).items():
        values = ", ".join(f"{in_hz(hz)} {100 * ap:.1f}" for hz, ap in ap_by_hz.items())
        lines.append(f"Published, {model}: {values}.")
    lines += [f"{name}: {value}" for name, value in report.conditions.items()]
    if report.time_shifts:
        lines.append(shift_sentence(report))
    lines += [f"AP on objects that stand still, {name}: {percent(ap)}" for name, ap in report.still_objects.items()]
    return lines


def to_html(report: EvaluationReport) -> str:
    """Return one page that contains the tables, plots and pictures of a report, and its numbers as JSON."""
    return render(
        "report.html",
        title=report.title,
        numbers=report.to_json(),
        rates=report.table(),
        intervals=interval_table(report),
        level=f"{LEVEL:.0%}",
        published=_beside_published(report),
        rates_png=figure_png(report.plot()),
        shifts_png=figure_png(shifts_figure(report.time_shifts)) if report.time_shifts else None,
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
        "precision_png": figure_png(precision_figure(report.breakdown.curves)),
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
    for name, rows in _lines({"this evaluation": report}).items():
        cells[name] = {row["hz"]: percent(row["AP"]) for row in rows}
    for model, ap_by_hz in published.items():
        cells[f"{model} (published)"] = {hz: percent(ap) for hz, ap in ap_by_hz.items()}
    return table_by_rate("", cells)


def write_comparison(reports: Mapping[str, EvaluationReport], folder: Path) -> None:
    """Write COMPARISON_FILES to a folder.

    Args:
        reports: At least one report, by name of weights.
        folder: The folder to write to.
    """
    numbers = json.dumps(compared_numbers(reports), indent=2) + "\n"
    page = comparison_html(reports)
    write_files(folder, {"comparison.json": numbers.encode(), "comparison.html": page.encode()})


def comparison_table(reports: Mapping[str, EvaluationReport]) -> TerminalTable:
    """Return AP in percent over the rates of all reports, and the paired differences to the first one below."""
    lines = [_DROP]
    head, *rows = difference_table(reports) or [[]]
    for name, *cells in rows:
        numbers = [f"{hz} {cell}" for hz, cell in zip(head[1:], cells, strict=True)]
        lines.append(f"{name} minus {next(iter(reports))}, in points, paired: {', '.join(numbers)}")
    lines += _warnings(reports)
    return TerminalTable("AP in percent", rates_table(reports), lines, "comparison.html")


def comparison_html(reports: Mapping[str, EvaluationReport]) -> str:
    """Return one page: AP over the rates of all reports, paired differences, and all metrics at one rate."""
    # One row per weights: all metrics at the rate of training.
    metrics = []
    heads: dict[str, str] = {}
    for name, report in reports.items():
        row = report.reference()
        cells = {"weights": name}
        if not math.isnan(row["hz"]):
            cells["Hz"] = f"{row['hz']:g}"
        for metric in report.metric_names:
            cells[metric] = percent(row[metric])
            heads[metric] = metric.removeprefix("AP/")
        metrics.append(cells)
    return render(
        "comparison.html",
        title="Evaluations side by side",
        numbers=compared_numbers(reports),
        rates=rates_table(reports),
        rates_png=figure_png(comparison_figure(_lines(reports), _published(reports))),
        metrics=to_table(metrics, heads),
        drop=_DROP,
        warnings=_warnings(reports),
        differences=difference_table(reports),
        paired=f"AP minus that of {next(iter(reports))}, in points, with {LEVEL:.0%} intervals: each replicate "
        "takes the same recordings for both.",
        conditions=_conditions(reports),
    )


def _warnings(reports: Mapping[str, EvaluationReport]) -> list[str]:
    """Return what to know of the intervals of all reports, each once, as sentences."""
    warnings: dict[str, None] = {}
    for report in reports.values():
        warnings |= dict.fromkeys(report.warnings)
    sentences = [f"Note: {warning}." for warning in warnings]
    if len(reports) > 1 and warnings:
        sentences.append("Note: differences are those of single trainings.")
    return sentences


def rates_table(reports: Mapping[str, EvaluationReport]) -> list[list[str]]:
    """Return rows of cells, starting with the head and ending with the published rows."""
    cells: dict[str, dict[float, str]] = {}
    drops = []
    for name, report in reports.items():
        for line, rows in _lines({name: report}).items():
            cells[f"{line} ({report.title})"] = {row["hz"]: percent_of(row) for row in rows}
            drops.append(percent(report.drop(rows[0]["window"])))
    head, *table = table_by_rate("weights", cells)
    rates = sorted(set().union(*cells.values()))
    for name, published in _published(reports).items():
        ap_by_hz = {hz: ap for hz, ap in published.items() if hz in rates}  # so that the drop uses the same rates
        table.append([name, *(percent(ap_by_hz.get(hz, math.nan)) for hz in rates)])
        drops.append(percent(performance_drop(ap_by_hz)))
    for row, drop in zip(table, drops, strict=True):
        row.append(drop)
    return [[*head, "drop"], *table]


def difference_table(reports: Mapping[str, EvaluationReport]) -> list[list[str]]:
    """Return the paired differences to the first report as rows of cells; empty if no report is comparable."""
    cells: dict[str, dict[float, str]] = {}
    for name, differences in minus_the_first(reports).items():
        for (hz, window), difference in differences.items():
            line = _line(name, reports[name], window)
            cells.setdefault(line, {})[hz] = percent_interval(difference)
    return table_by_rate("weights", cells)


def _line(name: str, report: EvaluationReport, window: str) -> str:
    """Return the name of weights, with the kind of windows if there are two."""
    if len(report.windows) == 1:
        return name
    return f"{name}, window={window}"


def _lines(reports: Mapping[str, EvaluationReport]) -> dict[str, list[Row]]:
    """Return the rows of each of the weights and each kind of windows, by name."""
    lines = {}
    for name, report in reports.items():
        for window in report.windows:
            lines[_line(name, report, window)] = report.of(window)
    return lines


def compared_numbers(reports: Mapping[str, EvaluationReport]) -> dict[str, Any]:
    """Return the numbers of every report, with the paired differences to the first one, as plain values."""
    differences = minus_the_first(reports)
    numbers = {}
    for name, report in reports.items():
        plain = report.to_json()
        for row in plain["rows"]:
            if difference := differences.get(name, {}).get((row["hz"], row["window"])):
                row["minus_the_first"] = list(difference)
        numbers[name] = plain
    return dict(to_plain(numbers))


def _published(reports: Mapping[str, EvaluationReport]) -> dict[str, dict[float, float]]:
    published = {}
    for dataset in dict.fromkeys(report.dataset for report in reports.values()):
        for model, ap_by_hz in published_rows(dataset).items():
            published[f"{model} on {dataset}, published"] = ap_by_hz
    return published


def _conditions(reports: Mapping[str, EvaluationReport]) -> dict[str, list[str]]:
    """Return each condition once if all weights share it, otherwise one value per name of weights."""
    conditions = {}
    keys: dict[str, str] = {}
    for report in reports.values():
        keys |= report.conditions
    for key in keys:
        values = {name: report.conditions.get(key, "not measured") for name, report in reports.items()}
        conditions[key] = [f"{name}: {text}" for name, text in values.items()]
        if len(set(values.values())) == 1:
            conditions[key] = list(values.values())[:1]
    return conditions
