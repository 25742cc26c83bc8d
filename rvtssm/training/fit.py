"""Builds the Lightning trainer: steps, validation, checkpoints (best and last), loggers, progress."""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback, LearningRateMonitor
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from rvtssm.models.checkpoint import load_file
from rvtssm.training.callbacks import DetectionImages, FinalValidation, TrainingProgress
from rvtssm.training.checkpoints import Checkpoints, StraightToPlace, best_checkpoint, last_checkpoint
from rvtssm.training.gradients import GradientNorms
from rvtssm.training.launch import build_plugins, check_processes
from rvtssm.training.loggers import build_loggers, check_loggers
from rvtssm.training.non_finite import NonFiniteStop
from rvtssm.training.pace import Pace
from rvtssm.training.spectrum_monitor import SpectrumMonitor
from rvtssm.training.speed import PRECISIONS

ACCELERATORS = ("auto", "cpu", "gpu", "cuda", "mps")


@dataclass
class TrainingConfig:
    """One run of `rvtssm train`; the batch is described in `sampling`, the learning rate in `optim`."""

    steps: int = 400_000  # optimiser steps
    init_from: str | None = None  # weights to start from: a checkpoint of ours, of RVT or of the official SSM release
    validate_every: int = 10_000  # steps; the last one is validated in any case
    checkpoint_every: int = 1_000  # steps after which a run that was killed can go on
    checkpoint_minutes: float = 10.0  # ... or minutes, whichever come first
    log_every: int = 50  # steps
    devices: int = 1
    num_nodes: int = 1
    accelerator: str = "auto"
    precision: str = "32-true"  # or bf16-mixed: products in 16 bits, states and steps in 32; or others of PRECISIONS
    compile: bool = False  # backbone, neck and head, each into one graph, for training; validation runs as without
    recompute_strides: tuple[int, ...] = ()  # maps that are computed again in the backward pass, which saves memory
    channels_last: bool = False  # weights of convolutions as well; frames and maps are in any case
    fused: bool = True  # the optimiser moves all weights at once; never in mixed precision, where it could not clip
    accumulate: int = 1  # batches per optimiser step
    sync_batchnorm: bool = False  # statistics over the batches of all processes; GPUs only
    freeze_batchnorm: bool = False  # statistics stay as they are, as for fine-tuning with small batches
    loggers: list[str] = field(default_factory=lambda: ["tensorboard"])  # beside CSV; or the full name of a class
    logger_args: Any = None  # of that class, such as {project: gen1}
    num_images: int = 4  # drawn at each validation for the loggers that take pictures
    spectra: bool = True  # of the temporal layers: numbers and figures at each validation
    progress: bool = True

    def __post_init__(self) -> None:
        for name in ("steps", "validate_every", "checkpoint_every", "log_every", "devices", "num_nodes", "accumulate"):
            if getattr(self, name) < 1:
                raise ValueError(f"training.{name}={getattr(self, name)} must be at least 1")
        for name, choices in (("precision", PRECISIONS), ("accelerator", ACCELERATORS)):
            if getattr(self, name) not in choices:
                raise ValueError(f"training.{name}={getattr(self, name)!r}; choose from {', '.join(choices)}")
        if self.num_images < 0:
            raise ValueError(f"training.num_images={self.num_images} must be at least 0, which draws none")
        self.recompute_strides = tuple(self.recompute_strides)
        check_loggers(self.loggers, self.logger_args)
        if not self.checkpoint_minutes > 0:
            raise ValueError(f"training.checkpoint_minutes={self.checkpoint_minutes:g} must be positive")
        if self.sync_batchnorm and self.freeze_batchnorm:
            raise ValueError(
                "training.sync_batchnorm and training.freeze_batchnorm exclude each other; set one of them"
            )


def build_trainer(config: TrainingConfig, out_dir: Path, clip_value: float) -> L.Trainer:
    """A trainer that writes checkpoints, TensorBoard and CSV logs to `out_dir`; every part of a run has its own CSV."""
    pace = Pace(config.validate_every, config.log_every * config.accumulate)
    callbacks: list[Callback] = [
        FinalValidation(),
        GradientNorms(),
        NonFiniteStop(out_dir),
        Checkpoints(out_dir, config.checkpoint_every, config.checkpoint_minutes),
        LearningRateMonitor("step"),
        DetectionImages(config.num_images),
    ]
    if config.spectra:
        callbacks.append(SpectrumMonitor())
    if config.progress:
        callbacks.append(TrainingProgress(pace))
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    # the loader decides its own number of workers; a two-core machine is a supported one
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    # what is logged counts steps, not epochs, which can be short
    warnings.filterwarnings("ignore", message=".*smaller than the logging interval.*")
    # `freeze_batchnorm` means it
    warnings.filterwarnings("ignore", message=".*in eval mode at the start of training.*")
    # from inside Lightning, about its use of torch
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")
    check_processes(config.devices, config.num_nodes)
    loggers = build_loggers(config.loggers, config.logger_args, out_dir)
    try:
        trainer = L.Trainer(
            max_steps=config.steps,
            max_epochs=-1,
            val_check_interval=config.validate_every * config.accumulate,
            check_val_every_n_epoch=None,
            log_every_n_steps=config.log_every,
            accelerator=config.accelerator,
            devices=config.devices,
            num_nodes=config.num_nodes,
            precision=None if config.precision == "64-true" else config.precision,  # type: ignore[arg-type]
            plugins=[*build_plugins(config.precision), StraightToPlace()],
            sync_batchnorm=config.sync_batchnorm,
            accumulate_grad_batches=config.accumulate,
            gradient_clip_val=clip_value or None,
            gradient_clip_algorithm="value",
            callbacks=callbacks,
            enable_progress_bar=config.progress,
            enable_model_summary=False,
            logger=loggers,
            num_sanity_val_steps=0,
            use_distributed_sampler=False,
            default_root_dir=out_dir,
        )
    except (MisconfigurationException, ModuleNotFoundError) as error:
        raise ValueError(f"training cannot run so: {error}") from None
    if config.sync_batchnorm and trainer.strategy.root_device.type != "cuda":
        raise ValueError("training.sync_batchnorm=true needs GPUs; on CPUs use larger batches, or freeze_batchnorm")
    # not among those above, of which the trainer moves the ones that write checkpoints to the end
    trainer.callbacks.append(pace)  # type: ignore[attr-defined]
    return trainer


def find_resume(resume: str | None, out_dir: Path) -> Path | None:
    """The checkpoint to go on from: None, a path, or with `auto` the last one of `out_dir`, where there is one.

    ValueError for a file that is not of a run, and where `out_dir` holds a run that would be overwritten.
    """
    own = (last_checkpoint(out_dir), best_checkpoint(out_dir))
    path = own[0] if resume == "auto" else Path(resume) if resume else None
    if resume == "auto" and not own[0].is_file():
        return None
    if path is not None and not path.is_file():
        raise ValueError(f"resume={resume}: there is no such checkpoint; give a .ckpt file of `rvtssm train`, or auto")
    if (path is None or path.resolve().parent != own[0].resolve().parent) and any(file.exists() for file in own):
        raise ValueError(
            f"{out_dir} holds a run, which this one would overwrite; go on with it by resume=auto, or set another out"
        )
    if path is not None and "decisive" not in load_file(path):
        raise ValueError(f"resume={resume}: {path} holds weights only; give a .ckpt file of `rvtssm train`")
    return path
