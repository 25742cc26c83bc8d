"""S5 whose steps depend on the input: a selective layer, our own, that keeps its memory at any rate."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rvtssm.ssm import TemporalConfig
from rvtssm.ssm.block import GatedBlock, SSMBlock, in_block
from rvtssm.ssm.discretize import DISCRETIZATIONS, RULES_FOLLOW_THE_RATE, zoh_of_many_steps
from rvtssm.ssm.held_scan import held_scan
from rvtssm.ssm.init import (
    elementwise,
    initial_b,
    initial_c,
    initial_modes,
    linear_from,
    log_uniform_steps,
    normal,
    parameter,
    to_pairs,
    truncated_normal,
)
from rvtssm.ssm.layer import State, StepScale, TemporalLayer, longer_steps, to_constant, to_rows
from rvtssm.ssm.real_step import RealSharedStep
from rvtssm.ssm.scan import scan
from rvtssm.ssm.shapes import check_fit, fitting_state
from rvtssm.ssm.shared_state import as_complex, as_pairs
from rvtssm.ssm.spectrum import Spectrum, mode_spectrum


@dataclass(frozen=True, slots=True)
class Prepared:
    """The values that `SelectiveS5SSM` computes from its parameters and the step scale."""

    lambda_: Tensor  # (P,) complex
    w_in: Tensor  # (2P, H)
    w_out: Tensor  # (H, 2P)
    rows: StepScale  # (T, G, 1), or a number


class SelectiveS5SSM(TemporalLayer):
    """x' = diag(lambda) x + B u, y = Re(C x) + D u, where the input sets the step of every mode.

    The step is softplus(W u + b) * r, where r is the step scale, so the input can only stretch or compress time. The
    idea of a recurrence that depends on its input is from S6 and S7 (Gu and Dao 2023, Soydan et al. 2024; for the S7 of
    the paper see `rvtssm.ssm.s7`); this form is ours.

    lambda is complex with Re(lambda) = -exp(log_real), so the layer is stable for all weights. B, C, D and `half_state`
    are as in S5. At the start, W u is about standard normal, and the steps at zero input are log-uniform, as in S5.
    With `zoh`, the default, an input can erase the state by a long step; with `bilinear` a long step flips the sign of
    the state instead.

    The steps differ between sequences, so all discrete modes and states (L, N, P) are in memory at once.

    Args:
        dim: Number of features H.
        config: Settings of the layer.

    Raises:
        UserError: If a bandlimit is set.
    """

    name: ClassVar[str] = "selective_s5"
    default_rule: ClassVar[str | None] = "zoh"  # a long step can erase the state; under bilinear it cannot
    default_block: ClassVar[str | None] = "feed_forward"
    may_halve_its_state: ClassVar[bool] = True
    # The input sets the steps, so what changes is the modes and the weight of an input in them.
    rescaled: ClassVar = {"log_real": longer_steps, "imag": torch.mul, "B": torch.mul}

    def __init__(self, dim: int, config: TemporalConfig) -> None:
        super().__init__()
        config.refuse_bandlimit("its modes depend on the input, so they have no fixed frequency")
        size = config.state_size or dim
        lambda_, v = initial_modes(config.init, size, config.num_blocks, config.half_state)
        # Modes are stable for all weights: Re(lambda) = -exp(log_real).
        self.log_real = parameter(elementwise(lambda real: (-real).log(), lambda_.real))
        self.imag = parameter(lambda_.imag)
        self.B = nn.Parameter(to_pairs(initial_b(v, dim)))
        self.C = nn.Parameter(to_pairs(initial_c(v, dim, config.half_state)))
        self.D = nn.Parameter(normal(dim))
        # The input changes the step of each mode around its own initial value.
        log_step = log_uniform_steps(len(lambda_), config.dt_min, config.dt_max)
        bias = elementwise(lambda log: log.exp().expm1().log(), log_step)  # softplus gives the step
        self.to_step = linear_from(truncated_normal(len(lambda_), dim, std=dim**-0.5), bias)
        self.discretization = config.of_class(type(self)).step_rule()
        self.follows_the_rate = RULES_FOLLOW_THE_RATE[self.discretization]
        self.half_state = config.half_state
        self.scan = config.scan

    def init_state(self, num_sequences: int) -> Tensor:
        """Return zeros (N, P), complex."""
        return torch.view_as_complex(self.imag.new_zeros(num_sequences, len(self.imag), 2))

    def prepare(self, step_scale: StepScale | Prepared = 1.0) -> Prepared:
        """Return the continuous modes, real matrices, and the step scale. The discrete modes depend on the input."""
        if isinstance(step_scale, Prepared):
            return step_scale
        with torch.autocast(self.imag.device.type, enabled=False):
            sign = self.imag.new_tensor([1, -1]) * (1 + self.half_state)
            return Prepared(
                lambda_=self._lambda,
                w_in=self.B.transpose(1, 2).flatten(0, 1),
                w_out=(self.C * sign).flatten(1),
                rows=to_rows(to_constant(step_scale), self.imag),
            )

    def forward(
        self, x: Tensor, state: State | None = None, step_scale: StepScale | Prepared = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Run L steps. See `TemporalLayer.forward`.

        Args:
            x: Inputs (L, N, H).
            state: State before the first step, (N, P) complex; None means zeros.
            step_scale: A step scale, or a result of `prepare`.

        Returns:
            The outputs (L, N, H) and the state after step L.
        """
        before: Tensor = fitting_state(
            x, state, self.init_state, len(self.D), self.D, self.imag.shape, is_complex=True, step_scale=step_scale
        )
        system = self.prepare(step_scale)
        inputs = x.to(self.D.dtype)
        driven = F.linear(inputs, system.w_in)
        with torch.autocast(x.device.type, enabled=False):
            # The step of each mode at each input, times the step scale of its group.
            dt = F.softplus(self.to_step(inputs))
            rows = system.rows
            groups = 1
            if isinstance(rows, Tensor) and rows.ndim:
                check_fit(len(rows), rows.shape[1], *x.shape[:2])  # that of a prepared system
                rows, groups = rows[:, :, None], rows.shape[1]
            steps = dt.unflatten(1, (groups, -1))
            drive = as_complex(driven, before)
            if self.discretization == "zoh" and x.device.type == "cpu" and self.scan != "loop":
                states, last = held_scan(system.lambda_, (steps * rows).flatten(1, 2), drive, before)
            else:
                rule = DISCRETIZATIONS[self.discretization]
                if self.discretization == "zoh":
                    rule = zoh_of_many_steps  # the steps differ at every input
                decay, gain = rule(system.lambda_, steps, rows)
                drive = (drive.unflatten(1, (groups, -1)) * gain).flatten(1, 2)
                states, last = scan(decay.flatten(1, 2), drive, before, self.scan)
        return (F.linear(as_pairs(states, driven), system.w_out) + self.D * inputs).to(x.dtype), last

    def extra_repr(self) -> str:
        return f"features={len(self.D)}, modes={len(self.imag)}, discretization={self.discretization}"

    def real_step(self) -> TemporalLayer:
        return _RealSelectiveS5(self)

    @torch.no_grad()
    def spectrum(self) -> Spectrum:
        dt = F.softplus(self.to_step.bias)
        return mode_spectrum(self._lambda, dt, note="at zero input; the input changes the step of every mode; no mask")

    @property
    def _lambda(self) -> Tensor:
        return torch.complex(-self.log_real.exp(), self.imag)


class _RealSelectiveS5(RealSharedStep):
    to_step: Tensor
    bias: Tensor

    def __init__(self, layer: SelectiveS5SSM) -> None:
        super().__init__(layer, layer._lambda)
        self.keep(to_step=layer.to_step.weight, bias=layer.to_step.bias)

    def steps(self, x: Tensor, step_scale: Tensor) -> tuple[Tensor, Tensor]:
        dt = F.softplus(F.linear(x, self.to_step, self.bias)).unflatten(0, (step_scale.shape[0], -1))
        return dt, dt * step_scale


def SelectiveS5(dim: int, config: TemporalConfig | None = None) -> SSMBlock | GatedBlock:
    """Return selective S5 as the detector uses it: the state-space layer inside its block. See `SelectiveS5SSM`.

    The first axis of the input is time: (steps, sequences, features). If you pass an
    input (batch, steps, features), the layer takes the batch for time and raises no error: both are three axes.

    >>> layer = rvtssm.SelectiveS5(16)
    >>> y, state = layer(torch.zeros(5, 3, 16), layer.init_state(3), step_scale=0.5)
    >>> y.shape
    torch.Size([5, 3, 16])

    Args:
        dim: Number of features H.
        config: Settings of the layer; None means the defaults.
    """
    config = TemporalConfig.of_layer(config, SelectiveS5SSM, dim)
    return in_block(SelectiveS5SSM(dim, config), dim, config)
