"""S4, a diagonal plus low-rank state-space model per feature (Gu et al. 2022), with carried state and at any rate."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rvtssm.ssm.block import GLUBlock
from rvtssm.ssm.discretize import discretization
from rvtssm.ssm.init import hippo_legs, log_uniform_steps, to_pairs
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
from rvtssm.ssm.siso import DenseSystem, run_alone, run_siso
from rvtssm.ssm.spectrum import energy_quadrature, root

_STATE_SIZE = 64
_NUM_POINTS = 128


class S4SSM(TemporalLayer):
    """x' = (diag(lambda) - P P^H) x + B u, y = C x + D u for every feature alone, all of it learned.

    It starts as HiPPO-LegS. n = state_size / 2 of the modes of the normal part are kept, the others are their
    conjugates: the state of a feature is 2n real numbers, and y = 2 Re(C x) over the modes kept. Re(lambda) =
    -exp(log_real), so no weights are unstable: all that the low-rank part does is to damp.

    Chunks run in parallel: the discrete state matrix is written out (through Woodbury's identity
    for `bilinear`, the rule of the paper; through a matrix exponential for the others, which costs more), and its
    Krylov sequences give the matrices of a chunk (`DenseSystem`). No length enters the parameters, so any rate works,
    unlike in the reference, whose kernel is exact at its own length only.

    Where the steps of a chunk differ, there is one such matrix per step, group of sequences and feature, and groups
    smaller than the state fall back to the recurrence. The exponentials are one per feature and size of step, about a
    millisecond each for a state of 64: a few sizes cost little, but where all steps differ, or a gradient with respect
    to them is asked for, a chunk takes 9 times as long as with `bilinear` and 25 times with its backward.
    """

    name: ClassVar[str] = "s4"

    def __init__(self, dim: int, config: TemporalConfig) -> None:
        super().__init__()
        size = _STATE_SIZE if config.state_size is None else config.state_size
        config.refuse_bandlimit("the frequencies of its normal part are not those at which it oscillates")
        if config.init != "legs" or size < 2 or size % 2:
            raise ValueError(
                f"temporal.init={config.init!r}, state_size={size}; "
                "temporal.name=s4 is HiPPO-LegS, init=legs, of an even size (s4d has other inits)"
            )
        lambda_, p, b, _ = (torch.from_numpy(array)[size // 2 :] for array in hippo_legs(size))
        self.log_step = nn.Parameter(log_uniform_steps(dim, config.dt_min, config.dt_max).float())
        self.log_real = nn.Parameter((-lambda_.real).log().float().repeat(dim, 1))
        self.imag = nn.Parameter(lambda_.imag.float().repeat(dim, 1))
        self.P = nn.Parameter(to_pairs(p).repeat(dim, 1, 1))
        self.B = nn.Parameter(to_pairs(b).repeat(dim, 1, 1))
        self.C = nn.Parameter(torch.randn(dim, size // 2, 2) * 0.5**0.5)
        self.D = nn.Parameter(torch.randn(dim))
        discretization(config.discretization)
        self.discretization = config.discretization

    def init_state(self, num_sequences: int) -> Tensor:
        """Zeros (N, H, n), complex."""
        shape = num_sequences, *self.log_real.shape
        return self.log_real.new_zeros(shape, dtype=self.log_real.dtype.to_complex())

    def prepare(self, step_scale: StepScale = 1.0) -> DenseSystem:
        """The layer at a step scale: its discrete matrices, in real numbers."""
        with torch.autocast(self.log_step.device.type, enabled=False):
            rows = to_rows(to_constant(step_scale))
            if not isinstance(rows, Tensor) or rows.ndim == 0:
                rows = self.log_step.new_ones(1, 1, 1) * rows
            a, b = self._bilinear(rows) if self.discretization == "bilinear" else self._exponential(rows)
            return DenseSystem(a, b, 2 * torch.view_as_real(self._c.conj().resolve_conj()).flatten(-2))

    def continuous(self) -> tuple[Tensor, Tensor]:
        """A (H, S, S) and B (H, S) of the continuous system over S real numbers: real and imaginary parts in turn."""
        p = torch.view_as_real(self._p).flatten(-2)
        a = _real_matrix(self._lambda) - 2 * p[..., :, None] * p[..., None, :]
        return a, torch.view_as_real(self._b).flatten(-2)

    def forward(self, x: Tensor, state: State, step_scale: StepScale | DenseSystem = 1.0) -> tuple[Tensor, Tensor]:
        """x (L, N, H), state (N, H, n) complex -> y (L, N, H), the state after step L. See `TemporalLayer.forward`."""
        assert isinstance(state, Tensor)
        system = step_scale if isinstance(step_scale, DenseSystem) else self.prepare(step_scale)
        with torch.autocast(x.device.type, enabled=False):
            y, last = run_siso(system, x.to(self.D.dtype), state)
            return torch.addcmul(y, x.to(self.D.dtype), self.D).to(x.dtype), last

    def alone(self, x: Tensor, step_scale: StepScale | DenseSystem = 1.0, **where: Any) -> Tensor:
        """See `TemporalLayer.alone`; a state is as large as many features, and none is made."""
        system = step_scale if isinstance(step_scale, DenseSystem) else self.prepare(step_scale)
        with torch.autocast(x.device.type, enabled=False):
            inputs = x.to(self.D.dtype)
            return torch.addcmul(run_alone(system, inputs), inputs, self.D).to(x.dtype)

    def h2_norm(self, omega_min: float = OMEGA_MIN, omega_max: float = OMEGA_MAX, num_points: int = 0) -> Tensor:
        """See `TemporalLayer.h2_norm`; always by quadrature, with 128 points where `num_points` is 0.

        That is right to 1e-10 at the start and, with noise of 0.5 on all parameters, to 1 %.
        """
        dt = self.log_step.exp()[:, None]

        def power(omega: Tensor) -> Tensor:
            response = dt * self._resolvent(self._c, 1j * omega, dt.to(self._c.dtype))
            return response.real.square() + response.imag.square()

        return root(energy_quadrature(power, omega_min, omega_max, num_points or _NUM_POINTS, dt))

    def cauchy_kernel(self, length: int, step_scale: float = 1.0) -> Tensor:
        """The first `length` outputs after an impulse (H, length), for `bilinear`: the method of the paper, kept as the
        reference. Its generating function is taken at the roots of unity, where Woodbury's identity leaves four Cauchy
        sums, and transformed back.
        """
        system = self.prepare(step_scale)
        a = system.a[0, 0]
        # Without what lies beyond the length, the generating function is that of an endless kernel.
        row = system.c[:, None]
        row = (row - row @ torch.linalg.matrix_power(a, length)).unflatten(-1, (-1, 2))[:, 0]
        dt = (self.log_step.exp() * step_scale)[:, None]
        turn = torch.arange(length // 2 + 1, device=dt.device, dtype=dt.dtype) * (-2 * torch.pi / length)
        z = torch.polar(torch.ones_like(turn), turn)
        transformed = 2 * dt * self._resolvent(torch.view_as_complex(row).conj() / 2, 2 * (1 - z), (1 + z) * dt)
        kernel: Tensor = torch.fft.irfft(transformed, n=length)
        return kernel

    @property
    def _lambda(self) -> Tensor:
        return torch.complex(-self.log_real.exp(), self.imag)

    @property
    def _p(self) -> Tensor:
        return torch.view_as_complex(self.P)

    @property
    def _b(self) -> Tensor:
        return torch.view_as_complex(self.B)

    @property
    def _c(self) -> Tensor:
        return torch.view_as_complex(self.C)

    def _resolvent(self, c: Tensor, scalar: Tensor, factor: Tensor) -> Tensor:
        """C (scalar - factor A)^-1 B over the modes and their conjugates; the scalars are (H | 1, K) -> (H, K)."""
        lambda_, scalar, factor = self._lambda[..., None], torch.atleast_2d(scalar)[:, None], factor[:, None]
        fraction, mirrored = 1 / (scalar - factor * lambda_), 1 / (scalar - factor * lambda_.conj())  # (H, n, K)

        def cauchy(weights: Tensor) -> Tensor:
            return (weights[..., None] * fraction + weights.conj()[..., None] * mirrored).sum(1)

        p, b, factor = self._p, self._b, factor[:, 0]
        low_rank = cauchy(c * p) * cauchy(p.conj() * b) / (1 + factor * cauchy(p.conj() * p))
        return cauchy(c * b) - factor * low_rank

    def _bilinear(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(I - A step / 2)^-1 is a diagonal minus a product of two vectors: A_bar = 2 (...)^-1 - I, B_bar alike."""
        half = (self.log_step.exp() * rows)[..., None] / 2  # (T, G, H, 1)
        inverse = 1 / (1 - half * self._lambda)
        left, right = inverse * self._p, inverse * self._p.conj()
        weight = 4 * half / (1 + 2 * half * (self._p.conj() * left).real.sum(-1, keepdim=True))
        b = 2 * half * (inverse * self._b - weight / 2 * left * (right * self._b).real.sum(-1, keepdim=True))
        column = torch.view_as_real(weight * left).flatten(-2)
        row = torch.view_as_real(right.conj().resolve_conj()).flatten(-2)
        a = _real_matrix(2 * inverse - 1) - column[..., :, None] * row[..., None, :]
        return a, torch.view_as_real(b).flatten(-2)

    def _exponential(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """exp of [[A, B], [0, 0]] step is [[A_bar, B_bar], [0, 1]] under `zoh`, at step 1 as well B_bar of `async`."""
        a, b = self.continuous()
        generator = F.pad(torch.cat([a, b[..., None]], -1), (0, 0, 0, 1))
        # The squarings of fast modes amplify rounding: in float64 whatever the parameters are.
        generator = generator.double() * self.log_step.exp()[:, None, None]
        grown = _exponentials(generator, rows).to(a.dtype)
        if self.discretization == "zoh":
            gain = grown[..., :-1, -1]
        elif self.discretization == "async":
            gain = torch.linalg.matrix_exp(generator).to(a.dtype)[..., :-1, -1]
        else:
            gain = b
        return grown[..., :-1, :-1], gain.expand(*grown.shape[:-2], -1)


def _exponentials(generator: Tensor, rows: Tensor) -> Tensor:
    """exp(generator * rows): generator (H, S, S), rows (T, G, 1) -> (T, G, H, S, S)."""
    if rows.requires_grad or rows.numel() == 1 or torch.compiler.is_compiling():
        every: Tensor = torch.linalg.matrix_exp(generator * rows[..., None, None])
        return every
    sizes, place = rows.unique(return_inverse=True)  # (U,), (T, G, 1)
    each: Tensor = torch.linalg.matrix_exp(generator * sizes[:, None, None, None])
    return each[place[..., 0]]


def _real_matrix(diagonal: Tensor) -> Tensor:
    """The product with complex numbers (..., n) as a matrix over real and imaginary parts in turn (..., 2n, 2n)."""
    imag = torch.stack([diagonal.imag, torch.zeros_like(diagonal.imag)], -1).flatten(-2)[..., :-1]
    matrix = torch.diag_embed(diagonal.real.repeat_interleave(2, -1))
    return matrix - torch.diag_embed(imag, 1) + torch.diag_embed(imag, -1)


class S4(GLUBlock):
    """S4 as the detector uses it: the state-space layer inside its block."""

    def __init__(self, dim: int, config: TemporalConfig) -> None:
        super().__init__(S4SSM(dim, config), dim)
