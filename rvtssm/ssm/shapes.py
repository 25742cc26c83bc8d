"""What is checked before compiled loops and kernels run, which trust the sizes that they are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from rvtssm.system.user_error import UserError


def check_input(x: Tensor, dim: int, like: Tensor | None) -> None:
    """Raise a UserError unless x is (L, N, dim), not empty, of floating-point numbers, on the device of `like`."""
    if torch.compiler.is_compiling():  # sizes are symbols then, and no loop runs over memory
        return
    if not isinstance(x, Tensor) or x.ndim != 3 or x.shape[2] != dim:
        raise UserError(
            f"an input of {_kind(x)} for a layer of {dim} features, which takes (L, N, {dim}): steps, sequences, "
            "features; time comes first, and batch-first data need x.transpose(0, 1)"
        )
    if not x.is_floating_point() or (like is not None and x.device != like.device):
        raise UserError(
            f"an input of {x.dtype} on {x.device}; needed are floating-point numbers on the device of the layer"
            f"{'' if like is None else f', {like.device}'}: x.float().to(device)"
        )
    if not x.numel():
        raise UserError(f"needed is at least one step of one sequence, got an input of the shape {tuple(x.shape)}")


def fitting_state(
    x: Tensor,
    state: Any,
    init_state: Callable[[int], Any],
    dim: int,
    like: Tensor,
    *shapes: tuple[int, ...],
    is_complex: bool = False,
) -> Any:
    """Return the state, or zeros for None. Raise a UserError unless x (L, N, dim) and the state fit each other.

    The state is a tensor (N, *shape), or a tuple of such tensors if there are several shapes, with device and precision
    of `like`, a parameter. This runs at every step of a stream, so it makes no tensor.
    """
    check_input(x, dim, like)
    if state is None:
        return init_state(x.shape[1])
    if torch.compiler.is_compiling():
        return state
    found = state if len(shapes) > 1 and isinstance(state, tuple) else (state,)
    dtype, num_sequences = like.dtype.to_complex() if is_complex else like.dtype, x.shape[1]
    if len(found) != len(shapes):
        _refuse(x, found, shapes)
    for leaf, shape in zip(found, shapes, strict=True):
        if not isinstance(leaf, Tensor) or leaf.shape != (num_sequences, *shape):
            _refuse(x, found, shapes)
        if leaf.dtype != dtype or leaf.device != like.device:
            raise UserError(
                f"a state of {leaf.dtype} on {leaf.device} for a layer whose states are {dtype} on {like.device}; move "
                "both together, or begin with state=None"
            )
    return state


def check_fit(scale_steps: int, groups: int, num_steps: int, num_sequences: int) -> None:
    """Raise a UserError if a step scale (scale_steps, groups) does not fit an input (num_steps, num_sequences)."""
    if scale_steps not in (1, num_steps) or groups < 1 or num_sequences % groups:
        raise UserError(
            f"step_scale covers {scale_steps} steps of {groups} groups, the input has {num_steps} steps of "
            f"{num_sequences} sequences; give one value per step and the number of sequences a multiple of the groups"
        )


def check_recurrence(decay: Tensor, drive_shape: tuple[int, ...], state: Tensor) -> None:
    """Raise a UserError unless decay (T | 1, D, P), a drive (T, n, P) of this shape and a state (n, P) fit together."""
    num_steps, *rows = drive_shape
    is_number = state.is_complex() or state.is_floating_point()
    if decay.ndim != 3 or list(state.shape) != rows or decay.shape[2] != rows[-1]:
        raise UserError(
            f"decay {tuple(decay.shape)}, drive {tuple(drive_shape)} and state {tuple(state.shape)} do not fit; needed "
            "are (T, D, P), (L, N, P) and (N, P), with T = 1 or L: time comes first"
        )
    if not is_number or decay.is_complex() != state.is_complex() or decay.device != state.device:
        raise UserError(
            f"decay of {decay.dtype} on {decay.device} and a state of {state.dtype} on {state.device}; both must be "
            "complex, or both real floating-point numbers, on one device"
        )
    check_fit(decay.shape[0], decay.shape[1], num_steps, rows[0])


def check_sweep(decay: Tensor, rows: tuple[Tensor, ...], states: tuple[Tensor, ...]) -> None:
    """Raise a UserError unless the arguments of a sweep are as `rvtssm.ssm.scan_cpu` describes them.

    `rows` are those of the shape (T, n, P), with real and imaginary parts in turn if decay is complex, `states` those
    of the shape (n, P).
    """
    width = decay.shape[-1] * (1 + decay.is_complex())
    num_steps, num_sequences = rows[0].shape[:2]
    for values in rows:
        if values.shape != (num_steps, num_sequences, width) or values.device != decay.device or values.is_complex():
            raise UserError(
                f"a scan got {_kind(values)} beside decay {_kind(decay)}; time comes first, (T, n, {width})"
            )
    for state in states:
        check_recurrence(decay, (num_steps, num_sequences, decay.shape[-1]), state)
        if state.dtype != decay.dtype:
            raise UserError(f"a scan got a state of {state.dtype} beside decay of {decay.dtype}; both must be alike")
    if not all(values.is_contiguous() for values in (decay, *rows, *states)):
        raise UserError("a scan got values that are not contiguous; its loops go through memory in order")


def _refuse(x: Tensor, found: tuple[Any, ...], shapes: tuple[tuple[int, ...], ...]) -> NoReturn:
    num_steps, num_sequences = x.shape[:2]
    needed = " and ".join(str((num_sequences, *shape)) for shape in shapes)
    text = (
        f"an input of the shape {tuple(x.shape)} with a state of {' and '.join(map(_kind, found))}: time comes first, "
        f"so the input is {num_steps} steps of {num_sequences} sequences, and its state {needed}"
    )
    rows = [leaf.shape[0] for leaf in found if isinstance(leaf, Tensor) and leaf.ndim]
    if num_steps in rows and num_sequences not in rows:
        text += "; this input is batch-first: give x.transpose(0, 1)"
    else:
        text += f"; use init_state({num_sequences}), or state=None for zeros"
    raise UserError(text)


def _kind(value: Any) -> str:
    return f"the shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"the type {type(value).__name__}"
