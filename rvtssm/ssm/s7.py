"""S7, state-space layers whose recurrence follows the input (Soydan et al. 2024), in two readings of the paper.

From the paper: a diagonal recurrence whose factor is computed from the input, the stable reparameterisation f of eq. 4,
and the gate sigmoid(W gelu(y)). The paper does not say how the factor is computed, has no step in it, and contradicts
itself on whether B, C and D follow the input as well (eqs. 3 and 5). Ours, in both readings: the factor follows the
input through one linear layer; B, C and D do not, because that would take P times the memory.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rvtssm.ssm.block import GatedBlock, SSMBlock
from rvtssm.ssm.discretize import DISCRETIZATIONS, Discretization, zoh_of_many_steps
from rvtssm.ssm.init import initial_b, initial_c, initial_modes, log_uniform_steps, normal, to_pairs, truncated_normal
from rvtssm.ssm.layer import State, StepScale, TemporalLayer, check_fit, to_constant, to_rows
from rvtssm.ssm.real_step import RealSharedStep
from rvtssm.ssm.scan import scan
from rvtssm.ssm.shared_state import as_complex, as_pairs
from rvtssm.ssm.spectrum import Spectrum, mode_spectrum
from rvtssm.ssm.temporal_config import TemporalConfig
from rvtssm.system.user_error import UserError

_A, _B = 1.0, 0.5  # of f(w) = 1 - 1 / (a w^2 + b)
_NO_MODES = "its modes follow the input, so they have no frequency of their own"


@dataclass(frozen=True, slots=True)
class PreparedS7:
    """What `SelectiveSSM` prepares from its parameters and the step scale."""

    lambda_: Tensor  # (P,) complex
    w_in: Tensor  # (2P, H)
    w_out: Tensor  # (H, 2P)
    rows: StepScale  # (T, G, 1), or a number


class SelectiveSSM(TemporalLayer):
    """`selective_dt`: x' = diag(lambda) x + B u, y = Re(C x) + D u, where the input sets the step of every mode.

    The step is softplus(W u + b) * r, r the step scale. All of this is ours: it keeps the selection of the paper, and
    it can be rescaled, since the input only stretches time. lambda is complex with Re(lambda) = -exp(log_real), which
    is stable for all weights; f is not, since it is bounded by 1 for real w only. At the start W u is about standard
    normal, and the steps at zero input are log-uniform, as in S5. B, C, D and `half_state` are as in S5. By a long step
    an input erases the state under `zoh`; under `bilinear` it turns the state around.

    The step differs for each sequence, so all discrete modes and states (L, N, P) are in memory at once.
    """

    name: ClassVar[str] = "s7"

    def __init__(self, dim: int, config: TemporalConfig) -> None:
        super().__init__()
        config.refuse_bandlimit(_NO_MODES)
        size = dim if config.state_size is None else config.state_size
        lambda_, v = initial_modes(config.init, size, config.num_blocks, config.half_state)
        self.log_real = nn.Parameter((-lambda_.real).log().float())
        self.imag = nn.Parameter(lambda_.imag.float())
        self.B = nn.Parameter(to_pairs(initial_b(v, dim)))
        self.C = nn.Parameter(to_pairs(initial_c(v, dim, config.half_state)))
        self.D = nn.Parameter(normal(dim))
        step = log_uniform_steps(len(lambda_), config.dt_min, config.dt_max).exp()
        self.to_step = _linear(truncated_normal(len(lambda_), dim, std=dim**-0.5), step.expm1().log())
        self.discretization, self.half_state, self.scan = config.discretization, config.half_state, config.scan

    def init_state(self, num_sequences: int) -> Tensor:
        """Return zeros (N, P), complex."""
        return torch.view_as_complex(self.imag.new_zeros(num_sequences, len(self.imag), 2))

    def prepare(self, step_scale: StepScale = 1.0) -> PreparedS7:
        """Return the matrices in real numbers; the discrete modes need the input."""
        with torch.autocast(self.imag.device.type, enabled=False):
            sign = self.imag.new_tensor([1, -1]) * (1 + self.half_state)
            return PreparedS7(
                lambda_=self._lambda,
                w_in=self.B.transpose(1, 2).flatten(0, 1),
                w_out=(self.C * sign).flatten(1),
                rows=to_rows(to_constant(step_scale)),
            )

    def forward(self, x: Tensor, state: State, step_scale: StepScale | PreparedS7 = 1.0) -> tuple[Tensor, Tensor]:
        """Run L steps: x (L, N, H), state (N, P) complex -> y (L, N, H), the state. See `TemporalLayer.forward`."""
        assert isinstance(state, Tensor)
        system = step_scale if isinstance(step_scale, PreparedS7) else self.prepare(step_scale)
        inputs = x.to(self.D.dtype)
        driven = F.linear(inputs, system.w_in)
        with torch.autocast(x.device.type, enabled=False):
            dt, rows, groups = F.softplus(self.to_step(inputs)), system.rows, 1
            if isinstance(rows, Tensor) and rows.ndim:
                check_fit(len(rows), rows.shape[1], *x.shape[:2])
                rows, groups = rows[:, :, None], rows.shape[1]
            decay, gain = self._discretize(system.lambda_, dt.unflatten(1, (groups, -1)), rows)
            drive = as_complex(driven, state).unflatten(1, (groups, -1)) * gain
            states, last = scan(decay.flatten(1, 2), drive.flatten(1, 2), state, self.scan)
        return (F.linear(as_pairs(states, driven), system.w_out) + self.D * inputs).to(x.dtype), last

    def real_step(self) -> TemporalLayer:
        return _RealS7(self)

    @torch.no_grad()
    def spectrum(self) -> Spectrum:
        dt = F.softplus(self.to_step.bias)
        return mode_spectrum(self._lambda, dt, note="at zero input, which sets the step of every mode; no mask")

    @property
    def _discretize(self) -> Discretization:
        return zoh_of_many_steps if self.discretization == "zoh" else DISCRETIZATIONS[self.discretization]

    @property
    def _lambda(self) -> Tensor:
        return torch.complex(-self.log_real.exp(), self.imag)


class Eq4SSM(TemporalLayer):
    """`eq4`: x[l] = f(W u[l] + w) x[l-1] + B u[l], y[l] = C x[l] + D u[l] with f(w) = 1 - 1 / (a w^2 + b), all real.

    f, a = 1 and b = 0.5 are from the paper. That w is real is ours; it makes -1 <= f < 1 hold. w starts so that f is
    the decay of a mode of time constant 1 over a log-uniform step; HiPPO-LegS, which is complex, is not used. The rows
    of B start scaled by 1 - f, because otherwise slow modes dominate the output.
    """

    name: ClassVar[str] = "s7"

    def __init__(self, dim: int, config: TemporalConfig) -> None:
        super().__init__()
        config.refuse_bandlimit(_NO_MODES)
        size = dim if config.state_size is None else config.state_size
        decay = log_uniform_steps(size, config.dt_min, config.dt_max).exp().neg()
        w = ((-1 / decay.expm1() - _B) / _A).clamp_min(0).sqrt()
        self.to_w = _linear(truncated_normal(size, dim, std=dim**-0.5), w)
        self.B = nn.Parameter((-decay.expm1()[:, None] * truncated_normal(size, dim, std=dim**-0.5)).float())
        self.C = nn.Parameter(truncated_normal(dim, size, std=size**-0.5).float())
        self.D = nn.Parameter(normal(dim))
        self.scan = config.scan

    def init_state(self, num_sequences: int) -> Tensor:
        """Return zeros (N, P)."""
        return self.B.new_zeros(num_sequences, len(self.B))

    def prepare(self, step_scale: StepScale = 1.0) -> float:
        """Return 1. Raises a ValueError for any other step scale."""
        constant = to_constant(step_scale)
        if isinstance(constant, Tensor) or constant != 1:
            raise UserError(
                "temporal.s7_mode=eq4 runs at the rate it was trained at only: eq. 4 of the paper has no step that a "
                "step_scale other than 1 could change; use temporal.s7_mode=selective_dt"
            )
        return constant

    def forward(self, x: Tensor, state: State, step_scale: StepScale = 1.0) -> tuple[Tensor, Tensor]:
        """Run L steps: x (L, N, H), state (N, P) -> y (L, N, H), the state. ValueError unless the scale is 1."""
        assert isinstance(state, Tensor)
        self.prepare(step_scale)
        inputs = x.to(self.D.dtype)
        drive = F.linear(inputs, self.B).to(state.dtype)
        with torch.autocast(x.device.type, enabled=False):
            w = self.to_w(inputs)
        states, last = scan(1 - 1 / (_A * w * w + _B), drive, state, self.scan)
        return (F.linear(states, self.C) + self.D * inputs).to(x.dtype), last

    def real_step(self) -> TemporalLayer:
        raise UserError(
            "temporal.s7_mode=eq4 cannot be exported: eq. 4 of the paper has no step that could be an input; train "
            "with temporal.s7_mode=selective_dt"
        )


class _RealS7(RealSharedStep):
    to_step: Tensor
    bias: Tensor

    def __init__(self, layer: SelectiveSSM) -> None:
        super().__init__(layer.discretization)
        self.keep_matrices(layer.B, layer.C * layer.C.new_tensor([1, -1]) * (1 + layer.half_state))
        self.keep(d=layer.D, to_step=layer.to_step.weight, bias=layer.to_step.bias, **{"lambda": layer._lambda})

    def steps(self, x: Tensor, step_scale: Tensor) -> tuple[Tensor, Tensor]:
        dt = F.softplus(F.linear(x, self.to_step, self.bias)).unflatten(0, (step_scale.shape[0], -1))
        return dt, dt * step_scale


def build_s7(dim: int, config: TemporalConfig) -> GatedBlock | SSMBlock:
    """Return S7 as the detector uses it: the layer of `s7_mode` inside the block of `s7_block`."""
    layer = SelectiveSSM if config.s7_mode == "selective_dt" else Eq4SSM
    block = GatedBlock if config.s7_block == "gated" else SSMBlock
    return block(layer(dim, config), dim)


def _linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    """Return a linear layer with these initial values."""
    layer = nn.Linear(weight.shape[1], weight.shape[0])
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
    return layer
