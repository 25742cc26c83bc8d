"""Checks of arguments before compiled loops and kernels run, which do not check bounds themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from rvtssm.system.user_error import UserError


def check_input(x: Tensor, dim: int, like: Tensor, step_scale: Any = 1.0) -> None:
    """Raise a UserError unless x is (L, N, dim), not empty, floating-point and on the device of the layer.

    The shape of a step scale must fit as well.

    Args:
        x: The input of a layer.
        dim: Number of features of the layer.
        like: A parameter of the layer, whose device is checked.
        step_scale: The step scale. Its values are not read; only the shape of a tensor is checked.
    """
    if torch.compiler.is_compiling():  # the sizes are symbols, and no loop runs over memory
        return
    if not isinstance(x, Tensor) or x.ndim != 3 or x.shape[2] != dim:
        raise UserError(
            "layer.input",
            found=f"got an input of {_kind(x)}",
            needed=f"a layer with {dim} features takes (L, N, {dim}): steps, sequences, features. Time comes first and "
            "features come last",
        )
    if not x.is_floating_point() or x.device != like.device:
        found = f"got an input of {x.dtype} on {x.device}"
        needed = f"the layer takes floating-point numbers on its own device, {like.device}"
        raise UserError("layer.input", found=found, needed=needed, advice="pass x.float().to(device)")
    if not x.numel():
        found = f"got an input of the shape {tuple(x.shape)}"
        raise UserError("layer.input", found=found, advice="pass at least one step of one sequence")
    if isinstance(step_scale, Tensor) and step_scale.ndim:
        check_axes(step_scale)
        if step_scale.ndim == 1 and len(step_scale) > 1 and x.shape[0] > 1:
            raise UserError(
                "layer.step_scale",
                found=f"step_scale has the shape ({len(step_scale)},), and the input has {x.shape[0]} steps",
                advice="pass step_scale[:, None] for one value per step, or step_scale[None] for one value per group "
                "of sequences",
            )
        check_fit(*torch.atleast_2d(step_scale).shape, *x.shape[:2])


def check_precision(x: Tensor, like: Tensor) -> None:
    """Raise a UserError unless input and layer have the same precision, or autocast is on.

    Args:
        x: The input of a layer.
        like: A parameter of the layer.
    """
    if x.dtype != like.dtype and not (torch.compiler.is_compiling() or torch.is_autocast_enabled(x.device.type)):
        found = f"got an input of {x.dtype}, but the layer has weights of {like.dtype}"
        raise UserError("layer.input", found=found, advice=f"pass x.to({like.dtype})")


def fitting_state(
    x: Tensor,
    state: Any,
    init_state: Callable[[int], Any],
    dim: int,
    like: Tensor,
    *shapes: tuple[int, ...],
    is_complex: bool = False,
    step_scale: Any = 1.0,
) -> Any:
    """Return the state, or zeros if it is None. Raise a UserError unless input and state fit the layer and each other.

    This runs at every step of a stream, so it allocates no tensor for a given state.

    Args:
        x: The input, (L, N, dim).
        state: The state: a tensor (N, *shape), or a tuple of such tensors if there are several shapes.
        init_state: Function that makes the zero state for a number of sequences.
        dim: Number of features of the layer.
        like: A parameter of the layer, which gives device and precision of the state.
        *shapes: Shape of each tensor of the state, without its first axis.
        is_complex: Whether the state is complex.
        step_scale: As in `check_input`.
    """
    check_input(x, dim, like, step_scale)
    if state is None:
        return init_state(x.shape[1])
    if torch.compiler.is_compiling():
        return state
    # A state is one tensor or a tuple of them.
    leaves = (state,)
    if len(shapes) > 1 and isinstance(state, tuple):
        leaves = state
    dtype = like.dtype
    if is_complex:
        dtype = dtype.to_complex()
    if len(leaves) != len(shapes):
        _refuse(x, leaves, shapes)
    for leaf, shape in zip(leaves, shapes, strict=True):
        if not isinstance(leaf, Tensor) or leaf.shape != (x.shape[1], *shape):
            _refuse(x, leaves, shapes)
        if leaf.device != like.device or leaf.dtype != dtype:
            found = f"got a state of {leaf.dtype} on {leaf.device}"
            needed = f"the layer needs {dtype} on {like.device}"
            advice = "convert the state, or start with state=None"
            raise UserError("layer.state", found=found, needed=needed, advice=advice)
    return state


def check_axes(step_scale: Tensor) -> None:
    """Raise a UserError if a step scale has more than two axes."""
    if step_scale.ndim > 2:
        found = f"step_scale has the shape {tuple(step_scale.shape)}"
        raise UserError("layer.step_scale", found=found, needed="a number, (1, G) or (L, G)")


def check_fit(scale_steps: int, groups: int, num_steps: int, num_sequences: int) -> None:
    """Raise a UserError if a step scale does not fit an input.

    Args:
        scale_steps: Number of steps that the step scale covers.
        groups: Number of groups of sequences in the step scale.
        num_steps: Number of steps of the input.
        num_sequences: Number of sequences of the input.
    """
    if scale_steps not in (1, num_steps) or groups < 1 or num_sequences % groups:
        raise UserError(
            "layer.step_scale",
            found=f"step_scale covers {scale_steps} steps of {groups} groups, but the input has {num_steps} steps of "
            f"{num_sequences} sequences",
            needed="pass a number, (1, G) with one value for each of G groups of sequences, or (L, G) with one row per "
            "step, where G divides the number of sequences",
            advice="step_scale[:, None] has one value per step",
        )


def check_recurrence(decay: Tensor, drive_shape: tuple[int, ...], state: Tensor) -> None:
    """Raise a UserError unless decay, drive and state fit together and none of them is empty.

    Args:
        decay: (T, D, P) or (1, D, P).
        drive_shape: Shape of the drive, (T, n, P).
        state: (n, P), complex if decay is, and on the same device.
    """
    num_steps, *rows = drive_shape
    is_number = state.is_complex() or state.is_floating_point()
    has_axes = decay.ndim == len(drive_shape) == 3 and 0 not in drive_shape
    if not has_axes or list(state.shape) != rows or decay.shape[2] != rows[-1]:
        raise UserError(
            "scan.shapes",
            found=f"decay {tuple(decay.shape)}, drive {tuple(drive_shape)} and state {tuple(state.shape)} do not fit",
            needed="they must be (T, D, P), (L, N, P) and (N, P) with T = 1 or L: time comes first, and none of them "
            "may be empty",
        )
    if not is_number or decay.is_complex() != state.is_complex() or decay.device != state.device:
        found = f"got a decay of {decay.dtype} on {decay.device} and a state of {state.dtype} on {state.device}"
        needed = "both must be complex, or both real floating-point numbers, on the same device"
        raise UserError("scan.shapes", found=found, needed=needed)
    check_fit(decay.shape[0], decay.shape[1], num_steps, rows[0])


def check_sweep(decay: Tensor, rows: tuple[Tensor, ...], states: tuple[Tensor, ...]) -> None:
    """Assert that the arguments of a sweep are as `rvtssm.ssm.scan_cpu` describes them.

    Args:
        decay: The factors.
        rows: The arguments of shape (T, n, P), or (T, n, 2P) with interleaved real and imaginary parts if decay is
            complex.
        states: The arguments of shape (n, P).
    """
    num_modes = decay.shape[-1]
    num_steps, num_sequences = rows[0].shape[:2]
    for values in rows:
        assert values.shape == (num_steps, num_sequences, num_modes * (1 + decay.is_complex()))
        assert values.device == decay.device and not values.is_complex()
    for state in states:
        check_recurrence(decay, (num_steps, num_sequences, num_modes), state)
        assert state.dtype == decay.dtype
    for values in (decay, *rows, *states):
        assert values.is_contiguous()


def _refuse(x: Tensor, leaves: tuple[Any, ...], shapes: tuple[tuple[int, ...], ...]) -> NoReturn:
    num_steps, num_sequences = x.shape[:2]
    needed = " and ".join(str((num_sequences, *shape)) for shape in shapes)
    found = f"got an input of the shape {tuple(x.shape)} with a state of {' and '.join(map(_kind, leaves))}"
    order = (
        f"Time comes first, so the input has {num_steps} steps of {num_sequences} sequences and needs a state {needed}"
    )
    advice = f"use init_state({num_sequences}), or state=None for zeros"
    rows = [leaf.shape[0] for leaf in leaves if isinstance(leaf, Tensor) and leaf.ndim]
    if num_steps in rows and num_sequences not in rows:
        advice = "this input seems to be batch-first: pass x.transpose(0, 1)"
    raise UserError("layer.state", found=found, needed=order, advice=advice)


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"the shape {tuple(value.shape)}"
    return f"the type {type(value).__name__}"
