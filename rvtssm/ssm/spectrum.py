"""What a state-space layer can hear: its frequencies and time constants, the limit put on them, and its H2 norm."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from rvtssm.ssm.layer import StepScale

DEFAULT_BANDLIMIT = 0.5  # the paper's best on Gen1, for S5 and S4D
_PANEL = 8  # nodes of each Gauss-Legendre panel


def frequencies(lambda_: Tensor, step: Tensor) -> Tensor:
    """Oscillations per step: lambda (P,) complex, step (..., P) -> (..., P); 0.5 is the Nyquist rate of that step."""
    return step * lambda_.imag.abs() / (2 * math.pi)


def timescales(lambda_: Tensor, step: Tensor) -> Tensor:
    """Steps until a mode has decayed to 1 / e: lambda (P,) complex, step (..., P) -> (..., P) or inf."""
    return 1 / (step * -lambda_.real).clamp_min(0)


def bandlimit_mask(
    lambda_: Tensor, dt: Tensor, bandlimit: float, at: str = "train_step", step_scale: StepScale = 1.0
) -> Tensor | None:
    """Which modes may be heard: those below `bandlimit` times the Nyquist rate (S4ND, Nguyen et al. 2022).

    lambda (P,) complex, dt (P,) the step of training -> bool (P,), or None where `bandlimit` is 0 (off). With
    `at="current_step"` the rate is that of the step in use, and the mask has the broadcast shape of dt * step_scale.
    """
    if bandlimit == 0:
        return None
    with torch.no_grad():
        step = dt * step_scale if at == "current_step" else dt
        return frequencies(lambda_, step) < bandlimit / 2


def h2_norm_diagonal(
    lambda_: Tensor, weights: Tensor, omega_min: float, omega_max: float, num_points: int = 0
) -> Tensor:
    """The H2 norm of diagonal systems G(s) = sum over p of R_p / (s - lambda_p) between two angular frequencies.

    Its square is 1 / pi times the integral of ||G(i omega)||^2, Frobenius, summed over the systems: lambda (..., P)
    complex with negative real parts, weights (..., P, P) with weights[p, q] = trace(R_p R_q^H) -> (). In closed form
    where num_points is 0, else by quadrature.
    """
    if num_points == 0:
        return root(energy_closed(lambda_, weights, omega_min, omega_max))

    def power(omega: Tensor) -> Tensor:
        fractions = 1 / (1j * omega[:, None] - lambda_[..., None, :])
        return ((fractions @ weights) * fractions.conj()).real.sum(-1)

    return root(energy_quadrature(power, omega_min, omega_max, num_points, lambda_.real))


def energy_closed(lambda_: Tensor, weights: Tensor, omega_min: float, omega_max: float) -> Tensor:
    """The square of `h2_norm_diagonal` per system (...), float64; omega_min may be 0 and omega_max infinite."""
    _check_band(0 <= omega_min < omega_max, omega_min, omega_max)
    # A slow mode outside of the band contributes the difference of two angles that agree in most digits.
    lambda_ = lambda_.to(torch.complex128)
    angle = -torch.log(1j * omega_min - lambda_)
    # At infinity only the angle of log(i omega) is left: its real part cancels between p and q.
    angle = angle + (0.5j * math.pi if math.isinf(omega_max) else torch.log(1j * omega_max - lambda_))
    # On s = i omega, 1 / ((s - lambda_p) conj(s - lambda_q)) splits into two fractions whose integrals are logarithms.
    integral = 1j * (angle[..., :, None] - angle.conj()[..., None, :])
    integral = integral / (lambda_[..., :, None] + lambda_.conj()[..., None, :])
    return (weights * integral).real.sum((-2, -1)) / math.pi


def energy_quadrature(
    power: Callable[[Tensor], Tensor], omega_min: float, omega_max: float, num_points: int, like: Tensor
) -> Tensor:
    """1 / pi times the integral of power(omega (K,)) (..., K), by Gauss-Legendre panels evenly spaced in log omega.

    A resonance narrower than the distance of the nodes is seen wrongly. The nodes have type and device of `like`.
    """
    _check_band(0 < omega_min < omega_max < math.inf, omega_min, omega_max)
    nodes, weights = np.polynomial.legendre.leggauss(_PANEL)
    edges = np.linspace(math.log(omega_min), math.log(omega_max), math.ceil(num_points / _PANEL) + 1)
    half = np.diff(edges)[:, None] / 2
    omega = np.exp(edges[:-1, None] + half * (1 + nodes))
    measure = (half * weights * omega).ravel() / math.pi
    return power(like.new_tensor(omega.ravel())) @ like.new_tensor(measure)


def root(energy: Tensor) -> Tensor:
    """The square root of a total energy, with gradient 0 where nothing is heard."""
    return energy.sum().clamp_min(torch.finfo(energy.dtype).tiny).sqrt()


def _check_band(is_valid: bool, omega_min: float, omega_max: float) -> None:
    if not is_valid:
        raise ValueError(
            f"the band from {omega_min} to {omega_max} rad per step is empty or endless; give 0 < omega_min < omega_max"
        )
