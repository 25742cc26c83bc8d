"""The diagonal recurrence h[l] = decay[l] * h[l-1] + drive[l] as a loop that reads like the formula."""

import torch
from torch import Tensor


def scan_reference(decay: Tensor, drive: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return all states and the last one, by plain differentiable steps.

    drive (L, *S, P), state (*S, P), decay (P,) or anything that broadcasts to (L, *S, P) with as many axes
    -> (L, *S, P), (*S, P).
    """
    decays = decay.expand(drive.shape[0], *decay.shape[1:]) if decay.ndim == drive.ndim else [decay] * len(drive)
    steps = []
    for decay_l, drive_l in zip(decays, drive.unbind(0), strict=True):
        state = decay_l * state + drive_l
        steps.append(state)
    return torch.stack(steps), state
