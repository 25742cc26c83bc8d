"""Zero-order hold and scan in one CPU operator, for steps that depend on the input.

The result is what `discretize.zoh` followed by `scan` computes, for modes that differ at every step of every sequence.
In that case the discretisation moves more memory than the recurrence: as separate operators it needs four complex
arrays in the forward pass and eight in the backward pass instead of two, and it took a third of a training step. Here
each kernel makes a single pass over memory.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rvtssm.ssm.scan import no_second_derivative, operator
from rvtssm.ssm.scan_cpu import compiled
from rvtssm.ssm.shapes import check_recurrence
from rvtssm.system.user_error import UserError


def held_scan(lambda_: Tensor, step: Tensor, drive: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Run x[l] = exp(lambda step[l]) x[l-1] + (exp(lambda step[l]) - 1) / lambda drive[l] on the CPU.

    Args:
        lambda_: Continuous modes (P,), complex and not 0.
        step: Length of every step, for each sequence and mode, (L, N, P) real.
        drive: The projected input B u, (L, N, P) complex.
        state: State before the first step, (N, P) complex.

    Returns:
        All states (L, N, P) and the last one (N, P).

    Raises:
        UserError: If the shapes do not fit together or an array is empty.
    """
    check_recurrence(lambda_[None, None], tuple(drive.shape), state)
    if step.shape != drive.shape:
        found = f"got step {tuple(step.shape)} and drive {tuple(drive.shape)}"
        raise UserError("scan.shapes", found=found, needed="both must be (L, N, P): time comes first")
    before = torch.view_as_real(state)
    states, last, *_ = _held_scan(torch.view_as_real(lambda_), step.to(before.dtype), torch.view_as_real(drive), before)
    return torch.view_as_complex(states), torch.view_as_complex(last)


@operator("held_scan")
def _held_scan(lambda_: Tensor, step: Tensor, drive: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return all states, the last state, and decay and gain (L, N, 2, P) for the gradient.

    `lambda_`, `drive` and `state` hold pairs of real and imaginary part in a last axis of size 2.
    """
    half = lambda_[:, 1] * (step / 2)
    size = torch.expm1(lambda_[:, 0] * step)
    sine = half.sin()
    cosine = half.cos()
    plain = torch.contiguous_format
    states = torch.empty_like(drive, memory_format=plain)
    last = state.detach().clone(memory_format=plain)
    decay = step.new_empty(*step.shape[:2], 2, step.shape[2])
    gain = torch.empty_like(decay)
    inverse = torch.view_as_real(1 / torch.view_as_complex(lambda_.contiguous()))
    _forward(*map(_array, (inverse, size, sine, cosine, drive, last, states, decay, gain)))
    return states, last, decay, gain


@operator("held_scan_backward")
def _held_scan_backward(
    of_states: Tensor, of_last: Tensor, lambda_: Tensor, step: Tensor, drive: Tensor, state: Tensor, states: Tensor,
    decay: Tensor, gain: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    plain = torch.contiguous_format
    of_step, of_drive = (torch.empty_like(values, memory_format=plain) for values in (step, drive))
    of_lambda = lambda_.new_zeros(lambda_.shape)
    of_state = of_last.detach().clone(memory_format=plain)
    saved = (lambda_, step, drive, state, states, decay, gain)
    _backward(*map(_array, (of_states, *saved, of_lambda, of_step, of_drive, of_state)))
    return of_lambda, of_step, of_drive, of_state


def _held_scan_shapes(lambda_: Tensor, step: Tensor, drive: Tensor, state: Tensor) -> tuple[Tensor, ...]:
    factors = step.new_empty(*step.shape[:2], 2, step.shape[2])
    return drive.new_empty(drive.shape), state.new_empty(state.shape), factors, torch.empty_like(factors)


def _held_scan_backward_shapes(of_states: Tensor, of_last: Tensor, *saved: Tensor) -> tuple[Tensor, ...]:
    return tuple(value.new_empty(value.shape) for value in saved[:4])


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    states, _, decay, gain = output
    ctx.save_for_backward(*inputs, states, decay, gain)


def _gradients(ctx: Any, of_states: Tensor, of_last: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
    of: tuple[Tensor, ...] = _held_scan_backward(of_states, of_last, *ctx.saved_tensors)
    return of


torch.library.register_fake(_held_scan, _held_scan_shapes)
torch.library.register_fake(_held_scan_backward, _held_scan_backward_shapes)
torch.library.register_autograd(_held_scan, _gradients, setup_context=_keep)
torch.library.register_autograd(_held_scan_backward, no_second_derivative)


def _array(values: Tensor) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = values.detach().contiguous().numpy()
    return array


@compiled
def _forward(
    inverse: Any, size: Any, sine: Any, cosine: Any, drive: Any, x: Any, states: Any, decay: Any, gain: Any
) -> None:
    num_steps, num_sequences, num_modes = size.shape
    inverse_real = inverse[:, 0].copy()
    inverse_imag = inverse[:, 1].copy()
    for step in range(num_steps):
        for n in range(num_sequences):
            for p in range(num_modes):
                # decay - 1 and (decay - 1) / lambda, without cancellation for short steps.
                twice = 2 * (1 + size[step, n, p]) * sine[step, n, p]
                grown_real = size[step, n, p] - twice * sine[step, n, p]
                grown_imag = twice * cosine[step, n, p]
                gain_real = grown_real * inverse_real[p] - grown_imag * inverse_imag[p]
                gain_imag = grown_real * inverse_imag[p] + grown_imag * inverse_real[p]
                decay[step, n, 0, p] = 1 + grown_real
                decay[step, n, 1, p] = grown_imag
                gain[step, n, 0, p] = gain_real
                gain[step, n, 1, p] = gain_imag
                u_real = drive[step, n, p, 0]
                u_imag = drive[step, n, p, 1]
                x_real = x[n, p, 0]
                x_imag = x[n, p, 1]
                # h = decay h + gain u, in real and imaginary part.
                real = x_real + grown_real * x_real - grown_imag * x_imag + gain_real * u_real - gain_imag * u_imag
                imag = x_imag + grown_real * x_imag + grown_imag * x_real + gain_real * u_imag + gain_imag * u_real
                states[step, n, p, 0] = real
                states[step, n, p, 1] = imag
                x[n, p, 0] = real
                x[n, p, 1] = imag


@compiled
def _backward(
    of_states: Any, lambda_: Any, dt: Any, drive: Any, before: Any, states: Any, decay: Any, gain: Any, of_lambda: Any,
    of_step: Any, of_drive: Any, carried: Any,
) -> None:  # fmt: skip
    """Write all gradients. `carried`, the gradient of the last state, is overwritten by the gradient of `before`."""
    num_steps, num_sequences, num_modes = dt.shape
    l_real = lambda_[:, 0].copy()
    l_imag = lambda_[:, 1].copy()
    squared = l_real * l_real + l_imag * l_imag
    sum_real = np.zeros(num_modes, dt.dtype)
    sum_imag = np.zeros(num_modes, dt.dtype)
    for step in range(num_steps - 1, -1, -1):
        previous = states[step - 1] if step > 0 else before
        for n in range(num_sequences):
            for p in range(num_modes):
                # v: gradient of this state; x: previous state; a: decay; g: gain; u: drive
                v_real = of_states[step, n, p, 0] + carried[n, p, 0]
                v_imag = of_states[step, n, p, 1] + carried[n, p, 1]
                x_real = previous[n, p, 0]
                x_imag = previous[n, p, 1]
                u_real = drive[step, n, p, 0]
                u_imag = drive[step, n, p, 1]
                a_real = decay[step, n, 0, p]
                a_imag = decay[step, n, 1, p]
                g_real = gain[step, n, 0, p]
                g_imag = gain[step, n, 1, p]
                carried[n, p, 0] = v_real * a_real + v_imag * a_imag
                carried[n, p, 1] = v_imag * a_real - v_real * a_imag
                of_drive[step, n, p, 0] = v_real * g_real + v_imag * g_imag
                of_drive[step, n, p, 1] = v_imag * g_real - v_real * g_imag
                of_decay_real = v_real * x_real + v_imag * x_imag
                of_decay_imag = v_imag * x_real - v_real * x_imag
                of_gain_real = v_real * u_real + v_imag * u_imag
                of_gain_imag = v_imag * u_real - v_real * u_imag
                # of_step = Re(conj(decay) (conj(lambda) of_decay + of_gain))
                both_real = l_real[p] * of_decay_real + l_imag[p] * of_decay_imag + of_gain_real
                both_imag = l_real[p] * of_decay_imag - l_imag[p] * of_decay_real + of_gain_imag
                of_step[step, n, p] = a_real * both_real + a_imag * both_imag
                # of_lambda = conj(step decay) of_decay + conj((step decay - gain) / lambda) of_gain
                m_real = dt[step, n, p] * a_real
                m_imag = dt[step, n, p] * a_imag
                rest_real = m_real - g_real
                rest_imag = m_imag - g_imag
                k_real = (rest_real * l_real[p] + rest_imag * l_imag[p]) / squared[p]
                k_imag = (rest_imag * l_real[p] - rest_real * l_imag[p]) / squared[p]
                sum_real[p] += (
                    m_real * of_decay_real + m_imag * of_decay_imag + k_real * of_gain_real + k_imag * of_gain_imag
                )
                sum_imag[p] += (
                    m_real * of_decay_imag - m_imag * of_decay_real + k_real * of_gain_imag - k_imag * of_gain_real
                )
        of_lambda[:, 0] += sum_real
        of_lambda[:, 1] += sum_imag
        sum_real[:] = 0
        sum_imag[:] = 0
