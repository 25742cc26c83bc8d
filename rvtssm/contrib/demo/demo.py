"""`rvtssm demo`: shows boxes, generates data, trains a detector, evaluates it at several rates, writes a report."""

import json
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rvtssm.cli.chosen_weights import read_weights
from rvtssm.cli.console import console, say
from rvtssm.cli.evaluate import evaluate
from rvtssm.cli.train import train
from rvtssm.contrib.demo.demo_config import DemoSettings
from rvtssm.contrib.demo.generate import generate
from rvtssm.datasets import build_spec
from rvtssm.datasets.sequence import RawSplit
from rvtssm.datasets.tree import find_recordings
from rvtssm.detection.predict_recording import predict_recording
from rvtssm.detection.summary import RunSummary
from rvtssm.drawing import figure_png
from rvtssm.evaluation.coco import LEVEL
from rvtssm.evaluation.pages import details
from rvtssm.evaluation.protocol import has_stood_still
from rvtssm.evaluation.render import comparison_figure, render
from rvtssm.evaluation.report import EvaluationReport, Row, in_hz, percent, percent_interval, percent_of, rounded_hz
from rvtssm.models.checkpoint import load_file, read_checkpoint
from rvtssm.models.detector import count_parameters
from rvtssm.models.weight_files import default_weights
from rvtssm.records.settings import is_same_rate
from rvtssm.system.files import configs_dir
from rvtssm.system.output_folder import result_set
from rvtssm.training.checkpoints import latest_checkpoint

_FILES = ("report.html", "metrics.json")
_TEMPLATE = Path(__file__).with_name("templates") / "demo.html"
_LEARNT_AP = 0.05  # below, as a fraction, a detector has learnt next to nothing
_WINDOWS = {"slide": "windows keep their length", "shrink": "windows as long as the stride"}
STEPS = ("first boxes", "generate", "train", "evaluate", "predict")


def demo(config: DemoSettings) -> None:
    """Show first boxes, generate, train, evaluate at every rate and predict in `out`.

    Steps that are complete are skipped. Write `report.html`, which has video and pictures inside, and `metrics.json` to
    `out`.
    """
    out = Path(config.out or "outputs/demo")
    dataset = replace(config.dataset, raw_dir=config.dataset.raw_dir or str(out / "raw"))
    with result_set(out, "demo", _FILES) as staged:
        _all_steps(replace(config, out=str(out), dataset=dataset, resume="auto"), out, staged)
    say(f"wrote {out / 'report.html'} and {out / 'metrics.json'}")


def _all_steps(config: DemoSettings, out: Path, staged: Path) -> None:
    began: dict[str, float] = {}
    _announce("first boxes", began)
    _first_boxes(config, out / "first_boxes")
    _announce("generate", began)
    generate(config)
    _announce("train", began)
    config = replace(config, checkpoint=str(train(config)))
    _announce("evaluate", began)
    # Its rates take a process for each core, so that none is left for loading.
    alone = replace(config, out=str(out / "evaluation"), data=replace(config.data, workers=0))
    (report,) = evaluate(alone)
    _announce("predict", began)
    summary = _predict(config, out / "prediction")
    metrics = _metrics(config, report, load_file(latest_checkpoint(out))["train_seconds"])
    (staged / "metrics.json").write_bytes((json.dumps(metrics, indent=2) + "\n").encode())
    default_steps = OmegaConf.load(configs_dir() / "experiment" / "demo.yaml").training.steps
    page = demo_page(config, report, metrics, summary, out / "prediction", default_steps)
    (staged / "report.html").write_bytes(page.encode())
    ends = [*list(began.values())[1:], time.monotonic()]
    took = [f"{step} {end - start:.0f} s" for (step, start), end in zip(began.items(), ends, strict=True)]
    say(f"this took: {', '.join(took)}")


def _first_boxes(config: DemoSettings, out: Path) -> None:
    """Predict on the first test recording with the weights in the package, so that nobody waits blind."""
    weights = default_weights()
    if weights is None or (out / "prediction.json").exists():
        return
    generate(config, only=["test/test_0000"])
    recording = find_recordings(str(config.dataset.raw_dir), "test", build_spec(config.dataset))[0].events_path
    checkpoint = read_weights(replace(config, checkpoint=weights))
    summary = predict_recording(checkpoint, recording, out, config.detection, config.predict)
    pictures = ", ".join(str(out / name) for name in ("strip.png", "video.mp4") if name in summary.files)
    say(f"first boxes: {summary.num_detections} in {pictures or out}")
    say(f"they are by {weights}, which comes with the package ({checkpoint.note}), not by the detector of this demo")


def _announce(step: str, began: dict[str, float]) -> None:
    began[step] = time.monotonic()
    console.rule(f"{STEPS.index(step) + 1} of {len(STEPS)}: {step}", align="left")


def _predict(config: DemoSettings, out: Path) -> RunSummary:
    """Predict on the test recording with most boxes that stand still, and draw its ground truth."""
    checkpoint = read_checkpoint(str(config.checkpoint))
    sequences = RawSplit(str(config.dataset.raw_dir), "test", checkpoint.spec).sequences(checkpoint.windows)
    chosen = max(sequences, key=lambda sequence: int(has_stood_still(sequence.labels).sum()))
    summary = predict_recording(
        checkpoint, chosen.source.path, out, config.detection, config.predict, ground_truth=chosen.labels
    )
    for line in summary.lines():
        say(line)
    return summary


def _metrics(config: DemoSettings, report: EvaluationReport, train_seconds: float) -> dict[str, Any]:
    """Return the content of `metrics.json`: AP as a fraction, None if there is no ground truth."""
    plain = report.to_json()
    reference = next(row for row in plain["rows"] if row["hz"] == plain["reference_hz"])
    return {
        "ap": reference["AP"],
        "ap50": reference["AP50"],
        "rows": plain["rows"],
        "drop": plain["drop"],
        "still_objects": plain["still_objects"],
        "train_seconds": round(train_seconds, 1),
        "num_parameters": count_parameters(read_checkpoint(str(config.checkpoint)).detector)["total"],
    }


def demo_page(
    config: DemoSettings,
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
    by_window = {text: report.of(window) for window, text in _WINDOWS.items() if window in report.windows}
    words = {"weights": str(config.checkpoint), "file": str(recording), "folder": str(recording.parent)}
    stills = [path.read_bytes() for path in sorted(prediction.glob("still_*.png"))]
    figure = comparison_figure(by_window, {})
    return render(
        _TEMPLATE,
        title="A detector for event cameras, trained from nothing",
        numbers=metrics,
        tiles=_tiles(report, by_window),
        short=(steps, default_steps) if is_too_short else None,
        mp4=mp4.read_bytes() if mp4.exists() else None,
        stills=stills,
        summary=summary,
        min_score=config.detection.min_score,
        temporal_layer=config.temporal.name,
        rates=_rates(report, by_window),
        may_shrink=report.windows[0] == "shrink",  # the report begins with windows that the training had
        rates_png=figure_png(figure),
        level=f"{LEVEL:.0%}",
        memory=_memory(report, config.evaluation.still_ms),
        recording=recording.name,
        words={name: shlex.quote(word) for name, word in words.items()},
        **details(report),
    )


def _row_at(rows: Sequence[Row], hz: float) -> Row:
    (row,) = (row for row in rows if row["hz"] == hz)
    return row


def _tiles(report: EvaluationReport, by_window: Mapping[str, Sequence[Row]]) -> dict[str, float]:
    """Return the numbers that stand out, by what they are."""
    trained_hz, fastest_hz = report.reference_hz, max(row["hz"] for row in report.rows)
    tiles = {f"AP at {in_hz(trained_hz)}, the rate of training": report.reference()["AP"]}
    sliding = by_window.get(_WINDOWS["slide"])
    if sliding and not is_same_rate(fastest_hz, trained_hz):
        tiles[f"AP at {in_hz(fastest_hz)}, {_WINDOWS['slide']}"] = _row_at(sliding, fastest_hz)["AP"]
    return tiles | {f"AP on objects that stand still, state {name}": ap for name, ap in report.still_objects.items()}


def _rates(report: EvaluationReport, by_window: Mapping[str, Sequence[Row]]) -> list[list[str]]:
    kinds = list(by_window.values())
    cells = [["Hz", *by_window]]
    for hz in sorted(row["hz"] for row in kinds[0]):
        cells.append([f"{rounded_hz(hz):g}", *(percent_of(_row_at(rows, hz)) for rows in kinds)])
    if len(cells) > 2:
        cells.append(["drop", *(percent(report.drop(rows[0]["window"])) for rows in kinds)])
    return cells


def _memory(report: EvaluationReport, still_ms: float) -> list[list[str]]:
    """Return what the state is worth, or nothing if that was not measured."""
    if report.without_memory is None:
        return []
    still, carried = report.still_objects, percent_of(report.reference())
    head = ["state", "all objects"]
    rows = [["carried", carried], ["reset at every step", percent_interval(report.without_memory)]]
    if len(still) == 2:
        head.append(f"objects that have stood still for {still_ms / 1000:g} s or longer")
        for row, name in zip(rows, ("carried", "reset"), strict=True):
            row.append(percent(still[name]))
    return [head, *rows]
