"""Builds the Lightning trainer: steps, validation, checkpoints (best and last), loggers, progress."""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass
from pathlib import Path

import lightning as L
from lightning.pytorch.callbacks import Callback, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from rvtssm.training.callbacks import DetectionImages, TrainingProgress


@dataclass
class TrainingConfig:
    """One run of `rvtssm train`; the batch is described in `sampling`, the learning rate in `optim`."""

    steps: int = 400_000  # optimiser steps
    validate_every: int = 10_000  # steps
    log_every: int = 50  # steps
    devices: int = 1
    num_nodes: int = 1
    accelerator: str = "auto"
    precision: str = "32-true"
    accumulate: int = 1  # batches per optimiser step
    num_images: int = 4  # drawn into TensorBoard at each validation
    progress: bool = True


def build_trainer(config: TrainingConfig, out_dir: Path, clip_value: float) -> L.Trainer:
    """A trainer that writes `checkpoints/best.ckpt`, `checkpoints/last.ckpt`, TensorBoard and CSV logs to `out_dir`."""
    validate_every = max(1, min(config.validate_every, config.steps))
    callbacks: list[Callback] = [
        ModelCheckpoint(
            dirpath=out_dir / "checkpoints",
            filename="best",
            monitor="val/AP",
            mode="max",
            save_last=True,
            enable_version_counter=False,
        ),
        LearningRateMonitor("step"),
        DetectionImages(config.num_images),
    ]
    if config.progress:
        callbacks.append(TrainingProgress())
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    # the loader decides its own number of workers; a two-core machine is a supported one
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    # from inside Lightning, about its use of torch
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")
    return L.Trainer(
        max_steps=config.steps,
        max_epochs=-1,
        val_check_interval=validate_every * config.accumulate,
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
        logger=[TensorBoardLogger(out_dir, name="", version="tensorboard"), CSVLogger(out_dir, name="", version="csv")],
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        default_root_dir=out_dir,
    )


def last_checkpoint(out_dir: Path) -> Path:
    """Where a run in `out_dir` keeps its latest checkpoint."""
    return out_dir / "checkpoints" / "last.ckpt"


def find_resume(resume: str | None, out_dir: Path) -> Path | None:
    """The checkpoint to go on from: None, a path, or with `auto` the last one of `out_dir`, where there is one."""
    if resume is None:
        return None
    path = last_checkpoint(out_dir) if resume == "auto" else Path(resume)
    if not path.is_file():
        if resume == "auto":
            return None
        raise ValueError(f"resume={resume}: there is no such checkpoint; give a .ckpt file of `rvtssm train`, or auto")
    return path
