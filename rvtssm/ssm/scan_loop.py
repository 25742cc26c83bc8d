"""The diagonal recurrence on any device, step by step in place. `rvtssm.ssm.scan_cpu` describes the arguments."""

import torch
from torch import Tensor


def forward(x: Tensor, decay: Tensor, carried: Tensor) -> None:
    """Compute x[l] += decay[l] * x[l-1] in place. See `rvtssm.ssm.scan_cpu.forward`."""
    wide = _widened(x, decay)
    decays = decay.expand(len(x), -1, -1)[:, :, None]
    previous = carried.unflatten(0, (decay.shape[1], -1))
    for x_l, decay_l in zip(wide.unbind(0), decays.unbind(0), strict=True):
        previous = x_l.addcmul_(decay_l, previous)
    carried.copy_(previous.flatten(0, 1))
    _narrow(wide, x)


def backward(grad: Tensor, x: Tensor, before: Tensor, decay: Tensor, carried: Tensor) -> Tensor:
    """Compute grad[l] += conj(decay[l+1]) * grad[l+1] in place, and return the gradient of decay.

    See `rvtssm.ssm.scan_cpu.backward`.
    """
    wide = _widened(grad, decay)
    states = _widened(x, decay)
    decays = decay.conj().resolve_conj().expand(len(x), -1, -1)[:, :, None]
    after = carried.unflatten(0, (decay.shape[1], -1))
    for grad_l, decay_l in zip(wide.unbind(0)[::-1], decays.unbind(0)[::-1], strict=True):
        after = decay_l * grad_l.add_(after)
    carried.copy_(after.flatten(0, 1))
    _narrow(wide, grad)
    shifted = torch.cat([before.view_as(states[:1]), states[:-1]])
    grad_decay: Tensor = (wide * shifted.conj()).sum(2).sum_to_size(decay.shape)
    return grad_decay


def _widened(x: Tensor, decay: Tensor) -> Tensor:
    """Return x as (T, D, n / D, P) in the dtype of decay, without a copy if the precision is the same."""
    wide = x.to(decay.dtype.to_real())
    if decay.is_complex():
        wide = torch.view_as_complex(wide.unflatten(-1, (-1, 2)))
    grouped: Tensor = wide.unflatten(1, (decay.shape[1], -1))
    return grouped


def _narrow(wide: Tensor, x: Tensor) -> None:
    """Write the values back to x if the precision of x is lower."""
    if x.dtype != wide.dtype.to_real():
        x.copy_(torch.view_as_real(wide).view_as(x) if wide.is_complex() else wide.view_as(x))
