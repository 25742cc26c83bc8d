"""Stop a run whose loss or gradient is not finite, and save what is needed to find the cause.

    python -c "from rvtssm.training.non_finite import replay; print(replay('outputs/train/non_finite.pt'))"

computes the losses of the saved batch again from the saved weights, states and random numbers.
"""

import contextlib
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor

from rvtssm.models.checkpoint import load_file, save_file
from rvtssm.models.checkpoint_meta import CheckpointMeta
from rvtssm.models.streams import copied_to_cpu
from rvtssm.records import SequenceBatch
from rvtssm.system.user_error import UserError
from rvtssm.training.module import DetectionModule, ModuleSettings
from rvtssm.training.training_config import OptimConfig, TrainingConfig

_MOST_NAMED = 3  # tensors in the message; the file names all of them


class NonFiniteStop(L.Callback):
    """Raises UserError before an optimiser step if a loss or a gradient is not finite in any process.

    The weights in memory and on disk are then those of the previous step. One process writes `non_finite.pt` to the
    output folder: the first one with such a loss, otherwise the first of all. The file holds the batch and its losses;
    the weights, stored states and random numbers from which the batch started; and the names of weights and gradients
    that are not finite. With 16-mixed only losses are checked, since its scaler skips steps whose gradients are not
    finite.

    Args:
        out_dir: Folder of the run.
    """

    def __init__(self, out_dir: Path) -> None:
        self.path = out_dir / "non_finite.pt"
        self._start: dict[str, Any] = {}  # where the current batch started; only the random state is a copy
        self._loss: Tensor | None = None  # loss of a batch that has not been checked yet
        self._found: dict[str, Any] = {}  # start and losses of the first batch of this step with a non-finite loss

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: SequenceBatch, *_: Any
    ) -> None:
        assert isinstance(pl_module, DetectionModule)
        random = pl_module.random_generator().get_state()
        self._start = {"batch": batch, "streams": pl_module.train_streams.states(), "random": random}

    def on_before_backward(self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor) -> None:
        self._loss = loss.detach()  # reading its value here would make the device wait

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        self._check(pl_module)  # for a batch whose gradient is accumulated without an optimiser step
        self._start = {}

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        assert isinstance(pl_module, DetectionModule)
        gradients = [p.grad for p in pl_module.detector.parameters() if p.grad is not None]
        if trainer.precision == "16-mixed" or not gradients:
            has_finite_gradients = self._check(pl_module)
        else:  # the norm is fast to compute, and is not finite if a gradient is not; it may also overflow
            is_norm_finite = self._check(pl_module, torch.nn.utils.get_total_norm(gradients))
            has_finite_gradients = is_norm_finite or all(bool(gradient.isfinite().all()) for gradient in gradients)
        is_bad = bool(self._found) or not has_finite_gradients
        # All processes have to stop, because any that continue would wait for this one forever.
        if trainer.strategy.reduce_boolean_decision(is_bad, all=False):
            self._stop(trainer, pl_module)

    def _check(self, pl_module: L.LightningModule, norm: Tensor | None = None) -> bool:
        """Record a loss that is not finite, and return whether `norm` is finite. Reads once, which waits for a GPU."""
        values = [value for value in (self._loss, norm) if value is not None]
        finite = torch.stack([value.isfinite() for value in values]).tolist() if values else []
        if self._loss is not None and not self._found and not finite[0]:
            assert isinstance(pl_module, DetectionModule)
            self._found = {**self._start, "losses": pl_module.latest_losses}
        self._loss = None
        return norm is None or finite[-1]

    def _stop(self, trainer: L.Trainer, module: DetectionModule) -> None:
        finders = module.of_all_processes(bool(self._found))
        writer = finders.index(True) if True in finders else 0
        content = self._found or {**self._start, "losses": module.latest_losses}
        losses = {name: float(value) for name, value in content["losses"].items()}
        named = list(module.detector.named_parameters())
        weights = [name for name, p in named if not p.isfinite().all()]
        gradients = [name for name, p in named if p.grad is not None and not p.grad.isfinite().all()]
        content |= {"losses": losses, "non_finite_weights": weights, "non_finite_gradients": gradients}
        try:
            if trainer.global_rank == writer:
                self._write(trainer, module, content)
        finally:
            trainer.strategy.barrier()  # the launcher ends all processes as soon as one fails
        losses = module.of_all_processes(losses)[writer]
        text = ", ".join(f"{name} {value:g}" for name, value in losses.items())
        for kind, names in (("weights", weights), ("gradients", gradients)):
            if names:
                more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
                text += f"; {kind} {', '.join(names[:_MOST_NAMED])}{more}"
        raise UserError(
            f"training stopped before step {trainer.global_step + 1}, which is not finite: loss {text}; the batch and "
            f"its starting point are in {self.path}; train with a lower optim.learning_rate or in full precision"
        )

    def _write(self, trainer: L.Trainer, module: DetectionModule, content: dict[str, Any]) -> None:
        moved = content["batch"].to("cpu")
        batch = {field.name: getattr(moved, field.name) for field in fields(SequenceBatch)}
        settings = {
            "rvtssm": module.checkpoint_meta,
            "state_dict": module.detector.state_dict(),
            "step": trainer.global_step + 1,
            "rank": trainer.global_rank,
            "precision": str(trainer.precision),
            "optim": asdict(module.settings.optim),
            "freeze_batchnorm": module.settings.training.freeze_batchnorm,
            "pseudo_weight": module.settings.training.pseudo_weight,
        }
        streams = copied_to_cpu(content["streams"])
        save_file(self.path, {**content, **settings, "batch": batch, "streams": streams})


def replay(path: Path | str) -> dict[str, float]:
    """Compute the losses of the batch in a `non_finite.pt` again, on the CPU.

    Args:
        path: The file.

    Returns:
        The losses by name.

    Raises:
        UserError: The file is a checkpoint and holds no batch.
    """
    content = load_file(path)
    if "non_finite_weights" not in content:
        raise UserError(f"{path} is a checkpoint and holds no batch; give the non_finite.pt of a run that stopped")
    meta = CheckpointMeta.from_dict(content["rvtssm"])
    settings = ModuleSettings(
        meta.spec,
        meta.windows.stride_us,
        OptimConfig(**content["optim"]),
        TrainingConfig(**{key: content[key] for key in ("freeze_batchnorm", "pseudo_weight")}),
        memory_chunk=meta.model_config.memory_chunk,
    )
    detector = meta.build()
    if content["precision"] == "64-true":
        detector.double()
    detector.load_state_dict(content["state_dict"])
    module = DetectionModule(detector, settings, {}, {}, []).train()
    module.train_streams.load_state_dict(content["streams"])
    dtype = torch.bfloat16 if content["precision"].startswith("bf16") else torch.float16
    autocast = torch.autocast("cpu", dtype, enabled="mixed" in content["precision"])
    with torch.random.fork_rng(devices=[]), torch.no_grad(), autocast:
        with contextlib.suppress(TypeError, RuntimeError):  # the state of a GPU's generator does not fit the CPU
            torch.set_rng_state(content["random"])
        losses = module.losses_of(SequenceBatch(**content["batch"]))
    return {name: float(value) for name, value in losses.items()}
