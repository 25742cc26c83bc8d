"""Stops a run whose loss or gradient is no finite number, and keeps what is needed to see why.

    python -c "from rvtssm.training.non_finite import replay; print(replay('outputs/train/non_finite.pt'))"

computes the losses of the kept batch once more, from the kept weights, states and random numbers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor

from rvtssm.models.checkpoint import CheckpointMeta, load_file, save_file
from rvtssm.models.postprocess import PostprocessConfig
from rvtssm.models.streams import copied_to_cpu
from rvtssm.records import SequenceBatch
from rvtssm.training.module import DetectionModule, ModuleSettings
from rvtssm.training.optim import OptimConfig

_SHOWN = 3  # names in the message; all of them are in the file


@dataclass
class Before:
    """What a training batch started from; nothing here is copied but the random state."""

    batch: SequenceBatch
    states: dict[str, Any]  # of the streams, see `Streams.states`
    random: Tensor
    losses: dict[str, Tensor]


class NonFiniteStop(L.Callback):
    """Before each optimiser step: ValueError where a loss or a gradient of its batches is not finite, on any process.

    So the weights on disk and in memory stay those of the step before. The process that has the loss, or the first
    one where only gradients are affected, writes `non_finite.pt` to the output folder: the batch, its losses, the
    weights, stored states and random numbers it started from, and the names of weights and gradients that are not
    finite. With 16-mixed, whose scaler skips steps with such gradients and goes on, only losses count.
    """

    def __init__(self, out_dir: Path) -> None:
        self.path = out_dir / "non_finite.pt"
        self._before: Before | None = None
        self._loss: Tensor | None = None  # of the batch that has not been looked at
        self._found: Before | None = None  # the first batch of this step whose loss is not finite

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: SequenceBatch, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, DetectionModule)
        states = pl_module.train_streams.states()
        self._before = Before(batch, states, pl_module.random_generator().get_state(), {})

    def on_before_backward(self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor) -> None:
        self._loss = loss.detach()  # reading it here would keep the device waiting for its next work

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._look(pl_module)  # at a batch whose gradient is being accumulated
        self._before = None

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        assert isinstance(pl_module, DetectionModule)
        self._look(pl_module)
        gradients = [p.grad for p in pl_module.detector.parameters() if p.grad is not None]
        is_scaled = trainer.precision == "16-mixed"
        is_bad = self._found is not None or not (is_scaled or _are_finite(gradients))
        # processes that would go on would wait for this one for ever
        if trainer.strategy.reduce_boolean_decision(is_bad, all=False):
            self._stop(trainer, pl_module)

    def _look(self, pl_module: L.LightningModule) -> None:
        if self._loss is not None and self._found is None and not torch.isfinite(self._loss):
            assert self._before is not None and isinstance(pl_module, DetectionModule)
            self._found = self._before
            self._found.losses = pl_module.latest_losses
        self._loss = None

    def _stop(self, trainer: L.Trainer, module: DetectionModule) -> None:
        finders = module.of_all_processes(self._found is not None)
        writer = finders.index(True) if True in finders else 0
        named = module.detector.named_parameters
        weights = [name for name, p in named() if not p.isfinite().all()]
        gradients = [name for name, p in named() if p.grad is not None and not p.grad.isfinite().all()]
        before = self._found or self._before
        assert before is not None
        before.losses = before.losses or module.latest_losses
        losses = {name: float(value) for name, value in before.losses.items()}
        try:
            if trainer.global_rank == writer:
                self._write(trainer, module, before, losses, weights, gradients)
        finally:
            trainer.strategy.barrier()  # the launcher ends all processes once one has failed
        told = module.of_all_processes(losses)[writer]
        what = [f"loss {', '.join(f'{name} {value:g}' for name, value in told.items())}"]
        what += [
            f"{kind} {_listed(names)}" for kind, names in (("weights", weights), ("gradients", gradients)) if names
        ]
        raise ValueError(
            f"training stopped before step {trainer.global_step + 1}, which is not finite: {'; '.join(what)}; the "
            f"batch and all it met are in {self.path}; train again with a lower optim.learning_rate or full precision"
        )

    def _write(
        self,
        trainer: L.Trainer,
        module: DetectionModule,
        before: Before,
        losses: dict[str, float],
        weights: list[str],
        gradients: list[str],
    ) -> None:
        content = {
            "rvtssm": module.checkpoint_meta,
            "state_dict": module.detector.state_dict(),
            "step": trainer.global_step + 1,
            "rank": trainer.global_rank,
            "batch": {field.name: getattr(before.batch, field.name).cpu() for field in fields(SequenceBatch)},
            "losses": losses,
            "non_finite_weights": weights,
            "non_finite_gradients": gradients,
            "streams": copied_to_cpu(before.states),
            "random": before.random,
            "precision": str(trainer.precision),
            "optim": asdict(module.settings.optim),
            "freeze_batchnorm": module.settings.freeze_batchnorm,
        }
        save_file(self.path, content)


def replay(path: Path | str) -> dict[str, float]:
    """The losses of the batch in a `non_finite.pt`, computed once more on CPU."""
    content = load_file(path)
    if "non_finite_weights" not in content:
        raise ValueError(f"{path} is a checkpoint, and holds no batch; give the non_finite.pt of a run that stopped")
    meta = CheckpointMeta.from_dict(content["rvtssm"])
    settings = ModuleSettings(
        spec=meta.spec,
        optim=OptimConfig(**content["optim"]),
        num_steps=1,
        batch_size=1,
        trained_stride_us=meta.windows.stride_us,
        memory_chunk=meta.model_config.memory_chunk,
        postprocess=PostprocessConfig(),
        freeze_batchnorm=content["freeze_batchnorm"],
    )
    detector = meta.build()
    if content["precision"] == "64-true":
        detector.double()
    detector.load_state_dict(content["state_dict"])
    module = DetectionModule(detector, settings, {}, {}, []).train()
    module.train_streams.load_state_dict(content["streams"])
    dtype = torch.bfloat16 if content["precision"].startswith("bf16") else torch.float16
    with (
        torch.random.fork_rng(devices=[]),
        torch.no_grad(),
        torch.autocast("cpu", dtype, enabled="mixed" in content["precision"]),
    ):
        with contextlib.suppress(TypeError, RuntimeError):  # the generator of a GPU has no counterpart here
            torch.set_rng_state(content["random"])
        losses = module.losses_of(SequenceBatch(**content["batch"]))
    return {name: float(value) for name, value in losses.items()}


def _are_finite(gradients: list[Tensor]) -> bool:
    """Whether all are; their norm is enough to know, unless it overflows."""
    if bool(torch.nn.utils.get_total_norm(gradients).isfinite()):
        return True
    return all(bool(gradient.isfinite().all()) for gradient in gradients)


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + rest
