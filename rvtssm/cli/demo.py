"""`rvtssm demo`: shows boxes, generates data, trains a detector, evaluates it at several rates, writes a report."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rvtssm.cli.config import Config, configs_dir
from rvtssm.cli.console import console, say
from rvtssm.cli.demo_report import demo_page
from rvtssm.cli.evaluate import evaluate
from rvtssm.cli.generate import generate
from rvtssm.cli.inputs import check_demo
from rvtssm.cli.train import train
from rvtssm.cli.weights import read_weights
from rvtssm.datasets import build_spec
from rvtssm.datasets.sequence import RawSplit
from rvtssm.datasets.tree import find_recordings
from rvtssm.detection.predict_recording import predict_recording
from rvtssm.detection.summary import RunSummary
from rvtssm.evaluation.protocol import has_stood_still
from rvtssm.evaluation.result import EvaluationReport, to_json
from rvtssm.models.checkpoint import load_file, read_checkpoint
from rvtssm.models.detector import count_parameters
from rvtssm.models.weights import default_weights
from rvtssm.system.output_folder import result_set
from rvtssm.training.checkpoints import latest_checkpoint

_FILES = ("report.html", "metrics.json")
STEPS = ("first boxes", "generate", "train", "evaluate", "predict")


def demo(config: Config) -> None:
    """Show first boxes, generate, train, evaluate at every rate and predict in `out`.

    Steps that are complete are skipped. Write `report.html`, which has video and pictures inside, and `metrics.json` to
    `out`.
    """
    check_demo(config)
    out = Path(config.out or "outputs/demo")
    dataset = replace(config.dataset, raw_dir=config.dataset.raw_dir or str(out / "raw"))
    with result_set(out, "demo", _FILES) as staged:
        _all_steps(replace(config, out=str(out), dataset=dataset, resume="auto"), out, staged)
    say(f"wrote {out / 'report.html'} and {out / 'metrics.json'}")


def _all_steps(config: Config, out: Path, staged: Path) -> None:
    _announce("first boxes")
    _first_boxes(config, out / "first_boxes")
    _announce("generate")
    generate(config)
    _announce("train")
    config = replace(config, checkpoint=str(train(config)))
    _announce("evaluate")
    (report,) = evaluate(replace(config, out=str(out / "evaluation")))
    _announce("predict")
    summary = _predict(config, out / "prediction")
    metrics = _metrics(config, report, load_file(latest_checkpoint(out))["train_seconds"])
    (staged / "metrics.json").write_bytes((json.dumps(metrics, indent=2) + "\n").encode())
    default_steps = OmegaConf.load(configs_dir() / "experiment" / "demo.yaml").training.steps
    page = demo_page(config, report, metrics, summary, out / "prediction", default_steps)
    (staged / "report.html").write_bytes(page.encode())


def _first_boxes(config: Config, out: Path) -> None:
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


def _announce(step: str) -> None:
    console.rule(f"{STEPS.index(step) + 1} of {len(STEPS)}: {step}", align="left")


def _predict(config: Config, out: Path) -> RunSummary:
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


def _metrics(config: Config, report: EvaluationReport, train_seconds: float) -> dict[str, Any]:
    """Return the content of `metrics.json`: AP as a fraction, None if there is no ground truth."""
    plain = to_json(report)
    reference = plain["rates"][f"{plain['reference_hz']:g}"]
    return {
        "ap": reference["AP"],
        "ap50": reference["AP50"],
        "rates": plain["rates"],
        "performance_drop": plain["performance_drop"],
        "still_objects": plain["still_objects"],
        "by_window": {
            window: {name: found[name] for name in ("rates", "performance_drop")}
            for window, found in plain["by_window"].items()
        },
        "train_seconds": round(train_seconds, 1),
        "num_parameters": count_parameters(read_checkpoint(str(config.checkpoint)).detector)["total"],
    }
