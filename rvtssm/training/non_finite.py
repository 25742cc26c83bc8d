"""Stop a run whose loss or gradient is not finite, and say at which step and which recordings."""

from typing import Any

import lightning as L
import torch
from torch import Tensor

from rvtssm.records import SequenceBatch
from rvtssm.system.user_error import UserError
from rvtssm.training.module import DetectionModule

_MOST_NAMED = 3  # tensors or recordings in the message


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
