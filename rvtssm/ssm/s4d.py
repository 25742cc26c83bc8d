"""S4D, a small diagonal state-space model per feature (Gu et al. 2022), with carried state and at any rate."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from rvtssm.ssm import TemporalConfig
from rvtssm.ssm.block import GLUBlock
from rvtssm.ssm.discretize import DISCRETIZATIONS, RULES_FOLLOW_THE_RATE
from rvtssm.ssm.init import elementwise, hippo_input, initial_modes, log_uniform_steps, normal, parameter, to_pairs
from rvtssm.ssm.layer import StepScale, TemporalLayer, longer_steps
from rvtssm.ssm.per_feature import STATE_SIZE, DiagonalSystem, PerFeatureLayer
from rvtssm.ssm.real_step import Pair, RealStep, check_modes, split_bandlimit
from rvtssm.ssm.spectrum import Spectrum, bandlimit_mask, energy_diagonal, masked, mode_spectrum


class S4DSSM(PerFeatureLayer):
    """x' = diag(lambda) x + B u, y = 2 Re(C x) + D u, where every feature has its own lambda, C, D and step.

    Each of the n = state_size / 2 modes also represents its conjugate. Re(lambda) = -exp(log_real), so the layer is
    stable for all weights. Only the product of B and C reaches the output, so B is not learned: it is 1, or, for
    `init=legs`, the input vector of HiPPO-LegS, clipped at 2 as in the reference code. C starts standard normal.

    A chunk is a convolution with carried state, even if its steps differ (`DiagonalSystem`).

    Args:
        dim: Number of features H.
        config: Settings of the layer.
    """

    name: ClassVar[str] = "s4d"
    default_rule: ClassVar[str | None] = "bilinear"
    rescaled: ClassVar = {"log_step": longer_steps}
    B: Tensor

    def __init__(self, dim: int, config: TemporalConfig) -> None:
        super().__init__()
        size = config.state_size or STATE_SIZE
        lambda_, v = initial_modes(config.init, size, config.num_blocks, half=True)
        b = torch.ones_like(lambda_)
        if config.init == "legs":
            b = hippo_input(v, config.num_blocks)
        self.log_step = parameter(log_uniform_steps(dim, config.dt_min, config.dt_max))
        self.log_real = parameter(elementwise(lambda real: (-real).log(), lambda_.real).repeat(dim, 1))
        self.imag = parameter(lambda_.imag.repeat(dim, 1))
        self.C = nn.Parameter(elementwise(lambda drawn: drawn * 0.5**0.5, torch.randn(dim, len(lambda_), 2)))
        self.D = nn.Parameter(normal(dim))
        self.register_buffer("B", to_pairs(b).repeat(dim, 1, 1))
        self.discretization = config.of_class(type(self)).step_rule()
        self.follows_the_rate = RULES_FOLLOW_THE_RATE[self.discretization]
        self.bandlimit_at = config.bandlimit_at
        self.bandlimit = config.bandlimit

    def modes(self) -> tuple[Tensor, Tensor]:
        """Return the modes in use, lambda (H, n) complex, and the training steps of the features, (H, 1)."""
        return torch.complex(-self.log_real.exp(), self.imag), self.log_step.exp()[:, None]

    def discretized(self, rows: StepScale) -> DiagonalSystem:
        """Return the discrete modes at a step scale; the gain includes B, and C includes the bandlimit."""
        if isinstance(rows, Tensor) and rows.ndim:
            rows = rows[..., None]  # (T, G, 1, 1)
        lambda_, dt = self.modes()
        decay, gain = DISCRETIZATIONS[self.discretization](lambda_, dt, rows)
        mask = bandlimit_mask(lambda_, dt, self.bandlimit, self.bandlimit_at, rows)
        c = masked(torch.view_as_complex(self.C), mask)
        gain = gain * torch.view_as_complex(self.B)
        return DiagonalSystem(_at_every_step(decay), _at_every_step(gain), _at_every_step(c))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, bandlimit={self.bandlimit:g}"

    def real_step(self) -> TemporalLayer:
        return _RealS4D(self)

    def spectrum(self) -> Spectrum:
        return mode_spectrum(*self.modes(), self.bandlimit, self.bandlimit_at)

    def band_energy(self, omega_min: float, omega_max: float) -> Tensor:
        """Return the squared H2 norm per feature. See `TemporalLayer.band_energy`.

        Masked modes do not count. D does not count either, because it passes all frequencies.
        """
        lambda_, dt = self.modes()
        residue = torch.view_as_complex(self.C) * torch.view_as_complex(self.B) * dt
        residue = masked(residue, bandlimit_mask(lambda_, dt, self.bandlimit))
        lambda_ = torch.cat([lambda_ * dt, (lambda_ * dt).conj()], -1)
        residue = torch.cat([residue, residue.conj()], -1)
        weights = residue[:, :, None] * residue.conj()[:, None]
        return energy_diagonal(lambda_, weights, omega_min, omega_max)


def _at_every_step(values: Tensor) -> Tensor:
    """Return values (H, n), which no step changes, as (1, 1, H, n); others (T, G, H, n) unchanged."""
    if values.ndim == 2:
        return values[None, None]
    return values


class _RealS4D(RealStep):
    dt: Tensor

    def __init__(self, layer: S4DSSM) -> None:
        lambda_, dt = layer.modes()
        check_modes(lambda_)
        mask, bandlimit = split_bandlimit(layer, lambda_, dt)
        super().__init__(layer.discretization, bandlimit)
        b = torch.view_as_complex(layer.B)
        c = torch.view_as_complex(layer.C)
        self.keep(dt=dt, d=layer.D, b=b, c=masked(c, mask), **{"lambda": lambda_})

    def advance(self, x: Tensor, before: Pair, step_scale: Tensor) -> tuple[Tensor, Pair]:
        step = self.dt * step_scale[:, None, None, None]  # (G, 1, H, 1)
        decay, gain = self.discretize(self.dt, step)
        drive = gain.times(self.pair("b")).scaled(x.unflatten(0, (step_scale.shape[0], -1))[..., None])
        after = decay.times(before).plus(drive)
        return 2 * self.visible(after, step).times(self.pair("c")).re.sum(-1).flatten(0, 1), after


class S4D(GLUBlock):
    """S4D as the detector uses it: the state-space layer inside its block. See `S4DSSM`.

    The first axis of the input is time: (steps, sequences, features). If you pass an
    input (batch, steps, features), the layer takes the batch for time and raises no error: both are three axes.

    >>> layer = rvtssm.S4D(16)
    >>> y, state = layer(torch.zeros(5, 3, 16), layer.init_state(3), step_scale=0.5)
    >>> y.shape
    torch.Size([5, 3, 16])

    Args:
        dim: Number of features H.
        config: Settings of the layer; None means the defaults.
    """

    def __init__(self, dim: int, config: TemporalConfig | None = None) -> None:
        super().__init__(S4DSSM(dim, TemporalConfig.of_layer(config, S4DSSM, dim)), dim)
