"""The speed of a training run: steps per second, the share of time spent waiting for data, and the time left."""

import time
from collections import deque
from typing import Any

import lightning as L


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
            second
            step.
        """
        done = step - self._first_step
        if self._first_step < 0 or done < 1:
            return None
        per_step = (time.perf_counter() - self._first_ended_at - self._validation_s) / done
        to_validate = -(-num_steps // self.validate_every) - step // self.validate_every
        per_validation = self._validation_s / self._num_validations if self._num_validations else 0.0
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
