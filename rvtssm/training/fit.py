"""Build the Lightning trainer, and find the checkpoint from which a run is resumed."""

import logging
import warnings
from collections.abc import Sequence
from pathlib import Path

import lightning as L
from lightning.pytorch.callbacks import Callback, LearningRateMonitor, WeightAveraging
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch.optim.swa_utils import get_ema_multi_avg_fn

from rvtssm.models.checkpoint import load_file
from rvtssm.system.user_error import UserError
from rvtssm.training.callbacks import DetectionImages, GradientNorms, LastStep, TrainingProgress
from rvtssm.training.checkpoints import (
    Checkpoints,
    DirectCheckpointIO,
    best_checkpoint,
    last_checkpoint,
    latest_checkpoint,
)
from rvtssm.training.launch import build_plugins, check_processes
from rvtssm.training.loggers import build_loggers
from rvtssm.training.non_finite import NonFiniteStop
from rvtssm.training.pace import Pace
from rvtssm.training.spectrum_monitor import SpectrumMonitor
from rvtssm.training.training_config import LIGHTNING_PRECISIONS, TrainingConfig

_IGNORED_WARNINGS = (
    "does not have many workers",  # the user chooses `data.workers`, and two are enough
    "smaller than the logging interval",  # logs count steps, while epochs can be short
    "in eval mode at the start of training",  # `freeze_batchnorm` does this on purpose
    "LeafSpec",  # concerns how Lightning uses torch
)


def build_trainer(
    config: TrainingConfig, out_dir: Path, clip_value: float, callbacks: Sequence[Callback] = ()
) -> L.Trainer:
    """Build a trainer that writes checkpoints and logs to `out_dir`. Each part of a resumed run has its own CSV.

    Args:
        config: Settings of the training.
        out_dir: Folder of the run.
        clip_value: Gradients are clipped to this absolute value; 0 for no clipping.
        callbacks: Further callbacks, which come before all others.

    Raises:
        UserError: The settings do not fit each other or this machine.
    """
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    for message in _IGNORED_WARNINGS:
        warnings.filterwarnings("ignore", message=f".*{message}.*")
    check_processes(config.devices, config.num_nodes)
    loggers = build_loggers(config.loggers, out_dir)
    pace = Pace(config.validate_every, config.log_every * config.accumulate)
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
            precision=None if config.precision == "float64" else LIGHTNING_PRECISIONS[config.precision],  # type: ignore[arg-type]
            plugins=[*build_plugins(config.precision), DirectCheckpointIO()],
            sync_batchnorm=config.sync_batchnorm,
            accumulate_grad_batches=config.accumulate,
            gradient_clip_val=clip_value or None,
            gradient_clip_algorithm="value",
            callbacks=_callbacks(config, out_dir, pace),
            enable_progress_bar=True,
            enable_model_summary=False,
            logger=loggers,
            num_sanity_val_steps=0,
            use_distributed_sampler=False,
            default_root_dir=out_dir,
        )
    except (MisconfigurationException, ModuleNotFoundError) as error:
        raise UserError("training.trainer_refuses", f"training cannot run with these settings: {error}") from None
    if config.sync_batchnorm and trainer.strategy.root_device.type != "cuda":
        raise UserError(
            "training.sync_batchnorm",
            "training.sync_batchnorm=true needs GPUs; on CPUs use larger batches or freeze_batchnorm",
        )
    if config.average is not None:  # average = decay * average + (1 - decay) * weights, from the first step on
        average = get_ema_multi_avg_fn(config.average)
        # Lightning makes the average before it moves the weights to their device, so the device is named.
        averaging = WeightAveraging(trainer.strategy.root_device, use_buffers=True, multi_avg_fn=average)
        trainer.callbacks.insert(0, averaging)  # type: ignore[attr-defined]
    trainer.callbacks[:0] = callbacks  # type: ignore[attr-defined]
    # Pace must be last. It is appended here because the trainer moves callbacks that write checkpoints to the end.
    trainer.callbacks.append(pace)  # type: ignore[attr-defined]
    return trainer


def _callbacks(config: TrainingConfig, out_dir: Path, pace: Pace) -> list[Callback]:
    callbacks: list[Callback] = [
        LastStep(),
        GradientNorms(),
        NonFiniteStop(),
        Checkpoints(out_dir, config.checkpoint_every),
        LearningRateMonitor("step"),
    ]
    if config.pictures:
        callbacks += [DetectionImages(), SpectrumMonitor()]
    return [*callbacks, TrainingProgress(pace)]


def find_resume(resume: str | None, out_dir: Path) -> Path | None:
    """Return the checkpoint to resume from, or None.

    Args:
        resume: A checkpoint; `auto` for the latest one in `out_dir`, if any; None to start anew.
        out_dir: Folder of the run.

    Raises:
        UserError: The file is not a checkpoint of a run, or `out_dir` holds a run that would be overwritten.
    """
    own = (last_checkpoint(out_dir), best_checkpoint(out_dir))
    if resume == "auto" and not latest_checkpoint(out_dir).is_file():
        return None
    path = Path(resume) if resume else None
    if resume == "auto":
        path = latest_checkpoint(out_dir)
    if path is not None and not path.is_file():
        raise UserError(
            "resume.missing",
            f"resume={resume}: the checkpoint does not exist; give a .ckpt file of `rvtssm train`, or auto",
        )
    if (path is None or path.resolve().parent != own[0].resolve().parent) and any(file.exists() for file in own):
        raise UserError(
            "resume.holds_run",
            f"{out_dir} holds a run, which this one would overwrite; continue it with resume=auto, or set another out",
        )
    if path is not None and "decisive" not in load_file(path):
        raise UserError(
            "resume.weights_only", f"resume={resume}: {path} holds weights only; give a .ckpt file of `rvtssm train`"
        )
    return path
