"""The report of `rvtssm demo`: one HTML file to send on, with a video, a table over rates and what memory is worth."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rvtssm.cli.config import Config
from rvtssm.detection.summary import RunSummary
from rvtssm.evaluation.bootstrap import LEVEL
from rvtssm.evaluation.frequency import RateRow, is_same_rate
from rvtssm.evaluation.plots import comparison_png
from rvtssm.evaluation.render import render
from rvtssm.evaluation.report import details
from rvtssm.evaluation.result import EvaluationReport, percent, percent_interval

_LEARNT_AP = 0.05  # below, as a fraction, a detector has learnt next to nothing
_WINDOWS = {"slide": "windows keep their length", "shrink": "windows as long as the stride"}


def demo_page(
    config: Config,
    report: EvaluationReport,
    metrics: Mapping[str, Any],
    summary: RunSummary,
    prediction: Path,
    default_steps: int,
) -> str:
    """Return the page. Video and pictures are inside, so that the file can be sent alone.

    Args:
        config: The configuration of the demo; `checkpoint` names the weights that it trained.
        report: The evaluation.
        metrics: The content of `metrics.json`.
        summary: The prediction.
        prediction: Its folder.
        default_steps: Steps of the training of a demo without other settings.
    """
    mp4, recording, steps = prediction / "video.mp4", Path(summary.source), config.training.steps
    is_too_short = steps < default_steps and (metrics["ap"] or 0) < _LEARNT_AP
    found = report.by_window
    by_window = {said: found[window] for window, said in _WINDOWS.items() if window in found}
    words = {"weights": str(config.checkpoint), "file": str(recording), "folder": str(recording.parent)}
    return render(
        "demo.html",
        title="A detector for event cameras, trained from nothing",
        numbers=metrics,
        tiles=_tiles(report, by_window),
        short=(steps, default_steps) if is_too_short else None,
        mp4=mp4.read_bytes() if mp4.exists() else None,
        stills=[path.read_bytes() for path in sorted(prediction.glob("still_*.png"))],
        summary=summary,
        min_score=config.detection.min_score,
        temporal_layer=config.temporal.name,
        rates=_rates(by_window),
        may_shrink=next(iter(found)) == "shrink",  # the report begins with windows that the training had
        rates_png=comparison_png({said: each.rows for said, each in by_window.items()}, {}),
        level=f"{LEVEL:.0%}",
        memory=_memory(report, config.evaluation.still_ms),
        recording=recording.name,
        words={name: shlex.quote(word) for name, word in words.items()},
        **details(report),
    )


def _row_at(report: EvaluationReport, hz: float) -> RateRow:
    (row,) = (row for row in report.rows if row.hz == hz)
    return row


def _tiles(report: EvaluationReport, by_window: Mapping[str, EvaluationReport]) -> dict[str, float]:
    """Return the numbers that stand out, by what they are."""
    trained_hz, fastest_hz = report.reference_hz, max(row.hz for row in report.rows)
    tiles = {f"AP at {trained_hz:g} Hz, the rate of training": _row_at(report, trained_hz).metrics["AP"]}
    sliding = by_window.get(_WINDOWS["slide"])
    if sliding and not is_same_rate(fastest_hz, trained_hz):
        tiles[f"AP at {fastest_hz:g} Hz, {_WINDOWS['slide']}"] = _row_at(sliding, fastest_hz).metrics["AP"]
    return tiles | {f"AP on objects that stand still, state {name}": ap for name, ap in report.still_objects.items()}


def _rates(by_window: Mapping[str, EvaluationReport]) -> list[list[str]]:
    rows = [{row.hz: row for row in report.rows} for report in by_window.values()]
    rates = sorted(rows[0])
    cells = [["Hz", *by_window], *([f"{hz:g}", *(_with_interval(row[hz]) for row in rows)] for hz in rates)]
    if len(rates) > 1:
        cells.append(["drop", *(percent(report.performance_drop) for report in by_window.values())])
    return cells


def _memory(report: EvaluationReport, still_ms: float) -> list[list[str]]:
    """Return what the state is worth, or nothing if that was not measured."""
    if report.without_memory is None:
        return []
    still, carried = report.still_objects, _with_interval(_row_at(report, report.reference_hz))
    head = ["state", "all objects"]
    rows = [["carried", carried], ["reset at every step", percent_interval(report.without_memory)]]
    if len(still) == 2:
        head.append(f"objects that have stood still for {still_ms / 1000:g} s or longer")
        for row, name in zip(rows, ("carried", "reset"), strict=True):
            row.append(percent(still[name]))
    return [head, *rows]


def _with_interval(row: RateRow) -> str:
    found = row.intervals.get("AP")
    return percent_interval(found) if found else percent(row.metrics["AP"])
