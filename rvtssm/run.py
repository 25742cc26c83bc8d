"""The verbs: each takes the whole configuration, ties the rooms together and says what it wrote and where."""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import cast

import lightning as L
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from rvtssm import doctor as examination
from rvtssm.config import Config
from rvtssm.datasets import build_spec
from rvtssm.datasets.chunks import ChunkDataset
from rvtssm.datasets.datamodule import SequenceDataModule
from rvtssm.datasets.synthetic import SyntheticConfig, generate_synthetic
from rvtssm.evaluation.coco import ScoredRecording, evaluate_detections
from rvtssm.evaluation.frequency import RateRow
from rvtssm.evaluation.protocol import has_stood_still, scoring_rules
from rvtssm.evaluation.report import EvaluationReport, console_table, write_report
from rvtssm.events.preprocess import PreprocessSummary, preprocess_dataset
from rvtssm.inference.predict import PredictionSummary, predict_recording
from rvtssm.inference.stream import stream
from rvtssm.models.checkpoint import CheckpointMeta, LoadedCheckpoint, read_checkpoint
from rvtssm.models.detector import build_detector, count_parameters
from rvtssm.records import DatasetSpec, Labels
from rvtssm.training.checkpoints import best_checkpoint
from rvtssm.training.fit import build_trainer, find_resume
from rvtssm.training.module import DetectionModule, ModuleSettings

console = Console()


def generate(config: Config) -> None:
    """Make the recordings of the synthetic dataset in `dataset.raw_dir`."""
    spec = build_spec(config.dataset)
    if spec.name != "synthetic":
        raise ValueError(f"only the synthetic dataset can be generated, not {spec.name}; use dataset=synthetic")
    folder = _needed(config.dataset.raw_dir, "dataset.raw_dir=DIR", "where to write the recordings")
    sensor, asked = (spec.height, spec.width), (config.synthetic.height, config.synthetic.width)
    if asked not in (sensor, (SyntheticConfig.height, SyntheticConfig.width)):
        raise ValueError(
            f"synthetic.height and width {asked} differ from the sensor of the dataset {sensor}; set dataset.height "
            "and dataset.width, which every verb reads"
        )
    generate_synthetic(replace(config.synthetic, height=spec.height, width=spec.width), folder)
    console.print(f"recordings are in {folder}", soft_wrap=True)


def preprocess(config: Config) -> int:
    """Prepare all recordings of `dataset.raw_dir`; 2 if one of them could not be."""
    spec = build_spec(config.dataset)
    raw_dir = _needed(config.dataset.raw_dir, "dataset.raw_dir=DIR", "the recordings")
    prepared_dir = _needed(config.dataset.prepared_dir, "dataset.prepared_dir=DIR", "where to write")
    summary = preprocess_dataset(spec, raw_dir, prepared_dir, config.preprocess)
    _print_summary(summary, prepared_dir)
    return 2 if summary.failed else 0


def train(config: Config) -> Path:
    """Train, validate and keep `checkpoints/best.ckpt` and `last.ckpt` in `out`; returns the best one."""
    _check_memory(config)
    out = Path(config.out or "outputs/train")
    L.seed_everything(config.seed, workers=True, verbose=False)
    data = SequenceDataModule(config.dataset, config.sampling, config.augment, config.data, config.seed)
    meta = _describe(config, data)
    detector = meta.build()
    settings = ModuleSettings(
        spec=data.spec,
        optim=config.optim,
        num_steps=config.training.steps,
        batch_size=config.sampling.batch_size
        * config.training.devices
        * config.training.num_nodes
        * config.training.accumulate,
        trained_stride_us=meta.windows.stride_us,
        carries_state=config.model.memory == "carried",
        postprocess=config.postprocess,
    )
    val_labels = [sequence.labels for sequence in data.sequences("val")]
    module = DetectionModule(detector, settings, meta.to_dict(), _decisive(config, meta), val_labels)
    resume = find_resume(config.resume, out)
    trainer = build_trainer(config.training, out, config.optim.clip_value)
    try:
        trainer.fit(module, datamodule=data, ckpt_path=resume, weights_only=True if resume else None)
    except SystemExit:  # what Lightning makes of an interruption
        raise KeyboardInterrupt from None
    best = best_checkpoint(out)
    if trainer.is_global_zero:
        console.print(
            f"trained {count_parameters(detector)['total'] / 1e6:.3f} M parameters for {trainer.global_step} steps "
            f"in {module.train_seconds:.0f} s; weights: {best}, logs: {out}",
            soft_wrap=True,
        )
    return best


def evaluate(config: Config) -> EvaluationReport:
    """Average precision at each rate, every recording streamed from its start; writes `evaluation.*` to `out`."""
    checkpoint = _read_checkpoint(config)
    data = _data_for(config, checkpoint)
    spec, options, trained_hz = checkpoint.spec, config.evaluation, 1e6 / checkpoint.windows.stride_us

    def stands_still(labels: Labels) -> np.ndarray:
        return has_stood_still(labels, round(1000 * options.still_ms))

    rows, still, without_memory = [], {}, {}
    for hz in options.frequencies_hz or [trained_hz]:
        began = time.perf_counter()
        recordings = _stream_split(config, checkpoint, data, hz)
        seconds = time.perf_counter() - began
        rows.append(RateRow(hz, evaluate_detections(recordings, spec), {"seconds": seconds}))
        if math.isclose(hz, trained_hz) and any(stands_still(recording.labels).any() for recording in recordings):
            still["carried"] = evaluate_detections(recordings, spec, only=stands_still)["AP"]
    if options.ablate_memory:
        recordings = _stream_split(config, checkpoint, data, trained_hz, is_reset=True)
        ap = evaluate_detections(recordings, spec)["AP"]
        without_memory["AP without memory"] = f"{100 * ap:.1f} at {trained_hz:g} Hz, state reset at every step"
        if still:
            still["reset"] = evaluate_detections(recordings, spec, only=stands_still)["AP"]
    report = EvaluationReport(
        title=f"{spec.name} {options.split}, {checkpoint.model_config.size} {checkpoint.temporal_config.name}",
        dataset=spec.name,
        rows=tuple(rows),
        settings={**_conditions(config, checkpoint, data), **without_memory},
        reference_hz=trained_hz,
        still_objects=still,
    )
    console.print(console_table(report))
    written = write_report(report, Path(config.out or "outputs/evaluate"))
    console.print("wrote " + ", ".join(str(path) for path in written.values()), soft_wrap=True)
    return report


def predict(config: Config) -> PredictionSummary:
    """Boxes and a video of one recording of any supported format."""
    checkpoint = _read_checkpoint(config)
    recording = _needed(config.recording, "recording=FILE", "the events")
    out = Path(config.out or f"outputs/predict/{Path(recording).stem}")
    summary = predict_recording(checkpoint, recording, out, config.predict)
    for sentence in summary.sentences():
        console.print(sentence, soft_wrap=True, highlight=False)
    console.print(f"in {out}", soft_wrap=True)
    return summary


def info(config: Config, as_json: bool = False) -> dict[str, int]:
    """Parameters by room of the detector that the configuration describes."""
    spec = build_spec(config.dataset)
    with torch.device("meta"):
        detector = build_detector(
            config.model,
            config.temporal,
            spec.frame_height,
            spec.frame_width,
            spec.num_classes,
            in_channels=2 * config.preprocess.num_bins,
        )
    counts, geometry = count_parameters(detector), detector.geometry
    if as_json:
        print_json = {
            "model": config.model.size,
            "temporal": config.temporal.name,
            "dataset": spec.name,
            "parameters": counts,
            "frame_hw": [spec.frame_height, spec.frame_width],
            "padded_hw": [geometry.padded_height, geometry.padded_width],
            "partition_hw": list(geometry.partition),
        }
        console.print(json.dumps(print_json), soft_wrap=True, highlight=False, markup=False)
        return counts
    table = Table(title=f"{config.model.size} {config.temporal.name} on {spec.name}", title_justify="left")
    table.add_column("room")
    table.add_column("parameters", justify="right")
    for room, count in counts.items():
        if room == "total":
            table.add_section()
        table.add_row(room, f"{count / 1e6:.6f} M")
    table.caption = (
        f"frames {spec.frame_width} x {spec.frame_height}, padded to "
        f"{geometry.padded_width} x {geometry.padded_height}, "
        f"attention windows {geometry.partition[1]} x {geometry.partition[0]}"
    )
    console.print(table)
    return counts


def doctor() -> int:
    """What works and what does not; 2 if something that every run needs does not."""
    checks = examination.examine()
    table = Table(show_header=False)
    for check in checks:
        table.add_row("[green]ok[/]" if check.ok else "[red]broken[/]", check.name, check.detail)
    console.print(table)
    return 0 if all(check.ok for check in checks) else 2


def _needed(value: str | None, key: str, what: str) -> str:
    if not value:
        raise ValueError(f"{key} is needed: {what}")
    return value


def _print_summary(summary: PreprocessSummary, prepared_dir: str) -> None:
    errors = Console(stderr=True)
    for name, message in summary.failed:
        errors.print(f"{name}: {message}", style="red", markup=False, highlight=False, soft_wrap=True)
    for name, message in summary.dropped:
        console.print(f"{name}: left out, {message}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    for name, count in summary.repaired.items():
        console.print(f"{name}: {count} events went back in time and were moved to the time before", soft_wrap=True)
    console.print(
        f"{len(summary.written)} recordings prepared, {len(summary.skipped)} were complete, "
        f"{len(summary.dropped)} left out, {len(summary.failed)} failed; they are in {prepared_dir}",
        soft_wrap=True,
    )


def _describe(config: Config, data: SequenceDataModule) -> CheckpointMeta:
    """What the checkpoint will say about itself: the data decide the windows, the configuration the model."""
    where = {key: path and str(Path(path).resolve()) for key, path in _folders(config).items()}
    return CheckpointMeta(data.spec, config.model, config.temporal, data.settings, **where)


def _folders(config: Config) -> dict[str, str | None]:
    return {"raw_dir": config.dataset.raw_dir, "prepared_dir": config.dataset.prepared_dir}


def _data_for(config: Config, checkpoint: LoadedCheckpoint) -> SequenceDataModule:
    """The data that were asked for; what was left open is as it was in training."""
    spec = checkpoint.spec
    dataset = config.dataset
    if not dataset.name:
        dataset = replace(dataset, name=spec.name, height=spec.height, width=spec.width)
    if not any(_folders(config).values()):
        dataset = replace(dataset, raw_dir=checkpoint.raw_dir, prepared_dir=checkpoint.prepared_dir)
    data = SequenceDataModule(dataset, data=config.data)
    if _frames(data.spec) != _frames(spec):
        raise ValueError(
            f"{config.checkpoint} was trained on {_frames(spec)}, the data are {_frames(data.spec)}; "
            "evaluate on the dataset of the weights"
        )
    return data


def _frames(spec: DatasetSpec) -> str:
    """What a model and the data it meets must agree in, in words."""
    return f"{spec.name} ({', '.join(spec.class_names)}; {spec.frame_width} x {spec.frame_height} pixels)"


def _source(config: Config, data: SequenceDataModule) -> str:
    return config.evaluation.source or ("raw" if data.config.raw_dir else "prepared")


def _stream_split(
    config: Config, checkpoint: LoadedCheckpoint, data: SequenceDataModule, hz: float, is_reset: bool = False
) -> list[ScoredRecording]:
    """The recordings of the split through the detector at a rate, each with its labels and detections."""
    trained = checkpoint.windows
    is_trained_rate = math.isclose(1e6 / hz, trained.stride_us)
    length_us = trained.length_us if is_trained_rate else None
    if config.evaluation.window == "slide":
        length_us = trained.length_us or round(trained.stride_us)
    loader = data.eval_loader(
        config.evaluation.split,
        trained.stride_us if is_trained_rate else 1e6 / hz,
        length_us,
        _source(config, data),
        convention=trained.convention,
        num_bins=trained.num_bins,
        count_cutoff=trained.count_cutoff,
    )
    results = stream(
        checkpoint.detector,
        loader,
        trained_stride_us=trained.stride_us,
        memory_chunk=checkpoint.model_config.memory_chunk,
        reset_every_step=is_reset,
        config=config.postprocess,
        progress=f"{hz:g} Hz" + (", state reset" if is_reset else ""),
    )
    sequences = cast(ChunkDataset, loader.dataset).sequences
    for sequence in sequences:
        sequence.close()
    return [
        ScoredRecording(sequences[result.recording].name, sequences[result.recording].labels, result.detections)
        for result in results
    ]


def _conditions(config: Config, checkpoint: LoadedCheckpoint, data: SequenceDataModule) -> dict[str, str]:
    """What decides the numbers of an evaluation, in words."""
    options, rules = config.postprocess, config.evaluation
    return {
        "weights": f"{config.checkpoint}, trained at {1e6 / checkpoint.windows.stride_us:g} Hz",
        "score": f"{options.score}, from {options.min_score:g}; "
        f"non-maximum suppression per class at IoU {options.nms_iou:g}",
        "scored": scoring_rules(checkpoint.spec),
        "windows": f"{rules.window}, counted from {_source(config, data)} data, "
        f"convention {checkpoint.windows.convention}, every label time ends a window",
        "memory": checkpoint.model_config.memory,
        "still objects": f"no motion for {rules.still_ms:g} ms or more, where labels tell; all other boxes are ignored",
    }


def _decisive(config: Config, meta: CheckpointMeta) -> dict[str, str | int | float | None]:
    """The settings that decide the numbers of a training run, by key; a run resumes only with the same."""
    training = ("steps", "accumulate", "devices", "num_nodes", "precision")
    sections = {name: asdict(getattr(config, name)) for name in ("model", "temporal", "sampling", "augment", "optim")}
    sections["training"] = {name: getattr(config.training, name) for name in training}
    return _flat({**sections, "dataset": asdict(meta.spec), "windows": asdict(meta.windows), "seed": config.seed})


def _flat(tree: dict, prefix: str = "") -> dict[str, str | int | float | None]:
    """A nested dict as one, its keys joined by dots, lists and tuples as text."""
    flat: dict[str, str | int | float | None] = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{name}."))
        else:
            flat[prefix + name] = str(list(value)) if isinstance(value, (list, tuple)) else value
    return flat


def _check_memory(config: Config) -> None:
    """A model that forgets after n steps is trained and validated in chunks of n."""
    chunk, training, validation = (
        config.model.memory_chunk,
        config.sampling.chunk_length,
        config.data.eval_chunk_length,
    )
    if chunk is not None and (training, validation) != (chunk, chunk):
        raise ValueError(
            f"model.memory_chunk={chunk} with sampling.chunk_length={training} and "
            f"data.eval_chunk_length={validation}; a model that forgets is trained and validated in chunks of "
            "its memory, set all three alike"
        )


def _read_checkpoint(config: Config) -> LoadedCheckpoint:
    path = _needed(config.checkpoint, "checkpoint=FILE", "weights, such as outputs/demo/checkpoints/best.ckpt")
    return read_checkpoint(path, "cuda" if torch.cuda.is_available() else "cpu")
