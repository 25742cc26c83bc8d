"""`rvtssm evaluate`: measures average precision at any rate; every recording is streamed from its start."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from rvtssm.cli.chosen_weights import precision_in_words, say_windows, weights_file, with_chosen_precision
from rvtssm.cli.config import Config
from rvtssm.cli.console import announce, console, say, say_replaced, say_written
from rvtssm.cli.inputs import default_out, weights_label, writable
from rvtssm.cli.words import run_files, unlike_others
from rvtssm.datasets.datamodule import SequenceDataModule
from rvtssm.evaluation.detector_run import DetectorRun, WeightsFile
from rvtssm.evaluation.evaluating import evaluate_run, prepare
from rvtssm.evaluation.pages import COMPARISON_FILES, REPORT_FILES, comparison_table, console_table, write_comparison
from rvtssm.evaluation.protocol import num_scored
from rvtssm.evaluation.rates import PlannedRate, plan_rates
from rvtssm.evaluation.report import EvaluationReport, citation, in_hz
from rvtssm.evaluation.weights_on_data import class_maps, data_for
from rvtssm.models.checkpoint_meta import LoadedCheckpoint
from rvtssm.models.weight_files import local_weights
from rvtssm.records.settings import is_same_rate
from rvtssm.system.output_folder import locked, result_set
from rvtssm.system.user_error import UserError
from rvtssm.training.preflight import describe


def evaluate(config: Config) -> list[EvaluationReport]:
    """Measure average precision at each rate, and write `evaluation.json` and `report.html` to `out`.

    Each of `evaluation.checkpoints` gets a folder of its own, and `comparison.*` compares them all. If an evaluation
    was interrupted and is called again with the same settings, it takes the rates that were done.
    """
    if config.evaluation.checkpoints is not None:
        return _compare(config, _folder(config, "comparison"))
    config = with_chosen_precision(config)
    out = _folder(config, weights_label(config.checkpoint))
    report = _evaluate_one(config, _prepared(config), out)
    _say_results({str(config.checkpoint): report})
    return [report]


def _prepared(config: Config, read: tuple[LoadedCheckpoint, str] | None = None) -> DetectorRun:
    """Return a detector on the recordings of a configuration; `read` are its weights if they are in memory already."""
    weights = weights_file(config)
    checkpoint, digest = read or weights.read_with_digest()
    sections = config.dataset, config.data, config.postprocess, config.evaluation
    return prepare(weights, checkpoint, digest, *sections, say)


def _folder(config: Config, label: str) -> Path:
    """Return `out`, or else a folder without results of other settings."""
    if config.out:
        return writable(Path(config.out))
    return writable(unlike_others(default_out("evaluate", label), "evaluate", config))


def check_rates(config: Config) -> None:
    """Raise ValueError, before a detector is trained as configured, if it could not be evaluated at its rates."""
    data = SequenceDataModule(config.dataset, data=config.data, windows=config.windows.settings)
    meta = describe(config, data)
    checkpoint = meta.with_detector(meta.build())
    data = data_for("the detector", checkpoint, config.dataset, config.data, config.evaluation.class_map)
    plan_rates(DetectorRun(WeightsFile("", config.precision), checkpoint, data, config.evaluation, config.postprocess))


def _compare(config: Config, out: Path) -> list[EvaluationReport]:
    # Which weights, and that they are there.
    paths = config.evaluation.checkpoints
    if not paths or config.checkpoint:
        advice = "give checkpoint=FILE, or evaluation.checkpoints=[FILE,FILE] with at least one, and not both"
        raise UserError("setting.conflict", name="evaluation.checkpoints", found=paths, advice=advice)
    if missing := [path for path in paths if not Path(local_weights(path)).is_file()]:
        found = f"there is no checkpoint at {missing[0]}"
        raise UserError("file.missing", name="evaluation.checkpoints", found=found, advice="give existing files")
    # Everything is read and checked before hours of work.
    configs = {}
    read = {}
    for path in paths:
        configs[path] = with_chosen_precision(replace(config, checkpoint=path))
        read[path] = weights_file(configs[path]).read_with_digest()
    class_map = config.evaluation.class_map
    if class_map is not None:
        maps = class_maps(class_map, {path: loaded.spec.class_names for path, (loaded, _) in read.items()})
        for path, one in configs.items():
            configs[path] = replace(one, evaluation=replace(one.evaluation, class_map=maps[path]))
    runs = {path: _prepared(one, read[path]) for path, one in configs.items()}
    # Each of the weights gets a report of its own, and all together get the comparison.
    reports = {}
    with result_set(out, "comparison", COMPARISON_FILES) as staged, run_files(out, "evaluate", config):
        for number, (path, run) in enumerate(runs.items(), start=1):
            reports[path] = _evaluate_one(configs[path], run, out / str(number))
        write_comparison(reports, staged)
    console.print(comparison_table(reports))
    say_written(out, COMPARISON_FILES)
    _say_results(reports)
    return list(reports.values())


def _evaluate_one(config: Config, run: DetectorRun, out: Path) -> EvaluationReport:
    with locked(out), run_files(out, "evaluate", config):
        report = evaluate_run(run, config.seed, out, say, partial(_announce, out))
    console.print(console_table(report))  # after writing, since a closed terminal raises an error
    say_written(out, REPORT_FILES)
    return report


def _say_results(reports: Mapping[str, EvaluationReport]) -> None:
    """Print a line to cite, and with streaming the best rate."""
    for path, report in reports.items():
        say(f"to cite: {citation(report)}")
        if best := report.conditions.get("best rate"):
            say(best if len(reports) == 1 else f"{path}: {best}")


def _announce(out: Path, run: DetectorRun, rates: Sequence[PlannedRate]) -> None:
    checkpoint = run.checkpoint
    # What a reader must know before the numbers.
    options = run.options
    if options.window == "shrink":
        say_windows(checkpoint, checkpoint.windows_at(max(options.hz or [checkpoint.windows.hz]), "shrink"))
    say_replaced(out, "evaluation")
    trained_hz = checkpoint.windows.hz
    if not any(is_same_rate(rate.asked_hz, trained_hz) for rate in rates):
        say(f"without a drop, because {in_hz(trained_hz)}, the rate of training, is not one of evaluation.hz")
    # The recordings and boxes of one rate are those of all.
    sequences = rates[0].sequences
    num_boxes = num_scored((sequence.labels for sequence in sequences), checkpoint.spec)
    announce(
        "evaluate",
        weights=run.weights.path,
        source=f"{run.source} {checkpoint.spec.name} {options.split}",
        stride=" and ".join(dict.fromkeys(f"{rate.step_us / 1000:g}" for rate in rates)) + " ms",
        recordings=f"{run.data.in_words(options.split, sequences, run.source)}, of which {num_boxes} are scored",
        device=checkpoint.detector.device,
        precision=precision_in_words(run.weights.precision, checkpoint),
        output=out,
    )
