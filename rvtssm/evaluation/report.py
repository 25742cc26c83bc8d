"""The result of an evaluation for people and machines: console table, JSON, CSV, Markdown, plot."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from rvtssm.evaluation.coco import METRICS
from rvtssm.evaluation.frequency import REFERENCE_HZ, RateRow, drop_of_rows, published_rows

NO_VALUE = "–"  # a number without ground truth


@dataclass(frozen=True)
class EvaluationReport:
    """Everything an evaluation has to say; nothing in it needs the model any more."""

    title: str  # which weights on which recordings
    dataset: str
    rows: tuple[RateRow, ...]  # by rate, at least one
    settings: Mapping[str, str]  # what decides the numbers: score, thresholds, rules of filtering, windows, memory
    reference_hz: float = REFERENCE_HZ  # the rate the drop is counted from
    still_objects: Mapping[str, float] = field(default_factory=dict)  # AP by memory, such as carried and reset

    def __post_init__(self) -> None:
        if not self.rows:
            raise ValueError("a report needs at least one rate; name some in evaluation.frequencies_hz")

    @property
    def metric_names(self) -> list[str]:
        """The common names first, then one per class."""
        return [*METRICS, *(name for name in self.rows[0].metrics if name not in METRICS)]

    @property
    def performance_drop(self) -> float:
        """AP at the reference rate minus the mean AP at the other rates, in [-1, 1]; NaN with a single rate."""
        return drop_of_rows(self.rows, "AP", self.reference_hz)


def console_table(report: EvaluationReport) -> Table:
    """The report as a rich table, AP in percent, settings below it."""
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


def to_json(report: EvaluationReport) -> dict[str, Any]:
    """Plain values for json.dump: fractions, None where there was no ground truth."""
    return {
        "title": report.title,
        "dataset": report.dataset,
        "settings": dict(report.settings),
        "rates": {
            f"{row.hz:g}": {name: _json_number(value) for name, value in {**row.metrics, **row.extra}.items()}
            for row in report.rows
        },
        "reference_hz": report.reference_hz,
        "performance_drop": _json_number(report.performance_drop),
        "still_objects": {name: _json_number(value) for name, value in report.still_objects.items()},
    }


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
    for model, ap_by_hz in published_rows(report.dataset).items():
        values = ", ".join(f"{hz:g} Hz {percent(ap)}" for hz, ap in ap_by_hz.items())
        lines += ["", f"Published, {model}: {values}."]
    if report.still_objects:
        values = ", ".join(f"{name} {percent(ap)}" for name, ap in report.still_objects.items())
        lines += ["", f"AP on objects that stand still: {values}."]
    return "\n".join([*lines, "", *(f"- {name}: {value}" for name, value in report.settings.items()), ""])


def write_report(report: EvaluationReport, out_dir: Path | str, name: str = "evaluation") -> dict[str, Path]:
    """Write `<name>.json`, `.csv`, `.md` and `.png` to a folder; returns their paths by kind."""
    out_dir = Path(out_dir)
    out_dir.mkdir(parents=True, exist_ok=True)
    content = {
        "json": (json.dumps(to_json(report), indent=2) + "\n").encode(),
        "csv": to_csv(report).encode(),
        "md": to_markdown(report).encode(),
        "png": _plot_png(report),
    }
    paths = {}
    for kind, data in content.items():
        path = out_dir / f"{name}.{kind}"
        aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        aside.write_bytes(data)
        os.replace(aside, path)
        paths[kind] = path
    return paths


def _plot_png(report: EvaluationReport) -> bytes:
    """AP and AP50 over the rate, with the published models in grey."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # seconds to import, and only wanted here
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.4), dpi=144, layout="constrained")
    axes = figure.add_subplot()
    for model, ap_by_hz in published_rows(report.dataset).items():
        hz, ap = list(ap_by_hz), [100 * value for value in ap_by_hz.values()]
        axes.plot(hz, ap, "--", color="0.7", linewidth=1.2, zorder=1)
        at: dict[str, Any] = {"textcoords": "offset points", "fontsize": 7, "color": "0.5", "va": "center"}
        axes.annotate(f"{model} AP (published)", (hz[-1], ap[-1]), (4, 0), **at)
    rows = sorted(report.rows, key=lambda row: row.hz)
    hz = [row.hz for row in rows]
    for name, color in (("AP50", "#8fb8de"), ("AP", "#1f4e8c")):
        values = [100 * row.metrics[name] for row in rows]
        axes.plot(hz, values, "o-", color=color, label=name, linewidth=2, markersize=6, zorder=2)
        for x, y in zip(hz, values, strict=True):
            axes.annotate(f"{y:.1f}", (x, y), (0, 7), textcoords="offset points", fontsize=8, ha="center", color=color)
    axes.set_xscale("log")
    axes.set_xticks(hz, [f"{x:g}" for x in hz])
    axes.minorticks_off()
    axes.set(xlabel="inference rate [Hz]", ylabel="average precision [%]", title=report.title)
    axes.set_ylim(0, max(10.0, axes.dataLim.ymax * 1.15))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="best")
    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_png(buffer)
    return buffer.getvalue()


def _plain_settings(report: EvaluationReport) -> str:
    lines = [f"{name}: {value}" for name, value in report.settings.items()]
    lines += [f"AP on objects that stand still, {name}: {percent(ap)}" for name, ap in report.still_objects.items()]
    return "\n".join(lines)


def percent(value: float) -> str:
    """A fraction as a person reads it, a dash where there was no ground truth."""
    return NO_VALUE if math.isnan(value) else f"{100 * value:.1f}"


def _json_number(value: float) -> float | None:
    return None if math.isnan(value) else value
