"""Several evaluations side by side: average precision by weights and rate, the published rows below."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rvtssm.aside import write_together
from rvtssm.evaluation.frequency import performance_drop, published_rows
from rvtssm.evaluation.result import EvaluationReport, percent, to_json


def write_comparison(reports: Mapping[str, EvaluationReport], out_dir: Path | str) -> list[Path]:
    """Write `comparison.json` and `comparison.md` to a folder; reports by the name of their weights, at least one."""
    if not reports:
        raise ValueError("a comparison needs at least one report")
    numbers = {name: to_json(report) for name, report in reports.items()}
    content = {
        "comparison.json": (json.dumps(numbers, indent=2) + "\n").encode(),
        "comparison.md": comparison_markdown(reports).encode(),
    }
    return write_together(out_dir, content)


def comparison_markdown(reports: Mapping[str, EvaluationReport]) -> str:
    """A table of AP in percent over the rates that any of the reports has, and the performance drop of each."""
    rates = sorted({row.hz for report in reports.values() for row in report.rows})
    lines = [
        "## AP by inference rate",
        "",
        "| weights | " + " | ".join(f"{hz:g} Hz" for hz in rates) + " | drop |",
        "|---|" + "--:|" * (len(rates) + 1),
    ]
    for name, report in reports.items():
        ap_by_hz = {row.hz: row.metrics["AP"] for row in report.rows}
        lines.append(_line(f"{name} ({report.title})", rates, ap_by_hz, report.performance_drop))
    for dataset in dict.fromkeys(report.dataset for report in reports.values()):
        for model, ap_by_hz in published_rows(dataset).items():
            lines.append(_line(f"{model} on {dataset}, published", rates, ap_by_hz, performance_drop(ap_by_hz)))
    settings: dict[str, Any] = {name: dict(report.settings) for name, report in reports.items()}
    shared = dict.fromkeys(key for values in settings.values() for key in values)
    lines += ["", "Drop: AP at the rate of training minus the mean of the other rates, in points.", ""]
    for key in shared:
        values = {name: found.get(key, "not measured") for name, found in settings.items()}
        if len(set(values.values())) == 1:
            lines.append(f"- {key}: {next(iter(values.values()))}")
        else:
            lines += [f"- {key}:", *(f"  - {name}: {value}" for name, value in values.items())]
    return "\n".join([*lines, ""])


def _line(name: str, rates: list[float], ap_by_hz: Mapping[float, float], drop: float) -> str:
    values = [percent(ap_by_hz.get(hz, math.nan)) for hz in rates]
    return f"| {name} | " + " | ".join([*values, percent(drop)]) + " |"
