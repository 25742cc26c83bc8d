"""`rvtssm score`: average precision of boxes that any program found, by the rules, tables and files of `evaluate`."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rvtssm.cli.console import announce, console, say, say_written
from rvtssm.cli.inputs import default_out, writable
from rvtssm.cli.words import run_files
from rvtssm.contrib.scoring.box_files import LabelSet, read_detections, read_labels
from rvtssm.contrib.scoring.score_config import ScoreConfig, ScoreSettings, check_files
from rvtssm.datasets import DATASETS, DatasetConfig, build_spec, custom
from rvtssm.evaluation.breakdown import break_down
from rvtssm.evaluation.coco import resample
from rvtssm.evaluation.matching import ScoredRecording, match_detections
from rvtssm.evaluation.pages import (
    COMPARISON_FILES,
    REPORT_FILES,
    comparison_table,
    console_table,
    write_comparison,
    write_report,
)
from rvtssm.evaluation.protocol import num_scored, scoring_rules
from rvtssm.evaluation.report import EvaluationReport, citation, only_ap, to_row
from rvtssm.evaluation.scored_files import write_scored
from rvtssm.records import DatasetSpec
from rvtssm.system.files import written_by
from rvtssm.system.output_folder import locked, result_set

WINDOW = "given"  # the kind of windows of boxes from elsewhere


def score(
    detections: str | Path | Sequence[str | Path],
    labels: str | Path,
    dataset: str = "",
    *,
    out: str | Path | None = None,
    seed: int = 0,
    **settings: Any,
) -> dict[str, EvaluationReport]:
    """Return the average precision of boxes that any program found, as `rvtssm.evaluate` computes it.

    >>> reports = rvtssm.score(["theirs.json", "ours.json"], "labels.json", bootstrap=0)  # doctest: +SKIP
    >>> for name, report in reports.items():  # doctest: +SKIP
    ...     print(name, round(report.reference()["AP"], 3))
    theirs.json 0.412
    ours.json 0.437

    Args:
        detections: One or several files or folders of boxes; the first is the one that others are compared with.
        labels: A file or folder of labels.
        dataset: Name of a dataset, whose classes and rules of scoring are used.
        out: Folder for the report, or for a report of each and their comparison; None writes nothing.
        seed: Seed of the bootstrap replicates.
        settings: Fields of `ScoreConfig`, such as max_age_ms=50, hz=20 or formats=["coco", "csv"].

    Returns:
        A report for each of the detections, by their path.

    Raises:
        UserError: A file cannot be read, or does not fit the labels.
    """
    files = [detections] if isinstance(detections, str | Path) else list(detections)
    first, *compared = map(str, files or [""])
    options = ScoreConfig(first, str(labels), compared, **settings)
    check_files(options)
    label_set = read_labels(Path(labels), _spec(Path(labels), DatasetConfig(dataset)))
    reports = _reports(options, label_set, seed, None if out is None else Path(out))
    if out is not None:
        _write(reports, Path(out))
    return reports


def score_files(config: ScoreSettings) -> list[EvaluationReport]:
    """Score the files that a configuration names, print the tables, and write the report to `out`."""
    labels = Path(str(config.score.labels))
    out = writable(Path(config.out) if config.out else default_out("score", Path(str(config.score.detections)).stem))
    label_set = read_labels(labels, _spec(labels, config.dataset))
    number = num_scored(label_set.labels.values(), label_set.spec)
    announce(
        "score", labels=labels, recordings=f"{len(label_set.labels)} with {number} boxes that are scored", output=out
    )
    with locked(out), run_files(out, "score", config):
        reports = _reports(config.score, label_set, config.seed, out)
        _write(reports, out)
    if len(reports) > 1:
        console.print(comparison_table(reports))
        say_written(out, COMPARISON_FILES)
    else:
        console.print(console_table(next(iter(reports.values()))))
        say_written(out, REPORT_FILES)
    for name, report in reports.items():
        say(f"to cite: {name}: {citation(report)}")
    return list(reports.values())


def _spec(labels: Path, dataset: DatasetConfig) -> DatasetSpec | None:
    """Return the dataset that is named, or that a `dataset.yaml` beside the labels describes; otherwise None."""
    if dataset.name and DATASETS[dataset.name].class_names:
        return build_spec(dataset)
    folder = labels if labels.is_dir() else labels.parent
    for place in (folder, folder.parent):
        if (place / custom.FILE).is_file():
            return custom.read_spec(place)
    return None


def _reports(options: ScoreConfig, labels: LabelSet, seed: int, out: Path | None) -> dict[str, EvaluationReport]:
    files = [str(options.detections), *options.compared]
    reports = {}
    for number, file in enumerate(files, start=1):
        folder = out
        if out is not None and len(files) > 1:
            folder = out / str(number)
        reports[file] = _report(file, options, labels, seed, folder)
    return reports


def _report(file: str, options: ScoreConfig, labels: LabelSet, seed: int, folder: Path | None) -> EvaluationReport:
    spec = labels.spec
    found = read_detections(Path(file), labels, round(1000 * options.max_age_ms))
    recordings = [ScoredRecording(name, own, found[name]) for name, own in labels.labels.items()]
    matches = match_detections(recordings, spec)
    resampled = resample(matches, spec, options.bootstrap, seed)
    hz = math.nan if options.hz is None else options.hz
    if folder is not None:
        write_scored(folder, "given", options.formats, recordings, matches, spec)
    program = written_by()
    commit = f", commit {program['commit']}" if program["commit"] else ""
    age = "of exactly the label time"
    if options.max_age_ms:
        age = f"the newest of the last {options.max_age_ms:g} ms before a label"
    conditions = {
        "detections": f"{file}, {age}",
        "labels": str(options.labels),
        "scored": f"{num_scored(labels.labels.values(), spec)} boxes; {scoring_rules(spec)}",
        "intervals": resampled.sentence(),
        "made by": f"rvtssm {program['rvtssm']}{commit}, {program['date']}",
    }
    return EvaluationReport(
        title=f"{Path(file).stem} on {spec.name}",
        dataset=spec.name,
        rows=[to_row(hz, WINDOW, resampled, {})],
        conditions=conditions,
        reference_hz=hz,
        resampled={(hz, WINDOW): only_ap(resampled)},
        breakdown=break_down(recordings, spec, matched=matches),
    )


def _write(reports: Mapping[str, EvaluationReport], out: Path) -> None:
    """Write the report, or one below for each of several and their comparison."""
    if len(reports) == 1:
        with result_set(out, "evaluation", REPORT_FILES) as staged:
            write_report(next(iter(reports.values())), staged, {})
        return
    for number, report in enumerate(reports.values(), start=1):
        with result_set(out / str(number), "evaluation", REPORT_FILES) as staged:
            write_report(report, staged, {})
    with result_set(out, "comparison", COMPARISON_FILES) as staged:
        write_comparison(reports, staged)
