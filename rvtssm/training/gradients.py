"""The norm of the gradients of each room of the detector, before they are clipped."""

from __future__ import annotations

import lightning as L
import torch

from rvtssm.models.detector import parameters_by_room
from rvtssm.training.module import DetectionModule


class GradientNorms(L.Callback):
    """Logs the Euclidean norms `grad_norm/ROOM` at logged steps, over all processes and batches of a step."""

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        if (trainer.global_step + 1) % trainer.log_every_n_steps:  # type: ignore[attr-defined]
            return
        assert isinstance(pl_module, DetectionModule)
        norms = {}
        for room, parameters in parameters_by_room(pl_module.detector).items():
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            norms[f"grad_norm/{room}"] = torch.nn.utils.get_total_norm(gradients)
        pl_module.log_dict(norms, batch_size=1)
