"""The diagonal recurrence h[l] = decay[l] * h[l-1] + drive[l], as an operator that `torch.compile` accepts unchanged.

It uses two sweeps, one forward and one from the end, of the module for the device: `scan_cpu`, `scan_triton` if Triton
is installed, else `scan_loop`.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor

from rvtssm.ssm import scan_cpu, scan_loop


class Sweeps(Protocol):
    """The recurrence in place and its gradient. `rvtssm.ssm.scan_cpu` describes the arguments."""

    def forward(self, x: Tensor, decay: Tensor, carried: Tensor) -> None:
        """Turn the drive of the states into the states."""

    def backward(self, grad: Tensor, x: Tensor, before: Tensor, decay: Tensor, carried: Tensor) -> Tensor:
        """Turn gradients of the states into gradients of the drive; return the gradient of decay."""


@cache
def sweeps(device_type: str) -> Sweeps:
    """Return the fastest sweeps that run on a type of device."""
    if device_type == "cpu":
        return scan_cpu
    if device_type == "cuda" and importlib.util.find_spec("triton") is not None:
        import rvtssm.ssm.scan_triton as scan_triton

        return scan_triton
    return scan_loop


def scan(decay: Tensor, drive: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return all states and the last one, in the type of the state, with one buffer per direction.

    decay (T, D, P) with T = 1 or L; each of its D columns is for N / D consecutive sequences. drive (L, N, P), state
    (N, P) -> all states (L, N, P), the last (N, P).
    """
    if drive.numel() == 0:
        raise ValueError(f"a scan needs at least one step, sequence and mode, got drive {tuple(drive.shape)}")
    states, last = _scan(decay.to(state.dtype), drive.to(state.dtype), state)
    return states, last


@torch.library.custom_op("rvtssm::scan", mutates_args=())
def _scan(decay: Tensor, drive: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    states = drive.detach().clone(memory_format=torch.contiguous_format)
    last = state.detach().clone(memory_format=torch.contiguous_format)
    sweeps(drive.device.type).forward(_real(states), plain(decay), last)
    return states, last


@torch.library.custom_op("rvtssm::scan_backward", mutates_args=())
def _scan_backward(
    grad_states: Tensor, grad_last: Tensor, decay: Tensor, states: Tensor, state: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    grad_drive = plain(grad_states).clone()
    grad_state = plain(grad_last).clone()
    grad_decay = sweeps(states.device.type).backward(
        _real(grad_drive), _real(states.detach()), plain(state), plain(decay), grad_state
    )
    return grad_decay, grad_drive, grad_state


@_scan.register_fake
def _(decay: Tensor, drive: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    return drive.new_empty(drive.shape), state.new_empty(state.shape)


@_scan_backward.register_fake
def _(grad_states: Tensor, grad_last: Tensor, *saved: Tensor) -> tuple[Tensor, ...]:
    return tuple(value.new_empty(value.shape) for value in saved)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
    decay, _, state = inputs
    ctx.save_for_backward(decay, output[0], state)


def _gradients(ctx: Any, grad_states: Tensor, grad_last: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    gradients: tuple[Tensor, Tensor, Tensor] = _scan_backward(grad_states, grad_last, *ctx.saved_tensors)
    return gradients


_scan.register_autograd(_gradients, setup_context=_keep)


def plain(values: Tensor) -> Tensor:
    """Return the same numbers without gradient, contiguous and not lazily conjugated, as the sweeps need them."""
    return values.detach().resolve_conj().contiguous()


def _real(values: Tensor) -> Tensor:
    return torch.view_as_real(values).flatten(-2) if values.is_complex() else values
