"""What a diagonal state-space layer can hear: its frequencies, its time constants and the limit put on them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rvtssm.ssm.layer import StepScale


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
