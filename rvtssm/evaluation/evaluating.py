"""Evaluate weights on a split: a loop over inference rates, which goes on where it was interrupted, and a report."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rvtssm.datasets import DatasetConfig
from rvtssm.datasets.data_config import DataConfig
from rvtssm.datasets.sequence import FrameSequence
from rvtssm.evaluation.coco import Resampled
from rvtssm.evaluation.details import best_rate, break_down_rate, conditions, provenance, title, worst_pictures
from rvtssm.evaluation.detector_run import DetectorRun, WeightsFile
from rvtssm.evaluation.evaluation_config import EvaluationConfig
from rvtssm.evaluation.fit import class_indices, data_for, differences_in_scoring, for_data
from rvtssm.evaluation.frequency import RateRow
from rvtssm.evaluation.latency import late_steps, step_latency_ms
from rvtssm.evaluation.rates import memory_at, score_rate, score_shifts
from rvtssm.evaluation.report import REPORT_FILES, write_report
from rvtssm.evaluation.result import EvaluationReport
from rvtssm.evaluation.split_plan import PlannedRate, SplitPlan
from rvtssm.evaluation.tracks import check_tracks
from rvtssm.export.exported import chosen_precision
from rvtssm.models.model_config import PostprocessConfig
from rvtssm.models.streams import check_causal
from rvtssm.readers.index import identity_of
from rvtssm.system.output_folder import locked, result_set
from rvtssm.system.provenance import written_by

_UNFINISHED = "unfinished"  # the key of `evaluation.json` that keeps finished rates until all rates are done
_USUAL_SHIFTS_MS = (-200, -150, -100, -50, 0, 50, 100, 150, 200)
Announce = Callable[[DetectorRun, Sequence[PlannedRate]], object]


def evaluate(
    checkpoint: str | Path,
    *,
    raw_dir: str | Path | None = None,
    prepared_dir: str | Path | None = None,
    dataset: DatasetConfig | None = None,
    data: DataConfig | None = None,
    postprocess: PostprocessConfig | None = None,
    precision: str = "auto",
    plugins: Sequence[str] = (),
    seed: int = 0,
    out: str | Path | None = None,
    say: Callable[[str], object] = lambda text: None,
    announce: Announce = lambda run, rates: None,
    **settings: Any,
) -> EvaluationReport:
    """Return the average precision of weights at every rate, with intervals, a breakdown and the worst frames.

    >>> report = rvtssm.evaluate("run/checkpoints/best.ckpt", hz=[20, 40], window="slide", bootstrap=0)
    >>> [row.hz for row in report.rows], "AP" in report.rows[0].metrics
    ([20, 40], True)

    Args:
        checkpoint: A file, the name of weights in the package, or `hf://OWNER/NAME`.
        raw_dir: Folder or URL of raw recordings; by default, like everything about the data, that of the training.
        prepared_dir: Folder or URL of prepared recordings.
        dataset: Which dataset, if the folder does not say it, and its further settings.
        data: Loading of batches.
        postprocess: Which boxes count as detections.
        precision: float32, bf16, or auto.
        plugins: Files of source code that add parts.
        seed: Seed of the bootstrap replicates.
        out: Folder for `evaluation.json` and `report.html`; None writes nothing. Rates that an interrupted call with
            the same weights, data and settings has finished there are not run again.
        say: Called with lines that a user should know.
        announce: Called once with what will be run, before the first rate.
        settings: Fields of `EvaluationConfig`, such as hz=[20, 200], window="slide" or split="val".

    Raises:
        UserError: Something does not fit. Whatever can be known before the first rate is run is raised before it.
    """
    options = EvaluationConfig(**settings)
    dataset = dataset or DatasetConfig()
    if raw_dir is not None:
        dataset = replace(dataset, raw_dir=str(raw_dir))
    if prepared_dir is not None:
        dataset = replace(dataset, prepared_dir=str(prepared_dir))
    weights = WeightsFile(str(checkpoint), chosen_precision(str(checkpoint), precision), tuple(plugins))
    run = prepare(weights, dataset, data or DataConfig(), postprocess or PostprocessConfig(), options, say)
    folder = None if out is None else Path(out)
    with nullcontext() if folder is None else locked(folder):
        report = _report(run, seed, folder, announce)
        if folder is not None:
            with result_set(folder, "evaluation", REPORT_FILES) as staged:
                write_report(report, staged)
    return report


def prepare(
    weights: WeightsFile,
    dataset: DatasetConfig,
    data: DataConfig,
    postprocess: PostprocessConfig,
    options: EvaluationConfig,
    say: Callable[[str], object] = lambda text: None,
) -> DetectorRun:
    """Read weights and find the recordings to score them on.

    Args:
        weights: The weights.
        dataset: Which dataset, and where its files are.
        data: Loading of batches.
        postprocess: Which boxes count as detections.
        options: The options of the evaluation.
        say: Called with lines that a user should know.

    Raises:
        UserError: Weights and data do not fit together.
    """
    checkpoint = weights.read()
    module = data_for(weights.path, checkpoint, dataset, data, options.class_map)
    classes = class_indices(options.class_map, checkpoint.spec, module.spec)
    checkpoint = for_data(checkpoint, module.spec, classes is not None, say)
    postprocess = postprocess.with_score(checkpoint.scored_as.score)
    for line in differences_in_scoring(postprocess, checkpoint.scored_as):
        say(line)
    return DetectorRun(weights, SplitPlan(options, checkpoint, module), postprocess, classes)


def _report(run: DetectorRun, seed: int, out: Path | None, announce: Announce) -> EvaluationReport:
    """Score every rate, the one that is described in detail last, and return the report."""
    split = run.split
    check_tracks(split)
    rates, trained = split.plan_rates()
    _check_streaming(run, rates)
    announce(run, rates)
    sha256 = run.weights.sha256(run.checkpoint)
    detailed = trained if trained is not None and trained in rates else rates[0]
    finished = FinishedRates(out, row_conditions(run, rates, sha256, seed))
    rows: dict[PlannedRate, RateRow] = {}
    for rate in rates:
        if rate is not detailed:
            rows[rate] = finished.get(rate) or score_rate(run, rate, seed).row
            finished.add(rate, rows[rate])
    scored = score_rate(run, detailed, seed)
    rows[detailed] = scored.row
    memory = memory_at(run, trained, scored, seed)
    breakdown = break_down_rate(split, scored)
    ordered = [rows[rate] for rate in rates]
    window = ordered[0].window
    detailed_rows = tuple(row for row in ordered if window in row.windows)
    others = tuple(row for row in ordered if window not in row.windows)
    settings = {**conditions(run, rates, scored), **memory.in_words}
    return EvaluationReport(
        title=title(run.checkpoint, split.options),
        dataset=run.checkpoint.spec.name,
        rows=detailed_rows,
        others=others,
        settings={**settings, **best_rate(ordered, split.options), **provenance(scored, sha256)},
        reference_hz=trained.hz if trained else run.checkpoint.windows.hz,
        still_objects=memory.still_objects,
        without_memory=memory.without,
        breakdown=breakdown,
        worst=worst_pictures(breakdown, scored, run.checkpoint.spec),
        time_shifts=score_shifts(run, detailed, _shifts_ms(split.options)),
    )


def _shifts_ms(options: EvaluationConfig) -> Sequence[float]:
    if options.time_shifts_ms is None and options.streaming:
        return _USUAL_SHIFTS_MS
    return options.time_shifts_ms or ()


def _check_streaming(run: DetectorRun, rates: Sequence[PlannedRate]) -> None:
    """Raise UserError now, before hours of work, if the steps of a late detector cannot be run."""
    split, options = run.split, run.split.options
    if not options.streaming:
        return
    check_causal(run.checkpoint.detector)
    is_measured = options.latency_ms is None and options.latency_from is None
    if is_measured and split.source == "raw":
        return
    for rate in rates:
        sequences = split.sequences(rate)
        late_steps(sequences, step_latency_ms(run, sequences), options.when_late)


class FinishedRates:
    """Rates of an evaluation that are done, in memory and, if there is a folder, in its `evaluation.json`.

    Args:
        out: The folder of the report; None keeps nothing on disk.
        conditions: Plain values of everything that the rows depend on. Rows of an evaluation with others are not read.
    """

    def __init__(self, out: Path | None, conditions: Mapping[str, Any]) -> None:
        self._out = out
        self._conditions = json.loads(json.dumps(conditions))
        self._rows: dict[str, dict[str, Any]] = {}
        if out is not None and (out / REPORT_FILES[0]).is_file():
            unfinished = json.loads((out / REPORT_FILES[0]).read_text()).get(_UNFINISHED, {})
            if unfinished.get("conditions") == self._conditions:
                self._rows = unfinished["rows"]

    def get(self, rate: PlannedRate) -> RateRow | None:
        """Return the row of a rate; None if it is not done."""
        row = self._rows.get(_name(rate))
        if row is None:
            return None
        return _from_plain(row)

    def add(self, rate: PlannedRate, row: RateRow) -> None:
        """Keep the row of a rate that is done."""
        self._rows[_name(rate)] = _to_plain(row)
        if self._out is not None:
            with result_set(self._out, "evaluation", REPORT_FILES) as staged:
                content = {_UNFINISHED: {"conditions": self._conditions, "rows": self._rows}}
                (staged / REPORT_FILES[0]).write_text(json.dumps(content) + "\n")


def row_conditions(run: DetectorRun, rates: Sequence[PlannedRate], weights_sha256: str, seed: int) -> dict[str, Any]:
    """Return everything that the rows of an evaluation depend on, as plain values.

    Args:
        run: The detector, and how it runs.
        rates: The rates.
        weights_sha256: Digest of the weights.
        seed: Seed of the bootstrap replicates.
    """
    program, split = written_by(), run.split
    return {
        "program": [program["rvtssm"], program["commit"], torch.__version__],
        "weights": weights_sha256,
        "description": run.checkpoint.without_folders().to_dict(),
        "precision": run.weights.precision,
        "device": run.checkpoint.detector.device.type,
        "dataset": asdict(split.data.spec),
        "postprocess": asdict(run.postprocess),
        "options": asdict(split.options) | {"hz": None, "workers": None},
        "classes": run.classes,
        "loading": [split.data.data.eval_chunk_length, split.data.data.eval_batch_size],
        "seed": seed,
        "data": data_digest(split.sequences(rates[0], split.options.label_hz)),
    }


def data_digest(sequences: Sequence[FrameSequence]) -> str:
    """Return a digest of recordings and labels: names, labels, and size, time stamp and samples of each file."""
    digest = hashlib.sha256()
    for sequence in sequences:
        digest.update(f"\n{sequence.name} {sequence.frame_shape}".encode())
        path, labels = sequence.source.path, sequence.labels
        for file in sorted([path, *path.rglob("*")]):
            if file.is_file():
                digest.update(identity_of(file, str(file.resolve()).encode()))
        for array in (labels.boxes_ltwh, labels.class_id, labels.t_us, labels.empty_us):
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _name(rate: PlannedRate) -> str:
    return f"{rate.asked_hz:g} Hz, {' and '.join(rate.windows)}"


def _to_plain(row: RateRow) -> dict[str, Any]:
    assert row.resampled is not None
    plain = asdict(row)
    plain["resampled"]["replicates"] = {name: values.tolist() for name, values in row.resampled.replicates.items()}
    return plain


def _from_plain(plain: Mapping[str, Any]) -> RateRow:
    numbers = plain["resampled"]
    replicates = {name: np.array(values, np.float64) for name, values in numbers["replicates"].items()}
    resampled = Resampled(tuple(numbers["recordings"]), numbers["metrics"], replicates, tuple(numbers["num_objects"]))
    return RateRow(plain["hz"], plain["metrics"], plain["extra"], resampled, tuple(plain["windows"]))
