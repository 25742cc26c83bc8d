"""What a person watches during training: a progress bar with losses, validations, gradients and drawn detections."""

import math
import time
from datetime import timedelta
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import ProgressBar
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column

from rvtssm.drawing.draw import draw_frame, shown_events
from rvtssm.models.detector import parameters_by_room
from rvtssm.records import SequenceBatch, WindowSettings
from rvtssm.training.loggers import show_image, shows_images
from rvtssm.training.module import DetectionModule
from rvtssm.training.pace import Pace

LINE_EVERY_S = 60  # where no bar moves
NUM_IMAGES = 4  # drawn at each validation: one row of four on a page of TensorBoard
SHOWN_LOSSES = ("total", "iou", "objectness", "class")


class TrainingProgress(ProgressBar):
    """Shows one bar over all optimiser steps, with pace, time left and the latest losses, and prints each validation.

    Where no bar can move, as in a file, a line says that the first step is done, and then another one every minute.

    Args:
        pace: Measures the speed of the run.
    """

    def __init__(self, pace: Pace) -> None:
        super().__init__()
        self.pace = pace
        self.is_enabled = True
        self.bar: Progress | None = None
        self.task = TaskID(0)
        self._began: tuple[int, float] | None = None  # step and time at the start; None once the first step is told
        self._said_at = math.inf  # time of the last line; infinite where a bar moves

    def enable(self) -> None:
        self.is_enabled = True

    def disable(self) -> None:  # Lightning calls this in all processes except the first
        self.is_enabled = False

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not self.is_enabled:
            return
        pace, left = TextColumn("{task.fields[pace]}"), TextColumn("{task.fields[left]}")
        losses = TextColumn("{task.fields[losses]}", table_column=Column())  # wraps in a narrow terminal
        columns = (BarColumn(12), MofNCompleteColumn(), pace, TimeElapsedColumn(), left, losses)
        self.bar = Progress(*columns, console=Console())
        done = trainer.global_step
        self.task = self.bar.add_task("", total=trainer.max_steps, completed=done, losses="", pace="", left="")
        self.bar.start()
        shows_bar = self.bar.console.is_terminal or self.bar.console.is_jupyter
        self._began = None if shows_bar else (done, time.perf_counter())

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        if self.bar is None:
            return
        if self._began and trainer.global_step > self._began[0]:
            self._said_at = time.perf_counter()
            seconds, self._began = self._said_at - self._began[1], None
            left, every_step = trainer.max_steps - trainer.global_step, self.pace.validate_every
            text = f"first step after {seconds:.0f} s; {left} to go, with a validation every {every_step}"
            self.bar.console.print(text, highlight=False, soft_wrap=True)
        every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]
        says = time.perf_counter() - self._said_at >= LINE_EVERY_S
        # reading waits for a GPU
        if says or trainer.strategy.root_device.type == "cpu" or trainer.global_step % every == 0:
            metrics = trainer.callback_metrics
            losses = [f"{name} {metrics[f'train/{name}']:.2f}" for name in SHOWN_LOSSES if f"train/{name}" in metrics]
            self.bar.update(self.task, losses="  ".join(losses))
        self.bar.update(
            self.task,
            completed=trainer.global_step,
            pace=pace_text(self.pace, trainer.accumulate_grad_batches),
            left=left_text(self.pace, trainer.global_step, trainer.max_steps),
        )
        if says:
            self._said_at, shown = time.perf_counter(), self.bar.tasks[self.task].fields
            parts = (f"step {trainer.global_step}/{trainer.max_steps}", shown["pace"], shown["left"], shown["losses"])
            self.bar.console.print("  ".join(filter(None, parts)), highlight=False, soft_wrap=True)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.bar is not None:
            _print_validation(trainer, self.bar.console)

    def on_train_end(self, *_: Any) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def on_exception(self, *_: Any) -> None:
        self.on_train_end()


def _print_validation(trainer: L.Trainer, console: Console) -> None:
    metrics = trainer.callback_metrics
    if "val/AP" in metrics:
        ap, ap50 = (f"{100 * metrics[name]:.1f}" for name in ("val/AP", "val/AP50"))
        console.print(f"step {trainer.global_step}: validation AP {ap}, AP50 {ap50}", highlight=False)


def pace_text(pace: Pace, accumulate: int) -> str:
    """Return optimiser steps per second and the share of time spent waiting for data; empty before they are known.

    Args:
        pace: Measures the speed of the run.
        accumulate: Batches per optimiser step.
    """
    if pace.batches_per_second is None or pace.data_wait is None:
        return ""
    return f"{pace.batches_per_second / accumulate:.2f} it/s  {pace.data_wait:.0%} data wait"


def left_text(pace: Pace, step: int, num_steps: int) -> str:
    """Return the time left. It starts with "over" until the first validation has shown how long one takes.

    Args:
        pace: Measures the speed of the run.
        step: Optimiser steps so far.
        num_steps: Optimiser steps of the whole run.
    """
    left = pace.seconds_left(step, num_steps)
    if left is None:
        return ""
    seconds, is_complete = left
    return f"{'' if is_complete else 'over '}{timedelta(seconds=round(seconds))} left"


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
        frame = pl_module.found[(int(batch.recording[stream]), int(batch.t_us[-1]))]
        labels = pl_module.val_labels[int(batch.recording[stream])]
        hist, there = batch.hist[step, stream].cpu().numpy(), labels[labels.t_us == frame.t_us]
        events = shown_events(hist, WindowSettings(**pl_module.checkpoint_meta["windows"]))
        image = draw_frame(events, frame, there, pl_module.settings.spec.class_names)
        show_image(trainer, f"val/detections_{index}", image)
