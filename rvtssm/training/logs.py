"""What a run logs, and where: gradients, drawn detections and the modes of the temporal layers.

It always writes CSV, by default also for TensorBoard, or for any other logger of Lightning. A loss or gradient that is
not finite stops a run, which says at which step and which recordings.
"""

import importlib
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from torch import Tensor

from rvtssm.drawing.draw import draw_frame, shown_events
from rvtssm.models.detector import parameters_by_room
from rvtssm.records import SequenceBatch, WindowSettings
from rvtssm.ssm.spectrum import Spectrum
from rvtssm.system.user_error import UserError
from rvtssm.training.module import DetectionModule

NUM_IMAGES = 4  # drawn at each validation: one row of four on a page of TensorBoard
_MOST_NAMED = 3  # tensors or recordings in the message


def build_loggers(names: Sequence[str], out_dir: Path) -> list[Logger]:
    """Return the named loggers and a CSV logger.

    Args:
        names: tensorboard, or full names of logger classes.
        out_dir: Folder of the run.

    Raises:
        UserError: A logger does not exist or needs arguments.
    """
    loggers = [_build_logger(name, out_dir) for name in names]
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
    if name == "tensorboard":
        return TensorBoardLogger(out_dir, name="", version="tensorboard")
    module, _, attribute = name.rpartition(".")
    try:
        logger_class = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError, TypeError) as error:  # the last two: a dot in front
        raise UserError(
            "loggers.missing", f"training.loggers: there is no {name} ({error}); install it, or correct the name"
        ) from None
    if not (isinstance(logger_class, type) and issubclass(logger_class, Logger)):
        raise UserError(
            "loggers.not_a_logger",
            f"training.loggers: {name} is not a logger of Lightning; name a class such as WandbLogger",
        )
    arguments: dict[str, Any] = {}
    if "save_dir" in inspect.signature(logger_class).parameters:
        arguments["save_dir"] = str(out_dir)
    try:
        return logger_class(**arguments)
    except ModuleNotFoundError as error:
        raise UserError(
            "loggers.package_missing", f"training.loggers: {name} needs a package that is not installed: {error}"
        ) from None
    except TypeError as error:
        raise UserError(
            "loggers.arguments",
            f"training.loggers: {name} needs arguments ({error}); name a subclass of yours that gives them",
        ) from None


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


class GradientNorms(L.Callback):
    """Logs the Euclidean norms `grad_norm/ROOM` at logged steps, over all processes and batches of a step."""

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        if (trainer.global_step + 1) % trainer.log_every_n_steps:  # type: ignore[attr-defined]
            return
        assert isinstance(pl_module, DetectionModule)
        norms = {}
        for room, parameters in parameters_by_room(pl_module.detector).items():
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            norms[f"grad_norm/{room}"] = torch.nn.utils.get_total_norm(gradients)
        pl_module.log_dict(norms, batch_size=1)


class NonFiniteStop(L.Callback):
    """Raises UserError before an optimiser step if a loss or a gradient is not finite in any process.

    The weights in memory and on disk are then those of the previous step. With 16-mixed only losses are checked, since
    its scaler skips steps whose gradients are not finite.
    """

    def __init__(self) -> None:
        self._recordings: list[int] = []  # in the batches of this step
        self._loss: Tensor | None = None  # loss of a batch that has not been checked yet
        self._is_loss_finite = True  # of all batches of this step that have been checked

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: SequenceBatch, *_: Any
    ) -> None:
        self._recordings += batch.recording.tolist()

    def on_before_backward(self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor) -> None:
        self._loss = loss.detach()  # reading its value here would make the device wait

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        self._check()  # for a batch whose gradient is accumulated without an optimiser step

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        assert isinstance(pl_module, DetectionModule)
        gradients = [p.grad for p in pl_module.detector.parameters() if p.grad is not None]
        if trainer.precision == "16-mixed" or not gradients:
            has_finite_gradients = self._check()
        else:  # the norm is fast to compute, and is not finite if a gradient is not; it may also overflow
            is_norm_finite = self._check(torch.nn.utils.get_total_norm(gradients))
            has_finite_gradients = is_norm_finite or all(bool(gradient.isfinite().all()) for gradient in gradients)
        is_bad = not (self._is_loss_finite and has_finite_gradients)
        # All processes have to stop, because any that continue would wait for this one forever.
        if trainer.strategy.reduce_boolean_decision(is_bad, all=False):
            self._stop(trainer, pl_module)
        self._recordings = []

    def _check(self, norm: Tensor | None = None) -> bool:
        """Check the loss, and return whether `norm` is finite. Reads once, which waits for a GPU."""
        values = [value for value in (self._loss, norm) if value is not None]
        finite = torch.stack([value.isfinite() for value in values]).tolist() if values else []
        if self._loss is not None:
            self._is_loss_finite &= finite[0]
        self._loss = None
        return norm is None or finite[-1]

    def _stop(self, trainer: L.Trainer, module: DetectionModule) -> None:
        """Raise UserError. All processes say the same, so that it does not matter whose message is seen."""
        losses = {name: float(value) for name, value in module.latest_losses.items()}
        parts = module.of_all_processes((self._is_loss_finite, losses, self._recordings))
        is_finite, losses, _ = min(parts, key=lambda part: part[0])  # of the first process with such a loss, if any
        numbers = {number for finite, _, part in parts if finite == is_finite for number in part if number >= 0}
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        recordings = sorted(data.sequences("train")[number].name for number in numbers)
        text = ", ".join(f"{name} {value:g}" for name, value in losses.items())
        named = list(module.detector.named_parameters())
        weights = [name for name, p in named if not p.isfinite().all()]
        gradients = [name for name, p in named if p.grad is not None and not p.grad.isfinite().all()]
        for kind, listed in (("weights", weights), ("gradients", gradients)):
            if listed:
                text += f"; {kind} {_first_of(listed)}"
        raise UserError(
            "training.not_finite",
            f"training stopped before step {trainer.global_step + 1}, which is not finite: loss {text}; its batch "
            f"holds the recordings {_first_of(recordings)}; look at them with `rvtssm inspect`, or train with a lower "
            "optim.learning_rate or in full precision",
        )


def _first_of(names: list[str]) -> str:
    text = ", ".join(names[:_MOST_NAMED])
    if len(names) > _MOST_NAMED:
        text += f" and {len(names) - _MOST_NAMED} more"
    return text


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
        step, stream = batch.frame_index[-1].tolist()
        frame = pl_module.detections[(int(batch.recording[stream]), int(batch.t_us[-1]))]
        labels = pl_module.val_labels[int(batch.recording[stream])]
        hist, there = batch.hist[step, stream].cpu().numpy(), labels[labels.t_us == frame.t_us]
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
