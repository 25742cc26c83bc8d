"""The block around a state-space layer, as in the released S5-ViT: norm, layer, GELU, residual, gated feed-forward."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from rvtssm.ssm.layer import State, StepScale, TemporalLayer


class SSMBlock(TemporalLayer):
    """A linear state-space layer and what mixes its features; the state is that of the layer.

    Both residuals start after their norm and not before it, and the feed-forward part has no bias, as the released
    weights were trained.
    """

    def __init__(self, ssm: TemporalLayer, dim: int) -> None:
        super().__init__()
        self.ssm = ssm
        self.attn_norm = nn.LayerNorm(dim)
        self.ff_norm = nn.LayerNorm(dim)
        self.ff_enc = nn.Linear(dim, 2 * dim, bias=False)
        self.ff_dec = nn.Linear(dim, dim, bias=False)

    def init_state(self, num_sequences: int) -> State:
        """The state of the layer inside."""
        return self.ssm.init_state(num_sequences)

    def prepare(self, step_scale: StepScale = 1.0) -> Any:
        """What the layer inside prepares."""
        return self.ssm.prepare(step_scale)

    def forward(self, x: Tensor, state: State, step_scale: Any = 1.0) -> tuple[Tensor, State]:
        """x (L, N, D), state -> y (L, N, D), the state after step L. See `TemporalLayer.forward`."""
        normed = self.attn_norm(x)
        y, after = self.ssm(normed, state, step_scale)
        normed = self.ff_norm(F.gelu(y) + normed)
        value, gate = self.ff_enc(normed).chunk(2, dim=-1)
        return self.ff_dec(value * F.gelu(gate)) + normed, after
