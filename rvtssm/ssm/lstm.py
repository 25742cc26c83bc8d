"""The LSTM of RVT (Gehrig and Scaramuzza 2023): every pixel is a sequence, and the gates are 1x1 convolutions."""

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rvtssm.ssm import TemporalConfig
from rvtssm.ssm.layer import State, StepScale, TemporalLayer, check_step_scale, to_constant
from rvtssm.ssm.shapes import check_precision, fitting_state


class LSTM(TemporalLayer):
    """An LSTM over D features. Its state is the pair (hidden, cell), each (N, D). It has no step to rescale.

    We leave out RVT's dropout of the cell input, and the depthwise convolution that its released weights do not use.

    The first axis of the input is time: (steps, sequences, features). If you pass an
    input (batch, steps, features), the layer takes the batch for time and raises no error: both are three axes.

    >>> layer = rvtssm.LSTM(16)
    >>> y, state = layer(torch.zeros(5, 3, 16), layer.init_state(3))  # five steps of three sequences
    >>> y.shape, len(state)
    (torch.Size([5, 3, 16]), 2)

    Args:
        dim: Number of features D.
        config: Settings of the layer; None means the defaults.

    Raises:
        UserError: If a bandlimit is set.
    """

    name: ClassVar[str] = "lstm"

    def __init__(self, dim: int, config: TemporalConfig | None = None) -> None:
        super().__init__()
        config = TemporalConfig.of_layer(config, LSTM, dim)
        dim = int(dim)
        config.refuse_bandlimit("it has no modes")
        self.dim = dim
        # Rows: forget gate, input gate, output gate, cell input. Columns: the input, then the hidden state.
        self.gates = nn.Linear(2 * dim, 4 * dim)

    def init_state(self, num_sequences: int) -> tuple[Tensor, Tensor]:
        """Return zeros for the hidden state and the cell, each (N, D)."""
        zeros = self.gates.weight.new_zeros(num_sequences, self.dim)
        return zeros, zeros.clone()

    def forward(
        self, x: Tensor, state: State | None = None, step_scale: StepScale = 1.0
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Run L steps. See `TemporalLayer.forward`.

        Args:
            x: Inputs (L, N, D).
            state: The pair (hidden, cell), each (N, D); None means zeros.
            step_scale: Checked as in other layers, and ignored.

        Returns:
            The hidden states (L, N, D) and the last (hidden, cell).

        Raises:
            UserError: If an argument has the wrong size, or the step scale is not positive.
        """
        weight = self.gates.weight
        shape = (self.dim,)
        hidden, cell = fitting_state(x, state, self.init_state, self.dim, weight, shape, shape, step_scale=step_scale)
        check_step_scale(to_constant(step_scale))
        check_precision(x, self.gates.weight)
        from_input, from_hidden = self.gates.weight.split(self.dim, dim=1)
        outputs = []
        for driven in F.linear(x, from_input, self.gates.bias).unbind(0):
            mixed = driven + F.linear(hidden, from_hidden)
            forget, enter, leave = torch.sigmoid(mixed[:, : 3 * self.dim]).chunk(3, dim=1)
            cell = forget * cell + enter * torch.tanh(mixed[:, 3 * self.dim :])
            hidden = leave * torch.tanh(cell)
            outputs.append(hidden)
        return torch.stack(outputs), (hidden, cell)

    def extra_repr(self) -> str:
        return f"features={self.dim}"

    def real_step(self) -> TemporalLayer:
        return self

    def spectrum(self) -> str:
        return "an LSTM has no eigenvalues: its gates depend on the input"
