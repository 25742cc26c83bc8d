"""The report of `rvtssm demo`: one HTML file to send on, with a video, a table over rates and what memory is worth."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rvtssm.evaluation.bootstrap import LEVEL
from rvtssm.evaluation.frequency import RateRow, is_same_rate
from rvtssm.evaluation.result import EvaluationReport, percent, percent_interval
from rvtssm.prediction.predict_recording import PredictionSummary
from rvtssm.reports.plots import comparison_png
from rvtssm.reports.render import render
from rvtssm.reports.report import details

_LEARNT_AP = 0.05  # below, as a fraction, a detector has learnt next to nothing
_WINDOWS = {"slide": "windows keep their length", "shrink": "windows as long as the stride"}


@dataclass(frozen=True)
class DemoResult:
    """What the steps of a demo found."""

    report: EvaluationReport
    metrics: Mapping[str, Any]  # the content of `metrics.json`
    summary: PredictionSummary
    prediction: Path  # folder
    weights: Path
    still_ms: float  # see `evaluation.still_ms`
    temporal_layer: str  # its name
    steps: int  # of the training
    default_steps: int  # of the training of a demo without other settings

    @property
    def by_window(self) -> dict[str, EvaluationReport]:
        """The report by what is said of the length of windows."""
        found = self.report.by_window
        return {said: found[window] for window, said in _WINDOWS.items() if window in found}

    @property
    def may_shrink_windows(self) -> bool:
        """Whether the training had windows as short as the stride at higher rates. The report begins with those."""
        return next(iter(self.report.by_window)) == "shrink"

    @property
    def rates(self) -> list[float]:
        """The rates of the report, in Hz."""
        return sorted(row.hz for row in self.report.rows)

    @property
    def is_too_short(self) -> bool:
        """Whether the training was shorter than that of a demo, and has learnt next to nothing."""
        return self.steps < self.default_steps and (self.metrics["ap"] or 0) < _LEARNT_AP


def demo_page(result: DemoResult) -> str:
    """Return the page. Video and pictures are inside, so that the file can be sent alone."""
    mp4, recording = result.prediction / "video.mp4", Path(result.summary.recording)
    return render(
        "demo.html",
        title="A detector for event cameras, trained from nothing",
        numbers=result.metrics,
        tiles=_tiles(result),
        short=(result.steps, result.default_steps) if result.is_too_short else None,
        mp4=mp4.read_bytes() if mp4.exists() else None,
        stills=[path.read_bytes() for path in sorted(result.prediction.glob("still_*.png"))],
        summary=result.summary,
        temporal_layer=result.temporal_layer,
        rates=_rates(result),
        may_shrink=result.may_shrink_windows,
        rates_png=comparison_png({said: report.rows for said, report in result.by_window.items()}, {}),
        level=f"{LEVEL:.0%}",
        memory=_memory(result),
        recording=recording.name,
        words={
            name: shlex.quote(str(path))
            for name, path in {"weights": result.weights, "file": recording, "folder": recording.parent}.items()
        },
        **details(result.report),
    )


def _tiles(result: DemoResult) -> dict[str, float]:
    """Return the numbers that stand out, by what they are."""
    report, fastest_hz = result.report, result.rates[-1]
    tiles = {f"AP at {report.reference_hz:g} Hz, the rate of training": result.metrics["ap"]}
    sliding = result.by_window.get(_WINDOWS["slide"])
    if sliding and not is_same_rate(fastest_hz, report.reference_hz):
        (fastest,) = (row for row in sliding.rows if row.hz == fastest_hz)
        tiles[f"AP at {fastest_hz:g} Hz, {_WINDOWS['slide']}"] = fastest.metrics["AP"]
    return tiles | {f"AP on objects that stand still, state {name}": ap for name, ap in report.still_objects.items()}


def _rates(result: DemoResult) -> list[list[str]]:
    rows = [{row.hz: row for row in report.rows} for report in result.by_window.values()]
    cells = [
        ["Hz", *result.by_window],
        *([f"{hz:g}", *(_with_interval(row[hz]) for row in rows)] for hz in result.rates),
    ]
    if len(result.rates) > 1:
        cells.append(["drop", *(percent(report.performance_drop) for report in result.by_window.values())])
    return cells


def _memory(result: DemoResult) -> list[list[str]]:
    """Return what the state is worth, or nothing if that was not measured."""
    report, still = result.report, result.report.still_objects
    if report.without_memory is None:
        return []
    (carried,) = (row for row in report.rows if row.hz == report.reference_hz)
    head = ["state", "all objects"]
    rows = [["carried", _with_interval(carried)], ["reset at every step", percent_interval(report.without_memory)]]
    if len(still) == 2:
        head.append(f"objects that have stood still for {result.still_ms / 1000:g} s or longer")
        for row, name in zip(rows, ("carried", "reset"), strict=True):
            row.append(percent(still[name]))
    return [head, *rows]


def _with_interval(row: RateRow) -> str:
    found = row.intervals.get("AP")
    return percent_interval(found) if found else percent(row.metrics["AP"])
