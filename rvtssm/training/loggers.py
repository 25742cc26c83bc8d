"""Where a run writes its logs: always CSV, by default also TensorBoard, or any other logger of Lightning."""

import importlib
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger

from rvtssm.system.user_error import UserError


def build_loggers(names: Sequence[str], out_dir: Path) -> list[Logger]:
    """Return the named loggers and a CSV logger.

    Args:
        names: tensorboard, or full names of logger classes.
        out_dir: Folder of the run.

    Raises:
        UserError: A logger does not exist or needs arguments.
    """
    loggers = [
        TensorBoardLogger(out_dir, name="", version="tensorboard")
        if name == "tensorboard"
        else _build_logger(name, out_dir)
        for name in names
    ]
    return [*loggers, CSVLogger(out_dir, name="csv")]


def show_image(trainer: L.Trainer, name: str, image: np.ndarray) -> None:
    """Pass an image to all loggers that accept images.

    Args:
        trainer: The trainer.
        name: Name of the image in the logs.
        image: (h, w, 3) uint8 RGB.
    """
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            logger.experiment.add_image(name, torch.from_numpy(image), trainer.global_step, dataformats="HWC")
        elif hasattr(logger, "log_image"):  # the interface of Lightning's WandbLogger
            logger.log_image(name, [image], step=trainer.global_step)


def shows_images(trainer: L.Trainer) -> bool:
    """Return whether any logger accepts images. Drawing them takes long."""
    return any(isinstance(logger, TensorBoardLogger) or hasattr(logger, "log_image") for logger in trainer.loggers)


def _build_logger(name: str, out_dir: Path) -> Logger:
    module, _, attribute = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError, TypeError) as error:  # the last two: a dot in front
        raise UserError(
            "loggers.missing", f"training.loggers: there is no {name} ({error}); install it, or correct the name"
        ) from None
    if not (isinstance(found, type) and issubclass(found, Logger)):
        raise UserError(
            "loggers.not_a_logger",
            f"training.loggers: {name} is not a logger of Lightning; name a class such as WandbLogger",
        )
    arguments: dict[str, Any] = {}
    if "save_dir" in inspect.signature(found).parameters:
        arguments["save_dir"] = str(out_dir)
    try:
        return found(**arguments)
    except ModuleNotFoundError as error:
        raise UserError(
            "loggers.package_missing", f"training.loggers: {name} needs a package that is not installed: {error}"
        ) from None
    except TypeError as error:
        raise UserError(
            "loggers.arguments",
            f"training.loggers: {name} needs arguments ({error}); name a subclass of yours that gives them",
        ) from None
