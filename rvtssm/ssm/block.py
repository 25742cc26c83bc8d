"""The blocks around a state-space layer: what norms its input, mixes its features and leads past it."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rvtssm.ssm.layer import OMEGA_MAX, OMEGA_MIN, State, StepScale, TemporalLayer


class _Block(TemporalLayer):
    """A temporal layer, `ssm`, with something around it; the state is that of the layer."""

    def __init__(self, ssm: TemporalLayer) -> None:
        super().__init__()
        self.ssm = ssm
        self.is_causal = ssm.is_causal

    def init_state(self, num_sequences: int) -> State:
        """The state of the layer inside."""
        return self.ssm.init_state(num_sequences)

    def prepare(self, step_scale: StepScale = 1.0) -> Any:
        """What the layer inside prepares."""
        return self.ssm.prepare(step_scale)

    def forward(self, x: Tensor, state: State, step_scale: Any = 1.0) -> tuple[Tensor, State]:
        """x (L, N, D), state -> y (L, N, D), the state after step L. See `TemporalLayer.forward`."""
        entering = self._enter(x)
        y, after = self.ssm(entering, state, step_scale)
        return self._leave(x, entering, y), after

    def alone(self, x: Tensor, step_scale: Any = 1.0, **where: Any) -> Tensor:
        """Around the same of the layer inside."""
        entering = self._enter(x)
        return self._leave(x, entering, self.ssm.alone(entering, step_scale, **where))

    @abstractmethod
    def _enter(self, x: Tensor) -> Tensor:
        """What the layer inside is given."""

    @abstractmethod
    def _leave(self, x: Tensor, entering: Tensor, y: Tensor) -> Tensor:
        """What comes out, from what came in, what the layer inside was given, and what it made of that."""

    def h2_norm(self, omega_min: float = OMEGA_MIN, omega_max: float = OMEGA_MAX, num_points: int = 0) -> Tensor:
        """That of the layer inside."""
        return self.ssm.h2_norm(omega_min, omega_max, num_points)


class SSMBlock(_Block):
    """As in the released S5-ViT: norm, layer, GELU, residual, norm, gated feed-forward, residual.

    Both residuals start after their norm and not before it, and the feed-forward part has no bias, as the released
    weights were trained.
    """

    def __init__(self, ssm: TemporalLayer, dim: int) -> None:
        super().__init__(ssm)
        self.attn_norm = nn.LayerNorm(dim)
        self.ff_norm = nn.LayerNorm(dim)
        self.ff_enc = nn.Linear(dim, 2 * dim, bias=False)
        self.ff_dec = nn.Linear(dim, dim, bias=False)

    def _enter(self, x: Tensor) -> Tensor:
        normed: Tensor = self.attn_norm(x)
        return normed

    def _leave(self, x: Tensor, entering: Tensor, y: Tensor) -> Tensor:
        normed: Tensor = self.ff_norm(F.gelu(y) + entering)
        value, gate = self.ff_enc(normed).chunk(2, dim=-1)
        left: Tensor = self.ff_dec(value * F.gelu(gate))
        return left + normed


class GLUBlock(_Block):
    """As around S4 and S4D: norm, layer, GELU, a linear layer with a gated linear unit, residual.

    The norm has no weights: with them the detector would not have the published number of parameters.
    """

    def __init__(self, ssm: TemporalLayer, dim: int) -> None:
        super().__init__(ssm)
        self.norm = nn.LayerNorm(dim, elementwise_affine=False)
        self.mix = nn.Linear(dim, 2 * dim)

    def _enter(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(x)
        return normed

    def _leave(self, x: Tensor, entering: Tensor, y: Tensor) -> Tensor:
        return x + F.glu(self.mix(F.gelu(y)), dim=-1)


class GatedBlock(_Block):
    """As around S7: norm, layer, y * sigmoid(W gelu(y)), residual."""

    def __init__(self, ssm: TemporalLayer, dim: int) -> None:
        super().__init__(ssm)
        self.norm = nn.LayerNorm(dim)
        self.gate = nn.Linear(dim, dim, bias=False)

    def _enter(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(x)
        return normed

    def _leave(self, x: Tensor, entering: Tensor, y: Tensor) -> Tensor:
        return x + y * torch.sigmoid(self.gate(F.gelu(y)))
