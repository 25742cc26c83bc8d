"""`rvtssm demo`: generates data, trains a detector, evaluates it at several rates, draws a video, writes a report."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from rvtssm.config import Config
from rvtssm.datasets.sequence import RawSplit
from rvtssm.evaluation.protocol import has_stood_still
from rvtssm.evaluation.report import to_markdown
from rvtssm.evaluation.result import EvaluationReport, to_json
from rvtssm.inference.predict_recording import PredictionSummary, predict_recording
from rvtssm.models.checkpoint import load_file, read_checkpoint
from rvtssm.models.detector import count_parameters
from rvtssm.output_folder import result_set
from rvtssm.run.console import console, say
from rvtssm.run.evaluate import evaluate
from rvtssm.run.generate import generate
from rvtssm.run.inputs import check_demo
from rvtssm.run.preprocess import preprocess
from rvtssm.run.train import train
from rvtssm.training.checkpoints import last_checkpoint

_FILES = ("report.md", "metrics.json")
STEPS = ("generate", "preprocess", "train", "evaluate", "predict")


def demo(config: Config) -> None:
    """Generate, preprocess, train, evaluate at every rate and predict in `out`; steps that are complete are skipped.

    Write `report.md` and `metrics.json` to `out`.
    """
    check_demo(config)
    out = Path(config.out or "outputs/demo")
    dataset = replace(
        config.dataset,
        raw_dir=config.dataset.raw_dir or str(out / "raw"),
        prepared_dir=config.dataset.prepared_dir or str(out / "prepared"),
    )
    with result_set(out, "demo", _FILES) as staged:
        _all_steps(replace(config, out=str(out), dataset=dataset, resume="auto"), out, staged)
    say(f"wrote {out / 'report.md'} and {out / 'metrics.json'}")


def _all_steps(config: Config, out: Path, staged: Path) -> None:
    _announce("generate")
    generate(config)
    _announce("preprocess")
    if preprocess(config):
        raise ValueError(f"some recordings in {config.dataset.raw_dir} could not be prepared; see the lines above")
    _announce("train")
    config = replace(config, checkpoint=str(train(config)))
    _announce("evaluate")
    (report,) = evaluate(replace(config, out=str(out / "evaluation")))
    _announce("predict")
    summary = _predict(config, out / "prediction")
    metrics = _metrics(config, report, load_file(last_checkpoint(out))["train_seconds"])
    (staged / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")
    (staged / "report.md").write_text(_page(report, metrics, summary, config.evaluation.still_ms, out))


def _announce(step: str) -> None:
    console.rule(f"{STEPS.index(step) + 1} of {len(STEPS)}: {step}", align="left")


def _predict(config: Config, out: Path) -> PredictionSummary:
    """Predict on the test recording with most boxes that stand still, and draw its ground truth."""
    checkpoint = read_checkpoint(str(config.checkpoint))
    sequences = RawSplit(str(config.dataset.raw_dir), "test", checkpoint.spec).sequences(checkpoint.windows)
    chosen = max(sequences, key=lambda sequence: int(has_stood_still(sequence.labels).sum()))
    summary = predict_recording(checkpoint, chosen.source.path, out, config.predict, ground_truth=chosen.labels)
    for sentence in summary.sentences():
        say(sentence)
    return summary


def _metrics(config: Config, report: EvaluationReport, train_seconds: float) -> dict[str, Any]:
    """Return the content of `metrics.json`: AP as a fraction, None if there is no ground truth."""
    plain = to_json(report)
    reference = plain["rates"][f"{report.reference_hz:g}"]
    return {
        "ap": reference["AP"],
        "ap50": reference["AP50"],
        "rates": plain["rates"],
        "performance_drop": plain["performance_drop"],
        "still_objects": plain["still_objects"],
        "train_seconds": round(train_seconds, 1),
        "num_parameters": count_parameters(read_checkpoint(str(config.checkpoint)).detector)["total"],
    }


def _page(
    report: EvaluationReport, metrics: dict[str, Any], summary: PredictionSummary, still_ms: float, out: Path
) -> str:
    stills = sorted((out / "prediction").glob("still_*.png"))
    still = metrics["still_objects"]
    lines = [
        "# A detector for event cameras, trained from nothing",
        "",
        f"{metrics['num_parameters'] / 1e6:.2f} M parameters, trained for {metrics['train_seconds']:.0f} s on "
        f"simulated traffic at {report.reference_hz:g} Hz. The table is measured on test recordings, which were not "
        "used in training; at other rates the same weights run on other windows with the time step rescaled.",
        "",
        to_markdown(report),
        "![average precision over rates](evaluation/evaluation.png)",
        "",
        "By class, size, speed and time since the last motion, and the worst frames: [page](evaluation/report.html).",
        "",
    ]
    if len(still) == 2:
        lines += [
            "## What memory is worth",
            "",
            "An object that stands still emits no events. AP on objects that have stood still for "
            f"{still_ms / 1000:g} s or longer: "
            f"{100 * still['carried']:.1f} with the state carried, {100 * still['reset']:.1f} with the state reset at "
            "every step (all other ground truth is ignored).",
            "",
        ]
    lines += [
        "## Pictures",
        "",
        f"[video](prediction/video.mp4) of `{Path(summary.recording).name}`; white: ground truth.",
        "",
    ]
    lines += [f"![{path.stem}](prediction/{path.name})" for path in stills]
    return "\n".join(lines) + "\n"
