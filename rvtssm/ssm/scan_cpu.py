"""The diagonal recurrence on the CPU: numba code with one pass over memory per direction, on one thread.

The matrix products around the recurrence take nearly all of the time and use all threads. Blocks that fit the cache are
too small to be worth a second pool of threads.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rvtssm.ssm.shapes import check_sweep
from rvtssm.system.jit import jit

_RUN = 128  # sequences whose gradients are summed before they are added to the total, to limit rounding errors


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function with numba. Products may be fused with sums; no other rule of arithmetic is relaxed."""
    return jit(function, fastmath={"contract"})


def forward(x: Tensor, decay: Tensor, carried: Tensor) -> None:
    """Compute x[l] += decay[l] * x[l-1] in place. All arguments are contiguous and have no gradient.

    Args:
        x: The drive, which becomes the states: (T, n, 2P) with interleaved real and imaginary parts, or (T, n, P) if
            decay is real. Its precision may be lower than that of decay.
        decay: Factors (T, D, P) or (1, D, P), complex or real, for D groups of n / D sequences.
        carried: State before the first step, (n, P), which becomes the last state.
    """
    check_sweep(decay, (x,), (carried,))
    decays = decay.numpy()
    wide = x.to(decay.dtype.to_real())  # no copy if the precision is the same
    _forward(wide.numpy().view(decays.dtype), decays, carried.numpy())
    if wide is not x:
        x.copy_(wide)


def backward(grad: Tensor, x: Tensor, before: Tensor, decay: Tensor, carried: Tensor) -> Tensor:
    """Compute grad[l] += conj(decay[l+1]) * grad[l+1] in place. All arguments are contiguous and have no gradient.

    Args:
        grad: Gradients of the states, which become the gradients of the drive; laid out like x in `forward`.
        x: The states, laid out like x in `forward`.
        before: State before the first step, (n, P).
        decay: As in `forward`.
        carried: Gradient of the last state, (n, P), which becomes the gradient of `before`.

    Returns:
        The gradient of decay, in the shape of decay.
    """
    check_sweep(decay, (grad, x), (before, carried))
    decays = decay.numpy()
    real = decay.dtype.to_real()
    grad_decay = np.zeros_like(decays)
    wide = grad.to(real)
    of_states, states = (values.numpy().view(decays.dtype) for values in (wide, x.to(real)))
    _backward(of_states, states, before.numpy(), decays, carried.numpy(), grad_decay)
    if wide is not grad:
        grad.copy_(wide)
    return torch.from_numpy(grad_decay)


@compiled
def _forward(x: Any, decay: Any, carried: Any) -> None:
    num_steps, num_sequences, num_modes = x.shape
    group = num_sequences // decay.shape[1]
    for step in range(num_steps):
        decays = decay[step if decay.shape[0] > 1 else 0]
        for i in range(num_sequences):
            decay_i = decays[i // group]
            x_i = x[step, i]
            carried_i = carried[i]
            for p in range(num_modes):
                value = x_i[p] + decay_i[p] * carried_i[p]
                x_i[p] = value
                carried_i[p] = value


@compiled
def _backward(grad: Any, x: Any, before: Any, decay: Any, carried: Any, grad_decay: Any) -> None:
    num_steps, num_sequences, num_modes = grad.shape
    group = num_sequences // decay.shape[1]
    total = np.zeros(num_modes, decay.dtype)
    for step in range(num_steps - 1, -1, -1):
        row = step if decay.shape[0] > 1 else 0
        previous = x[step - 1] if step > 0 else before
        for start in range(0, num_sequences, group):
            decay_i = decay[row, start // group]
            grad_decay_i = grad_decay[row, start // group]
            for run in range(start, start + group, _RUN):
                total[:] = 0
                for i in range(run, min(run + _RUN, start + group)):
                    grad_i = grad[step, i]
                    previous_i = previous[i]
                    carried_i = carried[i]
                    for p in range(num_modes):
                        value = grad_i[p] + carried_i[p]
                        grad_i[p] = value
                        total[p] += value * np.conj(previous_i[p])
                        carried_i[p] = value * np.conj(decay_i[p])
                grad_decay_i += total
