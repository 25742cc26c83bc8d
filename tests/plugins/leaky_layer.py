"""A temporal layer from outside the package: every feature decays at a rate of its own and takes in the rest."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rvtssm.ssm import TemporalConfig
from rvtssm.ssm.layer import TemporalLayer, to_rows
from rvtssm.ssm.shapes import check_precision, fitting_state
from rvtssm.ssm.temporal_layers import TEMPORAL_LAYERS


class LeakyLayer(TemporalLayer):
    """h = a^s h + (1 - a^s) W x with a in (0, 1) and the step scale s; y = x + h."""

    name = "leaky"
    follows_the_rate = "exact"

    def __init__(self, dim: int, config: TemporalConfig | None = None) -> None:
        super().__init__()
        TemporalConfig.of_layer(config, type(self), dim).refuse_bandlimit("it has no frequencies")
        self.log_rate = nn.Parameter(torch.linspace(-3, 0, dim))
        self.mix = nn.Linear(dim, dim)

    def init_state(self, num_sequences: int) -> Tensor:
        return self.log_rate.new_zeros(num_sequences, len(self.log_rate))

    def forward(self, x: Tensor, state: Any = None, step_scale: Any = 1.0) -> tuple[Tensor, Tensor]:
        dim = len(self.log_rate)
        state = fitting_state(x, state, self.init_state, dim, self.log_rate, (dim,), step_scale=step_scale)
        check_precision(x, self.log_rate)
        scale = to_rows(step_scale, self.log_rate)  # a number, or (1 or L, G, 1): per step and group of sequences
        if isinstance(scale, Tensor) and scale.ndim:
            scale = scale.repeat_interleave(x.shape[1] // scale.shape[1], dim=1)  # (1 or L, N, 1)
        decay = torch.exp(-self.log_rate.exp() * scale).expand(x.shape)
        states = []
        for driven, a in zip(self.mix(x), decay, strict=True):
            state = a * state + (1 - a) * driven
            states.append(state)
        return x + torch.stack(states), state

    def real_step(self) -> LeakyLayer:
        return self  # for export; the state is real already


TEMPORAL_LAYERS["leaky"] = LeakyLayer
