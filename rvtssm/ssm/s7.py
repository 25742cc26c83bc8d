"""S7, a state-space layer whose parameters depend on its input (Soydan et al. 2024, arXiv 2410.03464)."""

import copy
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rvtssm.ssm import TemporalConfig
from rvtssm.ssm.block import GatedBlock, SSMBlock, in_block
from rvtssm.ssm.init import elementwise, linear_from, log_uniform_steps, normal, parameter, truncated_normal
from rvtssm.ssm.layer import State, StepScale, TemporalLayer, to_rows
from rvtssm.ssm.scan import scan
from rvtssm.ssm.shapes import fitting_state
from rvtssm.ssm.spectrum import Spectrum, mode_spectrum

# a and b in f(w) = 1 - 1 / (a w^2 + b)
_A = 1.0
_B = 0.5


class S7SSM(TemporalLayer):
    """x[k] = exp(Lambda[k] r[k]) x[k-1] + B[k] u[k], y[k] = C[k] x[k] + D[k] u[k], all real, with step scale r.

    From the paper, we take:

    - Lambda, B, C and D depend on the input (eq. 3).
    - f(w) = 1 - 1 / (w^2 + 0.5) keeps Lambda stable (eq. 4).
    - The length of a step enters only through exp(Lambda[k] r[k]), so an input weighs the same in a step of any length
      (eq. 12).
    - The gate of the block.

    Our choices, where the paper leaves them open or contradicts itself:

    - The paper does not say how Lambda[k] is computed from the input, and eq. 12 cannot use f as it is, because its
      exponential grows. We set Lambda[k] = f(w[k]) - 1 = -1 / (w[k]^2 + 0.5) with w[k] = W u[k] + w, the form that the
      source of f gives for continuous time (StableSSM, Wang and Li 2024). Lambda lies between -2 and 0, so neither
      weights nor steps can make the layer unstable. w is real, because neither form is bounded for complex w.
    - In eqs. 5 and 12 only Lambda depends on the input, in eq. 3 all four parameters do. We multiply B and C by one
      factor per mode and add one number per feature to D. All of these are linear in u[k] and initially constant. Full
      matrices B[k] and C[k] would take P * H numbers per step and sequence: 75 MB for the first stage of the demo (6
      steps of 3072 sequences, 32 features) and 14 GB for Gen1 base with 8 streams of 21 steps. The factors take 7 MB
      and 540 MB.
    - Initially, exp(Lambda) at zero input is the decay of a mode with time constant 1 over a log-uniform step, as in
      S5. The paper starts from HiPPO, whose modes are complex. The rows of B are initially scaled by 1 - exp(Lambda),
      because otherwise slow modes dominate the output.

    Args:
        dim: Number of features H.
        config: Settings of the layer.

    Raises:
        UserError: If a bandlimit is set.
    """

    name: ClassVar[str] = "s7"
    default_block: ClassVar[str | None] = "gated"
    follows_the_rate = "decay_only"

    def __init__(self, dim: int, config: TemporalConfig) -> None:
        super().__init__()
        config.refuse_bandlimit("its modes depend on the input, so they have no fixed frequency")
        size = config.state_size or dim
        rate = elementwise(torch.exp, log_uniform_steps(size, config.dt_min, config.dt_max))
        bias = elementwise(lambda rate: ((1 / rate - _B) / _A).clamp_min(0).sqrt(), rate)
        self.to_w = linear_from(truncated_normal(size, dim, std=dim**-0.5), bias)
        self.to_factors = nn.Linear(dim, 2 * size + dim, bias=False)  # changes of the factors of B and C, and of D
        drawn = truncated_normal(size, dim, std=dim**-0.5)
        self.B = parameter(elementwise(lambda drawn: -(-rate[:, None]).expm1() * drawn, drawn))
        self.C = parameter(truncated_normal(dim, size, std=size**-0.5))
        self.D = nn.Parameter(normal(dim))
        self.scan = config.scan
        with torch.no_grad():
            self.to_factors.weight.zero_()

    def init_state(self, num_sequences: int) -> Tensor:
        """Return zeros (N, P)."""
        return self.B.new_zeros(num_sequences, len(self.B))

    def forward(self, x: Tensor, state: State | None = None, step_scale: StepScale = 1.0) -> tuple[Tensor, Tensor]:
        """Run L steps. See `TemporalLayer.forward`.

        Args:
            x: Inputs (L, N, H).
            state: State before the first step, (N, P); None means zeros.
            step_scale: A step scale.

        Returns:
            The outputs (L, N, H) and the state after step L.
        """
        before: Tensor = fitting_state(
            x, state, self.init_state, len(self.D), self.D, self.B.shape[:1], step_scale=step_scale
        )
        inputs = x.to(self.D.dtype)
        drive, readout, passed = self._factors(inputs)
        decay = self._decay(inputs, to_rows(step_scale, self.D))
        states, last = scan(decay, drive * F.linear(inputs, self.B), before, self.scan)
        return (F.linear(states * readout, self.C) + passed * inputs).to(x.dtype), last

    def extra_repr(self) -> str:
        return f"features={len(self.D)}, modes={len(self.B)}"

    def real_step(self) -> TemporalLayer:
        return _SingleStep(self)

    @torch.no_grad()
    def spectrum(self) -> Spectrum:
        rate = _rate(self.to_w.bias)
        note = "at zero input; the input changes the time constant of every mode; no mask"
        return mode_spectrum(torch.complex(-rate, torch.zeros_like(rate)), torch.ones_like(rate), note=note)

    def _factors(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the factors of B and C, (L, N, P) each, and D itself, (L, N, H)."""
        size = len(self.B)
        drive, readout, passed = self.to_factors(inputs).split([size, size, len(self.D)], dim=-1)
        return 1 + drive, 1 + readout, self.D + passed

    def _decay(self, inputs: Tensor, rows: StepScale) -> Tensor:
        """Return exp(Lambda[k] r[k]), (L, N, P), for a step scale (T, G, 1) or a number."""
        # Autocast is off, because powers of decay amplify rounding errors.
        with torch.autocast(inputs.device.type, enabled=False):
            rate = _rate(self.to_w(inputs))
            if not isinstance(rows, Tensor) or rows.ndim == 0:
                return torch.exp(-rate * rows)
            return torch.exp(-rate.unflatten(1, (rows.shape[1], -1)) * rows[:, :, None]).flatten(1, 2)


class _SingleStep(TemporalLayer):
    """One step without the scan, for export. See `TemporalLayer.real_step`."""

    def __init__(self, layer: S7SSM) -> None:
        super().__init__()
        self.layer = copy.deepcopy(layer).requires_grad_(False)

    def init_state(self, num_sequences: int) -> Tensor:
        return self.layer.init_state(num_sequences)

    def forward(self, x: Tensor, state: State | None = None, step_scale: Any = 1.0) -> tuple[Tensor, Tensor]:
        """Take one step: x (1, N, H), state (N, P), step_scale (G,) -> y (1, N, H), the next state."""
        assert isinstance(state, Tensor)
        drive, readout, passed = self.layer._factors(x)
        after = self.layer._decay(x, to_rows(step_scale))[0] * state + (drive * F.linear(x, self.layer.B))[0]
        return F.linear(after[None] * readout, self.layer.C) + passed * x, after


def S7(dim: int, config: TemporalConfig | None = None) -> SSMBlock | GatedBlock:
    """Return S7 as the detector uses it: the state-space layer inside its block. See `S7SSM`.

    The first axis of the input is time: (steps, sequences, features). If you pass an
    input (batch, steps, features), the layer takes the batch for time and raises no error: both are three axes.

    >>> layer = rvtssm.S7(16)
    >>> y, state = layer(torch.zeros(5, 3, 16), layer.init_state(3), step_scale=0.5)
    >>> y.shape
    torch.Size([5, 3, 16])

    Args:
        dim: Number of features H.
        config: Settings of the layer; None means the defaults.
    """
    config = TemporalConfig.of_layer(config, S7SSM, dim)
    return in_block(S7SSM(dim, config), dim, config)


def _rate(w: Tensor) -> Tensor:
    """Return 1 - f(w), which is -Lambda."""
    return 1 / (_A * w * w + _B)
