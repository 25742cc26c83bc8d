"""One training run, from its settings to its best weights. Lightning loops over the steps, as `module.py` describes."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback

from rvtssm.datasets.datamodule import SequenceDataModule
from rvtssm.datasets.sequence import with_labels
from rvtssm.models.checkpoint import load_file
from rvtssm.models.checkpoint_meta import CheckpointMeta
from rvtssm.models.detector import Detector, count_parameters
from rvtssm.models.parts import head_class
from rvtssm.models.transfer import TransferSource, mapped_classes, read_source, transfer
from rvtssm.ssm.temporal_layers import with_layer_defaults
from rvtssm.system.output_folder import locked
from rvtssm.system.remote import absolute_path
from rvtssm.system.user_error import UserError, in_one_line, said_of
from rvtssm.training.checkpoints import (
    best_checkpoint,
    checkpoints_of,
    has_no_patience,
    last_checkpoint,
    step_of,
    validations_without_gain,
)
from rvtssm.training.memory import check_step_memory, with_divided_batch
from rvtssm.training.module import DetectionModule, ModuleSettings, Start
from rvtssm.training.optim import learning_rate_rule
from rvtssm.training.preflight import check, check_scored, early_weights, outdated_recordings
from rvtssm.training.progress import Progress, say
from rvtssm.training.resume import check_same_run, decisive_settings, find_resume, has_lower_rate, is_extension
from rvtssm.training.start_settings import with_settings_of_files
from rvtssm.training.trainer import build_trainer, check_compiler, choose_precision, speed_up
from rvtssm.training.training_config import TrainSections

_LOST_PEER = ("connection closed by peer", "connection reset by peer", "gloo", "nccl")  # in errors of torch.distributed


def train(sections: TrainSections, callbacks: Sequence[Callback] = ()) -> Path:
    """Train and validate a detector, write `checkpoints/best.ckpt` and `last.ckpt` to `out`; return the best one.

    Args:
        sections: All settings.
        callbacks: Further Lightning callbacks, which come before all others.

    Raises:
        UserError: The settings do not fit each other, the data or this machine.
    """
    # All that can fail without data comes before any data are read.
    sections = decided(with_settings_of_files(sections))
    check(sections)
    resume = find_resume(sections.resume, sections.run_dir)
    first_step = step_of(resume) if resume else 0
    trainer = build_trainer(sections.training, sections.run_dir, sections.optim.clip_value, callbacks, first_step)
    with locked(sections.run_dir) if trainer.is_global_zero else nullcontext():  # the first process locks for all
        return _train(sections, trainer, resume)


def decided(sections: TrainSections) -> TrainSections:
    """Return the settings as this machine trains them: no `auto`, and the total batch divided over the processes.

    A run that is resumed keeps what it had in place of `auto`. Settings without `auto` stay as they are, except that
    the defaults of the layer take the place of null.
    """
    training, sampling = sections.training, sections.sampling
    chooses_precision, chooses_batch = training.precision == "auto", sampling.batch_size == "auto"
    resume = find_resume(sections.resume, sections.run_dir)
    if resume and (chooses_precision or chooses_batch):
        stored = load_file(resume)["decisive"]
        if chooses_precision:
            training = replace(training, precision=stored["training.precision"])
        if chooses_batch:
            training = replace(training, accumulate=stored["training.accumulate"])
            sampling = replace(sampling, batch_size=stored["sampling.batch_size"])
    precision = choose_precision(training.precision, training.accelerator, training.devices * training.num_nodes)
    training = replace(training, precision=precision)
    temporal = with_layer_defaults(sections.temporal)
    sections = with_divided_batch(replace(sections, temporal=temporal, sampling=sampling, training=training))
    if chooses_precision:
        say(f"training.precision=auto: {precision}")
    if chooses_batch:
        say(
            f"sampling.batch_size=auto: {sections.sampling.batch_size} with "
            f"training.accumulate={sections.training.accumulate}, which fits in memory"
        )
    return sections


def _train(sections: TrainSections, trainer: L.Trainer, resume: Path | None) -> Path:
    training, device = sections.training, trainer.strategy.root_device
    if training.compile:
        check_compiler(device.type)
    data = data_of(sections)

    source = None  # a run that is resumed has its weights already
    if training.init_from is not None and resume is None:
        source = _with_classes_of(data, sections, read_start(training.init_from))
    L.seed_everything(sections.seed, workers=True, verbose=False)
    described = CheckpointMeta(data.spec, sections.model, sections.temporal, sections.windows.settings)
    detector = described.build()
    if resume is None:
        detector.backbone.load_pretrained()
    start = None
    if source is not None:
        start = _start_from(source, detector, described, str(training.init_from))
    if training.precision == "float64":
        detector.double()  # the trainer would do it only after rounding the weights of a resumed run to float32

    # Here the recordings are opened.
    meta = describe(sections, data)
    settings = ModuleSettings(
        data.spec,
        meta.windows.stride_us,
        sections.optim,
        training,
        batch_size=sections.sampling.num_chunks * training.devices * training.num_nodes * training.accumulate,
        memory_chunk=sections.model.memory_chunk,
        postprocess=sections.postprocess,
    )
    val_labels = [sequence.labels for sequence in data.sequences("val")]
    decisive = decisive_settings(sections, meta, data)
    module = DetectionModule(detector, settings, meta.to_dict(), decisive, val_labels, start)
    if resume is not None and (weights := _weights_if_complete(sections, resume, module)):
        return weights

    # What can be known before the first step, and then all steps.
    scored = check_scored(data)
    peak_bytes = check_step_memory(sections, data, detector, device)
    speed_up(detector, device, recompute_strides=training.recompute_strides, compile_parts=training.compile)
    if trainer.is_global_zero:
        _say_doubts(sections, data, settings.batch_size)
        facts = _facts(sections, trainer, data, meta, settings.batch_size)
        facts["scored"] = f"{scored[0] / scored[1]:.0%} of the validation labels"
        facts["memory"] = f"about {peak_bytes / 1e9:.2g} GB per process"
        if resume is not None:
            facts["resumed from"] = resume
        facts["output"] = sections.run_dir
        say(f"about to train: {', '.join(f'{name} {value}' for name, value in facts.items())}")
    _fit(trainer, module, data, resume)
    _say_trained(sections, trainer, module)
    return best_checkpoint(sections.run_dir)


def _fit(trainer: L.Trainer, module: DetectionModule, data: SequenceDataModule, resume: Path | None) -> None:
    """Take all steps. An interruption, and the end of another process, are told in one line."""
    try:
        trainer.fit(module, datamodule=data, ckpt_path=resume, weights_only=True if resume else None)
    except SystemExit as ended:
        if ended.code:  # Lightning turns an interruption into this
            _say_interrupted_at_the_end(Path(trainer.default_root_dir), trainer)
            raise KeyboardInterrupt from None
        raise
    except RuntimeError as error:
        if trainer.world_size > 1 and any(sign in str(error).lower() for sign in _LOST_PEER):
            raise UserError(
                "run.process_ended",
                found=f"another process of this training has ended ({in_one_line(error)[:80]})",
                advice="its own lines say why; the same command with resume=auto goes on from the last checkpoint",
            ) from None
        raise


def _start_from(source: TransferSource, detector: Detector, described: CheckpointMeta, path: str) -> Start:
    """Fill a detector with start weights. Raise UserError if they do not fit."""
    with said_of(f"training.init_from={path}"):
        return Start(path, source, described, list(transfer(source, detector, described)))


def data_of(sections: TrainSections) -> SequenceDataModule:
    """Return the recordings of a training, not opened yet."""
    return SequenceDataModule(
        sections.dataset,
        sections.sampling,
        sections.augment,
        sections.data,
        sections.seed,
        sections.windows.settings,
        has_pseudo_labels=sections.training.pseudo_weight > 0,
    )


def describe(sections: TrainSections, data: SequenceDataModule) -> CheckpointMeta:
    """Return the description that checkpoints carry. Raise UserError for frames that have other windows."""
    for sequence in (*data.sequences("train"), *data.sequences("val")):
        sequence.check_settings(sections.windows.settings, data.spec.downsample)
    folders = {key: path and absolute_path(path) for key, path in sections.folders.items()}
    return CheckpointMeta(
        data.spec,
        sections.model,
        sections.temporal,
        data.settings,
        window_lengths_us=data.window_lengths_us,
        scored_as=sections.postprocess,
        **folders,
    )


def read_start(path: str) -> TransferSource:
    """Return the weights in `path`. Raise UserError if there are none."""
    with said_of("training.init_from"):
        return read_source(path)


def _with_classes_of(data: SequenceDataModule, sections: TrainSections, source: TransferSource) -> TransferSource:
    """Return the start weights with the names that `training.class_map` gives their classes."""
    if not sections.training.class_map:
        return source
    known = data.spec.class_names
    names = mapped_classes("training.class_map", sections.training.class_map, source.class_names or (), known)
    return replace(source, class_names=names)


def _weights_if_complete(sections: TrainSections, resume: Path, module: DetectionModule) -> Path | None:
    """Return the weights of a run that has ended already. Raise UserError if it had other settings."""
    state, training = load_file(resume), sections.training
    check_same_run(state, module.decisive)  # before anything is written
    step = state["global_step"]
    if step >= training.steps:
        reason = f"all {step} steps"
    elif has_no_patience(validations_without_gain(state), training.patience):
        reason = f"{step} steps, after which training.patience={training.patience} ended the run"
    else:
        if has_lower_rate(state, module.decisive):
            say(f"from step {step} on, the peak of the learning rate is {sections.optim.learning_rate:g}")
        if is_extension(state, module.decisive):
            say(
                f"the run has all its {step} steps and goes on to {training.steps}: from now on its learning rate is "
                f"that of a run of {training.steps} steps"
            )
        return None
    weights = best_checkpoint(sections.run_dir)
    if not weights.is_file():
        weights = resume
    say(f"complete already: {resume} has {reason}; weights: {weights}")
    return weights


def _say_doubts(sections: TrainSections, data: SequenceDataModule, total_batch: int) -> None:
    """Warn of what may not be meant, and tell the learning rate if a rule changes it."""
    outdated = outdated_recordings(sections.dataset.raw_dir, data)
    if outdated:
        say(
            f"warning: {len(outdated)} prepared recordings, such as {outdated[0]}, were made from other recordings or "
            f"labels than those in {sections.dataset.raw_dir}; `rvtssm preprocess` makes them again, and `rvtssm "
            "inspect DIR full=true` names all of them"
        )
    if warning := early_weights(sections.training.average, sections.training.steps):
        say(f"warning: {warning}")
    if sections.optim.scale_with_batch:
        say(learning_rate_rule(sections.optim, total_batch))


def _facts(
    sections: TrainSections, trainer: L.Trainer, data: SequenceDataModule, meta: CheckpointMeta, total_batch: int
) -> dict[str, Any]:
    """Return what a person wants to check before a run: its data, its steps, where and how it runs."""
    training, sampling = sections.training, sections.sampling
    recordings = {}
    for split in ("train", "val"):
        sequences = data.sequences(split)
        recordings[split] = with_labels(sequences, data.num_without_boxes(split, sequences))
    batch = f"{total_batch} x {sampling.chunk_length} windows"
    parts = {"processes": training.devices * training.num_nodes, "accumulated batches": training.accumulate}
    factors = [f"{number} {name}" for name, number in parts.items() if number > 1]
    if factors:
        batch += f" ({' x '.join([*factors, str(sampling.num_chunks)])})"
    device = str(trainer.strategy.root_device)
    if trainer.world_size > 1:
        device += f" x {trainer.world_size}"
    return {
        "source": f"{data.source} {data.spec.name}",
        "stride": f"{meta.windows.stride_us / 1000:g} ms",
        "recordings": f"{recordings['train']} (validation: {recordings['val']})",
        "steps": f"{training.steps} of {batch}",
        "device": device,
        "precision": training.precision,
        "score": head_class(sections.model).describe_scores(sections.postprocess),
    }


def _say_trained(sections: TrainSections, trainer: L.Trainer, module: DetectionModule) -> None:
    """Tell how long a run took, how good its weights are, and where they and its logs are."""
    training, out, checkpoints = sections.training, sections.run_dir, checkpoints_of(trainer)
    if trainer.global_step < training.steps:
        say(
            f"ended before step {training.steps}: {checkpoints.num_without_gain} validations in a row had no higher AP "
            f"(training.patience={training.patience})"
        )
    millions = count_parameters(module.detector)["total"] / 1e6
    text = f"trained {millions:.3f} M parameters for {trainer.global_step} steps in {module.train_seconds:.0f} s"
    text += f" in {training.precision}"
    progress = next(callback for callback in trainer.callbacks if isinstance(callback, Progress))  # type: ignore[attr-defined]
    if progress.data_wait is not None:
        text += f", {progress.data_wait:.1%} data wait"
    if checkpoints.start_ap is not None:
        text += (
            f"; validation AP {_percent(checkpoints.start_ap)} at the start, {_percent(checkpoints.best_ap)} at best"
        )
    say(f"{text}; weights: {best_checkpoint(out)}, logs: {out}")
    if "tensorboard" in training.loggers:
        say(f"losses, AP and pictures: tensorboard --logdir {out}")


def _percent(ap: float) -> str:
    return "unknown" if ap < 0 else f"{100 * ap:.1f}"


def _say_interrupted_at_the_end(out: Path, trainer: L.Trainer) -> None:
    """Tell about the weights of a run that was interrupted after its last step; nothing for any other run."""
    last, max_steps = last_checkpoint(out), trainer.max_steps
    if trainer.global_step < max_steps:
        return
    last_step = load_file(last)["global_step"] if last.is_file() else 0
    if last_step == max_steps:
        best = best_checkpoint(out)
        say(f"all {last_step} steps and the last validation are done; weights: {best} (highest AP) and {last}")
        return
    weights = "there are none"
    if last_step:
        weights = f"{last} has those of step {last_step}, from which resume=auto continues"
    say(f"all {max_steps} steps are done, but weights are written after the last validation; {weights}")
