"""The diagonal recurrence h[l] = decay[l] * h[l-1] + drive[l]: a loop that reads like the formula, and a fast twin."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def scan_reference(decay: Tensor, drive: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """All states and the last one, by plain differentiable steps.

    drive (L, *S, P), state (*S, P), decay (P,) or anything that broadcasts to (L, *S, P) with as many axes
    -> (L, *S, P), (*S, P).
    """
    decays = decay.expand(drive.shape[0], *decay.shape[1:]) if decay.ndim == drive.ndim else [decay] * len(drive)
    steps = []
    for decay_l, drive_l in zip(decays, drive.unbind(0), strict=True):
        state = decay_l * state + drive_l
        steps.append(state)
    return torch.stack(steps), state


def scan(decay: Tensor, drive: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The same numbers as `scan_reference`, with one buffer of states forward and one reverse scan backward."""
    states, last = _Scan.apply(decay, drive, state)
    return states, last


def _at(decay: Tensor, step: int, num_axes: int) -> Tensor:
    """The decay of one step: (P,) has one for all, an L axis of length 1 likewise."""
    if decay.ndim < num_axes:
        return decay
    return decay[step if decay.shape[0] > 1 else 0]


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, decay: Tensor, drive: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        states = torch.empty_like(drive, memory_format=torch.contiguous_format)
        previous = state
        for step in range(drive.shape[0]):
            previous = torch.addcmul(drive[step], _at(decay, step, drive.ndim), previous, out=states[step])
        ctx.save_for_backward(decay, states, state)
        # A copy, so that who keeps the last state does not keep all of them.
        return states, previous.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_states: Tensor, grad_last: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        decay, states, state = ctx.saved_tensors
        num_steps, num_axes = states.shape[0], states.ndim
        conjugate = decay.conj().resolve_conj()
        grad_drive = torch.empty_like(states)
        carried = grad_last
        for step in range(num_steps - 1, -1, -1):
            torch.add(grad_states[step], carried, out=grad_drive[step])
            carried = _at(conjugate, step, num_axes) * grad_drive[step]
        before = torch.cat([state[None], states[:-1]])
        grad_decay = (before.conj() * grad_drive).sum_to_size(decay.shape) if ctx.needs_input_grad[0] else None
        return grad_decay, grad_drive, carried
