"""What a person watches during training: a progress bar with losses, speed and time left, and the validations."""

import math
import time
from collections import deque
from datetime import timedelta
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import ProgressBar
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column

LINE_EVERY_S = 60  # where no bar moves
SHOWN_LOSSES = ("total", "iou", "objectness", "class")


class Pace(L.Callback):
    """Measures every batch of this process and logs `train/data_wait`.

    A batch has a waiting time, from the end of the previous work to its start, and a working time. `data_wait` is the
    share of waiting over all parts of the run. The first batch of each part does not count, because workers start and
    code is compiled during it. Validations and checkpoints count as neither. Pace must be the last callback; otherwise
    the work of later callbacks counts as waiting.

    Args:
        validate_every: Steps between validations.
        window: Number of recent batches, from which the speed is computed.
    """

    def __init__(self, validate_every: int, window: int) -> None:
        self.validate_every = validate_every
        self._recent_s: deque[float] = deque(maxlen=window)  # waiting and work of each batch
        self._waiting_s, self._working_s = 0.0, 0.0
        self._free_at, self._started_at = 0.0, 0.0  # end of the previous work, start of the batch
        self._first_step, self._first_ended_at = -1, 0.0  # first step of this part of the run
        self._validation_at, self._validation_s, self._num_validations = 0.0, 0.0, 0

    def state_dict(self) -> dict[str, Any]:
        return {"waiting_s": self._waiting_s, "working_s": self._working_s}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._waiting_s, self._working_s = state_dict["waiting_s"], state_dict["working_s"]

    @property
    def data_wait(self) -> float | None:
        """Share of the time of all counted batches spent waiting, 0 to 1; None before the second batch."""
        seconds = self._waiting_s + self._working_s
        return self._waiting_s / seconds if seconds else None

    @property
    def batches_per_second(self) -> float | None:
        """Speed over the recent batches; None before the second batch."""
        seconds = sum(self._recent_s)
        return len(self._recent_s) / seconds if seconds else None

    def seconds_left(self, step: int, num_steps: int) -> tuple[float, bool] | None:
        """Estimate the time left from the mean pace of this part of the run.

        Args:
            step: Optimiser steps so far.
            num_steps: Optimiser steps of the whole run.

        Returns:
            Seconds, and whether they include validations, which needs at least one measured validation. None before the
            second step.
        """
        done = step - self._first_step
        if self._first_step < 0 or done < 1:
            return None
        per_step = (time.perf_counter() - self._first_ended_at - self._validation_s) / done
        to_validate = -(-num_steps // self.validate_every) - step // self.validate_every
        per_validation = self._validation_s / max(self._num_validations, 1)
        return per_step * (num_steps - step) + per_validation * to_validate, bool(self._num_validations)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._free_at = time.perf_counter()

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        self._started_at = time.perf_counter()

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        now = time.perf_counter()
        if self._first_step < 0:
            self._first_step, self._first_ended_at = trainer.global_step, now
        else:
            self._waiting_s += self._started_at - self._free_at
            self._working_s += now - self._started_at
            self._recent_s.append(now - self._free_at)
            pl_module.log("train/data_wait", self.data_wait or 0.0, batch_size=1)
        self._free_at = now

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._validation_at = time.perf_counter()

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._free_at = time.perf_counter()
        self._validation_s += self._free_at - self._validation_at
        self._num_validations += 1


def pace_of(trainer: L.Trainer) -> Pace:
    """Return the Pace callback of a trainer."""
    return next(callback for callback in trainer.callbacks if isinstance(callback, Pace))  # type: ignore[attr-defined]


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
            to_go, every_step = trainer.max_steps - trainer.global_step, self.pace.validate_every
            text = f"first step after {seconds:.0f} s; {to_go} to go, with a validation every {every_step}"
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
    estimate = pace.seconds_left(step, num_steps)
    if estimate is None:
        return ""
    seconds, is_complete = estimate
    return f"{'' if is_complete else 'over '}{timedelta(seconds=round(seconds))} left"
