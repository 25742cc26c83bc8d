"""S4D, a small diagonal state-space model per feature (Gu et al. 2022), with carried state and at any rate."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rvtssm.ssm.block import GLUBlock
from rvtssm.ssm.discretize import discretization
from rvtssm.ssm.init import hippo_input, initial_spectrum, log_uniform_steps, to_pairs
from rvtssm.ssm.layer import (
    OMEGA_MAX,
    OMEGA_MIN,
    State,
    StepScale,
    TemporalConfig,
    TemporalLayer,
    to_constant,
    to_rows,
)
from rvtssm.ssm.siso import DiagonalSystem, run_alone, run_siso
from rvtssm.ssm.spectrum import DEFAULT_BANDLIMIT, bandlimit_mask, h2_norm_diagonal

_STATE_SIZE = 64


class S4DSSM(TemporalLayer):
    """x' = diag(lambda) x + B u, y = 2 Re(C x) + D u for every feature alone, which has its own lambda, C, D and step.

    n = state_size / 2 modes stand for themselves and their conjugates. Re(lambda) = -exp(log_real), so no weights are
    unstable. Only the product of B and C reaches the output, so B is not learned: 1, and with `legs` the input vector
    of HiPPO-LegS, cut at 2 as in the reference. C starts standard normal.

    A chunk is a convolution with carried state, also where the steps differ (`DiagonalSystem`).
    """

    name: ClassVar[str] = "s4d"
    B: Tensor

    def __init__(self, dim: int, config: TemporalConfig) -> None:
        super().__init__()
        size = _STATE_SIZE if config.state_size is None else config.state_size
        lambda_, v = initial_spectrum(config.init, size, config.num_blocks, half=True)
        num_modes = len(lambda_)
        b = hippo_input(v, config.num_blocks) if config.init == "legs" else torch.ones_like(lambda_)
        self.log_step = nn.Parameter(log_uniform_steps(dim, config.dt_min, config.dt_max).float())
        self.log_real = nn.Parameter((-lambda_.real).log().float().repeat(dim, 1))
        self.imag = nn.Parameter(lambda_.imag.float().repeat(dim, 1))
        self.C = nn.Parameter(torch.randn(dim, num_modes, 2) * 0.5**0.5)
        self.D = nn.Parameter(torch.randn(dim))
        self.register_buffer("B", to_pairs(b).repeat(dim, 1, 1))
        self.discretize = discretization(config.discretization)
        self.bandlimit = DEFAULT_BANDLIMIT if config.bandlimit is None else config.bandlimit
        self.bandlimit_at = config.bandlimit_at

    def init_state(self, num_sequences: int) -> Tensor:
        """Zeros (N, H, n), complex."""
        shape = num_sequences, *self.log_real.shape
        return self.log_real.new_zeros(shape, dtype=self.log_real.dtype.to_complex())

    def modes(self) -> tuple[Tensor, Tensor]:
        """The modes in use: lambda (H, n) complex and the steps of the features at the training rate (H, 1)."""
        return torch.complex(-self.log_real.exp(), self.imag), self.log_step.exp()[:, None]

    def prepare(self, step_scale: StepScale = 1.0) -> DiagonalSystem:
        """The layer at a step scale: discretised modes, B in their gain, the bandlimit in C."""
        with torch.autocast(self.log_step.device.type, enabled=False):
            rows = to_rows(to_constant(step_scale))
            if isinstance(rows, Tensor) and rows.ndim:
                rows = rows[..., None]  # (T, G, 1, 1)
            lambda_, dt = self.modes()
            decay, gain = self.discretize(lambda_, dt, rows)
            c = torch.view_as_complex(self.C)
            mask = bandlimit_mask(lambda_, dt, self.bandlimit, self.bandlimit_at, rows)
            if mask is not None:
                c = c * mask
            gain = gain * torch.view_as_complex(self.B)
            return DiagonalSystem(*(v if v.ndim > 2 else v[None, None] for v in (decay, gain, c)))

    def forward(self, x: Tensor, state: State, step_scale: StepScale | DiagonalSystem = 1.0) -> tuple[Tensor, Tensor]:
        """x (L, N, H), state (N, H, n) complex -> y (L, N, H), the state after step L. See `TemporalLayer.forward`."""
        assert isinstance(state, Tensor)
        system = step_scale if isinstance(step_scale, DiagonalSystem) else self.prepare(step_scale)
        with torch.autocast(x.device.type, enabled=False):
            y, last = run_siso(system, x.to(self.D.dtype), state)
            return torch.addcmul(y, x.to(self.D.dtype), self.D).to(x.dtype), last

    def alone(self, x: Tensor, step_scale: StepScale | DiagonalSystem = 1.0, **where: Any) -> Tensor:
        """See `TemporalLayer.alone`; a state is as large as many features, and none is made."""
        system = step_scale if isinstance(step_scale, DiagonalSystem) else self.prepare(step_scale)
        with torch.autocast(x.device.type, enabled=False):
            inputs = x.to(self.D.dtype)
            return torch.addcmul(run_alone(system, inputs), inputs, self.D).to(x.dtype)

    def h2_norm(self, omega_min: float = OMEGA_MIN, omega_max: float = OMEGA_MAX, num_points: int = 0) -> Tensor:
        """See `TemporalLayer.h2_norm`; D, which passes all frequencies alike, and masked modes do not count."""
        lambda_, dt = self.modes()
        residue = torch.view_as_complex(self.C) * torch.view_as_complex(self.B) * dt
        mask = bandlimit_mask(lambda_, dt, self.bandlimit)
        if mask is not None:
            residue = residue * mask
        lambda_ = torch.cat([lambda_ * dt, (lambda_ * dt).conj()], -1)
        residue = torch.cat([residue, residue.conj()], -1)
        weights = residue[:, :, None] * residue.conj()[:, None]
        return h2_norm_diagonal(lambda_, weights, omega_min, omega_max, num_points).to(dt.dtype)


class S4D(GLUBlock):
    """S4D as the detector uses it: the state-space layer inside its block."""

    def __init__(self, dim: int, config: TemporalConfig) -> None:
        super().__init__(S4DSSM(dim, config), dim)
