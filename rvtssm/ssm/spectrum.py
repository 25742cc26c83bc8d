"""Frequencies and time constants of modes, their bandlimit, and the energy of a system within a band of frequencies."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rvtssm.system.user_error import UserError

_PANEL = 8  # nodes per Gauss-Legendre panel


@dataclass(frozen=True)
class Spectrum:
    """The N modes of one temporal layer at its training step."""

    timescale_steps: Tensor  # (N,) float64, steps in which a mode decays to 1 / e, inf if it does not decay
    cycles_per_step: Tensor  # (N,) float64, 0.5 is the Nyquist rate of the training step
    is_masked: Tensor  # (N,) bool, True for modes that the bandlimit removes from the output
    bandlimit: float  # fraction of the Nyquist rate, 0: off
    note: str = ""  # how to read the numbers, for tables


@torch.no_grad()
def mode_spectrum(
    lambda_: Tensor, dt: Tensor, bandlimit: float = 0.0, at: str = "train_step", note: str = "no mask"
) -> Spectrum:
    """Return the spectrum of modes at their training steps. The shapes of modes and steps broadcast.

    Args:
        lambda_: The modes, complex.
        dt: The training steps.
        bandlimit: Fraction of the Nyquist rate above which modes are masked; 0 means off.
        at: The setting `temporal.bandlimit_at`, for the note.
        note: The note if there is no mask.
    """
    mask = bandlimit_mask(lambda_, dt, bandlimit)
    lambda_ = lambda_.to("cpu", torch.complex128)
    dt = dt.double().cpu()
    cycles = frequencies(lambda_, dt)
    is_masked = torch.zeros(cycles.shape, dtype=torch.bool)
    if mask is not None:
        is_masked = ~mask.cpu().expand(cycles.shape)
        note = f"masked at {at.replace('_', ' ')}"
    timescale = 1 / (dt * -lambda_.real).clamp_min(0)
    return Spectrum(timescale.flatten(), cycles.flatten(), is_masked.flatten(), bandlimit, note)


def frequencies(lambda_: Tensor, step: Tensor) -> Tensor:
    """Return the oscillations per step, (..., P); 0.5 is the Nyquist rate.

    Args:
        lambda_: The modes, (P,) complex.
        step: The steps, (..., P).
    """
    return step * lambda_.imag.abs() / (2 * math.pi)


def bandlimit_mask(
    lambda_: Tensor, dt: Tensor, bandlimit: float, at: str = "train_step", step_scale: float | Tensor = 1.0
) -> Tensor | None:
    """Return which modes may reach the output: those below `bandlimit` times the Nyquist rate (S4ND, Nguyen 2022).

    Args:
        lambda_: The modes, (P,) complex.
        dt: The training steps, (P,).
        bandlimit: Fraction of the Nyquist rate; 0 means off.
        at: Which step defines the Nyquist rate, `train_step` or `current_step`.
        step_scale: The step relative to training; used only with `current_step`.

    Returns:
        A bool mask (P,); for `current_step`, it has the broadcast shape of dt * step_scale. None if it is off.
    """
    if bandlimit == 0:
        return None
    with torch.no_grad():
        if at == "current_step":
            dt = dt * step_scale
        return frequencies(lambda_, dt) < bandlimit / 2


def masked(values: Tensor, mask: Tensor | None) -> Tensor:
    """Return values with 0 where a mask of `bandlimit_mask` is False. Without a mask, they are returned unchanged."""
    if mask is None:
        return values
    return values * mask


def energy_diagonal(lambda_: Tensor, weights: Tensor, omega_min: float, omega_max: float) -> Tensor:
    """Return the energy of diagonal systems G(s) = sum over p of R_p / (s - lambda_p) within a band of frequencies.

    The energy is 1 / pi times the integral of the squared Frobenius norm ||G(i omega)||^2; its root is the H2 norm. The
    integral is evaluated in closed form.

    Args:
        lambda_: The modes, (..., P) complex with negative real parts.
        weights: (..., P, P) with weights[p, q] = trace(R_p R_q^H).
        omega_min: Lower edge of the band in radians per training step; may be 0.
        omega_max: Upper edge of the band in radians per training step; may be infinite.

    Returns:
        One value per system, (...) float64.

    Raises:
        UserError: If the band is empty.
    """
    _check_band(0 <= omega_min < omega_max, omega_min, omega_max)
    # In float64, because a slow mode outside the band contributes the difference of two nearly equal angles.
    lambda_ = lambda_.to(torch.complex128)
    angle = -torch.log(1j * omega_min - lambda_)
    if math.isinf(omega_max):  # only the angle of log(i omega) matters, because its real part cancels between p and q
        angle = angle + 0.5j * math.pi
    else:
        angle = angle + torch.log(1j * omega_max - lambda_)
    # On s = i omega, 1 / ((s - lambda_p) conj(s - lambda_q)) splits into two fractions whose integrals are logarithms.
    integral = 1j * (angle[..., :, None] - angle.conj()[..., None, :])
    integral = integral / (lambda_[..., :, None] + lambda_.conj()[..., None, :])
    return (weights * integral).real.sum((-2, -1)) / math.pi


def energy_quadrature(
    power: Callable[[Tensor], Tensor], omega_min: float, omega_max: float, num_points: int, like: Tensor
) -> Tensor:
    """Return the energy of systems within a band: 1 / pi times the integral of a power spectrum.

    The quadrature uses Gauss-Legendre panels of equal width in log omega. It misjudges a resonance that is narrower
    than the distance between nodes.

    Args:
        power: Function from omega (K,) to the power (..., K) at each frequency.
        omega_min: Lower edge of the band in radians per training step, positive.
        omega_max: Upper edge of the band in radians per training step, finite.
        num_points: Minimum number of nodes; it is rounded up to whole panels.
        like: A tensor whose dtype and device the nodes get.

    Returns:
        One value per system, (...).

    Raises:
        UserError: If the band is empty or infinite.
    """
    _check_band(0 < omega_min < omega_max < math.inf, omega_min, omega_max)
    nodes, weights = np.polynomial.legendre.leggauss(_PANEL)
    edges = np.linspace(math.log(omega_min), math.log(omega_max), math.ceil(num_points / _PANEL) + 1)
    half = np.diff(edges)[:, None] / 2
    omega = np.exp(edges[:-1, None] + half * (1 + nodes))
    measure = (half * weights * omega).ravel() / math.pi
    return power(like.new_tensor(omega.ravel())) @ like.new_tensor(measure)


def _check_band(is_valid: bool, omega_min: float, omega_max: float) -> None:
    if not is_valid:
        found = f"{omega_min} to {omega_max} rad per step"
        needed = "it is empty or infinite"
        advice = "give 0 < omega_min < omega_max"
        raise UserError("setting.out_of_range", name="band", found=found, needed=needed, advice=advice)
