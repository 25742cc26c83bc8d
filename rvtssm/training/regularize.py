"""The H2 term of the loss, which keeps the response to high frequencies small (Zubic et al., CVPR 2024).

The paper publishes neither the band nor the weight. Our band is from half the Nyquist rate of the training step, the
limit of the paper's mask, to the Nyquist rate of a step ten times shorter, the finest that the paper evaluates. We
measured the weight on the demo's detector with S5 and no mask: 240 steps without the term, then 40 with it (same
batches, learning rate 1e-3 to 0). `beyond` is the norm in the band, `below` the norm from 0.01 to 0.25 Nyquist rates,
and `loss` the detection loss over the last 20 steps:

weight  beyond  below  loss
     0   10.20   9.95  6.37
  0.01    8.39   9.95  6.37
   0.1    6.62   9.73  6.39
     1    6.01   8.82  6.42

Use 0.1: it removes most of what ten times the weight removes, and hardly changes `below` and the loss. Its gradient on
the layers is then half as large as that of the detection loss. So short a run shows no effect on AP: at 20 and 100 Hz
it is 13.0 and 4.7 without the term, 12.4 and 4.4 with 0.1, one seed.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rvtssm.ssm.layer import TemporalLayer
from rvtssm.system.user_error import UserError


def h2_term(layers: Sequence[TemporalLayer], band: tuple[float, ...]) -> Tensor:
    """Return the sum of the layers' H2 norms over a frequency band.

    The norm is a closed form in s4d and s5 and a quadrature in s4, in full precision. Value and gradient take 0.4 to 1
    s per step for the widths of the base model on one core.

    Args:
        layers: The layers that carry a state.
        band: Lowest and highest frequency, in Nyquist rates of the training step.

    Raises:
        UserError: A layer has no such norm, or there is no layer.
    """
    if not layers:
        raise UserError(
            "training.no_norm", "no state is carried (temporal.strides=[]), so there is no norm to keep small"
        )
    return torch.stack([layer.h2_norm(math.pi * band[0], math.pi * band[1]) for layer in layers]).sum()
