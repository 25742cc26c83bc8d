"""What a person reads during training: a bar with losses, speed and time left, and lines on plans and results."""

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning as L
import rich.progress
from lightning.pytorch.utilities import rank_zero_only
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Task, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column

from rvtssm.datasets.datamodule import SequenceDataModule
from rvtssm.models.checkpoint import load_file
from rvtssm.models.checkpoint_meta import CheckpointMeta
from rvtssm.models.detector import count_parameters, head_class
from rvtssm.training import TrainSections
from rvtssm.training.checkpoints import best_checkpoint, checkpoints_of, last_checkpoint
from rvtssm.training.module import DetectionModule
from rvtssm.training.optim import learning_rate_rule
from rvtssm.training.preflight import early_weights, outdated_recordings

LINE_EVERY_S = 60  # where no bar moves
SPEED_OVER_S = 600  # the speed is a mean over this time
SHOWN_LOSSES = ("total", "iou", "objectness", "class")


@rank_zero_only
def say(text: str) -> None:
    """Print a line in the first of the processes that train together."""
    Console(markup=False, highlight=False).print(text, soft_wrap=True)


class Progress(L.Callback):
    """Shows one bar over all optimiser steps with the latest losses, prints validations, and logs `train/data_wait`.

    Where no bar can move, as in a file, a line says that the first step is done, and then another one every minute.

    `data_wait` is the share of the time of all batches, over all parts of a run, that this process spent waiting for
    them: a batch has a waiting time, from the end of the previous work to its start, and a working time. The first
    batch of each part does not count, because workers start and code is compiled during it, nor do validations and
    checkpoints. The work of callbacks that come after this one counts as waiting.
    """

    def __init__(self) -> None:
        self._waiting_s = 0.0
        self._working_s = 0.0
        self._free_at: float | None = None  # end of the previous work; None before the first batch
        self._started_at = 0.0
        self._bar: rich.progress.Progress | None = None
        self._task = TaskID(0)
        self._said_at: float | None = None  # time of the last line; None before the first step

    def state_dict(self) -> dict[str, Any]:
        return {"waiting_s": self._waiting_s, "working_s": self._working_s}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._waiting_s = state_dict["waiting_s"]
        self._working_s = state_dict["working_s"]

    @property
    def data_wait(self) -> float | None:
        """Share of the time of all counted batches spent waiting, 0 to 1; None before the second batch."""
        seconds = self._waiting_s + self._working_s
        return self._waiting_s / seconds if seconds else None

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        numbers = TextColumn("{task.fields[numbers]}", table_column=Column())  # wraps in a narrow terminal
        columns = (BarColumn(12), MofNCompleteColumn(), TimeElapsedColumn(), numbers)
        self._bar = rich.progress.Progress(*columns, console=Console(), speed_estimate_period=SPEED_OVER_S)
        self._task = self._bar.add_task("", total=trainer.max_steps, completed=trainer.global_step, numbers="")
        self._bar.start()

    def on_train_batch_start(self, *_: Any) -> None:
        self._started_at = time.perf_counter()

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        now = time.perf_counter()
        if self._free_at is not None:
            self._waiting_s += self._started_at - self._free_at
            self._working_s += now - self._started_at
            pl_module.log("train/data_wait", self.data_wait or 0.0, batch_size=1)
        self._free_at = now
        if self._bar is not None:
            self._show(self._bar, trainer)

    def _show(self, bar: rich.progress.Progress, trainer: L.Trainer) -> None:
        # Where no bar moves, a line is due every minute.
        task = bar.tasks[self._task]
        step = trainer.global_step
        now = time.perf_counter()
        is_due = self._said_at is None or now - self._said_at >= LINE_EVERY_S
        is_due &= step > task.completed and not (bar.console.is_terminal or bar.console.is_jupyter)
        bar.update(self._task, completed=step)
        # Reading the losses waits for a GPU.
        every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]
        if is_due or step % every == 0 or trainer.strategy.root_device.type == "cpu":
            bar.update(self._task, numbers=self._numbers(task, trainer))
        if is_due:
            self._said_at = now
            line = f"step {step}/{trainer.max_steps}  {task.fields['numbers']}"
            bar.console.print(line, highlight=False, soft_wrap=True)

    def _numbers(self, task: Task, trainer: L.Trainer) -> str:
        """Return speed, time left, waiting and losses in words, as far as they are known."""
        metrics = trainer.callback_metrics
        parts = []
        if task.speed and task.remaining is not None:
            left = timedelta(seconds=round(task.remaining / task.speed))
            parts += [f"{task.speed:.2f} it/s", f"{left} left"]
        if self.data_wait is not None:
            parts.append(f"{self.data_wait:.0%} data wait")
        parts += [f"{name} {metrics[f'train/{name}']:.2f}" for name in SHOWN_LOSSES if f"train/{name}" in metrics]
        return "  ".join(parts)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        metrics = trainer.callback_metrics
        if self._bar is not None and "val/AP" in metrics:
            ap, ap50 = (f"{100 * metrics[name]:.1f}" for name in ("val/AP", "val/AP50"))
            self._bar.console.print(f"step {trainer.global_step}: validation AP {ap}, AP50 {ap50}", highlight=False)
        if self._free_at is not None:
            self._free_at = time.perf_counter()

    def on_train_end(self, *_: Any) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def on_exception(self, *_: Any) -> None:
        self.on_train_end()


def say_doubts(sections: TrainSections, data: SequenceDataModule, total_batch: int) -> None:
    """Warn of what may not be meant, and tell the learning rate if a rule changes it."""
    outdated = outdated_recordings(sections.dataset.raw_dir, data)
    if outdated:
        say(
            f"warning: {len(outdated)} prepared recordings, such as {outdated[0]}, were made from other recordings or "
            f"labels than those in {sections.dataset.raw_dir}; `rvtssm preprocess` makes them again, and `rvtssm "
            "inspect DIR full=true` names all of them"
        )
    if warning := early_weights(sections.training.average, sections.training.steps):
        say(f"warning: {warning}")
    if sections.optim.scale_with_batch:
        say(learning_rate_rule(sections.optim, total_batch))


def facts(
    sections: TrainSections, trainer: L.Trainer, data: SequenceDataModule, meta: CheckpointMeta, total_batch: int
) -> dict[str, Any]:
    """Return what a person wants to check before a run: its data, its steps, where and how it runs."""
    training = sections.training
    sampling = sections.sampling
    # What it trains on.
    recordings = {}
    for split in ("train", "val"):
        recordings[split] = data.in_words(split, data.sequences(split))
    # How a step is made up, and where it runs.
    batch = f"{total_batch} x {sampling.chunk_length} windows"
    parts = {"processes": training.devices * training.num_nodes, "accumulated batches": training.accumulate}
    factors = [f"{number} {name}" for name, number in parts.items() if number > 1]
    if factors:
        batch += f" ({' x '.join([*factors, str(sampling.num_chunks)])})"
    device = str(trainer.strategy.root_device)
    if trainer.world_size > 1:
        device += f" x {trainer.world_size}"
    return {
        "source": f"{data.source} {data.spec.name}",
        "stride": f"{meta.windows.stride_us / 1000:g} ms",
        "recordings": f"{recordings['train']} (validation: {recordings['val']})",
        "steps": f"{training.steps} of {batch}",
        "device": device,
        "precision": training.precision,
        "score": head_class(sections.model).describe_scores(sections.postprocess),
    }


def say_trained(sections: TrainSections, trainer: L.Trainer, module: DetectionModule) -> None:
    """Tell how long a run took, how good its weights are, and where they and its logs are."""
    training = sections.training
    out = sections.run_dir
    checkpoints = checkpoints_of(trainer)
    if trainer.global_step < training.steps:
        say(
            f"ended before step {training.steps}: {checkpoints.num_without_gain} validations in a row had no higher AP "
            f"(training.patience={training.patience})"
        )
    # One line about the whole run, and where its weights and logs are.
    millions = count_parameters(module.detector)["total"] / 1e6
    text = f"trained {millions:.3f} M parameters for {trainer.global_step} steps in {module.train_seconds:.0f} s"
    text += f" in {training.precision}"
    progress = next(callback for callback in trainer.callbacks if isinstance(callback, Progress))  # type: ignore[attr-defined]
    if progress.data_wait is not None:
        text += f", {progress.data_wait:.1%} data wait"
    if checkpoints.start_ap is not None:
        text += (
            f"; validation AP {_percent(checkpoints.start_ap)} at the start, {_percent(checkpoints.best_ap)} at best"
        )
    say(f"{text}; weights: {best_checkpoint(out)}, logs: {out}")
    if "tensorboard" in training.loggers:
        say(f"losses, AP and pictures: tensorboard --logdir {out}")


def _percent(ap: float) -> str:
    return "unknown" if ap < 0 else f"{100 * ap:.1f}"


def say_interrupted_at_the_end(out: Path, trainer: L.Trainer) -> None:
    """Tell about the weights of a run that was interrupted after its last step; nothing for any other run."""
    last = last_checkpoint(out)
    max_steps = trainer.max_steps
    if trainer.global_step < max_steps:
        return
    last_step = load_file(last)["global_step"] if last.is_file() else 0
    if last_step == max_steps:
        best = best_checkpoint(out)
        say(f"all {last_step} steps and the last validation are done; weights: {best} (highest AP) and {last}")
        return
    weights = "there are none"
    if last_step:
        weights = f"{last} has those of step {last_step}, from which resume=auto continues"
    say(f"all {max_steps} steps are done, but weights are written after the last validation; {weights}")
