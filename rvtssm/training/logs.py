"""Where a run logs, and what it logs beside its losses: drawn detections and the modes of the temporal layers.

It always writes CSV, by default also for TensorBoard, or for any other logger of Lightning.
"""

import csv
import importlib
import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.pytorch.loggers.logger import DummyExperiment

from rvtssm.drawing.draw import draw_frame, shown_events
from rvtssm.records import SequenceBatch, WindowSettings
from rvtssm.ssm.spectrum import Spectrum
from rvtssm.system.user_error import UserError, in_one_line
from rvtssm.training.module import DetectionModule

NUM_IMAGES = 4  # drawn at each validation: one row of four on a page of TensorBoard


def build_loggers(names: Sequence[str], out_dir: Path, first_step: int = 0) -> list[Logger]:
    """Return the named loggers and a CSV logger. None of them ends a run: what it raises is one warning.

    Args:
        names: tensorboard, or full names of logger classes.
        out_dir: Folder of the run.
        first_step: Steps that the run has taken. What the folder has logged of later ones is taken anew.

    Raises:
        UserError: A logger does not exist or needs arguments.
    """
    loggers: list[Logger] = []
    for name in names:
        if name == "tensorboard":
            # TensorBoard shows nothing of an earlier part of the run from this step on.
            loggers.append(TensorBoardLogger(out_dir, name="", version="tensorboard", purge_step=first_step))
            continue
        logger_class = _logger_class(name)
        with _ends_no_run(name):
            loggers.append(_build_logger(name, logger_class, out_dir))
    return [*map(guarded, (*loggers, OneCSV(out_dir, first_step)))]


class OneCSV(CSVLogger):
    """Writes one file, which later parts of a run continue.

    Args:
        out_dir: Folder of the run.
        first_step: Rows of this step and of later ones are left out of what the file holds.
    """

    def __init__(self, out_dir: Path, first_step: int) -> None:
        super().__init__(out_dir, name="csv", version=0)
        self.first_step = first_step

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        if self._experiment is None:
            path = Path(self.log_dir) / "metrics.csv"
            rows: list[Any] = []
            if path.is_file():
                with open(path, newline="") as file:
                    whole, _, _ = file.read().rpartition("\n")  # a run that was killed may have cut its last row
                rows = [row for row in csv.DictReader(whole.splitlines()) if int(row["step"]) < self.first_step]
            writer = super().experiment  # removes the file
            writer.metrics = rows
            writer.save()
        return self._experiment


_CALLS = ("log_metrics", "log_hyperparams", "log_graph", "log_image", "save", "finalize", "after_save_checkpoint")


def guarded(logger: Logger) -> Logger:
    """Let one warning, with the name of the logger, stand for all that it raises."""
    # A subclass whose calls cannot fail takes the place of the logger's class.
    base = type(logger)

    def survives(name: str) -> Callable[..., Any]:
        method = getattr(base, name)

        def call(self: Logger, *arguments: Any, **options: Any) -> Any:
            with _ends_no_run(base.__name__, self):
                return method(self, *arguments, **options)

        return call

    def experiment(self: Any) -> Any:
        with _ends_no_run(base.__name__, self):
            return super(guard, self).experiment
        return DummyExperiment()  # takes every call and does nothing

    members: dict[str, Any] = {name: survives(name) for name in _CALLS if hasattr(base, name)}
    if hasattr(base, "experiment"):
        members["experiment"] = property(experiment)
    guard: Any = type(base.__name__, (base,), members)
    logger.__class__ = guard
    return logger


@contextmanager
def _ends_no_run(name: str, logger: Any = None) -> Iterator[None]:
    """Turn an error of a logger into a warning, once for each logger."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if not getattr(logger, "has_failed", False):
            if logger is not None:
                logger.has_failed = True
            text = f"the logger {name} has failed ({in_one_line(error)}); the run goes on, and its logs may have gaps"
            warnings.warn(text, stacklevel=1)


def show_image(trainer: L.Trainer, name: str, image: np.ndarray) -> None:
    """Pass an image to all loggers that accept images.

    Args:
        trainer: The trainer.
        name: Name of the image in the logs.
        image: (h, w, 3) uint8 RGB.
    """
    step = max(trainer.global_step - 1, 0)  # as Lightning counts steps in logs
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            with _ends_no_run("TensorBoardLogger", logger):
                logger.experiment.add_image(name, torch.from_numpy(image), step, dataformats="HWC")
        elif hasattr(logger, "log_image"):  # the interface of Lightning's WandbLogger
            logger.log_image(name, [image], step=step)


def shows_images(trainer: L.Trainer) -> bool:
    """Return whether any logger accepts images. Drawing them takes long."""
    return any(isinstance(logger, TensorBoardLogger) or hasattr(logger, "log_image") for logger in trainer.loggers)


def _logger_class(name: str) -> type[Logger]:
    """Return a class by its full name. Raise UserError if it is no logger."""
    # Any class of any package, if it is a logger.
    module, _, attribute = name.rpartition(".")
    try:
        logger_class = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError, TypeError) as error:  # the last two: a dot in front
        needed = f"there is no such class ({error})"
        advice = "install its package, or correct the name"
        raise UserError("setting.choice", name="training.loggers", found=name, needed=needed, advice=advice) from None
    if not (isinstance(logger_class, type) and issubclass(logger_class, Logger)):
        needed = "it is not a logger of Lightning"
        advice = "name a class such as lightning.pytorch.loggers.WandbLogger"
        raise UserError("setting.choice", name="training.loggers", found=name, needed=needed, advice=advice)
    return logger_class


def _build_logger(name: str, logger_class: type[Logger], out_dir: Path) -> Logger:
    # Loggers that write files write into the folder of the run.
    arguments: dict[str, Any] = {}
    if "save_dir" in inspect.signature(logger_class).parameters:
        arguments["save_dir"] = str(out_dir)
    try:
        return logger_class(**arguments)
    except ModuleNotFoundError as error:
        raise UserError(
            "install.extra", name=f"training.loggers={name}", found=f"a package is missing: {error}"
        ) from None
    except TypeError as error:
        needed = f"it needs arguments ({error})"
        advice = "name a subclass of yours that gives them"
        raise UserError("setting.form", name="training.loggers", found=name, needed=needed, advice=advice) from None


class FirstValidation(L.Callback):
    """Validates before the first step, so that the logs begin with the weights that a run starts from.

    It must come after the callbacks that write checkpoints. A run that is resumed has done it already.
    """

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.ckpt_path is None:
            trainer.validating = True
            trainer.fit_loop.epoch_loop.val_loop.run()
            trainer.training = True


class LastStep(L.Callback):
    """Logs the last step and validates after it, even if the number of steps is not a multiple of the intervals."""

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        if trainer.global_step >= trainer.max_steps - 1:
            trainer.log_every_n_steps = 1  # type: ignore[attr-defined]

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        if trainer.global_step >= trainer.max_steps:
            trainer.val_check_batch = 1


class DetectionImages(L.Callback):
    """Draws the last labelled frame of the first validation batches, with detections and ground truth.

    The pictures go to the loggers that accept images.
    """

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: SequenceBatch, index: int, *_: Any
    ) -> None:
        assert isinstance(pl_module, DetectionModule)
        if index >= NUM_IMAGES or len(batch.frame_index) == 0:
            return
        if not (trainer.is_global_zero and shows_images(trainer)):
            return
        # The last labelled frame of the batch, with what was found in it.
        step, stream = batch.frame_index[-1].tolist()
        frame = pl_module.detections[(int(batch.recording[stream]), int(batch.t_us[-1]))]
        labels = pl_module.val_labels[int(batch.recording[stream])]
        hist = batch.hist[step, stream].cpu().numpy()
        there = labels[labels.t_us == frame.t_us]
        events = shown_events(hist, WindowSettings(**pl_module.checkpoint_meta["windows"]))
        image = draw_frame(events, frame, there, pl_module.settings.spec.class_names)
        show_image(trainer, f"val/detections_{index}", image)


class SpectrumMonitor(L.Callback):
    """Logs `spectrum/strideN_...` at the training rate: time constants (ms), frequencies (Hz), share of masked modes.

    A layer without modes logs nothing.
    """

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, DetectionModule)
        stride_us = pl_module.settings.trained_stride_us
        draws = trainer.is_global_zero and shows_images(trainer)
        for stride, layer in pl_module.detector.backbone.temporal_layers().items():
            spectrum = layer.spectrum()
            if not isinstance(spectrum, Spectrum):
                continue
            numbers = {f"spectrum/stride{stride}_{name}": value for name, value in summary(spectrum, stride_us).items()}
            pl_module.log_dict(numbers, sync_dist=True)
            if draws:
                figure = spectrum_figure(spectrum, stride_us, f"stride {stride}")
                show_image(trainer, f"spectrum/stride{stride}", figure)


def summary(spectrum: Spectrum, stride_us: float) -> dict[str, float]:
    """Summarise the spectrum of a layer in a few numbers.

    Args:
        spectrum: The spectrum.
        stride_us: The training step.
    """
    timescale_ms, frequency_hz = _in_units(spectrum, stride_us)
    return {
        "timescale_ms_min": float(timescale_ms.min()),
        "timescale_ms_median": float(np.median(timescale_ms)),
        "timescale_ms_max": float(timescale_ms.max()),
        "frequency_hz_median": float(np.median(frequency_hz)),
        "frequency_hz_max": float(frequency_hz.max()),
        "masked_share": float(spectrum.is_masked.double().mean()),
    }


def spectrum_figure(spectrum: Spectrum, stride_us: float, title: str) -> np.ndarray:
    """Draw the modes as points, masked ones in grey, with the limit of the mask and the Nyquist rate.

    Args:
        spectrum: The spectrum.
        stride_us: The training step.
        title: Title of the figure.

    Returns:
        (h, w, 3) uint8 RGB.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # imported here because the import takes a second
    from matplotlib.figure import Figure

    timescale_ms, frequency_hz = _in_units(spectrum, stride_us)
    nyquist_hz = 0.5e6 / stride_us
    is_drawn = np.isfinite(timescale_ms)  # a mode that never decays cannot be drawn on a logarithmic axis
    is_masked = spectrum.is_masked.numpy()
    figure = Figure(figsize=(5.6, 3.8), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    for chosen, color, name in ((~is_masked, "#1f4e8c", "in use"), (is_masked, "0.7", "masked")):
        shown = is_drawn & chosen
        label = f"{name}: {int(chosen.sum())}"
        axes.scatter(frequency_hz[shown], timescale_ms[shown], s=7, color=color, alpha=0.6, linewidths=0, label=label)
    # What the training step can show, and what the bandlimit leaves of it.
    axes.axvline(nyquist_hz, color="0.5", linewidth=1, label=f"Nyquist rate, {nyquist_hz:g} Hz")
    if spectrum.bandlimit:
        limit_hz = spectrum.bandlimit * nyquist_hz
        axes.axvline(limit_hz, color="#c0392b", linewidth=1, linestyle="--", label=f"limit, {limit_hz:g} Hz")
    axes.set_xscale("symlog", linthresh=nyquist_hz / 100)
    axes.set_xlim(0, 1.5 * max(nyquist_hz, float(frequency_hz.max())))
    axes.set_yscale("log")
    axes.set(xlabel="frequency [Hz]", ylabel="time constant [ms]", title=title)
    axes.legend(frameon=False, fontsize=7, loc="best")
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.ascontiguousarray(np.asarray(canvas.buffer_rgba())[..., :3])


def _in_units(spectrum: Spectrum, stride_us: float) -> tuple[np.ndarray, np.ndarray]:
    return spectrum.timescale_steps.numpy() * stride_us / 1e3, spectrum.cycles_per_step.numpy() * 1e6 / stride_us
