"""Layers whose features share one diagonal system (MIMO: many inputs, many outputs), as in S5.

The recurrence is h[l] = decay[l] * h[l-1] + gain[l] * (w_in u[l]), y[l] = w_out (mask[l] * h[l]) + d * u[l]. It runs
from input to output as one operator with its own gradient. The operator takes sequences in blocks and steps in tiles
that fit the cache, cut so that input and output need no copy. If the states are few, it keeps them for the backward
pass; otherwise the backward pass computes them again, block by block. Layers with a small system per feature are in
`rvtssm.ssm.per_feature`.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rvtssm.ssm.scan import Sweeps, no_second_derivative, operator, plain, sweeps
from rvtssm.ssm.shapes import check_input, check_recurrence

_TILE_ROWS = 2048  # rows of a matrix product on the CPU: more do not fit the cache, fewer make the product slow
_BLOCK_BYTES = {True: 32 << 20, False: 1 << 28}  # states that the backward pass holds at once; True: on the CPU
_MIN_BLOCK = 16  # sequences
_KEPT_BYTES = 64 << 20  # limit up to which states are kept for the backward pass, which saves a seventh of the products


@dataclass(frozen=True, slots=True)
class SharedSystem:
    """The system at one step scale. In the matrices, real and imaginary parts of the modes alternate.

    There are T = 1 or L steps and G groups of consecutive sequences. If gain or mask does not vary, it is None here and
    part of the matrices.
    """

    decay: Tensor  # (T, G, P) complex
    gain: Tensor | None  # (T, G, P) complex
    mask: Tensor | None  # (T, G, P) bool
    w_in: Tensor  # (2P, H)
    w_out: Tensor  # (H, 2P)
    d: Tensor  # (H,)


def run_shared(system: SharedSystem, u: Tensor, state: Tensor, method: str = "auto") -> tuple[Tensor, Tensor]:
    """Run L steps.

    The matrix products run in the precision of u, the recurrence in the precision of the state.

    Args:
        system: The system at a step scale.
        u: Inputs (L, N, H).
        state: State before the first step, (N, P) complex.
        method: As in `rvtssm.ssm.scan.sweeps`.

    Returns:
        The outputs (L, N, H) and the state after step L.

    Raises:
        UserError: If the shapes do not fit together.
    """
    check_input(u, system.w_in.shape[1], system.w_in)
    check_recurrence(system.decay, (*u.shape[:2], system.w_in.shape[0] // 2), state)
    matrices = (system.w_in.to(u.dtype), system.w_out.to(u.dtype), system.d.to(u.dtype))
    keep = torch.is_grad_enabled() and _keeps(system, u, state)
    y, last, _ = _run(u, state, system.decay, system.gain, system.mask, *matrices, keep, method)
    return y, last


def as_complex(pairs: Tensor, like: Tensor) -> Tensor:
    """Return interleaved pairs (..., 2P) as complex numbers (..., P), in the precision of `like`."""
    return torch.view_as_complex(pairs.to(like.real.dtype).unflatten(-1, (-1, 2)))


def as_pairs(values: Tensor, like: Tensor) -> Tensor:
    """Return complex numbers (..., P) as interleaved pairs (..., 2P), in the precision of `like`."""
    return torch.view_as_real(values).flatten(-2).to(like.dtype)


def _keeps(system: SharedSystem, u: Tensor, state: Tensor) -> bool:
    """Return whether to keep states for the backward pass: if they are few, and neither gain nor mask changes them."""
    inputs = (u, state, system.decay, system.w_in, system.w_out, system.d)
    if not any(value.requires_grad for value in inputs):
        return False
    num_bytes = u.shape[0] * u.shape[1] * system.w_in.shape[0] * u.element_size()
    return system.gain is None and system.mask is None and num_bytes <= _KEPT_BYTES


@dataclass(frozen=True, slots=True)
class _Block:
    """A block of consecutive sequences, either whole groups or a part of one, and its tiles of steps."""

    sequences: slice
    groups: slice
    tiles: list[slice]

    def rows(self, values: Tensor, steps: slice) -> Tensor:
        """Return this block of values (L, N, W) as a matrix, copied only if it is not contiguous."""
        rows: Tensor = values[steps, self.sequences].flatten(0, 1)
        return rows

    def tile(self, rows: Tensor, steps: slice) -> Tensor:
        """Return such a matrix as (T, n, W)."""
        tile: Tensor = rows.unflatten(0, (steps.stop - steps.start, -1))
        return tile

    def of(self, factors: Tensor, steps: slice) -> Tensor:
        """Return this block of decay, gain or mask (T, G, P): (T, D, P) or (1, D, P)."""
        return factors[steps if len(factors) > 1 else slice(None), self.groups].contiguous()

    def project(self, x: Tensor, matrix: Tensor, d: Tensor, u: Tensor, out: Tensor, steps: slice) -> None:
        """Write out = x matrix + d * u for this block, where u and out are (L, N, H)."""
        target = out[steps, self.sequences]
        lies_whole = target.is_contiguous()
        rows = target.flatten(0, 1)
        torch.mm(x, matrix, out=rows)
        rows.addcmul_(self.rows(u, steps), d)
        if not lies_whole:
            target.copy_(rows.view_as(target))


def _blocks(u: Tensor, state: Tensor, groups: int) -> list[_Block]:
    """Cut sequences and steps so that a block's states fit `_BLOCK_BYTES` and, on the CPU, a tile fits the cache."""
    num_steps, num_sequences, _ = u.shape
    per_group = num_sequences // groups
    is_cpu = u.device.type == "cpu"
    fitting = _BLOCK_BYTES[is_cpu] // (num_steps * state.shape[1] * state.element_size())
    size = max(_MIN_BLOCK, fitting)
    # How many sequences fit into the cache, and on a CPU how many steps at once.
    at_once = num_steps
    if is_cpu:
        size = max(_MIN_BLOCK, min(fitting, _TILE_ROWS))
        at_once = 1
        if num_sequences <= size:  # so that the rows of input and output are contiguous
            at_once = max(1, _TILE_ROWS // num_sequences)
    tiles = [slice(step, min(step + at_once, num_steps)) for step in range(0, num_steps, at_once)]
    blocks = []
    # Groups are cut, or several small ones are taken together.
    if per_group > size:
        for group in range(groups):
            stop = (group + 1) * per_group
            for start in range(group * per_group, stop, size):
                blocks.append(_Block(slice(start, min(start + size, stop)), slice(group, group + 1), tiles))
    else:
        together = size // per_group
        for group in range(0, groups, together):
            chosen = slice(group, min(group + together, groups))
            blocks.append(_Block(slice(chosen.start * per_group, chosen.stop * per_group), chosen, tiles))
    return blocks


def _scale(pairs: Tensor, factors: Tensor, like: Tensor) -> None:
    """Multiply pairs (T, n, 2P) in place by factors (T, D, P) or (1, D, P), computing in the precision of `like`."""
    wide = as_complex(pairs, like)
    wide.unflatten(1, (factors.shape[1], -1)).mul_(factors[:, :, None])
    if pairs.dtype != wide.dtype.to_real():
        pairs.copy_(as_pairs(wide, pairs))


def _add(total: Tensor, values: Tensor, steps: slice) -> None:
    """Add values (T, D, P) or (1, D, P) to the rows `steps` of a gradient."""
    (total[steps] if len(total) > 1 else total).add_(values)


def _inputs(u: Tensor, state: Tensor, decay: Tensor, *matrices: Tensor) -> tuple[Tensor, ...]:
    """Return what the sweeps and the products read, without gradients."""
    return u.detach(), plain(state), plain(decay), *(matrix.detach() for matrix in matrices)


@operator("shared")
def _run(
    u: Tensor, state: Tensor, decay: Tensor, gain: Tensor | None, mask: Tensor | None, w_in: Tensor, w_out: Tensor,
    d: Tensor, keep: bool, method: str,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return y, the last state and, with `keep`, all states (L, N, 2P)."""
    u, state, decay, w_in, w_out, d = _inputs(u, state, decay, w_in, w_out, d)
    run = sweeps(u.device.type, method)
    y = torch.empty_like(u, memory_format=torch.contiguous_format)
    last = state.clone()
    states = u.new_empty(_states_shape(u, w_in, keep))
    for block in _blocks(u, state, decay.shape[1]):
        for steps in block.tiles:
            rows = block.rows(u, steps)
            # The states of all steps if a gradient needs them, otherwise of one tile.
            if keep:
                x = states[steps, block.sequences]
            else:
                x = block.tile(rows.new_empty(len(rows), len(w_in)), steps)
            torch.mm(rows, w_in.t(), out=x.flatten(0, 1))
            if gain is not None:
                _scale(x, block.of(gain, steps), state)
            run.forward(x, block.of(decay, steps), last[block.sequences])
            if mask is not None:
                _scale(x, block.of(mask, steps), state)
            block.project(x.flatten(0, 1), w_out.t(), d, u, y, steps)
    return y, last, states


def _states_shape(u: Tensor, w_in: Tensor, keep: bool) -> tuple[int, ...]:
    """Return the shape of the states that are stored for the backward pass; it is empty if they are computed again."""
    if not keep:
        return (0,)
    return *u.shape[:2], w_in.shape[0]


def _recomputed(
    block: _Block, u: Tensor, state: Tensor, decay: Tensor, gain: Tensor | None, w_in: Tensor, run: Sweeps
) -> tuple[Tensor, Tensor | None]:
    """Return the states of a block, which the forward pass has not kept, and what drives them before the gain."""
    x = u.new_empty(len(u), block.sequences.stop - block.sequences.start, len(w_in))
    driven = None
    if gain is not None:
        driven = torch.empty_like(x)
    carried = state[block.sequences].clone()
    for steps in block.tiles:
        torch.mm(block.rows(u, steps), w_in.t(), out=x[steps].flatten(0, 1))
        if gain is not None and driven is not None:
            driven[steps] = x[steps]
            _scale(x[steps], block.of(gain, steps), state)
        run.forward(x[steps], block.of(decay, steps), carried)
    return x, driven


@operator("shared_backward")
def _run_backward(
    grad_y: Tensor, grad_last: Tensor | None, u: Tensor, state: Tensor, decay: Tensor, gain: Tensor | None,
    mask: Tensor | None, w_in: Tensor, w_out: Tensor, d: Tensor, states: Tensor, method: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    u, state, decay, w_in, w_out, d = _inputs(u, state, decay, w_in, w_out, d)
    run = sweeps(u.device.type, method)
    grad_u = torch.empty_like(u, memory_format=torch.contiguous_format)
    grad_state = torch.zeros_like(state)
    if grad_last is not None:
        grad_state.copy_(grad_last)
    grad_decay = torch.zeros_like(decay)
    grad_gain = torch.zeros_like(_if_scaled(decay, gain))
    grad_w_in, grad_w_out = (torch.empty_like(w, memory_format=torch.contiguous_format) for w in (w_in, w_out))
    # the first product overwrites the gradient, the others add to it
    grad_d = torch.zeros_like(d)
    beta = 0
    for block in _blocks(u, state, decay.shape[1]):
        driven = None
        if len(states):
            x = states[:, block.sequences]
        else:
            x, driven = _recomputed(block, u, state, decay, gain, w_in, run)
        # from the last step to the first one
        for steps in reversed(block.tiles):
            u_rows = block.rows(u, steps)
            grad_rows = block.rows(grad_y, steps)
            grad = block.tile(grad_rows @ w_out, steps)
            if mask is not None:
                _scale(grad, block.of(mask, steps), state)
            # The state before this tile, for the gradient of the decay.
            before = state[block.sequences]
            if steps.start:
                before = as_complex(x[steps.start - 1], state)
            grad_decays = run.backward(grad, x[steps], before, block.of(decay, steps), grad_state[block.sequences])
            _add(grad_decay[:, block.groups], grad_decays, steps)
            if gain is not None and driven is not None:
                gains = block.of(gain, steps)
                by_group = as_complex(driven[steps], state).conj() * as_complex(grad, state)
                by_group = by_group.unflatten(1, (gains.shape[1], -1)).sum(2)
                _add(grad_gain[:, block.groups], by_group.sum_to_size(gains.shape), steps)
                _scale(grad, gains.conj(), state)
            if mask is not None:
                _scale(x[steps], block.of(mask, steps), state)
            # Gradients of the projections add up over the tiles.
            grad_x = grad.flatten(0, 1)
            grad_w_out.addmm_(grad_rows.t(), x[steps].flatten(0, 1), beta=beta)
            grad_w_in.addmm_(grad_x.t(), u_rows, beta=beta)
            beta = 1
            grad_d += (grad_rows * u_rows).sum(0)
            block.project(grad_x, w_in, d, grad_y, grad_u, steps)
    return grad_u, grad_state, grad_decay, grad_gain, grad_w_in, grad_w_out, grad_d


def _if_scaled(decay: Tensor, gain: Tensor | None) -> Tensor:
    """Return decay, whose shape the gradient of the gain has, or nothing of it if there is no gain."""
    if gain is None:
        return decay[:0]
    return decay


def _run_shapes(u: Tensor, state: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    w_in, _, _, keep, _ = others[3:]
    return u.new_empty(u.shape), state.new_empty(state.shape), u.new_empty(_states_shape(u, w_in, keep))


def _run_backward_shapes(grad_y: Tensor, grad_last: Tensor | None, *saved: Any) -> tuple[Tensor, ...]:
    u, state, decay, gain, _, w_in, w_out, d, *_ = saved
    shaped = (u, state, decay, _if_scaled(decay, gain), w_in, w_out, d)
    return tuple(value.new_empty(value.shape) for value in shaped)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    *tensors, _, ctx.method = inputs
    ctx.save_for_backward(*tensors, output[2])
    ctx.set_materialize_grads(False)  # the kept states have no gradient, and zeros for them would take as much memory


def _gradients(
    ctx: Any, grad_y: Tensor | None, grad_last: Tensor | None, _: Tensor | None
) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors  # activation checkpointing allows only a single read
    u, _, _, gain = saved[:4]
    if grad_y is None:
        grad_y = torch.zeros_like(u)
    grad_u, grad_state, grad_decay, grad_gain, *others = _run_backward(grad_y, grad_last, *saved, ctx.method)
    if gain is None:
        grad_gain = None
    return grad_u, grad_state, grad_decay, grad_gain, None, *others, None, None


torch.library.register_fake(_run, _run_shapes)
torch.library.register_fake(_run_backward, _run_backward_shapes)
torch.library.register_autograd(_run, _gradients, setup_context=_keep)
torch.library.register_autograd(_run_backward, no_second_derivative)
