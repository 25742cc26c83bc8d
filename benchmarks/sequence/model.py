"""A stack of temporal layers between an encoder and a small head: what both sequence benchmarks train."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rvtssm.ssm.block import GatedBlock
from rvtssm.ssm.layer import StepScale, TemporalLayer
from rvtssm.ssm.lstm import LSTM
from rvtssm.ssm.s5 import S5SSM
from rvtssm.ssm.temporal_config import TemporalConfig
from rvtssm.ssm.temporal_layers import build_temporal_layer


def build_sequence_layer(config: TemporalConfig, dim: int) -> TemporalLayer:
    """Return the layer `config.name` in the block of its paper.

    For S5 that is the gate, not the feed-forward part which the detector's release puts around it.
    """
    if config.name == "s5":
        return GatedBlock(S5SSM(dim, config), dim)
    return build_temporal_layer(config, dim)


class SequenceModel(nn.Module):
    """Encoder, `depth` temporal layers of `dim` features, norm, and a head of one hidden layer for every step."""

    def __init__(self, encoder: nn.Module, config: TemporalConfig, dim: int, depth: int, num_outputs: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.layers = nn.ModuleList([build_sequence_layer(config, dim) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.hidden = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, num_outputs)

    def forward(self, x: Tensor, step_scale: StepScale = 1.0) -> Tensor:
        """x (L, N, ...) -> (L, N, num_outputs); `step_scale` as in `rvtssm.ssm.layer.TemporalLayer.forward`."""
        features = self.encoder(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        for layer in self.layers:
            features, _ = layer(features, layer.init_state(x.shape[1]), step_scale)
        return self.out(F.relu(self.hidden(self.norm(features))))

    def loss(self, x: Tensor, targets: Tensor, step_scale: StepScale = 1.0) -> Tensor:
        """Return what training makes small: the mean squared error."""
        return F.mse_loss(self(x, step_scale), targets)

    def parameter_groups(self, lr: float, ssm_lr: float, weight_decay: float) -> list[dict[str, object]]:
        """Return groups for the optimiser: the system's parameters (all but C and D) learn slower without decay."""
        of_system = [
            p
            for layer in self.layers
            for name, p in layer.named_parameters()
            if name.startswith("ssm.") and name not in ("ssm.C", "ssm.D") and not isinstance(layer.ssm, LSTM)
        ]
        ids = {id(p) for p in of_system}
        others = [p for p in self.parameters() if id(p) not in ids]
        return [
            {"params": others, "lr": lr, "weight_decay": weight_decay},
            {"params": of_system, "lr": ssm_lr, "weight_decay": 0.0},
        ]


def count_parameters(model: nn.Module) -> int:
    """Return the number of learned real numbers."""
    return sum(p.numel() * (2 if torch.is_complex(p) else 1) for p in model.parameters())
