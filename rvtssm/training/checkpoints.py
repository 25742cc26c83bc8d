"""Which weights of a run are kept: the best by validation AP, and the last, from which the run can go on."""

from __future__ import annotations

import logging
import math
import os
import signal
import threading
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Checkpoint

log = logging.getLogger(__name__)


def best_checkpoint(out_dir: Path) -> Path:
    """Where a run in `out_dir` keeps the weights with the highest validation AP."""
    return out_dir / "checkpoints" / "best.ckpt"


def last_checkpoint(out_dir: Path) -> Path:
    """Where a run in `out_dir` keeps its latest weights."""
    return out_dir / "checkpoints" / "last.ckpt"


class Checkpoints(Checkpoint):
    """Writes `best.ckpt` and `last.ckpt`; what carries these names is always complete.

    `last.ckpt` is written after every validation, every `every` steps, and when the run is asked to stop (Ctrl-C or
    SIGTERM), which it does after the step or the validation that it is in. Asked twice, it stops at once, and so do
    runs of several processes, which would not all be at the same step.
    """

    def __init__(self, out_dir: Path, every: int) -> None:
        self.best, self.last = best_checkpoint(out_dir), last_checkpoint(out_dir)
        self.every = every
        self.best_ap = -math.inf
        self._step = 0
        self._is_asked_to_stop = False
        self._can_stop = False  # what was asked for has been saved

    def state_dict(self) -> dict[str, Any]:
        return {"best_ap": self.best_ap}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        # a run that goes on in another folder has no best weights there yet
        self.best_ap = state_dict["best_ap"] if self.best.is_file() else -math.inf

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._step = trainer.global_step
        if trainer.world_size == 1 and threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):  # the trainer restores the handlers when it ends
                signal.signal(number, self._note_the_wish)

    def _note_the_wish(self, number: int, frame: Any) -> None:
        self._is_asked_to_stop = True
        log.warning("stopping after this step, or this validation; ask again to stop at once")
        signal.signal(number, signal.default_int_handler)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self._can_stop:  # not at the end of the step before, whose losses had yet to be logged
            raise KeyboardInterrupt

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._step == trainer.global_step:  # gradients are being accumulated
            return
        self._step = trainer.global_step
        will_validate = (trainer.fit_loop.total_batch_idx + 1) % (trainer.val_check_batch or math.inf) == 0
        if not will_validate and (self._is_asked_to_stop or self._step % self.every == 0):
            self._save(trainer, self.last)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        ap = float(trainer.callback_metrics.get("val/AP", math.nan))
        ap = -1.0 if math.isnan(ap) else ap  # nothing was there to be found
        if ap >= self.best_ap:
            self.best_ap = ap
            self._save(trainer, self.best)
        self._save(trainer, self.last)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._is_asked_to_stop:
            raise KeyboardInterrupt

    def _save(self, trainer: L.Trainer, path: Path) -> None:
        aside = path.with_name(f".{path.name}.part")
        trainer.save_checkpoint(aside)
        if trainer.is_global_zero:
            os.replace(aside, path)
        self._can_stop = self._is_asked_to_stop
