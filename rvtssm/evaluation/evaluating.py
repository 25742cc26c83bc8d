"""Evaluate weights on a split: a loop over inference rates, which goes on where it was interrupted, and a report."""

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rvtssm.datasets import DataConfig, DatasetConfig
from rvtssm.datasets.sequence import FrameSequence
from rvtssm.evaluation.breakdown import to_plain
from rvtssm.evaluation.coco import Resampled
from rvtssm.evaluation.details import best_rate, break_down_rate, conditions, provenance, title, worst_pictures
from rvtssm.evaluation.detector_run import DetectorRun, WeightsFile
from rvtssm.evaluation.evaluation_config import EvaluationConfig
from rvtssm.evaluation.latency import late_steps, read_latency_ms, step_latency_ms
from rvtssm.evaluation.pages import REPORT_FILES, write_report
from rvtssm.evaluation.rates import PlannedRate, ScoredRate, memory_at, plan_rates, score_rate, score_shifts
from rvtssm.evaluation.report import EvaluationReport, Row, in_hz, with_differences
from rvtssm.evaluation.scored_files import SCORED, scored_names, write_scored
from rvtssm.evaluation.tracks import check_tracks
from rvtssm.evaluation.weights_on_data import class_indices, data_for, differences_in_scoring, for_data
from rvtssm.events.labels import Boxes
from rvtssm.export.exported import chosen_precision
from rvtssm.models import PostprocessConfig
from rvtssm.models.checkpoint_meta import LoadedCheckpoint
from rvtssm.models.streams import check_causal
from rvtssm.readers.index import identity_of
from rvtssm.system.files import written_by
from rvtssm.system.output_folder import check_replaceable, locked, result_set

_USUAL_SHIFTS_MS = (-200, -150, -100, -50, 0, 50, 100, 150, 200)
# Options that decide which rows there are or what is measured beside them, and not what a row holds.
_OF_NO_ROW = ("hz", "window", "workers", "checkpoints", "time_shifts_ms", "ablate_memory", "still_ms")
Announce = Callable[[DetectorRun, Sequence[PlannedRate]], object]
Say = Callable[[str], object]


def evaluate(
    checkpoint: str | Path,
    *,
    raw_dir: str | Path | None = None,
    prepared_dir: str | Path | None = None,
    dataset: DatasetConfig | None = None,
    data: DataConfig | None = None,
    postprocess: PostprocessConfig | None = None,
    precision: str = "float32",
    plugins: Sequence[str] = (),
    seed: int = 0,
    out: str | Path | None = None,
    say: Say = lambda text: None,
    **settings: Any,
) -> EvaluationReport:
    """Return the average precision of weights at every rate, with intervals, a breakdown and the worst frames.

    >>> report = rvtssm.evaluate("run/checkpoints/best.ckpt", hz=[20, 40], window="slide", bootstrap=0)
    >>> [row["hz"] for row in report.rows], "AP" in report.rows[0]
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
        out: Folder for `evaluation.json` and `report.html`; None writes nothing. Rates that are there already, of the
            same weights, data and settings, are not run again.
        say: Called with lines that a user should know.
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
    read = weights.read_with_digest()
    run = prepare(weights, *read, dataset, data or DataConfig(), postprocess or PostprocessConfig(), options, say)
    return evaluate_run(run, seed, None if out is None else Path(out), say)


def prepare(
    weights: WeightsFile,
    checkpoint: LoadedCheckpoint,
    sha256: str,
    dataset: DatasetConfig,
    data: DataConfig,
    postprocess: PostprocessConfig,
    options: EvaluationConfig,
    say: Say = lambda text: None,
) -> DetectorRun:
    """Find the recordings to score weights on.

    Args:
        weights: The file of the weights.
        checkpoint: The weights.
        sha256: Their digest.
        dataset: Which dataset, and where its files are.
        data: Loading of batches.
        postprocess: Which boxes count as detections.
        options: The options of the evaluation.
        say: Called with lines that a user should know.

    Raises:
        UserError: Weights and data do not fit together.
    """
    module = data_for(weights.path, checkpoint, dataset, data, options.class_map)
    classes = class_indices(options.class_map, checkpoint.spec, module.spec)
    checkpoint = for_data(checkpoint, module.spec, classes is not None, say)
    postprocess = postprocess.with_score(checkpoint.scored_as.score)
    for line in differences_in_scoring(postprocess, checkpoint.scored_as):
        say(line)
    return DetectorRun(weights, checkpoint, module, options, postprocess, classes, sha256)


def evaluate_run(
    run: DetectorRun,
    seed: int = 0,
    out: Path | None = None,
    say: Say = lambda text: None,
    announce: Announce = lambda run, rates: None,
) -> EvaluationReport:
    """Score a detector at every rate, and write the report.

    Args:
        run: The detector on a split.
        seed: Seed of the bootstrap replicates.
        out: Folder for REPORT_FILES; None writes nothing.
        say: Called with lines that a user should know.
        announce: Called once with what will be run, before the first rate.
    """
    with nullcontext() if out is None else locked(out):
        check_tracks(run)
        rates, trained = plan_rates(run)
        _check_streaming(run, rates)
        if out is not None:
            check_replaceable(out, "evaluation", REPORT_FILES)
            check_replaceable(out / SCORED, SCORED, scored_names(run.options.formats, map(_place, rates)))
        announce(run, rates)
        finished = FinishedRates(out, run, rates, seed)
        report = _report(run, rates, trained, seed, finished, say)
        if out is not None:
            with result_set(out, "evaluation", REPORT_FILES) as staged:
                write_report(report, staged, finished.kept(report.rows))
    return report


def _report(
    run: DetectorRun,
    rates: Sequence[PlannedRate],
    trained: PlannedRate | None,
    seed: int,
    finished: "FinishedRates",
    say: Say,
) -> EvaluationReport:
    """Score every rate, the one that is described in detail last, and return the report."""
    detailed = trained if trained is not None and trained in rates else rates[0]
    known = [rate for rate in rates if rate is not detailed and finished.has(rate)]
    if known:
        names = ", ".join(f"{in_hz(rate.hz)} ({' and '.join(rate.windows)})" for rate in known)
        say(f"taken from the evaluation before, of the same weights, data and settings: {names}")
    for rate in rates:
        if rate is not detailed and rate not in known:
            scored = score_rate(run, rate, seed)
            finished.write_scored(rate, scored)
            finished.add(scored.rows, scored.resampled)
            finished.write()
    scored = score_rate(run, detailed, seed)
    finished.add(scored.rows, scored.resampled)

    # What the rate in detail says beside its row.
    memory = memory_at(run, trained, scored, seed)
    breakdown = break_down_rate(run, scored)
    reference_hz = trained.hz if trained else run.checkpoint.windows.hz
    places = [(rate.hz, window) for rate in rates for window in rate.windows]
    places.sort(key=lambda place: place[1] != rates[0].windows[0])  # windows in detail first, otherwise as planned
    rows = [finished.rows[place] for place in places]
    resampled = {place: finished.resampled[place] for place in places}
    words = {**conditions(run, rates, scored), **memory.in_words, **best_rate(rows, run.options)}
    report = EvaluationReport(
        title=title(run.checkpoint, run.options),
        dataset=run.checkpoint.spec.name,
        rows=with_differences(rows, resampled, reference_hz),
        conditions={**words, **provenance(scored, run.sha256)},
        reference_hz=reference_hz,
        resampled=resampled,
        still_objects=memory.still_objects,
        without_memory=memory.without,
        breakdown=breakdown,
        worst=worst_pictures(breakdown, scored, run.checkpoint.spec),
        time_shifts=score_shifts(run, detailed, _shifts_ms(run.options)),
    )
    finished.write_scored(detailed, scored)
    return report


def _place(rate: PlannedRate) -> str:
    """Return how the files of a rate begin, such as 20hz_slide."""
    return "_".join([f"{rate.hz:g}hz", *rate.windows])


def _shifts_ms(options: EvaluationConfig) -> Sequence[float]:
    if options.time_shifts_ms is None and options.streaming:
        return _USUAL_SHIFTS_MS
    return options.time_shifts_ms or ()


def _measures_latency(run: DetectorRun) -> bool:
    options = run.options
    return options.streaming and options.latency_ms is None and options.latency_from is None


def _check_streaming(run: DetectorRun, rates: Sequence[PlannedRate]) -> None:
    """Raise UserError now, before hours of work, if the steps of a late detector cannot be run."""
    if not run.options.streaming:
        return
    check_causal(run.checkpoint.detector)
    if _measures_latency(run) and run.source == "raw":
        return
    for rate in rates:
        late_steps(rate.sequences, step_latency_ms(run, rate.sequences), run.options.when_late)


class FinishedRates:
    """The rows that are done, in memory and, if there is a folder, in its `evaluation.json`.

    Args:
        out: The folder of the report; None keeps nothing on disk.
        run: The detector, and how it runs. Rows with other `inputs_of` are not read.
        rates: The rates that are asked for.
        seed: Seed of the bootstrap replicates.
    """

    def __init__(self, out: Path | None, run: DetectorRun, rates: Sequence[PlannedRate], seed: int) -> None:
        self.rows: dict[tuple[float, str], Row] = {}
        self.resampled: dict[tuple[float, str], Resampled] = {}
        self._out = out
        self._run = run
        self._rates = rates
        self._is_on_disk = False  # whether the report in the folder has these inputs
        self._inputs = json.loads(json.dumps(inputs_of(run, rates, seed)))
        if out is None or not (out / REPORT_FILES[0]).is_file():
            return
        # Rows of the same inputs are taken, with their replicates for paired differences.
        content = json.loads((out / REPORT_FILES[0]).read_text())
        if content.get("inputs") != self._inputs or (_measures_latency(run) and not content.get("unfinished")):
            return
        numbers = {name: tuple(content["resampled"][name]) for name in ("recordings", "num_objects")}
        for row, replicates in zip(content["rows"], content["resampled"]["AP"], strict=True):
            row.pop("difference", None)
            row = _with_nan(row)
            ap = {"AP": np.array(replicates, np.float64)}  # None becomes NaN
            found = Resampled(metrics={"AP": row["AP"]}, replicates=ap, **numbers)
            self.add([row], found)
        self._is_on_disk = True

    def has(self, rate: PlannedRate) -> bool:
        """Return whether a rate is done with all its kinds of windows, and has the files that are asked for."""
        names = scored_names(self._run.options.formats, [_place(rate)])
        has_files = self._out is None or all((self._out / SCORED / name).is_file() for name in names)
        return has_files and all((rate.hz, window) in self.rows for window in rate.windows)

    def add(self, rows: Sequence[Row], resampled: Resampled) -> None:
        """Keep the rows of a rate that is done."""
        for row in rows:
            self.rows[row["hz"], row["window"]] = row
            self.resampled[row["hz"], row["window"]] = resampled

    def kept(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Return the part of `evaluation.json` with which another evaluation goes on, for these rows in order."""
        first = next(iter(self.resampled.values()))
        numbers = {"recordings": first.recordings, "num_objects": first.num_objects}
        replicates = [self.resampled[row["hz"], row["window"]].replicates["AP"].tolist() for row in rows]
        return {"inputs": self._inputs, "resampled": to_plain({**numbers, "AP": replicates})}

    def write_scored(self, rate: PlannedRate, scored: ScoredRate) -> None:
        """Write what was scored at a rate, and keep only files of rates that are done."""
        if self._out is None:
            return
        formats, spec = self._run.options.formats, self._run.checkpoint.spec
        kept = scored_names(formats, map(_place, filter(self.has, self._rates))) if self._is_on_disk else None
        write_scored(self._out, _place(rate), formats, scored.recordings, scored.matches, spec, kept)

    def write(self) -> None:
        """Write the rows that are done, without a report of them."""
        if self._out is None:
            return
        with result_set(self._out, "evaluation", REPORT_FILES) as staged:
            rows = list(self.rows.values())
            content = {"unfinished": True, "rows": to_plain(rows), **self.kept(rows)}
            (staged / REPORT_FILES[0]).write_text(json.dumps(content) + "\n")
        self._is_on_disk = True


def _with_nan(plain: Any) -> Any:
    """Return values of JSON with NaN in place of None."""
    if isinstance(plain, dict):
        return {name: _with_nan(value) for name, value in plain.items()}
    if isinstance(plain, list):
        return [*map(_with_nan, plain)]
    return math.nan if plain is None else plain


def inputs_of(run: DetectorRun, rates: Sequence[PlannedRate], seed: int) -> dict[str, Any]:
    """Return everything that the rows of an evaluation depend on, as plain values.

    Args:
        run: The detector, and how it runs.
        rates: The rates.
        seed: Seed of the bootstrap replicates.
    """
    program = written_by()
    boxes = run.data.boxes(run.options.split) if run.source == "raw" else {}
    latency_from = run.options.latency_from
    return {
        "program": [program["rvtssm"], program["commit"], torch.__version__],
        "weights": run.sha256,
        "description": run.checkpoint.without_folders().to_dict(),
        "precision": run.weights.precision,
        "device": run.checkpoint.detector.device.type,
        "dataset": asdict(run.data.spec),
        "postprocess": asdict(run.postprocess),
        "options": asdict(run.options) | dict.fromkeys(_OF_NO_ROW),
        "classes": run.classes,
        "loading": [run.data.data.eval_chunk_length, run.data.data.eval_batch_size],
        "seed": seed,
        "latency_ms": None if latency_from is None else read_latency_ms(Path(latency_from)),
        "data": data_digest(rates[0].sequences, boxes),
    }


def data_digest(sequences: Sequence[FrameSequence], boxes: Mapping[str, Boxes]) -> str:
    """Return a digest of recordings and labels: names, labels, and size, time stamp and samples of each file.

    Args:
        sequences: The recordings.
        boxes: Their labels as they are on disk, with tracks, by recording; none for prepared files, which are all.
    """
    digest = hashlib.sha256()
    for sequence in sequences:
        digest.update(f"\n{sequence.name} {sequence.frame_shape}".encode())
        path = sequence.source.path
        labels = sequence.labels
        for file in sorted([path, *path.rglob("*")]):
            if file.is_file():
                digest.update(identity_of(file, str(file.resolve()).encode()))
        arrays = [labels.boxes_ltwh, labels.class_id, labels.t_us, labels.empty_us]
        if sequence.name in boxes:
            arrays.append(boxes[sequence.name])
        for array in arrays:
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
