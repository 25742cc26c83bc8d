"""S5, the state-space layer with many inputs and outputs (Smith et al. 2023), at any rate. Time is the first axis."""

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rvtssm.ssm import TemporalConfig
from rvtssm.ssm.block import SSMBlock
from rvtssm.ssm.discretize import DISCRETIZATIONS, RULES_FOLLOW_THE_RATE
from rvtssm.ssm.init import initial_b, initial_c, initial_modes, log_uniform_steps, normal, parameter, to_pairs
from rvtssm.ssm.layer import State, StepScale, TemporalLayer, longer_steps, to_constant, to_rows
from rvtssm.ssm.real_step import RealSharedStep, check_modes, split_bandlimit
from rvtssm.ssm.shapes import check_input, fitting_state
from rvtssm.ssm.shared_state import SharedSystem, run_shared
from rvtssm.ssm.spectrum import Spectrum, bandlimit_mask, energy_diagonal, masked, mode_spectrum
from rvtssm.system.limits import check_number
from rvtssm.system.user_error import UserError

_LARGEST_REAL = -1e-4


class S5SSM(TemporalLayer):
    """x' = diag(lambda) x + B u, y = Re(C x) + D u, with learned lambda, B, C and D and a learned step per mode.

    The parameters have the layout of the released model: Lambda (P, 2), B (P, H, 2) and C (H, P, 2) as pairs of real
    and imaginary part, D (H,) and log_step (P,). The initial values, with S = state_size, differ from the release:

    - B starts as V^H B, whose real entries have variance 1 / H, and C as C V, whose real and imaginary parts each have
      variance 1 / S. The release draws C with variance 1 / (H S), so that the state contributes a hundredth of the
      output.
    - D starts standard normal, as in the paper. The release draws it uniformly between 0 and 1.

    With `half_state`, each mode kept also represents its conjugate, y = 2 Re(C x) + D u, and C starts from real
    numbers.

    Lambda is unconstrained. With `clip_real`, every forward pass uses min(Re(lambda), -1e-4).

    With `bidirectional`, for offline use, a second scan runs from the end of the chunk, with the same modes and its own
    half of C, (H, 2P, 2): y = Re(C_forward x) + Re(C_backward x_backward) + D u. The forward scan carries its state
    exactly, but the backward scan starts from zero at the end of every chunk. An output therefore depends on where its
    chunk ends, so cutting a sequence changes the outputs.

    Args:
        dim: Number of features H.
        config: Settings of the layer.
    """

    name: ClassVar[str] = "s5"
    default_rule: ClassVar[str | None] = "bilinear"
    rescaled: ClassVar = {"log_step": longer_steps}
    may_be_bidirectional: ClassVar[bool] = True
    may_halve_its_state: ClassVar[bool] = True

    def __init__(self, dim: int, config: TemporalConfig) -> None:
        super().__init__()
        size = config.state_size or dim
        lambda_, v = initial_modes(config.init, size, config.num_blocks, config.half_state)
        b = initial_b(v, dim)
        # The second half of C reads the scan from the end of the chunk.
        c = initial_c(v, dim, config.half_state)
        if config.bidirectional:
            c = torch.cat([c, initial_c(v, dim, config.half_state)], dim=1)
        self.Lambda = nn.Parameter(to_pairs(lambda_))
        self.B = nn.Parameter(to_pairs(b))
        self.C = nn.Parameter(to_pairs(c))
        self.D = nn.Parameter(normal(dim))
        self.log_step = parameter(log_uniform_steps(len(lambda_), config.dt_min, config.dt_max))
        self.discretization = config.of_class(type(self)).step_rule()
        self.follows_the_rate = RULES_FOLLOW_THE_RATE[self.discretization]
        self.bandlimit_at = config.bandlimit_at
        self.bandlimit = config.bandlimit
        self.half_state = config.half_state
        self.clip_real = config.clip_real
        self.bidirectional = config.bidirectional
        self.scan = config.scan
        self.is_causal = not config.bidirectional

    def init_state(self, num_sequences: int) -> Tensor:
        """Return zeros (N, P), complex."""
        return torch.view_as_complex(self.log_step.new_zeros(num_sequences, len(self.log_step), 2))

    def modes(self) -> tuple[Tensor, Tensor]:
        """Return the modes in use, lambda (P,) complex, and their training steps (P,)."""
        real, imag = self.Lambda.unbind(-1)
        if self.clip_real:
            real = real.clamp(max=_LARGEST_REAL)
        return torch.complex(real, imag), self.log_step.exp()

    def prepare(self, step_scale: StepScale | SharedSystem = 1.0) -> SharedSystem:
        """Return the discrete modes at a step scale. The matrices include gain and bandlimit if these do not vary."""
        if isinstance(step_scale, SharedSystem):
            return step_scale
        # Autocast is off, because powers of decay amplify rounding errors.
        with torch.autocast(self.log_step.device.type, enabled=False):
            return self._prepare(to_rows(to_constant(step_scale), self.log_step), *self.modes())

    def _prepare(self, rows: StepScale, lambda_: Tensor, dt: Tensor) -> SharedSystem:
        gain: Tensor | None
        decay, gain = DISCRETIZATIONS[self.discretization](lambda_, dt, rows)
        mask = bandlimit_mask(lambda_, dt, self.bandlimit, self.bandlimit_at, rows)
        # Real and imaginary parts stay interleaved: the matrix [[re, -im], [im, re]] of a complex factor turns a pair
        # of B into two rows of w_in, and Re(C x) = Re C Re x - Im C Im x gives two columns of w_out.
        w_in = self.B.transpose(1, 2)
        factor = torch.full_like(dt, 1 + self.half_state)
        if decay.ndim == 1:
            decay = decay[None, None]
        if gain.ndim == 1:
            w_in = torch.stack([gain.real, -gain.imag, gain.imag, gain.real], -1).unflatten(-1, (2, 2)) @ w_in
            gain = None
        if mask is not None and mask.ndim == 1:
            factor = factor * mask
            mask = None
        return SharedSystem(
            decay=decay,
            gain=gain,
            mask=mask,
            w_in=w_in.flatten(0, 1),
            w_out=(self.C * torch.stack([factor, -factor], -1).repeat(1 + self.bidirectional, 1)).flatten(1),
            d=self.D,
        )

    def forward(
        self, x: Tensor, state: State | None = None, step_scale: StepScale | SharedSystem = 1.0
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
            x, state, self.init_state, len(self.D), self.D, self.log_step.shape, is_complex=True, step_scale=step_scale
        )
        system = self.prepare(step_scale)
        dtype = _product_dtype(x)
        with torch.autocast(x.device.type, enabled=False):
            if self.bidirectional:
                return self._both_ways(system, x.to(dtype), before)
            return run_shared(system, x.to(dtype), before, self.scan)

    def forward_without_memory(self, x: Tensor, step_scale: StepScale | SharedSystem = 1.0, **where: Any) -> Tensor:
        """Run every step from the zero state. See `TemporalLayer.forward_without_memory`.

        At a single step scale, this is one matrix from input to output.
        """
        check_input(x, len(self.D), self.D, step_scale)
        system = self.prepare(step_scale)
        if system.gain is not None or system.mask is not None:
            return super().forward_without_memory(x, step_scale)
        dtype = _product_dtype(x)
        with torch.autocast(x.device.type, enabled=False):
            # The backward scan starts from zero as well, so in a chunk of one step both directions add up.
            w_out = torch.stack(system.w_out.chunk(1 + self.bidirectional, dim=1)).sum(0)
            matrix = (w_out @ system.w_in).to(dtype)
            inputs = x.to(dtype)
            return torch.addcmul(F.linear(inputs, matrix), inputs, system.d.to(dtype))

    def extra_repr(self) -> str:
        return (
            f"features={len(self.D)}, modes={len(self.log_step)}, discretization={self.discretization}, "
            f"bandlimit={self.bandlimit:g}"
        )

    def real_step(self) -> TemporalLayer:
        if self.bidirectional:
            found = "it cannot be exported: the layer also scans each chunk from its end, so it has no single step"
            advice = "train with temporal.bidirectional=false"
            raise UserError("layer.lacks", name="temporal.bidirectional=true", found=found, advice=advice)
        return _RealS5(self)

    def spectrum(self) -> Spectrum:
        return mode_spectrum(*self.modes(), self.bandlimit, self.bandlimit_at)

    def kernel(self, num_steps: int, step_scale: StepScale = 1.0) -> Tensor:
        """Return the impulse response (L, H, H). See `TemporalLayer.kernel`."""
        if self.bidirectional:
            found = "the layer also responds before an impulse, so it has no kernel"
            raise UserError("layer.lacks", name="temporal.bidirectional=true", found=found)
        check_number("num_steps", num_steps, 1, is_whole=True)
        impulses = F.pad(torch.eye(len(self.D)).to(self.D)[None], (0, 0, 0, 0, 0, num_steps - 1))  # (L, H, H)
        response: Tensor = self(impulses, None, step_scale)[0]
        return response.mT

    def band_energy(self, omega_min: float, omega_max: float) -> Tensor:
        """Return the squared H2 norm of the layer. See `TemporalLayer.band_energy`.

        Masked modes do not count. D does not count either, because it passes all frequencies.
        """
        lambda_, dt = self.modes()
        b = torch.view_as_complex(self.B) * dt[:, None]
        c = torch.view_as_complex(self.C)
        if self.bidirectional:
            c = torch.cat(c.chunk(2, dim=1))  # both directions have the same modes
        c = masked(c, bandlimit_mask(lambda_, dt, self.bandlimit))
        factor = (1 + self.half_state) / 2  # Re(C x) is half the sum of C x and its conjugate; half_state doubles it
        lambda_ = torch.cat([lambda_ * dt, (lambda_ * dt).conj()])
        b = torch.cat([b, b.conj()])
        c = factor * torch.cat([c, c.conj()], dim=1)
        weights = (c.mH @ c).mT * (b @ b.mH)
        return energy_diagonal(lambda_, weights, omega_min, omega_max)

    def _both_ways(self, system: SharedSystem, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Run both scans; return the sum of their outputs and the last state of the forward scan."""
        forward_out, backward_out = system.w_out.chunk(2, dim=1)
        y, last = run_shared(replace(system, w_out=forward_out), x, state, self.scan)
        back = replace(
            system,
            decay=system.decay.flip(0),
            gain=None if system.gain is None else system.gain.flip(0),
            mask=None if system.mask is None else system.mask.flip(0),
            w_out=backward_out,
            d=torch.zeros_like(system.d),
        )
        y_back, _ = run_shared(back, x.flip(0), torch.zeros_like(state), self.scan)
        return y + y_back.flip(0), last


def _product_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of matrix products with x: the dtype of autocast if it is enabled, else the dtype of x."""
    if torch.is_autocast_enabled(x.device.type):
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype


class _RealS5(RealSharedStep):
    dt: Tensor

    def __init__(self, layer: S5SSM) -> None:
        lambda_, dt = layer.modes()
        check_modes(lambda_)
        mask, bandlimit = split_bandlimit(layer, lambda_, dt)
        super().__init__(layer, lambda_, bandlimit, mask)
        self.keep(dt=dt)

    def steps(self, x: Tensor, step_scale: Tensor) -> tuple[Tensor, Tensor]:
        return self.dt, self.dt * step_scale


class S5(SSMBlock):
    """S5 as the detector uses it: the state-space layer inside its block. See `S5SSM`.

    The block of the released S5-ViT normalises the input, applies the layer and GELU, adds the normalised input, and
    does the same with a second norm and a gated feed-forward part.

    The default rule is `bilinear`, as in the released weights. Its decay approximates exp(Lambda dt), well only for
    modes that are slow compared with the step: ten steps of a tenth in place of one change the state of new layers by a
    third to nearly all of its norm, and the output by some percent (docs/concepts.md). With
    `TemporalConfig(discretization="zoh")` the decay is exactly that.

    The first axis of the input is time: (steps, sequences, features). If you pass an
    input (batch, steps, features), the layer takes the batch for time and raises no error: both are three axes.

    >>> layer = rvtssm.S5(16, rvtssm.TemporalConfig(discretization="zoh"))
    >>> y, state = layer(torch.zeros(5, 3, 16), layer.init_state(3))  # five steps of three sequences
    >>> y, state = layer(torch.zeros(50, 3, 16), state, step_scale=0.1)  # the same time at ten times the rate
    >>> y.shape
    torch.Size([50, 3, 16])

    Args:
        dim: Number of features H.
        config: Settings of the layer; None means the defaults.
    """

    def __init__(self, dim: int, config: TemporalConfig | None = None) -> None:
        super().__init__(S5SSM(dim, TemporalConfig.of_layer(config, S5SSM, dim)), dim)
