"""The H2 term of the loss: what the temporal layers pass beyond a frequency is kept small (Zubic et al., CVPR 2024).

The paper publishes neither the band nor the weight. Ours: from half the Nyquist rate of the training step, the limit of
its mask, to the Nyquist rate of a step ten times shorter, the finest it is asked to run at. The weight is measured: the
demo's detector with S5 and no mask, 240 steps without the term and 40 with it (same batches, learning rate 1e-3 to 0),
`beyond` the norm in the band, `below` that from 0.01 to 0.25 Nyquist rates, detection loss over the last 20 steps:

weight  beyond  below  loss
     0   10.20   9.95  6.37
  0.01    8.39   9.95  6.37
   0.1    6.62   9.73  6.39
     1    6.01   8.82  6.42

0.1 is the one to use: it takes away most of what ten times the weight would, and leaves the loss and what lies below
nearly as they were. On the layers its gradient is then half as large as that of the detection loss. What it does to AP
is below what so short a run can show: at 20 and 100 Hz 13.0 and 4.7 without, 12.4 and 4.4 with 0.1, one seed.
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
    for the widths of the base model on one core. ValueError names the first layer that has no such norm, and where no
    layer is given.
    """
    if not layers:
        raise ValueError("no state is carried (temporal.strides=[]), so there is no norm to keep small")
    with torch.autocast(next(layers[0].parameters()).device.type, enabled=False):
        return torch.stack([layer.h2_norm(math.pi * band[0], math.pi * band[1]) for layer in layers]).sum()
