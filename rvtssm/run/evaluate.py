"""`rvtssm evaluate`: measures average precision at any rate; every recording is streamed from its start."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np

from rvtssm.config import Config
from rvtssm.datasets.chunks import ChunkDataset
from rvtssm.datasets.datamodule import SequenceDataModule, SequenceLoader
from rvtssm.datasets.sequence import FrameSequence
from rvtssm.evaluation.breakdown import Breakdown, break_down, track_speeds
from rvtssm.evaluation.coco import ScoredRecording, evaluate_detections
from rvtssm.evaluation.comparison import COMPARISON_FILES, write_comparison
from rvtssm.evaluation.frequency import RateRow, is_same_rate, nearest_reference
from rvtssm.evaluation.page import Picture
from rvtssm.evaluation.protocol import has_stood_still, scored_labels, scoring_rules
from rvtssm.evaluation.report import REPORT_FILES, console_table, write_report
from rvtssm.evaluation.result import EvaluationReport
from rvtssm.events.tree import find_recordings
from rvtssm.inference.draw import draw_frame, shown_events, to_png
from rvtssm.inference.frame_size import detector_for_frame
from rvtssm.inference.stream import stream
from rvtssm.models.checkpoint import LoadedCheckpoint
from rvtssm.models.parts import head_class
from rvtssm.output_folder import result_set
from rvtssm.records import DatasetSpec, Labels
from rvtssm.run.console import console, say
from rvtssm.run.inputs import folders, writable
from rvtssm.run.weights import read_weights

_FAR_FROM_RATE = 0.05  # the report names the steps of a rate if they differ from it by more than this share


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

    rows, still, without_memory = [], {}, {}
    rates = options.frequencies_hz or [trained_hz]
    steps_us = _usual_steps(config, checkpoint, data, [*rates, trained_hz] if options.ablate_memory else rates)
    broken_down_hz = nearest_reference(rates, trained_hz)
    for hz in rates:
        began = time.perf_counter()
        recordings, sequences = _stream_split(config, checkpoint, data, hz)
        seconds = time.perf_counter() - began
        measured = {
            "seconds": seconds,
            "step_ms": steps_us[hz] / 1000,
        }  # label times decide the steps
        rows.append(RateRow(hz, evaluate_detections(recordings, spec), measured))
        if hz == broken_down_hz:
            breakdown = break_down(recordings, spec, _speeds(config, data, recordings))
            pictures = _worst_pictures(breakdown, recordings, sequences, spec)
        if is_same_rate(hz, trained_hz) and any(stands_still(recording.labels).any() for recording in recordings):
            still["carried"] = evaluate_detections(recordings, spec, only=stands_still)["AP"]
    if options.ablate_memory:
        recordings, _ = _stream_split(config, checkpoint, data, trained_hz, is_reset=True)
        ap = evaluate_detections(recordings, spec)["AP"]
        without_memory["AP without memory"] = f"{100 * ap:.1f} at {trained_hz:g} Hz, state reset at every step"
        if still:
            still["reset"] = evaluate_detections(recordings, spec, only=stands_still)["AP"]
    report = EvaluationReport(
        title=f"{spec.name} {options.split}, {checkpoint.model_config.size} {checkpoint.temporal_config.name}",
        dataset=spec.name,
        rows=tuple(rows),
        settings={**_conditions(config, checkpoint, data, steps_us), **without_memory},
        reference_hz=trained_hz,
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


def _usual_steps(
    config: Config, checkpoint: LoadedCheckpoint, data: SequenceDataModule, rates: Sequence[float]
) -> dict[float, float]:
    """Return the median step (us) of each rate; raise ValueError, before hours of work, if a rate cannot be scored."""
    found = {}
    for hz in rates:
        sequences = _sequences(_loader(config, checkpoint, data, hz))
        if not any(len(scored_labels(sequence.labels, checkpoint.spec)) for sequence in sequences):
            raise ValueError(
                f"the {config.evaluation.split} split has no box that is scored ({scoring_rules(checkpoint.spec)}); "
                "choose another split, or prepare it with its labels"
            )
        found[hz] = float(np.median(np.concatenate([sequence.windows.dt_us for sequence in sequences])))
        checkpoint.detector.prepare(config.evaluation.step_scale or found[hz] / checkpoint.windows.stride_us)
    return found


def _sequences(loader: SequenceLoader) -> list[FrameSequence]:
    return cast(ChunkDataset, loader.dataset).sequences


def _loader(config: Config, checkpoint: LoadedCheckpoint, data: SequenceDataModule, hz: float) -> SequenceLoader:
    """The recordings of the split in windows at a rate."""
    settings, window = checkpoint.windows, config.evaluation.window
    if window == "slide" or not is_same_rate(hz, settings.hz):
        settings = settings.at_rate(settings.hz if is_same_rate(hz, settings.hz) else hz, window)
    return data.eval_loader(config.evaluation.split, settings, _source(config, data))


def _stream_split(
    config: Config, checkpoint: LoadedCheckpoint, data: SequenceDataModule, hz: float, is_reset: bool = False
) -> tuple[list[ScoredRecording], list[FrameSequence]]:
    """Run the detector over the split at a rate; return labels and detections of each recording, and its frames."""
    loader = _loader(config, checkpoint, data, hz)
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
    sequences = _sequences(loader)
    for sequence in sequences:
        sequence.close()
    found = [sequences[result.recording] for result in results]
    scored = [
        ScoredRecording(sequence.name, sequence.labels, result.detections)
        for sequence, result in zip(found, results, strict=True)
    ]
    return scored, found


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
        image = draw_frame(shown_events(hist, sequence.settings), frame, labels, spec.class_names)
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
    config: Config, checkpoint: LoadedCheckpoint, data: SequenceDataModule, steps_us: Mapping[float, float]
) -> dict[str, str]:
    """Describe what decides the numbers of an evaluation; `steps_us` comes from `_usual_steps`."""
    rules = config.evaluation
    # The number of steps between two label times is a whole number and at least one.
    apart = "".join(
        f"; at {hz:g} Hz that makes steps of {step_us / 1000:g} ms"
        for hz, step_us in steps_us.items()
        if abs(hz * step_us / 1e6 - 1) > _FAR_FROM_RATE
    )
    return {
        "weights": f"{config.checkpoint}, trained at {checkpoint.windows.hz:g} Hz",
        "score": head_class(checkpoint.model_config).describe_scores(config.postprocess),
        "scored": scoring_rules(checkpoint.spec),
        "windows": f"{rules.window}, counted from {_source(config, data)} data, "
        f"convention {checkpoint.windows.convention}, every label time ends a window{apart}",
        "time step": "window end to window end over the stride of training"
        if rules.step_scale is None
        else f"{rules.step_scale:g} whatever the rate",
        "memory": checkpoint.model_config.memory + _foresight(config, checkpoint),
        "still objects": f"no motion for {rules.still_ms:g} ms or more, where labels tell; all other boxes are ignored",
    }
