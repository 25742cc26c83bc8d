"""From input to output of a diagonal system with real matrices around it, without ever holding all its states.

The recurrence is h[l] = decay[l] * h[l-1] + gain[l] * (w_in u[l]), y[l] = w_out (mask[l] * h[l]) + d * u[l]. Sequences
are taken in blocks that fit the cache; the backward computes the states of a block again and then scans it from the
end. The twin that reads like the formula is `run_mimo_reference`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from rvtssm.ssm.layer import check_fit
from rvtssm.ssm.scan import scan

_BLOCK_BYTES = {"cpu": 2 << 20, "cuda": 1 << 28}  # of states; on CPU the size of a second-level cache
_MIN_BLOCK = 16  # sequences: below, the matrix products starve


@dataclass(frozen=True, slots=True)
class Mimo:
    """One step of such a system at one step scale. Real and imaginary parts of the modes alternate in the matrices.

    decay, gain and mask are (T, G, P) with T = 1 or L steps and G groups of consecutive sequences, or gain and mask
    None where they do not vary and are part of the matrices.
    """

    decay: Tensor  # (T, G, P) complex
    gain: Tensor | None  # (T, G, P) complex
    mask: Tensor | None  # (T, G, P) bool
    w_in: Tensor  # (2P, H)
    w_out: Tensor  # (H, 2P)
    d: Tensor  # (H,)


def run_mimo(system: Mimo, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """u (L, N, H), state (N, P) complex -> y (L, N, H) and the state after step L.

    The matrix products run in the precision of u, the recurrence in that of the state.
    """
    num_steps, num_sequences, _ = u.shape
    scale_steps, groups, _ = system.decay.shape
    check_fit(scale_steps, groups, num_steps, num_sequences)
    if groups > 1 and num_sequences < _MIN_BLOCK * groups:
        return run_mimo_reference(system, u, state)
    matrices = (system.w_in.to(u.dtype), system.w_out.to(u.dtype), system.d.to(u.dtype))
    y, last = _Mimo.apply(u, state, system.decay, system.gain, system.mask, *matrices)
    return y, last


def run_mimo_reference(system: Mimo, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The same numbers from differentiable pieces, with all states in memory; the faster way for tiny groups."""
    groups = system.decay.shape[1]
    drive = as_complex(F.linear(u, system.w_in.to(u.dtype)), state).unflatten(1, (groups, -1))
    if system.gain is not None:
        drive = drive * system.gain[:, :, None]
    states, last = scan(system.decay[:, :, None], drive, state.unflatten(0, (groups, -1)))
    if system.mask is not None:
        states = states * system.mask[:, :, None]
    y = F.linear(as_pairs(states.flatten(1, 2), u), system.w_out.to(u.dtype))
    return torch.addcmul(y, u, system.d.to(u.dtype)), last.flatten(0, 1)


def as_complex(pairs: Tensor, like: Tensor) -> Tensor:
    """(..., 2P) -> (..., P) in the precision of `like`."""
    return torch.view_as_complex(pairs.to(like.real.dtype).unflatten(-1, (-1, 2)))


def as_pairs(values: Tensor, like: Tensor) -> Tensor:
    """(..., P) complex -> (..., 2P) in the precision of `like`."""
    return torch.view_as_real(values).flatten(-2).to(like.dtype)


def _block_size(u: Tensor, state: Tensor) -> int:
    budget = _BLOCK_BYTES.get(u.device.type, _BLOCK_BYTES["cpu"])
    size = max(_MIN_BLOCK, budget // (u.shape[0] * state.shape[1] * state.element_size()))
    return min(size, u.shape[1])


def _blocks(u: Tensor, state: Tensor, groups: int) -> Iterator[tuple[int, slice]]:
    """The group and the sequences of each block."""
    per_group, size = u.shape[1] // groups, _block_size(u, state)
    for group in range(groups):
        stop = (group + 1) * per_group
        for start in range(group * per_group, stop, size):
            yield group, slice(start, min(start + size, stop))


def _scratch(u: Tensor, state: Tensor, *widths: int) -> list[Tensor]:
    """Room for products of one block, used again by all: fresh memory for each costs a tenth of the time."""
    rows = u.shape[0] * _block_size(u, state)
    return [u.new_empty(rows, width) for width in widths]


def _product(a: Tensor, b: Tensor, room: Tensor, num_steps: int) -> Tensor:
    """a b as (L, n, ...), written into `room`."""
    torch.mm(a, b, out=room[: len(a)])
    return room[: len(a)].view(num_steps, -1, room.shape[1])


def _scan_in_place(x: Sequence[Tensor], decay: Tensor, carried: Tensor | None) -> Tensor:
    """x[l] += decay[l] * x[l-1], with `carried` before the first; decay (T, P). Returns the last."""
    decays = decay.unbind(0) if decay.shape[0] > 1 else decay.expand(len(x), -1).unbind(0)
    for x_l, decay_l in zip(x, decays, strict=True):
        if carried is not None:
            x_l.addcmul_(decay_l, carried)
        carried = x_l
    assert carried is not None
    return carried


def _add_over_sequences(total: Tensor, values: Tensor) -> None:
    """Add (L, n, P), or (n, P) of one step, to (T, P): over the sequences, and over the steps where T is 1."""
    if total.shape[0] == 1:
        total += values.flatten(0, -2).sum(0)
    else:
        total += values.sum(-2)


class _Mimo(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        u: Tensor,
        state: Tensor,
        decay: Tensor,
        gain: Tensor | None,
        mask: Tensor | None,
        w_in: Tensor,
        w_out: Tensor,
        d: Tensor,
    ) -> tuple[Tensor, Tensor]:
        y, last = torch.empty_like(u), torch.empty_like(state)
        num_steps = len(u)
        room_x, room_y = _scratch(u, state, len(w_in), len(d))
        for group, block in _blocks(u, state, decay.shape[1]):
            x = as_complex(_product(u[:, block].flatten(0, 1), w_in.t(), room_x, num_steps), state)
            if gain is not None:
                x *= gain[:, group, None]
            last[block] = _scan_in_place(x.unbind(0), decay[:, group], state[block])
            if mask is not None:
                x *= mask[:, group, None]
            heard = _product(as_pairs(x, u).flatten(0, 1), w_out.t(), room_y, num_steps)
            torch.addcmul(heard, u[:, block], d, out=y[:, block])
        ctx.save_for_backward(u, state, decay, gain, mask, w_in, w_out, d)
        return y, last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_y: Tensor, grad_last: Tensor) -> tuple[Tensor | None, ...]:
        u, state, decay, gain, mask, w_in, w_out, d = ctx.saved_tensors
        grad_u, grad_state = torch.empty_like(u), torch.empty_like(state)
        grad_decay, grad_d = torch.zeros_like(decay), torch.zeros_like(d)
        grad_gain = torch.zeros_like(gain) if gain is not None else None
        grad_w_in, grad_w_out = torch.zeros_like(w_in), torch.zeros_like(w_out)
        # The gradient runs back as its conjugate q, so the scan uses decay itself; the signs of the imaginary rows
        # and columns of the matrices do the conjugation.
        sign = torch.stack([d.new_ones(decay.shape[2]), -d.new_ones(decay.shape[2])], -1).flatten()
        w_in_conj, w_out_conj = w_in * sign[:, None], w_out * sign
        num_steps = len(u)
        room_x, room_q, room_u = _scratch(u, state, len(w_in), len(w_in), len(d))
        for group, block in _blocks(u, state, decay.shape[1]):
            u_block, grad_block = u[:, block].flatten(0, 1), grad_y[:, block].flatten(0, 1)
            driven = as_complex(_product(u_block, w_in.t(), room_x, num_steps), state)
            x = driven if gain is None else driven * gain[:, group, None]
            _scan_in_place(x.unbind(0), decay[:, group], state[block])
            q = as_complex(_product(grad_block, w_out_conj, room_q, num_steps), state)
            if mask is not None:
                q *= mask[:, group, None]
            heard = x if mask is None else x * mask[:, group, None]
            grad_w_out.addmm_(grad_block.t(), as_pairs(heard, u).flatten(0, 1))
            q[-1] += grad_last[block].conj()
            # q[l] += decay[l + 1] * q[l + 1]: the decay of the first step acts on the state before it.
            first = _scan_in_place(q.unbind(0)[::-1], decay[:, group].roll(-1, 0).flip(0), None)
            grad_state[block] = (decay[0, group] * first).conj()
            _add_over_sequences(grad_decay[:1, group], state[block] * first)
            if len(x) > 1:
                later = slice(1, None) if len(decay) > 1 else slice(None)
                _add_over_sequences(grad_decay[later, group], x[:-1].mul_(q[1:]) if gain is None else x[:-1] * q[1:])
            if gain is not None and grad_gain is not None:
                _add_over_sequences(grad_gain[:, group], driven * q)
                q *= gain[:, group, None]
            q_pairs = as_pairs(q, u).flatten(0, 1)
            grad_w_in.addmm_(q_pairs.t(), u_block)
            grad_d += (grad_block * u_block).sum(0)
            grad_driven = _product(q_pairs, w_in_conj, room_u, num_steps)
            torch.addcmul(grad_driven, grad_y[:, block], d, out=grad_u[:, block])
        grad_w_in *= sign[:, None]
        conjugated = grad_gain.conj() if grad_gain is not None else None
        return grad_u, grad_state, grad_decay.conj(), conjugated, None, grad_w_in, grad_w_out, grad_d
