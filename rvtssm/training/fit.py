"""Builds the Lightning trainer: steps, validation, checkpoints (best and last), loggers, progress."""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass
from pathlib import Path

import lightning as L
from lightning.pytorch.callbacks import Callback, LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from rvtssm.models.checkpoint import load_file
from rvtssm.training.callbacks import DetectionImages, FinalValidation, TrainingProgress
from rvtssm.training.checkpoints import Checkpoints, last_checkpoint


@dataclass
class TrainingConfig:
    """One run of `rvtssm train`; the batch is described in `sampling`, the learning rate in `optim`."""

    steps: int = 400_000  # optimiser steps
    validate_every: int = 10_000  # steps; the last one is validated in any case
    checkpoint_every: int = 1_000  # steps after which a run that was killed can go on
    log_every: int = 50  # steps
    devices: int = 1
    num_nodes: int = 1
    accelerator: str = "auto"
    precision: str = "32-true"
    accumulate: int = 1  # batches per optimiser step
    num_images: int = 4  # drawn into TensorBoard at each validation
    progress: bool = True

    def __post_init__(self) -> None:
        for name in ("steps", "validate_every", "checkpoint_every", "log_every", "devices", "num_nodes", "accumulate"):
            if getattr(self, name) < 1:
                raise ValueError(f"training.{name}={getattr(self, name)} must be at least 1")


def build_trainer(config: TrainingConfig, out_dir: Path, clip_value: float) -> L.Trainer:
    """A trainer that writes checkpoints, TensorBoard and CSV logs to `out_dir`; every part of a run has its own CSV."""
    callbacks: list[Callback] = [
        FinalValidation(),
        Checkpoints(out_dir, config.checkpoint_every),
        LearningRateMonitor("step"),
        DetectionImages(config.num_images),
    ]
    if config.progress:
        callbacks.append(TrainingProgress())
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    # the loader decides its own number of workers; a two-core machine is a supported one
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    # what is logged counts steps, not epochs, which can be short
    warnings.filterwarnings("ignore", message=".*smaller than the logging interval.*")
    # from inside Lightning, about its use of torch
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")
    try:
        return L.Trainer(
            max_steps=config.steps,
            max_epochs=-1,
            val_check_interval=config.validate_every * config.accumulate,
            check_val_every_n_epoch=None,
            log_every_n_steps=config.log_every,
            accelerator=config.accelerator,
            devices=config.devices,
            num_nodes=config.num_nodes,
            precision=config.precision,  # type: ignore[arg-type]
            accumulate_grad_batches=config.accumulate,
            gradient_clip_val=clip_value or None,
            gradient_clip_algorithm="value",
            callbacks=callbacks,
            enable_progress_bar=config.progress,
            enable_model_summary=False,
            logger=[TensorBoardLogger(out_dir, name="", version="tensorboard"), CSVLogger(out_dir, name="csv")],
            num_sanity_val_steps=0,
            use_distributed_sampler=False,
            default_root_dir=out_dir,
        )
    except (MisconfigurationException, ModuleNotFoundError) as error:
        raise ValueError(f"training cannot run so: {error}") from None


def find_resume(resume: str | None, out_dir: Path) -> Path | None:
    """The checkpoint to go on from: None, a path, or with `auto` the last one of `out_dir`, where there is one."""
    if resume is None:
        return None
    path = last_checkpoint(out_dir) if resume == "auto" else Path(resume)
    if not path.is_file():
        if resume == "auto":
            return None
        raise ValueError(f"resume={resume}: there is no such checkpoint; give a .ckpt file of `rvtssm train`, or auto")
    if "decisive" not in load_file(path):
        raise ValueError(f"resume={resume}: {path} holds weights only; give a .ckpt file of `rvtssm train`")
    return path
