"""A training from its settings to its best weights: prepare, resume, check, announce, fit."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import lightning as L
from lightning.pytorch.callbacks import Callback

from rvtssm.datasets.datamodule import SequenceDataModule
from rvtssm.models.checkpoint import load_file
from rvtssm.models.checkpoint_meta import CheckpointMeta
from rvtssm.models.detector import Detector, count_parameters
from rvtssm.models.transfer import TransferSource, mapped_classes, read_source, transfer
from rvtssm.system.output_folder import locked
from rvtssm.system.remote import absolute_path
from rvtssm.system.user_error import UserError
from rvtssm.training.checkpoints import best_checkpoint, last_checkpoint
from rvtssm.training.checks import check, check_scored, early_weights, outdated_recordings
from rvtssm.training.decisive import decisive_settings
from rvtssm.training.fit import build_trainer, find_resume
from rvtssm.training.memory import check_step_memory, with_fitting_batch
from rvtssm.training.module import DetectionModule, ModuleSettings
from rvtssm.training.optim import learning_rate_rule
from rvtssm.training.pace import pace_of
from rvtssm.training.reports import AboutToTrain, TrainReports
from rvtssm.training.sections import TrainSections
from rvtssm.training.speed import check_compiler, choose_precision, speed_up

OUT = "outputs/train"  # the folder of a training that names none


@dataclass(frozen=True)
class _Run:
    """A training that is about to begin."""

    sections: TrainSections
    out: Path
    trainer: L.Trainer
    reports: TrainReports
    resume: Path | None

    @property
    def is_first(self) -> bool:
        """Whether this is the first process of the run, which tells and writes for all."""
        return self.trainer.is_global_zero

    def say(self, text: str, is_warning: bool = False) -> None:
        if self.is_first:
            self.reports.say(text, is_warning)


def train(sections: TrainSections, reports: TrainReports | None = None, callbacks: Sequence[Callback] = ()) -> Path:
    """Train and validate a detector, write `checkpoints/best.ckpt` and `last.ckpt` to `out`; return the best one.

    Args:
        sections: All settings.
        reports: Hears what the training does; None prints it.
        callbacks: Further Lightning callbacks, which come before all others.

    Raises:
        UserError: The settings do not fit each other, the data or this machine.
    """
    out, reports = Path(sections.out or OUT), reports or TrainReports()
    resume = find_resume(sections.resume, out)
    asked, sections = sections, _decided(sections, resume)
    check(sections)  # like all that can fail without data, before any data are read
    trainer = build_trainer(sections.training, out, sections.optim.clip_value, callbacks)
    run = _Run(sections, out, trainer, reports, resume)
    if asked.training.precision == "auto":
        run.say(_reason_of_precision(run))
    if asked.sampling.batch_size != sections.sampling.batch_size:
        run.say(
            f"sampling.batch_size=auto: {sections.sampling.batch_size} with "
            f"training.accumulate={sections.training.accumulate}, which fits in memory"
        )
    with locked(out) if run.is_first else nullcontext():  # the first process of a run locks for all
        return _train(run)


def _decided(sections: TrainSections, resume: Path | None) -> TrainSections:
    """Return the settings with a precision and a batch in place of `auto`. A run that is resumed keeps its own."""
    given, batch_size = sections.training.precision, sections.sampling.batch_size
    if resume and "auto" in (given, batch_size):
        stored = load_file(resume)["decisive"]
        if given == "auto":
            given = stored["training.precision"]
        if batch_size == "auto":
            accumulate = stored["training.accumulate"]
            sampling = replace(sections.sampling, batch_size=stored["sampling.batch_size"])
            training = replace(sections.training, accumulate=accumulate)
            sections = replace(sections, sampling=sampling, training=training)
    num_processes = sections.training.devices * sections.training.num_nodes
    precision = choose_precision(given, sections.training.accelerator, num_processes)
    sections = replace(sections, training=replace(sections.training, precision=precision))
    if sections.sampling.batch_size == "auto":
        sections = with_fitting_batch(sections)
    return sections


def _reason_of_precision(run: _Run) -> str:
    is_measured = run.trainer.world_size == 1 or run.trainer.strategy.root_device.type != "cpu"
    reason = "by what this machine computes fastest" if is_measured else "the same in all processes"
    return f"training.precision=auto: {run.sections.training.precision}, {reason}"


def _train(run: _Run) -> Path:
    sections, device = run.sections, run.trainer.strategy.root_device
    source = _start_weights(run)
    if sections.training.compile:
        check_compiler(device.type)
    data = data_of(sections)
    source = source and _with_classes_of(data, sections, source)
    _check_start_fits(run, data, source)
    L.seed_everything(sections.seed, workers=True, verbose=False)
    meta = describe(sections, data)
    detector = _build_detector(run, meta, source)
    module = _build_module(run, data, meta, detector)
    if run.resume is not None and (weights := _weights_if_complete(run, run.resume, module)):
        return weights
    scored = check_scored(data)
    peak_bytes = check_step_memory(sections, data, detector, device)
    speed_up(
        detector,
        device,
        recompute_strides=sections.training.recompute_strides,
        compile_parts=sections.training.compile,
    )
    _announce(
        run,
        AboutToTrain(
            sections,
            data,
            meta,
            run.out,
            run.resume,
            _device_in_words(run.trainer),
            module.settings.batch_size,
            peak_bytes,
            scored,
        ),
    )
    _fit(run, module, data)
    _say_trained(run, module)
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
        sequence.check_settings(sections.windows.settings)
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


def _start_weights(run: _Run) -> TransferSource | None:
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
    try:
        return read_source(path)
    except UserError as error:
        raise UserError(error.key, f"training.init_from: {error}") from None


def _with_classes_of(data: SequenceDataModule, sections: TrainSections, source: TransferSource) -> TransferSource:
    """Return the start weights with the names that `training.class_map` gives their classes."""
    if not sections.training.class_map:
        return source
    known = data.spec.class_names
    names = mapped_classes("training.class_map", sections.training.class_map, source.class_names or (), known)
    return replace(source, class_names=names)


def _check_start_fits(run: _Run, data: SequenceDataModule, source: TransferSource | None) -> None:
    """Raise UserError if the start weights do not fit, before data are read."""
    if source is None:
        return
    sections = run.sections
    expected = CheckpointMeta(data.spec, sections.model, sections.temporal, sections.windows.settings)
    _fill(run, expected.build(), expected, source)


def _build_detector(run: _Run, meta: CheckpointMeta, source: TransferSource | None) -> Detector:
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


def _fill(run: _Run, detector: Detector, meta: CheckpointMeta, source: TransferSource) -> list:  # type: ignore[type-arg]
    try:
        return list(transfer(source, detector, meta))
    except UserError as error:
        raise UserError(error.key, f"training.init_from={run.sections.training.init_from}: {error}") from None


def _build_module(run: _Run, data: SequenceDataModule, meta: CheckpointMeta, detector: Detector) -> DetectionModule:
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


def _weights_if_complete(run: _Run, resume: Path, module: DetectionModule) -> Path | None:
    """Return the weights of a run that has all its steps already. Raise UserError if it had other settings."""
    state = load_file(resume)
    module.check_resumed(state)  # before anything is written
    if state["global_step"] < run.sections.training.steps:
        return None
    weights = best_checkpoint(run.out) if best_checkpoint(run.out).is_file() else resume
    run.say(f"complete already: {resume} has all {state['global_step']} steps; weights: {weights}")
    return weights


def _device_in_words(trainer: L.Trainer) -> str:
    device = str(trainer.strategy.root_device)
    return device if trainer.world_size == 1 else f"{device} x {trainer.world_size}"


def _announce(run: _Run, about: AboutToTrain) -> None:
    """Tell what the run is about to do, and what is doubtful about it."""
    sections = run.sections
    if not run.is_first:
        return
    outdated = outdated_recordings(sections.dataset.raw_dir, about.data)
    if outdated:
        run.say(
            f"{len(outdated)} prepared recordings, such as {outdated[0]}, were made from other recordings or labels "
            f"than those in {sections.dataset.raw_dir}; `rvtssm preprocess` makes them again, and `rvtssm inspect DIR "
            "full=true` names all of them",
            is_warning=True,
        )
    if sections.optim.scale_with_batch:
        run.say(learning_rate_rule(sections.optim, about.total_batch))
    run.reports.about_to_train(about)
    if warning := early_weights(sections.training.average, sections.training.steps):
        run.say(warning, is_warning=True)


def _fit(run: _Run, module: DetectionModule, data: SequenceDataModule) -> None:
    try:
        run.trainer.fit(module, datamodule=data, ckpt_path=run.resume, weights_only=True if run.resume else None)
    except SystemExit as ended:
        if ended.code:  # Lightning turns an interruption into this
            _say_all_steps_are_done(run)
            raise KeyboardInterrupt from None
        raise


def _say_trained(run: _Run, module: DetectionModule) -> None:
    if not run.is_first:
        return
    millions = count_parameters(module.detector)["total"] / 1e6
    text = f"trained {millions:.3f} M parameters for {run.trainer.global_step} steps in {module.train_seconds:.0f} s"
    text += f" in {run.sections.training.precision}"
    waited = pace_of(run.trainer).data_wait
    if waited is not None:
        text += f", {waited:.1%} data wait"
    run.say(f"{text}; weights: {best_checkpoint(run.out)}, logs: {run.out}")


def _say_all_steps_are_done(run: _Run) -> None:
    """Print a sentence on the weights of a run that was interrupted after its last step; nothing for any other run."""
    max_steps = run.trainer.max_steps
    if run.trainer.global_step < max_steps:
        return
    last, best = last_checkpoint(run.out), best_checkpoint(run.out)
    last_step = load_file(last)["global_step"] if last.is_file() else 0
    if last_step == max_steps:
        run.say(f"all {last_step} steps and the last validation are done; weights: {best} (highest AP) and {last}")
        return
    weights = "there are none"
    if last_step:
        weights = f"{last} has those of step {last_step}, from which resume=auto continues"
    run.say(f"all {max_steps} steps are done, but weights are written after the last validation; {weights}")
