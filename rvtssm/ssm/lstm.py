"""The LSTM of RVT (Gehrig and Scaramuzza 2023): every pixel is a sequence, and the gates are 1x1 convolutions."""

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rvtssm.ssm.layer import State, StepScale, TemporalLayer, check_step_scale, to_constant
from rvtssm.ssm.shapes import check_precision, fitting_state
from rvtssm.ssm.temporal_config import TemporalConfig
from rvtssm.system.user_error import UserError

Grid = tuple[int, int]
Filters = tuple[Tensor, Tensor]  # weight (D, 1, K, K), bias (D,)


class LSTM(TemporalLayer):
    """An LSTM over D features. Its state is the pair (hidden, cell), each (N, D). It has no step to rescale.

    With `dws_conv`, the gates see a zero-padded depthwise convolution of the hidden state over the pixels of a frame
    instead of the hidden state itself; with `dws_conv_only_hidden=False` the input is convolved as well. The sequences
    are then the pixels of frames, row by row, and `forward` needs the size of the frames. We leave out RVT's dropout of
    the cell input.

    The first axis of the input is time: (steps, sequences, features). If you pass an
    input (batch, steps, features), the layer takes the batch for time and raises no error: both are three axes.

    Args:
        dim: Number of features D.
        config: Settings of the layer; None means the defaults.

    Raises:
        UserError: If a bandlimit is set.
    """

    name: ClassVar[str] = "lstm"

    def __init__(self, dim: int, config: TemporalConfig | None = None) -> None:
        super().__init__()
        config, dim = TemporalConfig.of_layer(config, self.name, dim), int(dim)
        config.refuse_bandlimit("it has no modes")
        self.dim = dim
        # Rows: forget gate, input gate, output gate, cell input. Columns: the input, then the hidden state.
        self.gates = nn.Linear(2 * dim, 4 * dim)
        self.takes_grid = config.dws_conv
        self.conv: nn.Conv2d | None = None
        if config.dws_conv:
            size = config.dws_conv_kernel_size
            width = dim if config.dws_conv_only_hidden else 2 * dim  # the input first, then the hidden state
            self.conv = nn.Conv2d(width, width, size, padding=size // 2, groups=width)

    def init_state(self, num_sequences: int) -> tuple[Tensor, Tensor]:
        """Return zeros for the hidden state and the cell, each (N, D)."""
        zeros = self.gates.weight.new_zeros(num_sequences, self.dim)
        return zeros, zeros.clone()

    def forward(
        self, x: Tensor, state: State | None = None, step_scale: StepScale = 1.0, grid: Grid | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Run L steps. See `TemporalLayer.forward`.

        Args:
            x: Inputs (L, N, D).
            state: The pair (hidden, cell), each (N, D); None means zeros.
            step_scale: Checked as in other layers, and ignored.
            grid: With `dws_conv`, the size (H, W) of the frames, so that N = B * H * W.

        Returns:
            The hidden states (L, N, D) and the last (hidden, cell).

        Raises:
            UserError: If an argument has the wrong size, or the step scale is not positive.
        """
        weight, shape = self.gates.weight, (self.dim,)
        hidden, cell = fitting_state(x, state, self.init_state, self.dim, weight, shape, shape, step_scale=step_scale)
        check_step_scale(to_constant(step_scale))
        check_precision(x, self.gates.weight)
        from_input, from_hidden = self.gates.weight.split(self.dim, dim=1)
        of_input, of_hidden = self._filters(grid, x.shape[1])
        outputs = []
        for driven in F.linear(_convolved(x, of_input, grid), from_input, self.gates.bias).unbind(0):
            mixed = driven + F.linear(_convolved(hidden, of_hidden, grid), from_hidden)
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

    def _filters(self, grid: Grid | None, num_sequences: int) -> tuple[Filters | None, Filters | None]:
        """Return the filters of the input and of the hidden state; None for each one that is not convolved."""
        if self.conv is None:
            return None, None
        if grid is None or num_sequences % (grid[0] * grid[1]):
            raise UserError(
                f"temporal.dws_conv=true got {num_sequences} sequences and grid={grid}; the sequences must be the "
                "pixels of whole frames, and grid must be the height and width of a frame"
            )
        assert self.conv.bias is not None
        pairs = list(zip(self.conv.weight.split(self.dim), self.conv.bias.split(self.dim), strict=True))
        return pairs[0] if len(pairs) > 1 else None, pairs[-1]


def _convolved(x: Tensor, filters: Filters | None, grid: Grid | None) -> Tensor:
    """Convolve x (..., N, D) over the pixels of each frame; return x unchanged if there are no filters."""
    if filters is None or grid is None:
        return x
    weight, bias = filters
    frames = x.reshape(-1, *grid, x.shape[-1]).permute(0, 3, 1, 2)
    mixed = F.conv2d(frames, weight, bias, padding=weight.shape[-1] // 2, groups=len(weight))
    return mixed.permute(0, 2, 3, 1).reshape(x.shape)
