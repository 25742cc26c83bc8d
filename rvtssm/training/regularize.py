"""The H2 term of the loss: what the temporal layers pass beyond a frequency is kept small (Zubic et al., CVPR 2024).

The paper publishes neither the band nor the weight. Ours: from half the Nyquist rate of the training step, the limit of
its mask, to the Nyquist rate of a step ten times shorter, the finest it is asked to run at.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rvtssm.ssm import TemporalLayer


def h2_term(layers: Sequence[TemporalLayer], band: tuple[float, ...]) -> Tensor:
    """The sum of the H2 norms of the layers over a band [lowest, highest] in Nyquist rates of the training step.

    In closed form in s4d and s5, by quadrature in s4, in full precision; value and gradient take 0.4 to 1 s per step
    for the widths of the base model on one core. ValueError names the first layer that has no such norm.
    """
    with torch.autocast(next(layers[0].parameters()).device.type, enabled=False):
        return torch.stack([layer.h2_norm(math.pi * band[0], math.pi * band[1]) for layer in layers]).sum()
