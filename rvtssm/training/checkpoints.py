"""Which weights of a run are kept: the best by validation AP, and the last, from which the run can be resumed.

Besides the weights, every process stores the states of its streams and its random numbers. The checkpoint holds those
of the first process, and the names of files beside it for the other processes, each of which writes its own. Together
they can be gigabytes, which no process should have to collect.
"""

import copy
import logging
import math
import shutil
import signal
import threading
import time
import warnings
import zipfile
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.fabric.plugins.io import TorchCheckpointIO
from lightning.pytorch.callbacks import Checkpoint, WeightAveraging

from rvtssm.datasets.loader import STOP_SIGNALS
from rvtssm.models.checkpoint import load_file, save_file
from rvtssm.system.files import atomic_file, remove_abandoned
from rvtssm.system.user_error import UserError, in_one_line

log = logging.getLogger(__name__)

MINUTES = 10.0  # a run that is killed loses no more


def best_checkpoint(out_dir: Path) -> Path:
    """Return where a run in `out_dir` keeps the weights with the highest validation AP."""
    return out_dir / "checkpoints" / "best.ckpt"


def last_checkpoint(out_dir: Path) -> Path:
    """Return where a run in `out_dir` keeps its latest weights."""
    return out_dir / "checkpoints" / "last.ckpt"


def latest_checkpoint(out_dir: Path) -> Path:
    """Return from which weights `resume=auto` continues a run: the best ones, with a warning, if the last are cut."""
    last = last_checkpoint(out_dir)
    best = best_checkpoint(out_dir)
    if is_whole(last) or not is_whole(best):
        return last
    if last.is_file():
        warnings.warn(f"{last} is cut; resume=auto takes {best}, which has step {step_of(best)}", stacklevel=1)
    return best


def is_whole(path: Path) -> bool:
    """Return whether a file is there and has the end of a checkpoint, which a file that was cut lacks."""
    return path.is_file() and zipfile.is_zipfile(path)


def step_of(path: Path) -> int:
    """Return how many optimiser steps the weights of a run in `path` have taken."""
    return int(load_file(path)["global_step"])


def has_no_patience(num_without_gain: int, patience: int | None) -> bool:
    """Return whether a run ends early: after `patience` validations in a row without a higher AP."""
    return patience is not None and num_without_gain >= patience


def validations_without_gain(state: dict[str, Any]) -> int:
    """Return how many validations in a row, up to a checkpoint, had no higher AP than an earlier one."""
    return int(state["callbacks"][Checkpoints.__name__]["num_without_gain"])


def checkpoints_of(trainer: L.Trainer) -> "Checkpoints":
    """Return the callback of a trainer that writes checkpoints."""
    return next(callback for callback in trainer.callbacks if isinstance(callback, Checkpoints))  # type: ignore[attr-defined]


def best_ap(path: Path) -> float:
    """Return the validation AP, in [0, 1], of the weights that a run keeps at `path`; -1 without ground truth."""
    return float(load_file(path)["callbacks"][Checkpoints.__name__]["best_ap"])


class DirectCheckpointIO(TorchCheckpointIO):
    """Writes checkpoints as `save_file` does. Lightning would write them to the folder for temporary files first."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        save_file(path, checkpoint)


class Averaging(WeightAveraging):
    """Averages the weights, and knows whether the average is in their place, as during a validation."""

    _is_swapped = False

    @property
    def average(self) -> torch.nn.Module:
        """The average, or, while that is in their place, the weights that are trained."""
        assert self._average_model is not None, "the training has not been set up"
        return self._average_model

    def on_validation_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        super().on_validation_epoch_start(trainer, pl_module)
        self._is_swapped = True

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        super().on_validation_epoch_end(trainer, pl_module)
        self._is_swapped = False

    def swap_back(self, module: L.LightningModule) -> None:
        """Put the weights that are trained in their place, if the average is there."""
        if self._is_swapped:
            self.on_validation_epoch_end(module.trainer, module)


class Checkpoints(Checkpoint):
    """Writes `best.ckpt` and `last.ckpt`. A file with one of these names is always complete.

    `last.ckpt` is written after every validation, every `every` steps, MINUTES after it was last written, and when
    the run receives one of STOP_SIGNALS. In the last case the run finishes its current step or validation and stops; a
    second Ctrl-C stops it at once. An error that ends the run first writes `last.ckpt` as it was after the last whole
    step, so that no step is lost. Processes that train together agree after every step whether to write and whether to
    stop, so it does not matter which of them received the signal. They agree over the network and not through their
    GPUs, so that no process waits for a GPU. The top of this file says what each process writes.

    Args:
        out_dir: Folder of the run.
        every: Steps between checkpoints.
        patience: Validations in a row without a higher AP, after which the run ends; None: it takes all its steps.
    """

    def __init__(self, out_dir: Path, every: int, patience: int | None = None) -> None:
        self.best = best_checkpoint(out_dir)
        self.last = last_checkpoint(out_dir)
        self.every = every
        self.patience = patience
        self.best_ap = -math.inf
        self.start_ap: float | None = None  # of the weights before the first step, if they were validated
        self.num_without_gain = 0  # validations since the last one with a higher AP
        self._step = 0
        self._whole_step: dict[str, Any] = {}  # what a checkpoint holds, beside weights, after the last whole step
        self._last_has_step = -1  # step of `last.ckpt`
        self._saved_at = time.monotonic()
        self._has_stop_signal = False  # this process has received a stop signal
        self._can_stop = False  # all processes have agreed to stop, and the last checkpoint is written
        self._group: Any = None  # communication between the CPUs of all processes
        self._files_of_best: set[str] = set()

    def state_dict(self) -> dict[str, Any]:
        return {"best_ap": self.best_ap, "start_ap": self.start_ap, "num_without_gain": self.num_without_gain}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        # A run that is resumed in another folder has no best weights there yet.
        self.best_ap = state_dict["best_ap"] if self.best.is_file() else -math.inf
        self.start_ap = state_dict["start_ap"]
        self.num_without_gain = state_dict["num_without_gain"]

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._step = trainer.global_step
        self._saved_at = time.monotonic()
        if trainer.is_global_zero:
            remove_abandoned(self.last.parent)  # left by a run that was killed while writing
        if trainer.world_size > 1:
            self._group = torch.distributed.new_group(backend="gloo")
            self._files_of_best = named_files(self.best)
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:  # the trainer restores the handlers when it ends
                signal.signal(number, self._on_stop_signal)

    def _on_stop_signal(self, number: int, frame: Any) -> None:
        if not self._has_stop_signal:
            log.warning("the run stops after this step or validation; Ctrl-C stops it at once")
        self._has_stop_signal = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        if self._can_stop:  # at the end of the previous step, its losses were not logged yet
            self._stop(trainer)

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        if self._step == trainer.global_step:  # gradients are being accumulated
            return
        self._step = trainer.global_step
        will_validate = (trainer.fit_loop.total_batch_idx + 1) % (trainer.val_check_batch or math.inf) == 0
        self._keep_whole_step(trainer, will_validate)
        if will_validate:
            return
        will_stop, is_due = self._agreed(trainer)
        if will_stop or is_due or self._step % self.every == 0:
            self._save(trainer, self.last)
            self._can_stop = will_stop

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # Without ground truth, every AP is better than this one.
        ap = float(trainer.callback_metrics.get("val/AP", math.nan))
        if math.isnan(ap):  # there was no ground truth
            ap = -1.0
        if trainer.global_step == 0:
            self.start_ap = ap
            return
        is_best = ap >= self.best_ap
        self.num_without_gain += 1
        if ap > self.best_ap:
            self.num_without_gain = 0
        if is_best:
            self.best_ap = ap
            self._save(trainer, self.best)
        # The last weights are those of this validation, often a copy of the best.
        will_stop, _ = self._agreed(trainer)
        self._save(trainer, self.last, copy_of=self.best if is_best else None)
        self._can_stop = will_stop
        if has_no_patience(self.num_without_gain, self.patience):
            trainer.should_stop = True  # in every process, since all have the same AP

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._can_stop:
            self._stop(trainer)

    def _keep_whole_step(self, trainer: L.Trainer, will_validate: bool) -> None:
        """Keep what the next step would change before it is known whether it succeeds."""
        module: Any = trainer.lightning_module
        loops = copy.deepcopy(trainer.fit_loop.state_dict())
        if will_validate:
            # As Lightning stores a run within a validation, which it then repeats. It would count this step for the
            # logs before that validation, in place of after it.
            loops["epoch_loop.state_dict"]["_batches_that_stepped"] -= 1
            for count in ("ready", "started"):
                loops["epoch_loop.val_loop.batch_progress"]["total"][count] += 1
        self._whole_step = {"step": trainer.global_step, "loops": loops, "states": module.states_of_step()}

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.interrupted:
            checkpoint["loops"]["fit_loop"] = self._whole_step["loops"]

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Write `last.ckpt` of the last whole step, if an error, and no interruption, has ended the run."""
        if not isinstance(exception, Exception) or not self._step:
            return
        # Several processes can only write together, as they do where all have the same error.
        if trainer.world_size > 1 and not (isinstance(exception, UserError) and exception.key == "run.not_finite"):
            reached = "no checkpoint"
            if self.last.is_file():
                reached = f"step {step_of(self.last)} in {self.last}"
            log.warning(
                "processes that train together only write together, so the run goes back from step %d to %s",
                trainer.global_step,
                reached,
            )
            return
        if trainer.global_step > self._whole_step.get("step", self._step):  # the error came after the optimiser's step
            self._keep_whole_step(trainer, will_validate=False)
        if trainer.global_step != self._whole_step.get("step") or self._last_has_step == trainer.global_step:
            return
        module: Any = pl_module
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, Averaging):
                callback.swap_back(module)
        module.go_back_to_step(self._whole_step["states"])
        try:
            self._save(trainer, self.last)
            if self._last_has_step == trainer.global_step:
                log.warning("%s has step %d, from which resume=auto continues", self.last, trainer.global_step)
        except Exception as error:  # the error that ended the run is the one to show
            log.warning("%s could not be written: %s", self.last, in_one_line(error))

    def _agreed(self, trainer: L.Trainer) -> tuple[bool, bool]:
        """Return whether any process has to stop, and whether it is time to write for any of them."""
        is_due = time.monotonic() - self._saved_at >= 60 * MINUTES
        if trainer.world_size == 1:
            return self._has_stop_signal, is_due
        wishes = torch.tensor([self._has_stop_signal, is_due], dtype=torch.int32)
        torch.distributed.all_reduce(wishes, op=torch.distributed.ReduceOp.MAX, group=self._group)
        will_stop, is_due = wishes.bool().tolist()
        return will_stop, is_due

    def _save(self, trainer: L.Trainer, path: Path, copy_of: Path | None = None) -> None:
        # The files stay what a run can go on from. All processes have the same weights, and the same average of them.
        kept = list(trainer.lightning_module.parameters())
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, Averaging):
                kept += callback.average.parameters()
        if not all(bool(weight.isfinite().all()) for weight in kept):
            log.warning("the weights of step %d, or their average, are not finite and not written", trainer.global_step)
            return
        # Other processes write first, so that a checkpoint only names files that exist.
        files = file_names(trainer.global_step, trainer.world_size)
        try:
            if copy_of is None:
                if files:
                    self._write_own(trainer, path.parent, files)
                trainer.save_checkpoint(path)  # every process contributes; the first one writes
            elif trainer.is_global_zero:
                with atomic_file(path) as staged:
                    shutil.copyfile(copy_of, staged)
        except OSError as error:
            if error.strerror:  # the error of a full disk does not name the file
                error.filename = str(path)
            raise
        if path == self.last:
            self._last_has_step = trainer.global_step
        if path == self.best:
            self._files_of_best = set(files)
        elif files and trainer.is_global_zero:
            remove_other_files(path.parent, {*files, *self._files_of_best})
        self._saved_at = time.monotonic()

    def _write_own(self, trainer: L.Trainer, folder: Path, files: list[str]) -> None:
        """Write the states of this process. A checkpoint that names these files is only written once all exist."""
        module: Any = trainer.lightning_module
        if trainer.global_rank:
            save_file(folder / files[trainer.global_rank - 1], module.own_states())
        trainer.strategy.barrier("states")

    def _stop(self, trainer: L.Trainer) -> None:
        """End this process. Only the first process ends with an error, because launchers then kill all others."""
        for logger in trainer.loggers:
            logger.save()
        trainer.strategy.barrier("stop")
        if not trainer.is_global_zero:
            raise SystemExit(0)
        raise KeyboardInterrupt


def file_names(step: int, num_processes: int) -> list[str]:
    """Return the file names of all processes except the first. They contain the optimiser step."""
    return [f"step_{step}_process_{rank}.pt" for rank in range(1, num_processes)]


def read_states(checkpoint: Path, stored: list[Any], rank: int) -> dict[str, Any]:
    """Return the states of a process from a checkpoint.

    Args:
        checkpoint: The checkpoint.
        stored: By rank, the states of a process or the name of its file, as in the checkpoint.
        rank: Rank of the process.

    Raises:
        UserError: The file of the process is missing.
    """
    states = stored[rank]
    if isinstance(states, str):
        path = checkpoint.parent / states
        if not path.is_file():
            found = f"process {rank} of the {len(stored)} that wrote {checkpoint} stored its streams there"
            advice = f"copy the files {', '.join(stored[1:])} together with the checkpoint"
            raise UserError("file.missing", name=path, found=found, advice=advice)
        states = load_file(path)
    return states


def named_files(checkpoint: Path) -> set[str]:
    """Return the names of the files that belong to a checkpoint; empty if it does not exist."""
    if not checkpoint.is_file():
        return set()
    return {states for states in load_file(checkpoint)["processes"] if isinstance(states, str)}


def remove_other_files(folder: Path, current: set[str]) -> None:
    """Delete all files of processes except those named in `current`."""
    for path in folder.glob("step_*_process_*.pt"):
        if path.name not in current:
            path.unlink(missing_ok=True)
