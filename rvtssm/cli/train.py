"""`rvtssm train`: trains a detector on raw or prepared recordings; writes its best and last checkpoint and logs."""

from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import lightning as L

from rvtssm.cli.announcement import announce, with_labels
from rvtssm.cli.checks import check
from rvtssm.cli.config import Config
from rvtssm.cli.console import say
from rvtssm.cli.init_from import fill_from, mapped_classes, read_start, say_settings
from rvtssm.cli.inputs import TRAIN_OUT, check_training, folders
from rvtssm.cli.run_files import flat, run_files
from rvtssm.cli.weight_settings import settings_of
from rvtssm.datasets.datamodule import SequenceDataModule
from rvtssm.datasets.prepare_recording import Recipe, is_made_from
from rvtssm.datasets.store import StoredSequence
from rvtssm.datasets.tree import RawRecording, find_recordings
from rvtssm.models.checkpoint import load_file
from rvtssm.models.checkpoint_meta import CheckpointMeta
from rvtssm.models.detector import count_parameters
from rvtssm.readers.remote import absolute_path, is_url
from rvtssm.system.output_folder import locked
from rvtssm.system.user_error import UserError
from rvtssm.training.checkpoints import best_checkpoint, last_checkpoint
from rvtssm.training.fit import build_trainer, find_resume
from rvtssm.training.module import DetectionModule, ModuleSettings
from rvtssm.training.optim import learning_rate_rule
from rvtssm.training.pace import pace_of
from rvtssm.training.speed import check_compiler, choose_precision, speed_up

_MOST_EARLY = 0.05  # of averaged weights that those of the first step may be


def train(config: Config) -> Path:
    """Train and validate a detector, write `checkpoints/best.ckpt` and `last.ckpt` to `out`; return the best one."""
    out = Path(config.out or TRAIN_OUT)
    given, num_processes = config.training.precision, config.training.devices * config.training.num_nodes
    if given == "auto" and (resume := find_resume(config.resume, out)):  # a run goes on in the precision it has chosen
        given = load_file(resume)["decisive"]["training.precision"]
    chosen = choose_precision(given, config.training.accelerator, num_processes)
    config = replace(config, training=replace(config.training, precision=chosen))
    check_training(config)
    check(config)  # like all that can fail without data, before any data are read
    trainer = build_trainer(config.training, out, config.optim.clip_value)
    if given == "auto" and trainer.is_global_zero:
        is_measured = num_processes == 1 or trainer.strategy.root_device.type != "cpu"
        reason = "by what this machine computes fastest" if is_measured else "the same in all processes"
        say(f"training.precision=auto: {chosen}, {reason}")
    with locked(out) if trainer.is_global_zero else nullcontext():  # the first process of a run locks for all
        return _train(config, out, trainer)


def _train(config: Config, out: Path, trainer: L.Trainer) -> Path:
    resume = find_resume(config.resume, out)
    start = config.training.init_from if resume is None else None  # a resumed run has its weights already
    source = read_start(start) if start else None
    if start and source and trainer.is_global_zero:
        say_settings(start, source, settings_of(config.model, config.temporal, config.windows.settings))
    if config.training.compile:
        check_compiler(trainer.strategy.root_device.type)
    windows = config.windows.settings
    has_pseudo_labels = config.training.pseudo_weight > 0
    data = SequenceDataModule(
        config.dataset, config.sampling, config.augment, config.data, config.seed, windows, has_pseudo_labels
    )
    if source and (pairs := config.training.class_map):
        names = mapped_classes("training.class_map", pairs, source.class_names or (), data.spec.class_names)
        source = replace(source, class_names=names)
    if start and source:  # raises if the weights do not fit, before data are read
        expected = CheckpointMeta(data.spec, config.model, config.temporal, windows)
        fill_from(start, source, expected.build(), expected, None)
    L.seed_everything(config.seed, workers=True, verbose=False)
    meta = describe(config, data)
    detector = meta.build()
    if resume is None:
        detector.backbone.load_pretrained()
    if start and source:
        fill_from(start, source, detector, meta, out if trainer.is_global_zero else None)
    if config.training.precision == "float64":
        detector.double()  # the trainer would do it only after rounding the weights of a resumed run to float32
    settings = ModuleSettings(
        data.spec,
        meta.windows.stride_us,
        config.optim,
        config.training,
        batch_size=config.sampling.batch_size
        * config.training.devices
        * config.training.num_nodes
        * config.training.accumulate,
        memory_chunk=config.model.memory_chunk,
        postprocess=config.postprocess,
    )
    if trainer.is_global_zero:
        _warn_of_outdated(config.dataset.raw_dir, data)
    val_labels = [sequence.labels for sequence in data.sequences("val")]
    decisive = _decisive(config, meta, data)
    module = DetectionModule(detector, settings, meta.to_dict(), decisive, val_labels)
    if resume is not None:
        state = load_file(resume)
        module.check_resumed(state)  # before anything is written
        if state["global_step"] >= config.training.steps:
            weights = best_checkpoint(out) if best_checkpoint(out).is_file() else resume
            if trainer.is_global_zero:
                say(f"complete already: {resume} has all {state['global_step']} steps; weights: {weights}")
            return weights
    speed_up(
        detector,
        trainer.strategy.root_device,
        recompute_strides=config.training.recompute_strides,
        channels_last=config.training.channels_last,
        compile_parts=config.training.compile,
    )
    if config.optim.scale_with_batch and trainer.is_global_zero:
        say(learning_rate_rule(config.optim, settings.batch_size))
    if trainer.is_global_zero:
        announce(
            "train",
            source=f"{data.source} {data.spec.name}",
            stride=f"{meta.windows.stride_us / 1000:g} ms",
            recordings="{} (validation: {})".format(*(_with_labels(data, split) for split in ("train", "val"))),
            steps=f"{config.training.steps} of {settings.batch_size} x {config.sampling.chunk_length} windows",
            resumed_from=resume,
            device=f"{trainer.strategy.root_device}{f' x {trainer.world_size}' if trainer.world_size > 1 else ''}",
            precision=config.training.precision,
            output=out,
        )
        _warn_of_early_weights(config.training.average, config.training.steps)
        with run_files(out, "train", config):
            pass
    try:
        trainer.fit(module, datamodule=data, ckpt_path=resume, weights_only=True if resume else None)
    except SystemExit as ended:
        if ended.code:  # Lightning turns an interruption into this
            _say_all_steps_are_done(trainer, out)
            raise KeyboardInterrupt from None
        raise
    best = best_checkpoint(out)
    if trainer.is_global_zero:
        waited = pace_of(trainer).data_wait
        say(
            f"trained {count_parameters(detector)['total'] / 1e6:.3f} M parameters for {trainer.global_step} steps "
            f"in {module.train_seconds:.0f} s in {config.training.precision}"
            f"{'' if waited is None else f', {waited:.1%} data wait'}; "
            f"weights: {best}, logs: {out}"
        )
    return best


def _say_all_steps_are_done(trainer: L.Trainer, out: Path) -> None:
    """Print a sentence on the weights of a run that was interrupted after its last step; nothing for any other run."""
    if trainer.global_step < trainer.max_steps or not trainer.is_global_zero:
        return
    last, best = last_checkpoint(out), best_checkpoint(out)
    kept_step = load_file(last)["global_step"] if last.is_file() else 0
    if kept_step == trainer.max_steps:
        say(f"all {kept_step} steps and the last validation are done; weights: {best} (highest AP) and {last}")
        return
    weights = (
        f"{last} has those of step {kept_step}, from which resume=auto continues" if kept_step else "there are none"
    )
    say(f"all {trainer.max_steps} steps are done, but weights are written after the last validation; {weights}")


def describe(config: Config, data: SequenceDataModule) -> CheckpointMeta:
    """Return the description that checkpoints carry. Raise UserError for frames that have other windows."""
    for sequence in (*data.sequences("train"), *data.sequences("val")):
        sequence.check_settings(config.windows.settings)
    where = {key: path and absolute_path(path) for key, path in folders(config).items()}
    lengths_us = data.window_lengths_us
    return CheckpointMeta(
        data.spec, config.model, config.temporal, data.settings, window_lengths_us=lengths_us, **where
    )


def _warn_of_early_weights(average: float | None, steps: int) -> None:
    """Print a line if a training is too short for its averaged weights, which then resemble those of its start."""
    if average is not None and (share := average**steps) > _MOST_EARLY:
        say(
            f"training.average={average:g} is too slow for {steps} steps: {share:.0%} of the average would be the "
            f"weights of the first step; use {_MOST_EARLY ** (1 / steps):.4g} or less, or null",
            style="yellow",
        )


def _warn_of_outdated(raw_dir: str | None, data: SequenceDataModule) -> None:
    """Print a line if prepared files were made from other recordings or labels than those in `raw_dir`.

    This reads the labels and both ends of the recordings, so nothing is compared with a URL.
    """
    if data.source != "prepared" or raw_dir is None or is_url(raw_dir):
        return
    outdated = []
    for split in ("train", "val"):
        with suppress(UserError):  # there may be no recordings of this split
            recordings = {recording.name: recording for recording in find_recordings(raw_dir, split, data.spec)}
            recipe = Recipe(data.spec, data.settings, is_train=split == "train")
            for sequence in data.sequences(split):
                stored, recording = sequence.source.stored, recordings.get(sequence.name)  # type: ignore[union-attr]
                if recording and "source" in stored.meta and not _is_current(recording, stored, recipe):
                    outdated.append(f"{split}/{sequence.name}")
    if outdated:
        say(
            f"{len(outdated)} prepared recordings, such as {outdated[0]}, were made from other recordings or labels "
            f"than those in {raw_dir}; `rvtssm preprocess` makes them again, and `rvtssm verify` names all of them",
            style="yellow",
        )


def _is_current(recording: RawRecording, stored: StoredSequence, recipe: Recipe) -> bool:
    try:
        return is_made_from(recording, stored, recipe)
    except UserError:  # the recipe has changed, or the recording is shorter now
        return False


def _with_labels(data: SequenceDataModule, split: str) -> str:
    sequences = data.sequences(split)
    return with_labels(sequences, data.num_without_boxes(split, sequences))


def _counts(data: SequenceDataModule) -> dict[str, int]:
    """Return how many recordings and labels a run trains and validates on."""
    splits = {split: data.sequences(split) for split in ("train", "val")}
    return {
        **{f"{split}_recordings": len(found) for split, found in splits.items()},
        **{f"{split}_labels": sum(len(each.labels) for each in found) for split, found in splits.items()},
    }


def _decisive(config: Config, meta: CheckpointMeta, data: SequenceDataModule) -> dict[str, str | int | float | None]:
    """Return the settings that decide the numbers of a run, by key; a run is resumed only with the same settings."""
    spec = {name: value for name, value in asdict(meta.spec).items() if name != "ignored_classes"}
    described = {"dataset": {**spec, **_counts(data)}, "windows": asdict(meta.windows), "seed": config.seed}
    return _comparable({**_deciding_sections(config), **described})


def _deciding_sections(config: Config) -> dict[str, dict[str, Any]]:
    training = (
        "steps",
        "init_from",
        "average",
        "class_map",
        "accumulate",
        "devices",
        "num_nodes",
        "precision",
        "sync_batchnorm",
        "freeze_batchnorm",
        "pseudo_weight",
    )
    sections = {name: asdict(getattr(config, name)) for name in ("model", "temporal", "sampling", "augment", "optim")}
    sections["training"] = {name: getattr(config.training, name) for name in training}
    del sections["temporal"]["scan"]  # which code runs the recurrence
    return sections


def _comparable(sections: dict[str, Any]) -> dict[str, str | int | float | None]:
    """Return all values by key; lists become text."""
    return {
        key: str(list(value)) if isinstance(value, (list, tuple)) else value for key, value in flat(sections).items()
    }
