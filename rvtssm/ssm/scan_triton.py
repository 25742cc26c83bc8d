"""The diagonal recurrence as Triton kernels, one per direction. `rvtssm.ssm.scan_cpu` describes the arguments.

A program holds some modes of some sequences of one group in registers, as separate real and imaginary parts in the
precision of decay, and loops over all steps. It reads each number once and writes it once, in the precision of the
number, so products in bfloat16 need no copy in float32.
"""

# Triton infers the types of kernels when it compiles them.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from rvtssm.ssm.shapes import check_sweep

_LANES = 512  # numbers that a program holds, for the real and for the imaginary part of the state each
_MODES = 64  # how many of these are modes of the same sequence, which are adjacent in memory


def forward(x: Tensor, decay: Tensor, carried: Tensor) -> None:
    """Compute x[l] += decay[l] * x[l-1] in place. See `rvtssm.ssm.scan_cpu.forward`."""
    check_sweep(decay, (x,), (carried,))
    shape, grid, options = _launch(x, decay)
    with torch.cuda.device_of(x):
        _forward[grid](x, _real(decay), _real(carried), *shape, **options)


def backward(grad: Tensor, x: Tensor, before: Tensor, decay: Tensor, carried: Tensor) -> Tensor:
    """Compute grad[l] += conj(decay[l+1]) * grad[l+1] in place, and return the gradient of decay.

    See `rvtssm.ssm.scan_cpu.backward`.
    """
    check_sweep(decay, (grad, x), (before, carried))
    shape, grid, options = _launch(grad, decay)
    blocks, scale_steps, groups, num_modes = grid[0] // decay.shape[1], *decay.shape
    # Each program writes its own sum. The sums are added in a fixed order, which atomic additions would not have.
    sums = torch.empty(groups, blocks, scale_steps, num_modes, dtype=decay.dtype, device=decay.device)
    with torch.cuda.device_of(x):
        _backward[grid](grad, x, _real(before), _real(decay), _real(carried), _real(sums), *shape, **options)
    return sums.sum(1).transpose(0, 1).contiguous()


def _launch(x: Tensor, decay: Tensor) -> tuple[tuple[int, ...], tuple[int, int], dict[str, Any]]:
    """Return the sizes, the grid, and the constants for which a kernel is compiled."""
    num_steps, num_sequences, _ = x.shape
    scale_steps, groups, num_modes = decay.shape
    group = num_sequences // groups
    modes = min(_MODES, triton.next_power_of_2(num_modes))
    sequences = min(_LANES // modes, triton.next_power_of_2(group))
    grid = groups * triton.cdiv(group, sequences), triton.cdiv(num_modes, modes)
    options = {
        "IS_COMPLEX": decay.is_complex(),
        "VARIES": scale_steps > 1,
        "SEQUENCES": sequences,
        "MODES": modes,
        "num_warps": max(1, min(4, sequences * modes // 128)),
    }
    return (num_steps, num_sequences, group, groups, num_modes), grid, options


def _real(values: Tensor) -> Tensor:
    if values.is_complex():
        return torch.view_as_real(values)
    return values


@triton.jit
def _read(pointer, offsets, is_ours, IS_COMPLEX: tl.constexpr, like: tl.constexpr):
    """Return the real and the imaginary parts at these offsets. The imaginary parts of real numbers are 0."""
    if IS_COMPLEX:
        pairs = tl.load(
            pointer + (2 * offsets)[:, :, None] + tl.arange(0, 2)[None, None, :], mask=is_ours[:, :, None], other=0.0
        )
        re, im = tl.split(pairs.to(like))
    else:
        re = tl.load(pointer + offsets, mask=is_ours, other=0.0).to(like)
        im = tl.zeros_like(re)
    return re, im


@triton.jit
def _write(pointer, offsets, is_ours, re, im, IS_COMPLEX: tl.constexpr):
    if IS_COMPLEX:
        pairs = tl.join(re, im).to(pointer.dtype.element_ty)
        tl.store(pointer + (2 * offsets)[:, :, None] + tl.arange(0, 2)[None, None, :], pairs, mask=is_ours[:, :, None])
    else:
        tl.store(pointer + offsets, re.to(pointer.dtype.element_ty), mask=is_ours)


@triton.jit
def _place(group, num_modes, SEQUENCES: tl.constexpr, MODES: tl.constexpr):
    """Return the group, the modes and the offsets in (n, P) that this program handles."""
    blocks = tl.cdiv(group, SEQUENCES)
    which = (tl.program_id(0) // blocks).to(tl.int64)
    within = (tl.program_id(0) % blocks) * SEQUENCES + tl.arange(0, SEQUENCES)
    modes = (tl.program_id(1) * MODES + tl.arange(0, MODES))[None, :]
    is_ours = (within < group)[:, None] & (modes < num_modes)
    # Offsets have 64 bits, because the states of a batch, or the decays of steps that differ, can exceed 2^31 numbers.
    offsets = (which * group + within)[:, None] * num_modes + modes
    return which, modes, offsets, is_ours


@triton.jit
def _forward(
    x, decay, carried, num_steps, num_sequences, group, groups, num_modes, IS_COMPLEX: tl.constexpr,
    VARIES: tl.constexpr, SEQUENCES: tl.constexpr, MODES: tl.constexpr,
):  # fmt: skip
    like: tl.constexpr = decay.dtype.element_ty
    which, modes, offsets, is_ours = _place(group, num_modes, SEQUENCES, MODES)
    is_mode = modes < num_modes
    row = which * num_modes + modes
    row_stride = tl.cast(groups, tl.int64) * num_modes
    re, im = _read(carried, offsets, is_ours, IS_COMPLEX, like)
    decay_re, decay_im = _read(decay, row, is_mode, IS_COMPLEX, like)
    stride = tl.cast(num_sequences, tl.int64) * num_modes
    at = offsets
    for step in range(num_steps):
        if VARIES:
            decay_re, decay_im = _read(decay, row + step * row_stride, is_mode, IS_COMPLEX, like)
        # x = x + decay * state, which is the next state.
        new_re, new_im = _read(x, at, is_ours, IS_COMPLEX, like)
        new_re += decay_re * re - decay_im * im
        new_im += decay_re * im + decay_im * re
        re = new_re
        im = new_im
        _write(x, at, is_ours, re, im, IS_COMPLEX)
        at += stride
    _write(carried, offsets, is_ours, re, im, IS_COMPLEX)


@triton.jit
def _backward(
    grad, x, before, decay, carried, sums, num_steps, num_sequences, group, groups, num_modes, IS_COMPLEX: tl.constexpr,
    VARIES: tl.constexpr, SEQUENCES: tl.constexpr, MODES: tl.constexpr,
):  # fmt: skip
    like: tl.constexpr = decay.dtype.element_ty
    which, modes, offsets, is_ours = _place(group, num_modes, SEQUENCES, MODES)
    is_mode = modes < num_modes
    row = which * num_modes + modes
    row_stride = tl.cast(groups, tl.int64) * num_modes
    scale_steps = num_steps if VARIES else 1
    total = tl.program_id(0).to(tl.int64) * scale_steps * num_modes + modes
    re, im = _read(carried, offsets, is_ours, IS_COMPLEX, like)
    decay_re, decay_im = _read(decay, row, is_mode, IS_COMPLEX, like)
    sum_re = tl.zeros_like(re)
    sum_im = tl.zeros_like(im)
    stride = tl.cast(num_sequences, tl.int64) * num_modes
    at = offsets + (num_steps - 1) * stride
    for back in range(num_steps):
        step = num_steps - 1 - back
        if VARIES:
            decay_re, decay_im = _read(decay, row + step * row_stride, is_mode, IS_COMPLEX, like)
        # The gradient of this state: its own, and what the next step passes back.
        new_re, new_im = _read(grad, at, is_ours, IS_COMPLEX, like)
        new_re += re
        new_im += im
        _write(grad, at, is_ours, new_re, new_im, IS_COMPLEX)
        # conj(previous state) times gradient is that of the decay.
        if step > 0:
            old_re, old_im = _read(x, at - stride, is_ours, IS_COMPLEX, like)
        else:
            old_re, old_im = _read(before, offsets, is_ours, IS_COMPLEX, like)
        sum_re += new_re * old_re + new_im * old_im
        sum_im += new_im * old_re - new_re * old_im
        if VARIES:
            _write_sum(sums, total + step * num_modes, is_mode, sum_re, sum_im, IS_COMPLEX)
            sum_re = tl.zeros_like(re)
            sum_im = tl.zeros_like(im)
        re = decay_re * new_re + decay_im * new_im
        im = decay_re * new_im - decay_im * new_re
        at -= stride
    if not VARIES:
        _write_sum(sums, total, is_mode, sum_re, sum_im, IS_COMPLEX)
    _write(carried, offsets, is_ours, re, im, IS_COMPLEX)


@triton.jit
def _write_sum(sums, at, is_mode, re, im, IS_COMPLEX: tl.constexpr):
    """Write the sum over the sequences of this program."""
    _write(sums, at, is_mode, tl.sum(re, 0)[None, :], tl.sum(im, 0)[None, :], IS_COMPLEX)
