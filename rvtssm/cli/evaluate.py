"""`rvtssm evaluate`: measures average precision at any rate; every recording is streamed from its start."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from rvtssm.cli.config import Config
from rvtssm.cli.console import announce, console, say, say_replaced, say_written
from rvtssm.cli.inputs import default_out, weights_label, writable
from rvtssm.cli.run_files import run_files, unlike_others
from rvtssm.cli.weights import precision_in_words, say_windows, weights_file, with_chosen_precision
from rvtssm.datasets.datamodule import SequenceDataModule
from rvtssm.datasets.sequence import with_labels
from rvtssm.evaluation.detector_run import DetectorRun
from rvtssm.evaluation.evaluating import evaluate as evaluate_weights
from rvtssm.evaluation.evaluating import prepare
from rvtssm.evaluation.fit import class_maps, data_for
from rvtssm.evaluation.frequency import is_same_rate
from rvtssm.evaluation.protocol import num_scored
from rvtssm.evaluation.report import COMPARISON_FILES, REPORT_FILES, comparison_table, console_table, write_comparison
from rvtssm.evaluation.result import EvaluationReport, citation
from rvtssm.evaluation.split_plan import PlannedRate, SplitPlan
from rvtssm.models.weights import local_weights
from rvtssm.system.output_folder import locked, result_set
from rvtssm.system.user_error import UserError
from rvtssm.training.loop import describe


def evaluate(config: Config) -> list[EvaluationReport]:
    """Measure average precision at each rate, and write `evaluation.json` and `report.html` to `out`.

    Each of `evaluation.checkpoints` gets a folder of its own, and `comparison.*` compares them all. If an evaluation
    was interrupted and is called again with the same settings, it takes the rates that were done.
    """
    if config.evaluation.checkpoints is not None:
        return _compare(config, _folder(config, "comparison"))
    config = with_chosen_precision(config)
    report = _evaluate_one(config, _folder(config, weights_label(config.checkpoint)))
    _say_results({str(config.checkpoint): report})
    return [report]


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
    SplitPlan(config.evaluation, checkpoint, data).plan_rates()


def _compare(config: Config, out: Path) -> list[EvaluationReport]:
    paths = config.evaluation.checkpoints
    if not paths or config.checkpoint:
        raise UserError(
            "evaluate.one_or_many_checkpoints",
            "give checkpoint=FILE, or evaluation.checkpoints=[FILE,FILE] with at least one, and not both",
        )
    if missing := [path for path in paths if not Path(local_weights(path)).is_file()]:
        raise UserError(
            "evaluate.no_checkpoint",
            f"evaluation.checkpoints: there is no checkpoint at {missing[0]}; give existing files",
        )
    configs = {path: with_chosen_precision(replace(config, checkpoint=path)) for path in paths}
    class_map = config.evaluation.class_map
    if class_map is not None:
        maps = class_maps(class_map, {path: weights_file(one).read().spec.class_names for path, one in configs.items()})
        for path, one in configs.items():
            configs[path] = replace(one, evaluation=replace(one.evaluation, class_map=maps[path]))
    for one in configs.values():  # raises before hours of work if one of them cannot be evaluated
        prepare(weights_file(one), one.dataset, one.data, one.postprocess, one.evaluation)
    reports = {}
    with result_set(out, "comparison", COMPARISON_FILES) as staged, run_files(out, "evaluate", config):
        for number, (path, one) in enumerate(configs.items(), start=1):
            reports[path] = _evaluate_one(one, out / str(number))
        write_comparison(reports, staged)
    console.print(comparison_table(reports))
    say_written(out, COMPARISON_FILES)
    _say_results(reports)
    return list(reports.values())


def _evaluate_one(config: Config, out: Path) -> EvaluationReport:
    with locked(out), run_files(out, "evaluate", config):
        report = evaluate_weights(
            str(config.checkpoint),
            dataset=config.dataset,
            data=config.data,
            postprocess=config.postprocess,
            precision=config.precision,
            plugins=config.plugins,
            seed=config.seed,
            out=out,
            say=say,
            announce=partial(_announce, out),
            **vars(config.evaluation),
        )
    console.print(console_table(report))  # after writing, since a closed terminal raises an error
    say_written(out, REPORT_FILES)
    return report


def _say_results(reports: Mapping[str, EvaluationReport]) -> None:
    """Print a line to cite, and with streaming the best rate."""
    for path, report in reports.items():
        say(f"to cite: {citation(report)}")
        if best := report.settings.get("best rate"):
            say(best if len(reports) == 1 else f"{path}: {best}")


def _announce(out: Path, run: DetectorRun, rates: Sequence[PlannedRate]) -> None:
    checkpoint, split, options = run.checkpoint, run.split, run.split.options
    if options.window == "shrink":
        say_windows(checkpoint, checkpoint.windows_at(max(options.hz or [checkpoint.windows.hz]), "shrink"))
    say_replaced(out, "evaluation")
    trained_hz = checkpoint.windows.hz
    if not any(is_same_rate(rate.asked_hz, trained_hz) for rate in rates):
        say(f"without a drop, because {trained_hz:g} Hz, the rate of training, is not among the rates of evaluation.hz")
    sequences = split.sequences(rates[0], options.label_hz)
    num_without = split.data.num_without_boxes(options.split, sequences, split.source)
    num_boxes = num_scored((sequence.labels for sequence in sequences), checkpoint.spec)
    announce(
        "evaluate",
        weights=run.weights.path,
        source=f"{split.source} {checkpoint.spec.name} {options.split}",
        stride=" and ".join(dict.fromkeys(f"{rate.step_us / 1000:g}" for rate in rates)) + " ms",
        recordings=f"{with_labels(sequences, num_without)}, of which {num_boxes} are scored",
        device=checkpoint.detector.device,
        precision=precision_in_words(run.weights.precision, checkpoint),
        output=out,
    )
