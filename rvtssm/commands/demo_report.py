"""The report of `rvtssm demo`: one HTML file to send on, with a video, a table over rates and what memory is worth."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from rvtssm.evaluation.bootstrap import LEVEL
from rvtssm.evaluation.frequency import RateRow, is_same_rate
from rvtssm.evaluation.result import EvaluationReport, citation, percent, percent_interval
from rvtssm.prediction.predict_recording import PredictionSummary
from rvtssm.reports import page
from rvtssm.reports.plots import comparison_png

_WINDOWS = {"slide": "windows keep their length", "shrink": "windows as long as the stride"}


@dataclass(frozen=True)
class DemoResult:
    """What the steps of a demo found."""

    reports: Mapping[str, EvaluationReport]  # by `evaluation.window`, the one that is described in detail first
    metrics: Mapping[str, Any]  # the content of `metrics.json`
    summary: PredictionSummary
    prediction: Path  # folder
    weights: Path
    still_ms: float  # see `evaluation.still_ms`
    temporal_layer: str  # its name

    @property
    def report(self) -> EvaluationReport:
        """The report that is described in detail."""
        return next(iter(self.reports.values()))

    @property
    def rates(self) -> list[float]:
        """The rates of all reports, in Hz."""
        return sorted(row.hz for row in self.report.rows)


def demo_page(result: DemoResult) -> str:
    """Return the page. Video and pictures are inside, so that the file can be sent alone."""
    parts = [
        *_summary(result),
        *_video(result),
        *_rates(result),
        *_memory(result),
        *_next_steps(result),
        *page.details(result.report),
        f"<p>To cite: {escape(citation(result.report))}.</p>",
    ]
    return page.document("A detector for event cameras, trained from nothing", parts, result.metrics)


def _summary(result: DemoResult) -> list[str]:
    metrics, report, rates = result.metrics, result.report, result.rates
    sentences = (
        f"{metrics['num_parameters'] / 1e6:.2f} M parameters, trained by <code>rvtssm demo</code> for "
        f"{metrics['train_seconds']:.0f} s on simulated traffic at {report.reference_hz:g} Hz. The numbers are average "
        "precision (AP) in percent on test recordings, which were not used in training. At other rates the same "
        "weights run on other windows, with the time step rescaled."
    )
    tiles = {f"AP at {report.reference_hz:g} Hz, the rate of training": percent(metrics["ap"])}
    if "slide" in result.reports and not is_same_rate(rates[-1], report.reference_hz):
        (fastest,) = (row for row in result.reports["slide"].rows if row.hz == rates[-1])
        tiles[f"AP at {fastest.hz:g} Hz, {_WINDOWS['slide']}"] = percent(fastest.metrics["AP"])
    for name, ap in report.still_objects.items():
        tiles[f"AP on objects that stand still, state {name}"] = percent(ap)
    shown = (f"<div><dt>{escape(name)}</dt><dd>{value}</dd></div>" for name, value in tiles.items())
    return [f"<p>{sentences}</p>", f'<dl class="tiles">{"".join(shown)}</dl>']


def _video(result: DemoResult) -> list[str]:
    """Return the video, or stills if `predict.formats` has no mp4."""
    stills, mp4 = sorted(result.prediction.glob("still_*.png")), result.prediction / "video.mp4"
    name, hz = Path(result.summary.recording).name, result.summary.hz
    caption = f"{name} at {hz:g} Hz, boxes with a score from {result.summary.drawn_min_score:g}; white: ground truth."
    if mp4.exists():
        poster = stills[len(stills) // 2].read_bytes() if stills else None
        shown = [page.video(mp4.read_bytes(), poster, caption)]
    else:
        shown = [page.figure(path.read_bytes(), caption) for path in stills]
    return ["<h2>Boxes on events</h2>", *shown] if shown else []


def _rates(result: DemoResult) -> list[str]:
    windows = [window for window in _WINDOWS if window in result.reports]
    rows = {window: {row.hz: row for row in result.reports[window].rows} for window in windows}
    cells = [[f"{hz:g}", *(_with_interval(rows[window][hz]) for window in windows)] for hz in result.rates]
    if len(result.rates) > 1:
        cells.append(["drop", *(percent(result.reports[window].performance_drop) for window in windows)])
    head = ["Hz", *(_WINDOWS[window] for window in windows)]
    meaning = "AP in percent" + (f", with {LEVEL:.0%} intervals" if result.report.rows[0].intervals else "")
    meaning += f". Drop: AP at {result.report.reference_hz:g} Hz minus the mean of the other rates, in points."
    drawn = {_WINDOWS[window]: result.reports[window].rows for window in windows}
    explained = [_memory_over_rates(result)]
    if len(windows) > 1:
        explained.append(
            "Windows that keep their length overlap at higher rates, and hold as many events as in training. Windows "
            "as long as the stride hold fewer events at higher rates, as in the published tables: the layers before "
            "the memory have no time step, and have not seen such frames in training."
        )
    return [
        "<h2>One detector at every rate</h2>",
        *(f"<p>{sentence}</p>" for sentence in explained),
        page.table("both-windows", head, cells, meaning),
        page.plot(comparison_png(drawn, {}), "Average precision over the rate."),
    ]


def _memory_over_rates(result: DemoResult) -> str:
    """Say why the table is flat, or why it is not."""
    if result.temporal_layer == "lstm":
        return (
            "An LSTM has no time step: at another rate it forgets in as many steps as in training, not in as much time."
        )
    return (
        f"The memory, temporal={result.temporal_layer}, is a system in continuous time, and each of its steps is "
        "computed from the stride. So finer steps lead to about the same state, and the rate costs little as long as "
        "windows look as in training."
    )


def _memory(result: DemoResult) -> list[str]:
    """Return what the state is worth, or nothing if that was not measured."""
    report, still = result.report, result.report.still_objects
    if report.without_memory is None:
        return []
    (carried,) = (row for row in report.rows if row.hz == report.reference_hz)
    rows = [["carried", _with_interval(carried)], ["reset at every step", percent_interval(report.without_memory)]]
    head = ["state", "all objects"]
    if len(still) == 2:
        head.append(f"objects that have stood still for {result.still_ms / 1000:g} s or longer")
        for row, name in zip(rows, ("carried", "reset"), strict=True):
            row.append(percent(still[name]))
    return [
        "<h2>What memory is worth</h2>",
        "<p>An object that stands still emits no events: only the state of the temporal layers holds it.</p>",
        page.table("memory", head, rows, f"AP in percent at {report.reference_hz:g} Hz"),
    ]


def _next_steps(result: DemoResult) -> list[str]:
    weights, recording = shlex.quote(str(result.weights)), Path(result.summary.recording)
    steps = {
        "Find objects in a recording of your own": f"rvtssm predict checkpoint={weights} recording=FILE out=DIR",
        "Draw the video above at ten times the rate": f"rvtssm predict checkpoint={weights} "
        f"recording={shlex.quote(str(recording))} hz={10 * result.report.reference_hz:g} window=slide out=DIR",
        "Watch the recordings on a web page, and move the rate meanwhile": f"rvtssm serve checkpoint={weights} "
        f"recording={shlex.quote(str(recording.parent))}",
        "Measure for how long the detector remembers": f"rvtssm audit checkpoint={weights} out=DIR",
        "Compare with an LSTM, over three trainings each": "rvtssm study experiment=demo "
        "temporal=selective_s5,lstm seed=0,1,2 window=slide,shrink frequencies_hz=[20,200] out=study",
        "Train on recordings with labels": "rvtssm train dataset=gen1 dataset.raw_dir=DIR model=base out=DIR",
        "Write the detector as one file for other programs": f"rvtssm export checkpoint={weights} out=model.onnx",
    }
    return [
        "<h2>What to try next</h2>",
        *(f"<p>{escape(aim)}:</p><pre><code>{escape(command)}</code></pre>" for aim, command in steps.items()),
    ]


def _with_interval(row: RateRow) -> str:
    found = row.intervals.get("AP")
    return percent_interval(found) if found else percent(row.metrics["AP"])
