"""Show the result of an evaluation, or of several together: JSON with every number, an HTML page, a terminal table."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rvtssm.evaluation.breakdown import MIN_IOU, Breakdown, to_plain
from rvtssm.evaluation.coco import LEVEL, METRICS, Interval
from rvtssm.evaluation.frequency import performance_drop, published_rows
from rvtssm.evaluation.plots import comparison_figure, precision_figure, shifts_figure, to_png
from rvtssm.evaluation.render import TerminalTable, render
from rvtssm.evaluation.result import (
    NO_VALUE,
    EvaluationReport,
    interval_table,
    percent,
    percent_ap,
    percent_interval,
    percents,
    rate_table,
    shift_sentence,
    table_by_rate,
    to_json,
)
from rvtssm.records.settings import SHOWN_SCORE
from rvtssm.system.output_folder import write_files

REPORT_FILES = ("evaluation.json", "report.html")
COMPARISON_FILES = ("comparison.json", "comparison.html")
_DROP = "Drop: AP at the rate of training minus the mean of the other rates of its row, in points."


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


def write_comparison(reports: Mapping[str, EvaluationReport], folder: Path) -> None:
    """Write COMPARISON_FILES to a folder.

    Args:
        reports: At least one report, by name of weights.
        folder: The folder to write to.
    """
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
