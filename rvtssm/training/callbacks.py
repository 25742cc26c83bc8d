"""What a person watches while a model trains: a progress bar with losses, validations, images of detections."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.loggers import TensorBoardLogger
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as TimeLeft

from rvtssm.inference.draw import draw_frame
from rvtssm.records import SequenceBatch
from rvtssm.training.module import DetectionModule

SHOWN_LOSSES = ("total", "iou", "objectness", "class")


class TrainingProgress(ProgressBar):
    """One bar over all optimiser steps with the latest losses, and a line for each validation."""

    def __init__(self) -> None:
        super().__init__()
        self.is_enabled = True
        self.console = Console()
        self.bar: Progress | None = None
        self.task = TaskID(0)

    def enable(self) -> None:
        self.is_enabled = True

    def disable(self) -> None:  # Lightning calls it on all processes but the first
        self.is_enabled = False

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not self.is_enabled:
            return
        columns = (
            BarColumn(24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TimeElapsedColumn(),
            TimeLeft(),
        )
        self.bar = Progress(*columns, TextColumn("{task.fields[losses]}"), console=self.console)
        self.task = self.bar.add_task("", total=trainer.max_steps, completed=trainer.global_step, losses="", speed="")
        self.bar.start()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.bar is None:
            return
        metrics = trainer.callback_metrics
        losses = [f"{name} {metrics[f'train/{name}']:.2f}" for name in SHOWN_LOSSES if f"train/{name}" in metrics]
        speed = self.bar.tasks[0].speed
        self.bar.update(
            self.task,
            completed=trainer.global_step,
            losses="  ".join(losses),
            speed=f"{speed:.2f} it/s" if speed else "",
        )

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        metrics = trainer.callback_metrics
        if self.bar is not None and "val/AP" in metrics:
            self.bar.console.print(
                f"step {trainer.global_step}: validation AP {100 * metrics['val/AP']:.1f}, "
                f"AP50 {100 * metrics['val/AP50']:.1f}",
                highlight=False,
            )

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._close()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self._close()

    def _close(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


class FinalValidation(L.Callback):
    """Validates after the last step, whether or not the interval of validations divides it."""

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step >= trainer.max_steps:
            trainer.val_check_batch = 1


class DetectionImages(L.Callback):
    """Draws the last labelled frame of the first validation batches into TensorBoard."""

    def __init__(self, num_images: int = 4, min_score: float = 0.3) -> None:
        self.num_images = num_images
        self.min_score = min_score

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: SequenceBatch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        assert isinstance(pl_module, DetectionModule)
        boards = [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]
        if not boards or batch_idx >= self.num_images or len(batch.frame_index) == 0:
            return
        step, stream = batch.frame_index[-1].tolist()
        frame = pl_module.found[(int(batch.recording[stream]), int(batch.t_us[-1]))]
        labels = pl_module.val_labels[int(batch.recording[stream])]
        image = draw_frame(
            batch.hist[step, stream].cpu().numpy(),
            frame,
            labels[labels.t_us == frame.t_us],
            pl_module.settings.spec.class_names,
            min_score=self.min_score,
        )
        for board in boards:
            board.experiment.add_image(
                f"val/detections_{batch_idx}", torch.from_numpy(image), trainer.global_step, dataformats="HWC"
            )
