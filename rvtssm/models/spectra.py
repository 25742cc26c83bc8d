"""What the temporal layers of a detector can hear: time constants, frequencies and the mask, stage by stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from rvtssm.models.detector import Detector
from rvtssm.ssm import LSTM, S4DSSM, S4SSM, S5SSM
from rvtssm.ssm.s7 import SelectiveSSM
from rvtssm.ssm.spectrum import bandlimit_mask, frequencies, timescales


@dataclass(frozen=True)
class Spectrum:
    """The modes of one temporal layer at its training step; N modes."""

    timescale_steps: Tensor  # (N,) float64, steps until a mode has decayed to 1 / e, inf where it does not
    cycles_per_step: Tensor  # (N,) float64, 0.5 is the Nyquist rate of the training step
    is_masked: Tensor  # (N,) bool, silenced by the bandlimit
    bandlimit: float  # fraction of the Nyquist rate, 0: off
    note: str = ""  # what has to be known beside the numbers


def stage_spectra(detector: Detector) -> dict[int, Spectrum | str]:
    """Return the spectrum of every temporal layer by stride, or a sentence why it has none."""
    layers = detector.backbone.temporal_layers()
    return {stride: layer_spectrum(getattr(layer, "ssm", layer)) for stride, layer in layers.items()}


@torch.no_grad()
def layer_spectrum(layer: Any) -> Spectrum | str:
    """The spectrum of a temporal layer without its block, or why there is none."""
    if isinstance(layer, S5SSM | S4DSSM):
        lambda_, dt = layer.modes()
        mask = bandlimit_mask(lambda_, dt, layer.bandlimit)
        note = f"masked at {layer.bandlimit_at.replace('_', ' ')}" if mask is not None else "no mask"
        return _spectrum(lambda_, dt, mask, layer.bandlimit, note)
    if isinstance(layer, S4SSM):
        a, _ = layer.continuous()
        modes = torch.linalg.eigvals(a.double())
        return _spectrum(modes, layer.log_step.exp()[:, None], None, 0.0, "eigenvalues of the whole matrix, no mask")
    if isinstance(layer, SelectiveSSM):
        lambda_ = torch.complex(-layer.log_real.exp(), layer.imag)
        dt = F.softplus(layer.to_step.bias)
        return _spectrum(lambda_, dt, None, 0.0, "at zero input, which sets the step of every mode; no mask")
    if isinstance(layer, LSTM):
        return "an LSTM has no eigenvalues: its gates follow the input"
    return f"{type(layer).__name__} has no eigenvalues: its factors follow the input"


def _spectrum(lambda_: Tensor, dt: Tensor, mask: Tensor | None, bandlimit: float, note: str) -> Spectrum:
    lambda_, dt = lambda_.to("cpu", torch.complex128), dt.double().cpu()
    cycles = frequencies(lambda_, dt)
    is_masked = torch.zeros(cycles.shape, dtype=torch.bool) if mask is None else ~mask.cpu().expand(cycles.shape)
    return Spectrum(timescales(lambda_, dt).flatten(), cycles.flatten(), is_masked.flatten(), bandlimit, note)
