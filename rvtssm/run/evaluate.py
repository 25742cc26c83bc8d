"""`rvtssm evaluate`: measures average precision at any rate; every recording is streamed from its start."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rvtssm.config import Config
from rvtssm.datasets.datamodule import SequenceDataModule
from rvtssm.datasets.sequence import FrameSequence
from rvtssm.evaluation.bootstrap import Resampled, resample
from rvtssm.evaluation.breakdown import Breakdown, break_down, track_speeds
from rvtssm.evaluation.coco import ScoredRecording, evaluate_detections, match_detections
from rvtssm.evaluation.comparison import COMPARISON_FILES, write_comparison
from rvtssm.evaluation.frequency import RateRow, is_reached, is_same_rate, nearest_rates, true_rate
from rvtssm.evaluation.page import Picture
from rvtssm.evaluation.pairing import paired, requests
from rvtssm.evaluation.protocol import has_stood_still, scored_labels, scoring_rules
from rvtssm.evaluation.report import REPORT_FILES, console_table, write_report
from rvtssm.evaluation.result import EvaluationReport, percent_interval
from rvtssm.events.tree import find_recordings
from rvtssm.inference.draw import draw_frame, to_png
from rvtssm.inference.frame_size import detector_for_frame
from rvtssm.inference.stream import stream
from rvtssm.models.checkpoint import LoadedCheckpoint
from rvtssm.models.parts import head_class
from rvtssm.output_folder import result_set
from rvtssm.records import DatasetSpec, Labels
from rvtssm.run.console import console, say
from rvtssm.run.inputs import folders, writable
from rvtssm.run.weights import read_weights


def evaluate(config: Config) -> list[EvaluationReport]:
    """Measure average precision at each rate, and write `evaluation.*` and `report.html` to `out`.

    Each of `evaluation.checkpoints` gets a folder of its own, and `comparison.*` compares them all.
    """
    out = writable(Path(config.out or "outputs/evaluate"))
    if config.evaluation.checkpoints is None:
        return [_evaluate_one(config, out)]
    if not config.evaluation.checkpoints or config.checkpoint:
        raise ValueError("give checkpoint=FILE, or evaluation.checkpoints=[FILE,FILE] with at least one, and not both")
    if missing := [path for path in config.evaluation.checkpoints if not Path(path).is_file()]:
        raise ValueError(f"evaluation.checkpoints: there is no checkpoint at {missing[0]}; give existing files")
    for path in config.evaluation.checkpoints:  # raises before hours of work if one of them cannot be evaluated
        one = replace(config, checkpoint=path)
        _data_for(one, read_weights(one))
    reports = {}
    with result_set(out, "comparison", COMPARISON_FILES) as staged:
        for number, path in enumerate(config.evaluation.checkpoints, start=1):
            reports[path] = _evaluate_one(replace(config, checkpoint=path), out / str(number))
        write_comparison(reports, staged)
    say("wrote " + ", ".join(str(out / name) for name in COMPARISON_FILES))
    return list(reports.values())


def _evaluate_one(config: Config, out: Path) -> EvaluationReport:
    with result_set(out, "evaluation", REPORT_FILES) as staged:
        report, pictures = _measure(config)
        write_report(report, staged, pictures)
    console.print(console_table(report))  # after writing, since a closed terminal raises an error
    say("wrote " + ", ".join(str(out / name) for name in REPORT_FILES))
    return report


def _measure(config: Config) -> tuple[EvaluationReport, list[Picture]]:
    """Return the numbers of one checkpoint at all rates, and pictures of the worst frames."""
    checkpoint = read_weights(config)
    data = _data_for(config, checkpoint)
    spec, options, trained_hz = checkpoint.spec, config.evaluation, checkpoint.windows.hz

    def stands_still(labels: Labels) -> np.ndarray:
        return has_stood_still(labels, round(1000 * options.still_ms))

    def scored(recordings: list[ScoredRecording]) -> Resampled:
        return resample(match_detections(recordings, spec), spec, options.bootstrap, config.seed)

    rows, still, without_memory = [], {}, {}
    rates, trained = _planned_rates(config, checkpoint, data)
    broken_down = trained if trained in rates else rates[0]
    for rate in rates:
        began = time.perf_counter()
        recordings, sequences = _stream_split(config, checkpoint, data, rate.asked_hz)
        measured = {"seconds": time.perf_counter() - began, "step_ms": rate.step_us / 1000}
        resampled = scored(recordings)
        rows.append(RateRow(rate.hz, resampled.metrics, measured, resampled))
        if rate is broken_down:
            breakdown = break_down(recordings, spec, _speeds(config, data, recordings))
            pictures = _worst_pictures(breakdown, recordings, sequences, spec)
        if rate is trained and any(stands_still(recording.labels).any() for recording in recordings):
            still["carried"] = evaluate_detections(recordings, spec, only=stands_still)["AP"]
    if options.ablate_memory:
        recordings, _ = _stream_split(config, checkpoint, data, trained_hz, is_reset=True)
        reset = scored(recordings)
        without_memory["AP without memory"] = (
            f"{percent_interval(reset.interval('AP'))} at {trained_hz:g} Hz, state reset at every step"
        )
        carried = next((row.resampled for row in rows if trained and row.hz == trained.hz), None)
        if carried and (gain := carried.minus(reset, "AP")):
            without_memory["AP gained by memory"] = percent_interval(gain)
        if still:
            still["reset"] = evaluate_detections(recordings, spec, only=stands_still)["AP"]
    report = EvaluationReport(
        title=f"{spec.name} {options.split}, {checkpoint.model_config.size} {checkpoint.temporal_config.name}"
        + (", free grid" if options.grid == "free" else ""),
        dataset=spec.name,
        rows=tuple(rows),
        settings={**_conditions(config, checkpoint, data, rates), **without_memory, "intervals": resampled.sentence()},
        reference_hz=trained.hz if trained else trained_hz,
        still_objects=still,
        breakdown=breakdown,
    )
    return report, pictures


def _data_for(config: Config, checkpoint: LoadedCheckpoint) -> SequenceDataModule:
    """Return the configured data; settings that are not given are those of the training."""
    spec = checkpoint.spec
    dataset = config.dataset
    if not dataset.name:
        dataset = replace(dataset, name=spec.name, height=spec.height, width=spec.width)
    if not any(folders(config).values()):
        dataset = replace(dataset, raw_dir=checkpoint.raw_dir, prepared_dir=checkpoint.prepared_dir)
    data = SequenceDataModule(dataset, data=config.data)
    if _frames(data.spec) != _frames(spec):
        raise ValueError(
            f"{config.checkpoint} was trained on {_frames(spec)}, the data are {_frames(data.spec)}; "
            "evaluate on the dataset of the weights"
        )
    detector_for_frame(checkpoint, spec.frame_height, spec.frame_width)  # an exported file has a fixed size
    return data


def _frames(spec: DatasetSpec) -> str:
    """Describe what must be equal for a model and its data."""
    return f"{spec.name} ({', '.join(spec.class_names)}; {spec.frame_width} x {spec.frame_height} pixels)"


def _source(config: Config, data: SequenceDataModule) -> str:
    return config.evaluation.source or config.dataset.source or ("raw" if data.config.raw_dir else "prepared")


@dataclass(frozen=True)
class _PlannedRate:
    asked_hz: float
    hz: float  # of its steps
    step_us: float  # median of its steps


def _planned_rates(
    config: Config, checkpoint: LoadedCheckpoint, data: SequenceDataModule
) -> tuple[list[_PlannedRate], _PlannedRate | None]:
    """Return the rates to score, and the one of the training if it is among them or is run without memory.

    Raise ValueError, before hours of work, if a rate cannot be scored.
    """
    options, trained_hz = config.evaluation, checkpoint.windows.hz
    asked = options.frequencies_hz or [trained_hz]
    rates = [_plan_rate(config, checkpoint, data, hz) for hz in asked]
    by_hz: dict[float, _PlannedRate] = {}
    for rate in rates:
        if (other := by_hz.setdefault(rate.hz, rate)) is not rate:
            raise ValueError(
                f"evaluation.frequencies_hz: {other.asked_hz:g} and {rate.asked_hz:g} Hz are the same steps of "
                f"{rate.step_us / 1000:g} ms between labels; name one of them, or set evaluation.grid=free"
            )
    trained = next((rate for rate in rates if is_same_rate(rate.asked_hz, trained_hz)), None)
    if options.ablate_memory and trained is None:
        trained = _plan_rate(config, checkpoint, data, trained_hz)
    return rates, trained


def _plan_rate(config: Config, checkpoint: LoadedCheckpoint, data: SequenceDataModule, asked_hz: float) -> _PlannedRate:
    sequences = _sequences(config, checkpoint, data, asked_hz)
    if not any(len(scored_labels(sequence.labels, checkpoint.spec)) for sequence in sequences):
        raise ValueError(
            f"the {config.evaluation.split} split has no box that is scored ({scoring_rules(checkpoint.spec)}); "
            "choose another split, or prepare it with its labels"
        )
    step_us = float(np.median(np.concatenate([sequence.windows.dt_us for sequence in sequences])))
    checkpoint.detector.prepare(config.evaluation.step_scale or step_us / checkpoint.windows.stride_us)
    hz = true_rate(asked_hz, step_us)
    # the rate of training is run as in training, under its true name: prepared recordings have no other
    if not is_reached(asked_hz, hz) and not is_same_rate(asked_hz, checkpoint.windows.hz):
        intervals_us = np.concatenate([np.diff(np.unique(sequence.labels.t_us)) for sequence in sequences])
        nearest = " or ".join(f"{near:g}" for near in nearest_rates(intervals_us, asked_hz))
        raise ValueError(
            f"evaluation.frequencies_hz: {asked_hz:g} Hz cannot be reached, because a window ends at every label and "
            f"labels are {np.median(intervals_us) / 1000:g} ms apart, which makes it {hz:g} Hz; "
            + (f"ask for {nearest} Hz, the nearest, or " if nearest else "")
            + "set evaluation.grid=free"
        )
    return _PlannedRate(asked_hz, hz, step_us)


def _sequences(
    config: Config, checkpoint: LoadedCheckpoint, data: SequenceDataModule, hz: float
) -> list[FrameSequence]:
    """Return the recordings of the split in windows at a rate."""
    settings, options = checkpoint.windows, config.evaluation
    if options.window == "slide" or not is_same_rate(hz, settings.hz):
        settings = settings.at_rate(settings.hz if is_same_rate(hz, settings.hz) else hz, options.window)
    return data.eval_sequences(options.split, settings, _source(config, data), options.grid)


def _stream_split(
    config: Config, checkpoint: LoadedCheckpoint, data: SequenceDataModule, hz: float, is_reset: bool = False
) -> tuple[list[ScoredRecording], list[FrameSequence]]:
    """Run the detector over the split at a rate; return labels and detections of each recording, and its frames."""
    sequences = [sequence for sequence in _sequences(config, checkpoint, data, hz) if len(sequence.labels)]
    asked = [requests(sequence.labels.window_index, sequence.windows) for sequence in sequences]
    loader = data.eval_loader(
        [replace(sequence, labels=labels) for sequence, labels in zip(sequences, asked, strict=True)]
    )
    results = stream(
        checkpoint.detector,
        loader,
        trained_stride_us=checkpoint.windows.stride_us,
        memory_chunk=checkpoint.model_config.memory_chunk,
        reset_every_step=is_reset,
        step_scale=config.evaluation.step_scale,
        config=config.postprocess,
        progress=f"{hz:g} Hz" + (", state reset" if is_reset else ""),
    )
    scored = []
    for sequence, labels, result in zip(sequences, asked, results, strict=True):
        sequence.close()
        outputs = dict(zip(labels.window_index.tolist(), result.detections, strict=True))
        scored.append(ScoredRecording(sequence.name, sequence.labels, paired(sequence.labels, outputs)))
    return scored, sequences


def _speeds(config: Config, data: SequenceDataModule, recordings: list[ScoredRecording]) -> dict[str, np.ndarray]:
    """Return the speeds of labelled objects by recording; none for prepared data, which have no tracks."""
    if _source(config, data) != "raw":
        return {}
    labels = {recording.name: recording.labels for recording in recordings}
    return {
        raw.name: track_speeds(labels[raw.name], raw.read_boxes(data.spec), data.spec)
        for raw in find_recordings(str(data.config.raw_dir), config.evaluation.split, data.spec)
        if raw.name in labels
    }


def _worst_pictures(
    breakdown: Breakdown, recordings: list[ScoredRecording], sequences: list[FrameSequence], spec: DatasetSpec
) -> list[Picture]:
    """Draw the worst frames with detections and ground truth."""
    by_name = {recording.name: (recording, sequence) for recording, sequence in zip(recordings, sequences, strict=True)}
    pictures = []
    for worst in breakdown.worst:
        recording, sequence = by_name[worst.recording]
        labels = recording.labels[recording.labels.t_us == worst.t_us]
        (frame,) = (frame for frame in recording.detections if frame.t_us == worst.t_us)
        step = int(labels.window_index[0])
        (hist,) = sequence.read(step, step + 1)
        image = draw_frame(hist, frame, labels, spec.class_names)
        caption = f"{worst.recording} at {worst.t_us / 1e6:.3f} s: {worst.num_missed} missed, {worst.num_false} false"
        pictures.append(Picture(caption, to_png(image)))
    for sequence in sequences:
        sequence.close()
    return pictures


def _foresight(config: Config, checkpoint: LoadedCheckpoint) -> str:
    """Say which later events weights use that are not causal."""
    if not checkpoint.temporal_config.bidirectional:
        return ""
    return f", and events after the label, to the end of each chunk of {config.data.eval_chunk_length} steps"


def _conditions(
    config: Config, checkpoint: LoadedCheckpoint, data: SequenceDataModule, rates: Sequence[_PlannedRate]
) -> dict[str, str]:
    """Describe what decides the numbers of an evaluation."""
    rules = config.evaluation
    grid = "every label time ends a window" + "".join(
        f"; {rate.hz:g} Hz was run for {rate.asked_hz:g} Hz" for rate in rates if rate.hz != rate.asked_hz
    )
    if rules.grid == "free":
        grid = "free grid: the exact rate from the first event on, each label scored at the next window end"
    return {
        "weights": f"{config.checkpoint}, trained at {checkpoint.windows.hz:g} Hz",
        "score": head_class(checkpoint.model_config).describe_scores(config.postprocess),
        "scored": scoring_rules(checkpoint.spec),
        "windows": f"{rules.window}, counted from {_source(config, data)} data, "
        f"convention {checkpoint.windows.convention}, {grid}",
        "time step": "window end to window end over the stride of training"
        if rules.step_scale is None
        else f"{rules.step_scale:g} whatever the rate",
        "memory": checkpoint.model_config.memory + _foresight(config, checkpoint),
        "still objects": f"no motion for {rules.still_ms:g} ms or more, where labels tell; all other boxes are ignored",
    }
