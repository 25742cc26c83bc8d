"""The blocks that surround a state-space layer with input norm, feature mixing and a residual path."""

import copy
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rvtssm.ssm import TemporalConfig
from rvtssm.ssm.layer import State, StepScale, TemporalLayer
from rvtssm.ssm.shapes import check_input, check_precision
from rvtssm.ssm.spectrum import Spectrum
from rvtssm.system.user_error import UserError


class _Block(TemporalLayer):
    """A temporal layer, `ssm`, with pointwise operations around it.

    The block adds no state: its state, spectrum, kernel and H2 norm are the ones of `ssm`.
    """

    norm_name = "norm"  # of the attribute with the input norm

    def __init__(self, ssm: TemporalLayer) -> None:
        super().__init__()
        self.ssm = ssm
        self.is_causal = ssm.is_causal
        self.follows_the_rate = ssm.follows_the_rate
        self.rescaled = ssm.rescaled  # type: ignore[misc]  # as the layer inside says

    def init_state(self, num_sequences: int) -> State:
        return self.ssm.init_state(num_sequences)

    def prepare(self, step_scale: Any = 1.0) -> Any:
        return self.ssm.prepare(step_scale)

    def forward(self, x: Tensor, state: State | None = None, step_scale: Any = 1.0) -> tuple[Tensor, State]:
        """Run L steps, for L >= 1. Time is the first axis of the input, the batch is the second.

        Args:
            x: Inputs (L, N, D): steps, sequences, features.
            state: The state that an earlier call returned, or a result of `init_state`; None means the zero state.
            step_scale: The step relative to training, such as 0.1 for 200 Hz after training at 20 Hz: a number; a
                tensor (1, G) with one value per group of N / G consecutive sequences; or a tensor (L, G) with one value
                per step and group, such as (L, 1) for all sequences together. In a tensor, 0 means that no time passes.

        Returns:
            The outputs (L, N, D) and the state after step L, which the next call takes.

        Raises:
            UserError: If an argument has the wrong size, type or device.
        """
        entering = self._enter(x)
        y, after = self.ssm(entering, state, step_scale)
        return self._leave(x, entering, y), after

    def forward_without_memory(self, x: Tensor, step_scale: Any = 1.0, **where: Any) -> Tensor:
        entering = self._enter(x)
        return self._leave(x, entering, self.ssm.forward_without_memory(entering, step_scale, **where))

    def extra_repr(self) -> str:
        return self.ssm.name

    def real_step(self) -> TemporalLayer:
        block = copy.deepcopy(self)
        block.ssm = self.ssm.real_step()
        return block

    def spectrum(self) -> Spectrum | str:
        return self.ssm.spectrum()

    def kernel(self, num_steps: int, step_scale: StepScale = 1.0) -> Tensor:
        """Return the impulse response of the state-space layer, without norm, mixing and residual path.

        Args:
            num_steps: Number of steps L.
            step_scale: As in `forward`, but the same for all sequences.

        Returns:
            The response (L, D, D) = (steps, outputs, inputs) for s5; (L, D) for s4 and s4d, where an input reaches only
                its own output. Step 0 includes the direct path from an input to its own output.

        Raises:
            UserError: If the response depends on the input (s7, selective_s5).
        """
        return self.ssm.kernel(num_steps, step_scale)

    def band_energy(self, omega_min: float, omega_max: float) -> Tensor:
        return self.ssm.band_energy(omega_min, omega_max)

    def _enter(self, x: Tensor) -> Tensor:
        """Return the input of `ssm`."""
        norm = getattr(self, self.norm_name)
        like = next(self.parameters())
        check_input(x, norm.normalized_shape[0], like)
        if like.dtype not in (torch.float32, torch.float64):
            advice = "call layer.float(), and compute inside torch.autocast for matrix products of lower precision"
            raise UserError("layer.weights", found=f"the layer has weights of {like.dtype}", advice=advice)
        check_precision(x, like)
        normed: Tensor = norm(x)
        return normed

    @abstractmethod
    def _leave(self, x: Tensor, entering: Tensor, y: Tensor) -> Tensor:
        """Return the output of the block, given its input `x` and the input and the output of `ssm`."""


class SSMBlock(_Block):
    """The block of the released S5-ViT: norm, layer, GELU, residual, norm, gated feed-forward, residual.

    Both residual paths branch off after the norm, not before it, and the feed-forward part has no bias, because the
    released weights were trained this way.

    Args:
        ssm: The state-space layer inside the block.
        dim: Number of features D.
    """

    norm_name = "attn_norm"

    def __init__(self, ssm: TemporalLayer, dim: int) -> None:
        super().__init__(ssm)
        self.attn_norm = nn.LayerNorm(dim)
        self.ff_norm = nn.LayerNorm(dim)
        self.ff_enc = nn.Linear(dim, 2 * dim, bias=False)
        self.ff_dec = nn.Linear(dim, dim, bias=False)

    def _leave(self, x: Tensor, entering: Tensor, y: Tensor) -> Tensor:
        normed: Tensor = self.ff_norm(F.gelu(y) + entering)
        value, gate = self.ff_enc(normed).chunk(2, dim=-1)
        mixed: Tensor = self.ff_dec(value * F.gelu(gate))
        return mixed + normed


class GLUBlock(_Block):
    """The block around S4 and S4D: norm, layer, GELU, a linear layer with a gated linear unit, residual.

    The norm has no weights; with weights, the detector would not have the published number of parameters.

    Args:
        ssm: The state-space layer inside the block.
        dim: Number of features D.
    """

    def __init__(self, ssm: TemporalLayer, dim: int) -> None:
        super().__init__(ssm)
        self.norm = nn.LayerNorm(dim, elementwise_affine=False)
        self.mix = nn.Linear(dim, 2 * dim)

    def _leave(self, x: Tensor, entering: Tensor, y: Tensor) -> Tensor:
        return x + F.glu(self.mix(F.gelu(y)), dim=-1)


class GatedBlock(_Block):
    """The block of the S7 paper: norm, layer, y * sigmoid(W gelu(y)), residual.

    Args:
        ssm: The state-space layer inside the block.
        dim: Number of features D.
    """

    def __init__(self, ssm: TemporalLayer, dim: int) -> None:
        super().__init__(ssm)
        self.norm = nn.LayerNorm(dim)
        self.gate = nn.Linear(dim, dim, bias=False)

    def _leave(self, x: Tensor, entering: Tensor, y: Tensor) -> Tensor:
        return x + y * torch.sigmoid(self.gate(F.gelu(y)))


_BLOCKS: dict[str, type[SSMBlock] | type[GatedBlock]] = {"feed_forward": SSMBlock, "gated": GatedBlock}


def in_block(ssm: TemporalLayer, dim: int, config: TemporalConfig) -> SSMBlock | GatedBlock:
    """Wrap a state-space layer in the block that `temporal.block` names, which is how the detector uses it.

    Args:
        ssm: The state-space layer.
        dim: Number of features D.
        config: Settings of the layer.
    """
    assert config.block is not None
    return _BLOCKS[config.block](ssm, dim)
