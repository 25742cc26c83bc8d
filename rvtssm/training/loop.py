"""One training run, from its settings to its best weights. Lightning loops over the steps, as `module.py` describes."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import lightning as L
from lightning.pytorch.callbacks import Callback

from rvtssm.datasets.datamodule import SequenceDataModule
from rvtssm.models.checkpoint import load_file
from rvtssm.models.checkpoint_meta import CheckpointMeta
from rvtssm.models.transfer import TransferSource, mapped_classes, read_source, transfer
from rvtssm.ssm.temporal_layers import with_layer_defaults
from rvtssm.system.output_folder import locked
from rvtssm.system.user_error import UserError, errors_about, in_one_line
from rvtssm.training import TrainSections, with_settings_of_files
from rvtssm.training.checkpoints import best_checkpoint, has_no_patience, step_of, validations_without_gain
from rvtssm.training.module import DetectionModule, ModuleSettings, Start
from rvtssm.training.preflight import check, check_scored, check_step_memory, describe, with_divided_batch
from rvtssm.training.progress import facts, say, say_doubts, say_interrupted_at_the_end, say_trained
from rvtssm.training.resume import check_same_run, decisive_settings, find_resume, has_lower_rate, is_extension
from rvtssm.training.trainer import build_trainer, check_compiler, choose_precision, speed_up

_LOST_PEER = ("connection closed by peer", "connection reset by peer", "gloo", "nccl")  # in errors of torch.distributed


class TrainingData(SequenceDataModule, L.LightningDataModule):
    """The recordings of a training as Lightning's trainer takes them."""


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
    training = sections.training
    sampling = sections.sampling
    # A run that goes on keeps what was chosen for it.
    chooses_precision = training.precision == "auto"
    chooses_batch = sampling.batch_size == "auto"
    resume = find_resume(sections.resume, sections.run_dir)
    if resume and (chooses_precision or chooses_batch):
        stored = load_file(resume)["decisive"]
        if chooses_precision:
            training = replace(training, precision=stored["training.precision"])
        if chooses_batch:
            training = replace(training, accumulate=stored["training.accumulate"])
            sampling = replace(sampling, batch_size=stored["sampling.batch_size"])
    # Everything else is decided by this machine.
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
    training = sections.training
    device = trainer.strategy.root_device
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
        with errors_about(f"training.init_from={training.init_from}"):
            lines = list(transfer(source, detector, described))
        start = Start(str(training.init_from), source, described, lines)
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
    decisive = decisive_settings(sections, meta, data)
    module = DetectionModule(detector, settings, meta.to_dict(), decisive, data.labels("val"), start)
    if resume is not None and (weights := _weights_if_complete(sections, resume, module)):
        return weights

    # What can be known before the first step, and then all steps.
    scored = check_scored(data)
    peak_bytes = check_step_memory(sections, data, detector, device)
    speed_up(detector, device, recompute_strides=training.recompute_strides, compile_parts=training.compile)
    if trainer.is_global_zero:
        say_doubts(sections, data, settings.batch_size)
        known = facts(sections, trainer, data, meta, settings.batch_size)
        known["scored"] = f"{scored[0] / scored[1]:.0%} of the validation labels"
        known["memory"] = f"about {peak_bytes / 1e9:.2g} GB per process"
        if resume is not None:
            known["resumed from"] = resume
        known["output"] = sections.run_dir
        say(f"about to train: {', '.join(f'{name} {value}' for name, value in known.items())}")
    _fit(trainer, module, data, resume)
    say_trained(sections, trainer, module)
    return best_checkpoint(sections.run_dir)


def _fit(trainer: L.Trainer, module: DetectionModule, data: TrainingData, resume: Path | None) -> None:
    """Take all steps. An interruption, and the end of another process, are told in one line."""
    try:
        trainer.fit(module, datamodule=data, ckpt_path=resume, weights_only=bool(resume) or None)
    except SystemExit as ended:
        if ended.code:  # Lightning turns an interruption into this
            say_interrupted_at_the_end(Path(trainer.default_root_dir), trainer)
            raise KeyboardInterrupt from None
        raise
    except RuntimeError as error:
        if trainer.world_size > 1 and any(sign in str(error).lower() for sign in _LOST_PEER):
            found = f"another process of this training has ended ({in_one_line(error)[:80]})"
            advice = "its own lines say why; the same command with resume=auto goes on from the last checkpoint"
            raise UserError("run.process_ended", found=found, advice=advice) from None
        raise


def data_of(sections: TrainSections) -> TrainingData:
    """Return the recordings of a training, not opened yet."""
    return TrainingData(
        sections.dataset,
        sections.sampling,
        sections.augment,
        sections.data,
        sections.seed,
        sections.windows.settings,
        has_pseudo_labels=sections.training.pseudo_weight > 0,
    )


def read_start(path: str) -> TransferSource:
    """Return the weights in `path`. Raise UserError if there are none."""
    with errors_about("training.init_from"):
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
    state = load_file(resume)
    training = sections.training
    check_same_run(state, module.decisive)  # before anything is written
    step = state["global_step"]
    # Complete, ended early, or to be continued.
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
