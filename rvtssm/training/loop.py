"""One training run, from its settings to its best weights. Lightning loops over the steps."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import lightning as L
from lightning.pytorch.callbacks import Callback

from rvtssm.datasets.datamodule import SequenceDataModule
from rvtssm.models.checkpoint import load_file
from rvtssm.models.checkpoint_meta import CheckpointMeta
from rvtssm.models.detector import Detector
from rvtssm.models.transfer import Transferred, TransferSource, mapped_classes, read_source, transfer
from rvtssm.system.output_folder import locked
from rvtssm.system.remote import absolute_path
from rvtssm.system.user_error import said_of
from rvtssm.training.checkpoints import best_checkpoint, has_no_patience, validations_without_gain
from rvtssm.training.checks import check, check_scored
from rvtssm.training.fit import build_trainer, check_compiler, choose_precision, speed_up
from rvtssm.training.memory import check_step_memory, with_divided_batch
from rvtssm.training.module import DetectionModule, ModuleSettings
from rvtssm.training.reports import (
    AboutToTrain,
    Run,
    TrainReports,
    announce,
    say_choices,
    say_complete,
    say_interrupted_at_the_end,
    say_trained,
)
from rvtssm.training.resume import check_same_run, decisive_settings, find_resume, is_extension
from rvtssm.training.training_config import TrainSections


def train(sections: TrainSections, reports: TrainReports | None = None, callbacks: Sequence[Callback] = ()) -> Path:
    """Train and validate a detector, write `checkpoints/best.ckpt` and `last.ckpt` to `out`; return the best one.

    Args:
        sections: All settings.
        reports: Hears what the training does; None prints it.
        callbacks: Further Lightning callbacks, which come before all others.

    Raises:
        UserError: The settings do not fit each other, the data or this machine.
    """
    out = sections.run_dir
    resume = find_resume(sections.resume, out)
    decided = _decided(sections, resume)
    check(decided)  # like all that can fail without data, before any data are read
    trainer = build_trainer(decided.training, out, decided.optim.clip_value, callbacks)
    run = Run(decided, out, trainer, reports or TrainReports(), resume)
    say_choices(run, sections)
    with locked(out) if run.is_first else nullcontext():  # the first process of a run locks for all
        return _train(run)


def _decided(sections: TrainSections, resume: Path | None) -> TrainSections:
    """Return the settings as this machine trains them: no `auto`, and the total batch divided over the processes.

    A run that is resumed keeps what it had in place of `auto`.
    """
    training, sampling = sections.training, sections.sampling
    if resume and "auto" in (training.precision, sampling.batch_size):
        stored = load_file(resume)["decisive"]
        if training.precision == "auto":
            training = replace(training, precision=stored["training.precision"])
        if sampling.batch_size == "auto":
            training = replace(training, accumulate=stored["training.accumulate"])
            sampling = replace(sampling, batch_size=stored["sampling.batch_size"])
    num_processes = training.devices * training.num_nodes
    precision = choose_precision(training.precision, training.accelerator, num_processes)
    training = replace(training, precision=precision)
    return with_divided_batch(replace(sections, sampling=sampling, training=training))


def _train(run: Run) -> Path:
    sections, device = run.sections, run.trainer.strategy.root_device
    source = _start_weights(run)
    if sections.training.compile:
        check_compiler(device.type)
    data = data_of(sections)
    source = source and _with_classes_of(data, sections, source)
    _check_start_fits(run, data, source)
    L.seed_everything(sections.seed, workers=True, verbose=False)
    meta = describe(sections, data)
    module = _build_module(run, data, meta, _build_detector(run, meta, source))
    if run.resume is not None and (weights := _weights_if_complete(run, run.resume, module)):
        return weights
    about = _about(run, data, meta, module)
    training = sections.training
    speed_up(module.detector, device, recompute_strides=training.recompute_strides, compile_parts=training.compile)
    announce(run, about)
    _fit(run, module, data)
    say_trained(run, module)
    return best_checkpoint(run.out)


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


def _start_weights(run: Run) -> TransferSource | None:
    """Return the weights to start from. A run that is resumed has its weights already."""
    path = run.sections.training.init_from
    if path is None or run.resume is not None:
        return None
    source = read_start(path)
    if run.is_first:
        run.reports.start_weights(path, source)
    return source


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


def _check_start_fits(run: Run, data: SequenceDataModule, source: TransferSource | None) -> None:
    """Raise UserError if the start weights do not fit, before data are read."""
    if source is None:
        return
    sections = run.sections
    expected = CheckpointMeta(data.spec, sections.model, sections.temporal, sections.windows.settings)
    _fill(run, expected.build(), expected, source)


def _build_detector(run: Run, meta: CheckpointMeta, source: TransferSource | None) -> Detector:
    """Return the detector with the weights that it starts from, except those of a run that is resumed."""
    detector = meta.build()
    if run.resume is None:
        detector.backbone.load_pretrained()
    if source is not None:
        report = _fill(run, detector, meta, source)
        if run.is_first:
            run.reports.transferred(str(run.sections.training.init_from), source, meta, report)
    if run.sections.training.precision == "float64":
        detector.double()  # the trainer would do it only after rounding the weights of a resumed run to float32
    return detector


def _fill(run: Run, detector: Detector, meta: CheckpointMeta, source: TransferSource) -> list[Transferred]:
    with said_of(f"training.init_from={run.sections.training.init_from}"):
        return list(transfer(source, detector, meta))


def _build_module(run: Run, data: SequenceDataModule, meta: CheckpointMeta, detector: Detector) -> DetectionModule:
    sections, training = run.sections, run.sections.training
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
    return DetectionModule(detector, settings, meta.to_dict(), decisive, val_labels)


def _weights_if_complete(run: Run, resume: Path, module: DetectionModule) -> Path | None:
    """Return the weights of a run that has ended already. Raise UserError if it had other settings."""
    state = load_file(resume)
    check_same_run(state, module.decisive)  # before anything is written
    has_all_steps = state["global_step"] >= run.sections.training.steps
    if has_all_steps or has_no_patience(validations_without_gain(state), run.sections.training.patience):
        return say_complete(run, resume, state)
    if is_extension(state, module.decisive):
        num_steps = run.sections.training.steps
        run.say(
            f"the run has all its {state['global_step']} steps and goes on to {num_steps}: from now on its learning "
            f"rate is that of a run of {num_steps} steps"
        )
    return None


def _about(run: Run, data: SequenceDataModule, meta: CheckpointMeta, module: DetectionModule) -> AboutToTrain:
    """Return what is known of a run before its first step. Raise UserError if it cannot succeed."""
    scored = check_scored(data)
    device = run.trainer.strategy.root_device
    peak_bytes = check_step_memory(run.sections, data, module.detector, device)
    return AboutToTrain(run, data, meta, module.settings.batch_size, peak_bytes, scored)


def _fit(run: Run, module: DetectionModule, data: SequenceDataModule) -> None:
    try:
        run.trainer.fit(module, datamodule=data, ckpt_path=run.resume, weights_only=True if run.resume else None)
    except SystemExit as ended:
        if ended.code:  # Lightning turns an interruption into this
            say_interrupted_at_the_end(run)
            raise KeyboardInterrupt from None
        raise
