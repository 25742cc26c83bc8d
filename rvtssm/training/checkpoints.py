"""Which weights of a run are kept: the best by validation AP, and the last, from which the run can go on."""

from __future__ import annotations

import io
import logging
import math
import signal
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.fabric.plugins.io import TorchCheckpointIO
from lightning.pytorch.callbacks import Checkpoint

from rvtssm.atomic_files import atomic_file, remove_abandoned
from rvtssm.datasets.datamodule import STOP_SIGNALS

log = logging.getLogger(__name__)


def best_checkpoint(out_dir: Path) -> Path:
    """Where a run in `out_dir` keeps the weights with the highest validation AP."""
    return out_dir / "checkpoints" / "best.ckpt"


def last_checkpoint(out_dir: Path) -> Path:
    """Where a run in `out_dir` keeps its latest weights."""
    return out_dir / "checkpoints" / "last.ckpt"


class StraightToPlace(TorchCheckpointIO):
    """Writes a checkpoint where it belongs; Lightning's own way leads through the folder for temporary files."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        packed = io.BytesIO()  # on a full disk torch.save itself ends in an error of its own kind
        torch.save(checkpoint, packed)
        Path(path).write_bytes(packed.getbuffer())


class Checkpoints(Checkpoint):
    """Writes `best.ckpt` and `last.ckpt`; what carries these names is always complete.

    `last.ckpt` is written after every validation, every `every` steps, `minutes` after it was last written, and when
    the run is asked to stop (one of STOP_SIGNALS), which it does after the step or the validation that it is in. Asked
    by Ctrl-C a second time, it stops at once. Processes that train together agree after every step on whether to write
    and to stop, whichever of them was asked.
    """

    def __init__(self, out_dir: Path, every: int, minutes: float) -> None:
        self.best, self.last = best_checkpoint(out_dir), last_checkpoint(out_dir)
        self.every = every
        self.minutes = minutes
        self.best_ap = -math.inf
        self._step = 0
        self._saved_at = time.monotonic()
        self._is_asked_to_stop = False  # this process
        self._can_stop = False  # all processes agree, and what was asked for has been saved

    def state_dict(self) -> dict[str, Any]:
        return {"best_ap": self.best_ap}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        # a run that goes on in another folder has no best weights there yet
        self.best_ap = state_dict["best_ap"] if self.best.is_file() else -math.inf

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._step = trainer.global_step
        self._saved_at = time.monotonic()
        if trainer.is_global_zero:
            remove_abandoned(self.last.parent)  # of a run that was killed while it wrote
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:  # the trainer restores the handlers when it ends
                signal.signal(number, self._note_the_wish)

    def _note_the_wish(self, number: int, frame: Any) -> None:
        if not self._is_asked_to_stop:
            log.warning("stopping after this step, or this validation; Ctrl-C stops at once")
        self._is_asked_to_stop = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self._can_stop:  # not at the end of the step before, whose losses had yet to be logged
            self._stop(trainer)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._step == trainer.global_step:  # gradients are being accumulated
            return
        self._step = trainer.global_step
        will_validate = (trainer.fit_loop.total_batch_idx + 1) % (trainer.val_check_batch or math.inf) == 0
        if will_validate:
            return
        will_stop, is_due = self._agreed(trainer)
        if will_stop or is_due or self._step % self.every == 0:
            self._save(trainer, self.last)
            self._can_stop = will_stop

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        ap = float(trainer.callback_metrics.get("val/AP", math.nan))
        ap = -1.0 if math.isnan(ap) else ap  # nothing was there to be found
        if ap >= self.best_ap:
            self.best_ap = ap
            self._save(trainer, self.best)
        will_stop, _ = self._agreed(trainer)
        self._save(trainer, self.last)
        self._can_stop = will_stop

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._can_stop:
            self._stop(trainer)

    def _agreed(self, trainer: L.Trainer) -> tuple[bool, bool]:
        """Whether some process was asked to stop, and whether for one of them it is time to write."""
        is_due = time.monotonic() - self._saved_at >= 60 * self.minutes
        if trainer.world_size == 1:
            return self._is_asked_to_stop, is_due
        wishes = torch.tensor([self._is_asked_to_stop, is_due], dtype=torch.int32, device=trainer.strategy.root_device)
        torch.distributed.all_reduce(wishes, op=torch.distributed.ReduceOp.MAX)
        will_stop, is_due = wishes.bool().tolist()
        return will_stop, is_due

    def _save(self, trainer: L.Trainer, path: Path) -> None:
        try:
            with atomic_file(path) if trainer.is_global_zero else nullcontext(path) as staged:
                trainer.save_checkpoint(staged)  # every process gives its part; the first one writes
        except OSError as error:
            if error.strerror:  # a full disk does not say whose
                error.filename = str(path)
            raise
        self._saved_at = time.monotonic()

    def _stop(self, trainer: L.Trainer) -> None:
        """End this process, in error the first one only: launchers kill all others when they see one."""
        for logger in trainer.loggers:
            logger.save()
        trainer.strategy.barrier("stop")
        if not trainer.is_global_zero:
            raise SystemExit(0)
        raise KeyboardInterrupt
