"""`rvtssm evaluate`: measures average precision at any rate; every recording is streamed from its start."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from rvtssm.cli.announcement import announce, say_replaced, with_labels
from rvtssm.cli.config import Config
from rvtssm.cli.console import console, say
from rvtssm.cli.init_from import CLASS_MAP_FORM
from rvtssm.cli.inputs import default_out, folders, weights_label, writable
from rvtssm.cli.run_files import run_files, unlike_others
from rvtssm.cli.weights import (
    precision_in_words,
    read_weights,
    say_windows,
    shared_weights,
    with_chosen_precision,
)
from rvtssm.datasets import with_training
from rvtssm.datasets.datamodule import SequenceDataModule
from rvtssm.evaluation.batch_workers import Ranks, join_ranks, open_workers
from rvtssm.evaluation.comparison import COMPARISON_FILES, write_comparison
from rvtssm.evaluation.frequency import is_same_rate
from rvtssm.evaluation.kept_outputs import kept_folder, remove_kept
from rvtssm.evaluation.protocol import num_scored
from rvtssm.evaluation.rates import measure
from rvtssm.evaluation.report import REPORT_FILES, console_table, write_report
from rvtssm.evaluation.result import EvaluationReport, citation
from rvtssm.evaluation.split_plan import PlannedRate, SplitPlan
from rvtssm.evaluation.split_runs import SplitRuns
from rvtssm.models.checkpoint_meta import LoadedCheckpoint
from rvtssm.models.frame_size import detector_for_frame
from rvtssm.models.hub import local_weights
from rvtssm.models.transfer import mapped_classes
from rvtssm.records import DatasetSpec
from rvtssm.system.output_folder import locked, result_set
from rvtssm.system.user_error import UserError
from rvtssm.training.loop import describe
from rvtssm.training.sections import TrainSections


def evaluate(config: Config) -> list[EvaluationReport]:
    """Measure average precision at each rate, and write `evaluation.*` and `report.html` to `out`.

    Each of `evaluation.checkpoints` gets a folder of its own, and `comparison.*` compares them all. If an evaluation
    was interrupted and is called again with the same settings, it continues. Of processes that a launcher has started,
    the first one writes and returns the reports, and the others return none.
    """
    ranks = join_ranks(config.evaluation.workers)
    if ranks is None:
        return _evaluate(config, None)
    with ranks:
        if ranks.rank == 0:
            return _evaluate(config, ranks)
        ranks.serve()
        return []


def check_rates(config: Config) -> None:
    """Raise ValueError, before a detector is trained as configured, if it could not be evaluated at its rates."""
    data = SequenceDataModule(config.dataset, data=config.data, windows=config.windows.settings)
    meta = describe(TrainSections.of(config), data)
    checkpoint = meta.with_detector(meta.build())
    SplitPlan(config.evaluation, checkpoint, _data_for(config, checkpoint)).plan_rates()


def _evaluate(config: Config, ranks: Ranks | None) -> list[EvaluationReport]:
    is_comparison = config.evaluation.checkpoints is not None
    config = config if is_comparison else with_chosen_precision(config)
    default = default_out("evaluate", "comparison" if is_comparison else weights_label(str(config.checkpoint)))
    out = writable(Path(config.out) if config.out else unlike_others(default, "evaluate", config))
    if not is_comparison:
        report = _evaluate_one(config, out, ranks)
        _say_results({str(config.checkpoint): report})
        return [report]
    if not config.evaluation.checkpoints or config.checkpoint:
        raise UserError("give checkpoint=FILE, or evaluation.checkpoints=[FILE,FILE] with at least one, and not both")
    if missing := [path for path in config.evaluation.checkpoints if not Path(local_weights(path)).is_file()]:
        raise UserError(f"evaluation.checkpoints: there is no checkpoint at {missing[0]}; give existing files")
    for path in config.evaluation.checkpoints:  # raises before hours of work if one of them cannot be evaluated
        one = replace(config, checkpoint=path)
        _data_for(one, read_weights(one))
    reports = {}
    with result_set(out, "comparison", COMPARISON_FILES) as staged, run_files(out, "evaluate", config):
        for number, path in enumerate(config.evaluation.checkpoints, start=1):
            one = with_chosen_precision(replace(config, checkpoint=path))
            reports[path] = _evaluate_one(one, out / str(number), ranks)
        write_comparison(reports, staged)
    say("wrote " + ", ".join(str(out / name) for name in COMPARISON_FILES))
    _say_results(reports)
    return list(reports.values())


def _evaluate_one(config: Config, out: Path, ranks: Ranks | None) -> EvaluationReport:
    with locked(out):
        with result_set(out, "evaluation", REPORT_FILES) as staged, run_files(out, "evaluate", config):
            report = _measure(config, out, ranks)
            write_report(report, staged)
        remove_kept(out)
    console.print(console_table(report))  # after writing, since a closed terminal raises an error
    say("wrote " + ", ".join(str(out / name) for name in REPORT_FILES))
    return report


def _say_results(reports: Mapping[str, EvaluationReport]) -> None:
    """Print a line to cite, and with streaming the best rate."""
    for path, report in reports.items():
        say(f"to cite: {citation(report)}")
        if best := report.settings.get("best rate"):
            say(best if len(reports) == 1 else f"{path}: {best}")


def _measure(config: Config, out: Path, ranks: Ranks | None) -> EvaluationReport:
    """Return the numbers of one checkpoint at all rates, with pictures of the worst frames."""
    checkpoint = read_weights(config)
    data = _data_for(config, checkpoint)
    classes = _class_indices(config, checkpoint.spec, data.spec)
    if classes is None:
        checkpoint = _with_scoring_rules(checkpoint, data.spec)
    else:
        detector = detector_for_frame(checkpoint, data.spec.frame_height, data.spec.frame_width)
        checkpoint = replace(checkpoint, spec=data.spec, detector=detector)
    if config.evaluation.window == "shrink":
        say_windows(checkpoint, checkpoint.windows_at(max(config.evaluation.hz or [checkpoint.windows.hz]), "shrink"))
    with open_workers(config.evaluation.workers, checkpoint, ranks) as workers:
        weights = shared_weights(config, checkpoint)
        how = weights, config.postprocess, workers, kept_folder(out), classes
        runs = SplitRuns(config.evaluation, checkpoint, data, *how)
        return measure(runs, config.seed, partial(_announce, runs, out))


def _announce(runs: SplitRuns, out: Path, rates: list[PlannedRate]) -> None:
    say_replaced(out, "evaluation")
    trained_hz = runs.checkpoint.windows.hz
    if not any(is_same_rate(rate.asked_hz, trained_hz) for rate in rates):
        say(f"without a drop, because {trained_hz:g} Hz, the rate of training, is not among the rates of evaluation.hz")
    sequences = runs.sequences(rates[0], runs.options.label_hz)
    num_without = runs.data.num_without_boxes(runs.options.split, sequences, runs.source)
    num_boxes = num_scored((sequence.labels for sequence in sequences), runs.checkpoint.spec)
    announce(
        "evaluate",
        weights=runs.weights.path,
        source=f"{runs.source} {runs.checkpoint.spec.name} {runs.options.split}",
        stride=" and ".join(dict.fromkeys(f"{rate.step_us / 1000:g}" for rate in rates)) + " ms",
        recordings=f"{with_labels(sequences, num_without)}, of which {num_boxes} are scored",
        device=runs.checkpoint.detector.device,
        precision=precision_in_words(runs.weights.precision, runs.checkpoint),
        output=out,
    )


def _data_for(config: Config, checkpoint: LoadedCheckpoint) -> SequenceDataModule:
    """Return the configured data; settings that are not given are those of the training."""
    spec = checkpoint.spec
    dataset = with_training(config.dataset, spec)
    if not any(folders(config).values()):
        dataset = replace(dataset, raw_dir=checkpoint.raw_dir, prepared_dir=checkpoint.prepared_dir)
    data = SequenceDataModule(dataset, data=config.data)
    if _class_indices(config, spec, data.spec) is None:
        _check_fit(str(config.checkpoint), spec, data.spec)
    detector_for_frame(checkpoint, data.spec.frame_height, data.spec.frame_width)  # an exported file has a fixed size
    return data


def _class_indices(config: Config, trained: DatasetSpec, data: DatasetSpec) -> tuple[int, ...] | None:
    """Return the class of the data for each class of the weights, -1 for none; None without a class_map."""
    if config.evaluation.class_map is None:
        return None
    names, known = trained.class_names, data.class_names
    mapped = mapped_classes("evaluation.class_map", config.evaluation.class_map, names, known)
    return tuple(known.index(name) if name in known else -1 for name in mapped)


def _with_scoring_rules(checkpoint: LoadedCheckpoint, spec: DatasetSpec) -> LoadedCheckpoint:
    """Return the checkpoint with the rules of the data that decide which boxes are scored; say which have changed."""
    trained = checkpoint.spec
    per_px = trained.downsample / spec.downsample  # frames have the same size, sensors perhaps not
    new = replace(
        trained,
        min_side_px=spec.min_side_px * per_px,
        min_diagonal_px=spec.min_diagonal_px * per_px,
        skip_us=spec.skip_us,
    )
    names = [
        name for name in ("min_side_px", "min_diagonal_px", "skip_us") if getattr(new, name) != getattr(trained, name)
    ]
    if names:
        changed = ", ".join(f"{name} {getattr(spec, name)}" for name in names)
        say(f"scored by the rules of the data, which are not those of the training: {changed}")
    return replace(checkpoint, spec=new)


def _check_fit(path: str, trained: DatasetSpec, data: DatasetSpec) -> None:
    """Raise UserError if the dataset, the classes or the frames of the data are not those of the training."""
    ours, theirs = _described(trained), _described(data)
    other = [f"{key} {ours[key]}, not {theirs[key]}" for key in ours if ours[key] != theirs[key]]
    if not other:
        return
    class_map, as_it_is = "", "'evaluation.class_map={}'"
    if trained.class_names != data.class_names:
        class_map, as_it_is = f" {CLASS_MAP_FORM.format('training')}", CLASS_MAP_FORM.format("evaluation")
    raise UserError(
        f"{path} cannot be scored on these data, because it was trained on {'; '.join(other)}; fine-tune it on them "
        f"(`rvtssm train training.init_from={path}{class_map}` with the same dataset) and evaluate the new weights, "
        f"score it as it is with {as_it_is}, or only look at its boxes with `rvtssm predict`"
    )


def _described(spec: DatasetSpec) -> dict[str, str]:
    """Describe what must be equal for a model and the data on which it is scored."""
    return {
        "the dataset": spec.name,
        "the classes": f"({', '.join(spec.class_names)})",
        "frames of": f"{spec.frame_width} x {spec.frame_height} pixels",
    }
