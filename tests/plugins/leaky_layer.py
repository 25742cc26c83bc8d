"""A temporal layer from outside the package: every feature decays at a rate of its own and takes in the rest."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rvtssm.ssm.layer import TemporalLayer, to_rows
from rvtssm.ssm.temporal_config import TemporalConfig
from rvtssm.ssm.temporal_layers import TEMPORAL_LAYERS


class LeakyLayer(TemporalLayer):
    """h = a^s h + (1 - a^s) W x with a in (0, 1) and the step scale s; y = x + h."""

    name = "leaky"

    def __init__(self, dim: int, config: TemporalConfig) -> None:
        super().__init__()
        config.refuse_bandlimit("it has no frequencies")
        self.log_rate = nn.Parameter(torch.linspace(-3, 0, dim))
        self.mix = nn.Linear(dim, dim)

    def init_state(self, num_sequences: int) -> Tensor:
        return self.log_rate.new_zeros(num_sequences, len(self.log_rate))

    def forward(self, x: Tensor, state: Any, step_scale: Any = 1.0) -> tuple[Tensor, Tensor]:
        rows = to_rows(step_scale)  # a number, or (1 or L, G, 1)
        groups = rows.shape[1] if isinstance(rows, Tensor) and rows.ndim else 1
        decay = torch.exp(-self.log_rate.exp() * rows).expand(len(x), groups, -1)
        state, shown = state.unflatten(0, (groups, -1)), []
        for driven, a in zip(self.mix(x).unflatten(1, (groups, -1)), decay[:, :, None], strict=True):
            state = a * state + (1 - a) * driven
            shown.append(state.flatten(0, 1))
        return x + torch.stack(shown), state.flatten(0, 1)

    def real_step(self) -> LeakyLayer:
        return self


TEMPORAL_LAYERS["leaky"] = LeakyLayer
