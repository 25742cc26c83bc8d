"""The pointwise LSTM of RVT (Gehrig and Scaramuzza 2023): every pixel is a sequence, its gates are 1x1 convolutions."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rvtssm.ssm.layer import State, StepScale, TemporalConfig, TemporalLayer


class LSTM(TemporalLayer):
    """An LSTM over D features whose state is the pair (hidden, cell), each (N, D). It knows no step size."""

    supports_step_scale: ClassVar[bool] = False

    def __init__(self, dim: int, config: TemporalConfig) -> None:
        super().__init__()
        config.refuse_bandlimit("it has no modes")
        self.dim = dim
        # Rows: forget, input and output gate, cell input; columns: features of the input, then of the hidden state.
        self.gates = nn.Linear(2 * dim, 4 * dim)

    def init_state(self, num_sequences: int) -> tuple[Tensor, Tensor]:
        """Zeros (N, D), twice."""
        zeros = self.gates.weight.new_zeros(num_sequences, self.dim)
        return zeros, zeros.clone()

    def prepare(self, step_scale: StepScale = 1.0) -> StepScale:
        """Nothing depends on the step."""
        return step_scale

    def forward(self, x: Tensor, state: State, step_scale: StepScale = 1.0) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """x (L, N, D) -> the hidden states (L, N, D) and the last (hidden, cell). `step_scale` is ignored."""
        hidden, cell = state
        from_input, from_hidden = self.gates.weight.split(self.dim, dim=1)
        outputs = []
        for driven in F.linear(x, from_input, self.gates.bias).unbind(0):
            mixed = driven + F.linear(hidden, from_hidden)
            forget, enter, leave = torch.sigmoid(mixed[:, : 3 * self.dim]).chunk(3, dim=1)
            cell = forget * cell + enter * torch.tanh(mixed[:, 3 * self.dim :])
            hidden = leave * torch.tanh(cell)
            outputs.append(hidden)
        return torch.stack(outputs), (hidden, cell)
