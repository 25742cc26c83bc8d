"""S4, a diagonal plus low-rank state-space model per feature (Gu et al. 2022), with carried state and at any rate."""

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rvtssm.ssm import TemporalConfig
from rvtssm.ssm.block import GLUBlock
from rvtssm.ssm.discretize import RULES_FOLLOW_THE_RATE
from rvtssm.ssm.init import elementwise, hippo_legs, log_uniform_steps, normal, parameter, to_pairs, wants_shapes_only
from rvtssm.ssm.layer import StepScale, TemporalLayer, longer_steps
from rvtssm.ssm.per_feature import STATE_SIZE, DenseSystem, PerFeatureLayer
from rvtssm.ssm.real_step import Pair, RealStep
from rvtssm.ssm.spectrum import Spectrum, energy_quadrature, mode_spectrum
from rvtssm.system.user_error import UserError

_NUM_POINTS = 128  # frequencies at which the energy is sampled


class S4SSM(PerFeatureLayer):
    """x' = (diag(lambda) - P P^H) x + B u, y = C x + D u, all learned, and different for every feature.

    The layer starts as HiPPO-LegS. Of the modes of its normal part, it keeps n = state_size / 2; the others are their
    conjugates. The state of a feature is thus 2n real numbers, and y = 2 Re(C x) over the modes kept. The layer is
    stable for all weights, because Re(lambda) = -exp(log_real) and the low-rank part can only damp.

    Chunks run in parallel. The layer writes out the discrete state matrix and builds the matrices of a chunk from it
    (`DenseSystem`). For `bilinear`, the rule of the paper, it uses Woodbury's identity; for the other rules it uses a
    matrix exponential, which costs more. No parameter depends on the length of a sequence, so any rate works. In the
    reference code, the kernel is exact only at the length that it was made for.

    If the steps of a chunk differ, there is one such matrix per step, group of sequences and feature, and groups with
    fewer sequences than the state has numbers fall back to the recurrence. A matrix exponential takes about a
    millisecond for a state of 64, once per feature and distinct step. A few distinct steps cost little. If all steps
    differ or need a gradient themselves, a chunk takes 9 times as long as with `bilinear`, and 25 times as long with
    its backward pass.

    Args:
        dim: Number of features H.
        config: Settings of the layer.

    Raises:
        UserError: If the settings ask for a bandlimit, another initialisation than `legs`, or an odd number of modes.
    """

    name: ClassVar[str] = "s4"
    default_rule: ClassVar[str | None] = "bilinear"
    rescaled: ClassVar = {"log_step": longer_steps}

    def __init__(self, dim: int, config: TemporalConfig) -> None:
        super().__init__()
        size = config.state_size or STATE_SIZE
        config.refuse_bandlimit("it does not oscillate at the frequencies of its normal part")
        if config.init != "legs" or size % 2:
            found = f"{config.init}, state_size={size}"
            needed = "temporal.name=s4 needs init=legs and an even state_size"
            advice = "temporal.name=s4d has other initialisations"
            raise UserError("setting.conflict", name="temporal.init", found=found, needed=needed, advice=advice)
        lambda_, p, b = torch.empty(3, size // 2, dtype=torch.complex128)
        if not wants_shapes_only():
            lambda_, p, b = (torch.from_numpy(array)[size // 2 :].to(lambda_.device) for array in hippo_legs(size)[:3])
        self.log_step = parameter(log_uniform_steps(dim, config.dt_min, config.dt_max))
        self.log_real = parameter(elementwise(lambda real: (-real).log(), lambda_.real).repeat(dim, 1))
        self.imag = parameter(lambda_.imag.repeat(dim, 1))
        self.P = nn.Parameter(to_pairs(p).repeat(dim, 1, 1))
        self.B = nn.Parameter(to_pairs(b).repeat(dim, 1, 1))
        self.C = nn.Parameter(elementwise(lambda drawn: drawn * 0.5**0.5, torch.randn(dim, size // 2, 2)))
        self.D = nn.Parameter(normal(dim))
        self.discretization = config.of_class(type(self)).step_rule()
        self.follows_the_rate = RULES_FOLLOW_THE_RATE[self.discretization]

    def discretized(self, rows: StepScale) -> DenseSystem:
        """Return the discrete systems at a step scale, in real numbers."""
        if not isinstance(rows, Tensor) or rows.ndim == 0:
            rows = self.log_step.new_ones(1, 1, 1) * rows
        if self.discretization == "bilinear":
            a, b = self._bilinear(rows)
        else:
            a, b = self._exponential(rows)
        return DenseSystem(a, b, 2 * torch.view_as_real(self._modes()[3].conj().resolve_conj()).flatten(-2))

    def continuous(self) -> tuple[Tensor, Tensor]:
        """Return the continuous system in real numbers, A (H, S, S) and B (H, S).

        The S = 2n numbers of the state are the real and the imaginary part of each mode in turn.
        """
        p = self.P.flatten(-2)
        return _real_matrix(self._modes()[0]) - 2 * p[..., :, None] * p[..., None, :], self.B.flatten(-2)

    def real_step(self) -> TemporalLayer:
        if self.discretization != "bilinear":
            raise UserError(
                "layer.lacks",
                name=f"temporal.discretization={self.discretization}",
                found="s4 cannot be exported with this rule, because it needs a matrix exponential",
                advice="train with temporal.discretization=bilinear, or use s4d or s5",
            )
        return _RealS4(self)

    @torch.no_grad()
    def spectrum(self) -> Spectrum:
        modes = torch.linalg.eigvals(self.continuous()[0].double())
        return mode_spectrum(modes, self.log_step.exp()[:, None], note="eigenvalues of the whole matrix, no mask")

    def band_energy(self, omega_min: float, omega_max: float) -> Tensor:
        """Return the squared H2 norm per feature, by quadrature. See `TemporalLayer.band_energy`.

        Its root has a relative error of 1e-10 for initial weights, and of 1 % after noise of 0.5 on all parameters.
        """
        lambda_, p, b, c = self._modes()
        dt = self.log_step.exp()[:, None]
        factor = dt.to(c.dtype)[:, None]

        def power(omega: Tensor) -> Tensor:
            """Return the squared size of C (i omega - A dt)^-1 B dt, (H, K), over the modes and their conjugates."""
            scaled, mirrored = (1 / (1j * omega - factor * modes[..., None]) for modes in (lambda_, lambda_.conj()))

            def cauchy(weights: Tensor) -> Tensor:
                return (weights[..., None] * scaled + weights.conj()[..., None] * mirrored).sum(1)

            low_rank = cauchy(c * p) * cauchy(p.conj() * b) / (1 + factor[:, 0] * cauchy(p.conj() * p))
            response = dt * (cauchy(c * b) - factor[:, 0] * low_rank)
            return response.real.square() + response.imag.square()

        return energy_quadrature(power, omega_min, omega_max, _NUM_POINTS, dt)

    def _modes(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return lambda, P, B and C of the modes kept, each (H, n) complex."""
        p, b, c = (torch.view_as_complex(values) for values in (self.P, self.B, self.C))
        return torch.complex(-self.log_real.exp(), self.imag), p, b, c

    def _bilinear(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Discretise by A_bar = 2 (I - A step / 2)^-1 - I, where the inverse is a diagonal minus an outer product."""
        lambda_, p, b, _ = self._modes()
        half = (self.log_step.exp() * rows)[..., None] / 2  # (T, G, H, 1)
        inverse = 1 / (1 - half * lambda_)
        left, right = inverse * p, inverse * p.conj()
        weight = 4 * half / (1 + 2 * half * (p.conj() * left).real.sum(-1, keepdim=True))
        b = 2 * half * (inverse * b - weight / 2 * left * (right * b).real.sum(-1, keepdim=True))
        column = torch.view_as_real(weight * left).flatten(-2)
        row = torch.view_as_real(right.conj().resolve_conj()).flatten(-2)
        a = _real_matrix(2 * inverse - 1) - column[..., :, None] * row[..., None, :]
        return a, torch.view_as_real(b).flatten(-2)

    def _exponential(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Discretise through exp([[A, B], [0, 0]] step), which equals [[A_bar, B_bar], [0, 1]] for `zoh`.

        At step scale 1, its last column is also the B_bar of `async`.
        """
        a, b = self.continuous()
        generator = F.pad(torch.cat([a, b[..., None]], -1), (0, 0, 0, 1))
        # In float64 for parameters of any precision, because the squarings of fast modes amplify rounding.
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
    """Return exp(generator * rows): generator (H, S, S), rows (T, G, 1) -> (T, G, H, S, S).

    On the CPU, each distinct step is computed once. On other devices, finding the distinct steps would wait for the
    device.
    """
    is_unread = rows.device.type != "cpu" or torch.compiler.is_compiling()
    if rows.requires_grad or rows.numel() == 1 or is_unread:
        exponentials: Tensor = torch.linalg.matrix_exp(generator * rows[..., None, None])
        return exponentials
    sizes, place = rows.unique(return_inverse=True)  # (U,), (T, G, 1)
    distinct: Tensor = torch.linalg.matrix_exp(generator * sizes[:, None, None, None])
    return distinct[place[..., 0]]


def _real_matrix(diagonal: Tensor) -> Tensor:
    """Return complex factors (..., n) as a matrix (..., 2n, 2n) over interleaved real and imaginary parts."""
    imag = torch.stack([diagonal.imag, torch.zeros_like(diagonal.imag)], -1).flatten(-2)[..., :-1]
    matrix = torch.diag_embed(diagonal.real.repeat_interleave(2, -1))
    return matrix - torch.diag_embed(imag, 1) + torch.diag_embed(imag, -1)


class _RealS4(RealStep):
    """The step of S4 in real numbers. The low-rank part acts through two vectors, so no matrix is written out."""

    dt: Tensor

    def __init__(self, layer: S4SSM) -> None:
        super().__init__(layer.discretization)
        names = ("lambda", "p", "b", "c")
        self.keep(dt=layer.log_step.exp()[:, None], d=layer.D, **dict(zip(names, layer._modes(), strict=True)))

    def advance(self, x: Tensor, before: Pair, step_scale: Tensor) -> tuple[Tensor, Pair]:
        half = self.dt * step_scale[:, None, None, None] / 2  # (G, 1, H, 1)
        lambda_ = self.pair("lambda")
        p = self.pair("p")
        b = self.pair("b")
        mirrored = Pair(p.re, -p.im)
        inverse = Pair(1 - half * lambda_.re, -half * lambda_.im).inverse()
        left, right = inverse.times(p), inverse.times(mirrored)
        weight = 4 * half / (1 + 2 * half * mirrored.times(left).re.sum(-1, keepdim=True))
        decayed = Pair(2 * inverse.re - 1, 2 * inverse.im).times(before)
        low_rank = left.scaled(-weight * right.times(before).re.sum(-1, keepdim=True))
        entering = inverse.times(b).plus(left.scaled(-weight / 2 * right.times(b).re.sum(-1, keepdim=True)))
        drive = entering.scaled(2 * half * x.unflatten(0, (step_scale.shape[0], -1))[..., None])
        after = decayed.plus(low_rank).plus(drive)
        return 2 * after.times(self.pair("c")).re.sum(-1).flatten(0, 1), after


class S4(GLUBlock):
    """S4 as the detector uses it: the state-space layer inside its block. See `S4SSM`.

    The first axis of the input is time: (steps, sequences, features). If you pass an
    input (batch, steps, features), the layer takes the batch for time and raises no error: both are three axes.

    >>> layer = rvtssm.S4(16)
    >>> y, state = layer(torch.zeros(5, 3, 16), layer.init_state(3), step_scale=0.5)
    >>> y.shape
    torch.Size([5, 3, 16])

    Args:
        dim: Number of features H.
        config: Settings of the layer; None means the defaults.
    """

    def __init__(self, dim: int, config: TemporalConfig | None = None) -> None:
        super().__init__(S4SSM(dim, TemporalConfig.of_layer(config, S4SSM, dim)), dim)
