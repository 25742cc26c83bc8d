"""The diagonal recurrence h[l] = decay[l] * h[l-1] + drive[l], as one operator that `torch.compile` accepts.

A module of sweeps runs the recurrence forward and computes its gradient backward: `scan_cpu` on the CPU, `scan_triton`
on a GPU with Triton, `scan_loop` otherwise. The setting `temporal.scan` can ask for one of the last two.
"""

import importlib.util
import subprocess
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor

from rvtssm.ssm import scan_loop
from rvtssm.ssm.shapes import check_recurrence
from rvtssm.system.user_error import UserError


class Sweeps(Protocol):
    """The recurrence in place, and its gradient. `rvtssm.ssm.scan_cpu` describes the arguments."""

    def forward(self, x: Tensor, decay: Tensor, carried: Tensor) -> None:
        """Overwrite the drive of the states with the states."""

    def backward(self, grad: Tensor, x: Tensor, before: Tensor, decay: Tensor, carried: Tensor) -> Tensor:
        """Overwrite the gradients of the states with the gradients of the drive, and return the gradient of decay."""


@cache
def sweeps(device_type: str, method: str = "auto") -> Sweeps:
    """Return the sweeps for a type of device.

    Args:
        device_type: Type of a torch device, such as `cpu` or `cuda`.
        method: The setting `temporal.scan`. `auto` takes the fastest sweeps, and the loop if a Triton kernel cannot be
            built. `triton` never falls back to the loop on a GPU; on other devices it equals `auto`. `loop` takes the
            loop.

    Raises:
        UserError: If `triton` is asked for on a GPU but Triton is not installed.
        Exception: The error of Triton, if `triton` is asked for and a kernel cannot be built.
    """
    if method == "loop":
        return scan_loop
    if device_type == "cpu":
        import rvtssm.ssm.scan_cpu as scan_cpu

        return scan_cpu
    if device_type == "cuda" and importlib.util.find_spec("triton") is not None:
        try:
            import rvtssm.ssm.scan_triton as scan_triton
        except (ImportError, OSError) as error:
            if method == "triton":
                raise
            _warn_of_loop(error)
            return scan_loop
        if method == "triton":
            return scan_triton
        return KernelsOrLoop(scan_triton)
    if device_type == "cuda" and method == "triton":
        found = "it needs Triton, which is not installed"
        advice = "install it, or use auto or loop"
        raise UserError("install.extra", name="temporal.scan=triton", found=found, advice=advice)
    return scan_loop


def _warn_of_loop(error: Exception) -> None:
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    warnings.warn(
        f"a Triton kernel cannot be built here ({reason}), so the recurrence runs as a slower loop; to train "
        "without this warning, set temporal.scan=loop",
        RuntimeWarning,
        stacklevel=3,
    )


class KernelsOrLoop:
    """Kernels that are replaced by the loop, with one warning, as soon as one of them cannot be built.

    Args:
        kernels: The sweeps to start with.
    """

    def __init__(self, kernels: Sweeps) -> None:
        self.sweeps = kernels

    def forward(self, *values: Tensor) -> None:
        """Run the forward sweep."""
        self._run("forward", *values)

    def backward(self, *values: Tensor) -> Tensor:
        """Run the backward sweep."""
        grad_decay: Tensor = self._run("backward", *values)
        return grad_decay

    def _run(self, name: str, *values: Tensor) -> Any:
        # A kernel is built before it is launched, so if the build fails, the values are unchanged.
        try:
            return getattr(self.sweeps, name)(*values)
        except Exception as error:
            if self.sweeps is scan_loop or not _is_of_building(error):
                raise
            _warn_of_loop(error)
        self.sweeps = scan_loop
        return getattr(scan_loop, name)(*values)


def _is_of_building(error: Exception) -> bool:
    """Return whether Triton raised an error while it built a kernel, as opposed to an error of the device."""
    from triton.errors import TritonError  # the kernels were imported

    is_missing_compiler = type(error) is RuntimeError and "C compiler" in str(error)
    return is_missing_compiler or isinstance(error, (TritonError, ImportError, OSError, subprocess.SubprocessError))


def scan(decay: Tensor, drive: Tensor, state: Tensor, method: str = "auto") -> tuple[Tensor, Tensor]:
    """Return all states and the last one, in the dtype of the state, with one buffer per direction.

    Args:
        decay: Factors (T, D, P) with T = 1 or L; each of the D columns applies to N / D consecutive sequences.
        drive: Inputs of the recurrence, (L, N, P).
        state: State before the first step, (N, P).
        method: As in `sweeps`.

    Returns:
        All states (L, N, P) and the last one (N, P).

    Raises:
        UserError: If the shapes do not fit together or the drive is empty.
    """
    check_recurrence(decay, tuple(drive.shape), state)
    states, last = _scan(decay.to(state.dtype), drive.to(state.dtype), state, method)
    return states, last


def operator(name: str) -> Callable[[Callable[..., Any]], Any]:
    """Make an operator of a function that changes none of its arguments and returns new tensors.

    `torch.compile` calls it without looking inside. `torch.library.custom_op` does the same, but its first call loads
    PyTorch's compiler, which would add a second to every command that detects, and it compares inputs and outputs for
    shared memory at every call.

    Args:
        name: Name of the operator within the namespace `rvtssm`.
    """

    def register(run: Callable[..., Any]) -> Any:
        torch.library.define(f"rvtssm::{name}", torch.library.infer_schema(run, mutates_args=()))
        torch.library.impl(f"rvtssm::{name}", "default", run)
        return getattr(torch.ops.rvtssm, name).default

    return register


def no_second_derivative(*_: Any) -> NoReturn:
    """Raise a UserError. It is the derivative of operators that compute a gradient."""
    found = "s5, selective_s5 and s7 have no second derivative, as after create_graph=True"
    raise UserError("layer.lacks", found=found, advice="use s4, s4d or lstm, which do")


@operator("scan")
def _scan(decay: Tensor, drive: Tensor, state: Tensor, method: str) -> tuple[Tensor, Tensor]:
    states = drive.detach().clone(memory_format=torch.contiguous_format)
    last = state.detach().clone(memory_format=torch.contiguous_format)
    sweeps(drive.device.type, method).forward(_real(states), plain(decay), last)
    return states, last


@operator("scan_backward")
def _scan_backward(
    grad_states: Tensor, grad_last: Tensor, decay: Tensor, states: Tensor, state: Tensor, method: str
) -> tuple[Tensor, Tensor, Tensor]:
    grad_drive = plain(grad_states).clone()
    grad_state = plain(grad_last).clone()
    grad_decay = sweeps(states.device.type, method).backward(
        _real(grad_drive), _real(states.detach()), plain(state), plain(decay), grad_state
    )
    return grad_decay, grad_drive, grad_state


def _scan_shapes(decay: Tensor, drive: Tensor, state: Tensor, method: str) -> tuple[Tensor, Tensor]:
    return drive.new_empty(drive.shape), state.new_empty(state.shape)


def _scan_backward_shapes(grad_states: Tensor, grad_last: Tensor, *saved: Any) -> tuple[Tensor, ...]:
    return tuple(value.new_empty(value.shape) for value in saved[:3])


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, str], output: tuple[Tensor, Tensor]) -> None:
    decay, _, state, ctx.method = inputs
    ctx.save_for_backward(decay, output[0], state)


def _gradients(ctx: Any, grad_states: Tensor, grad_last: Tensor) -> tuple[Tensor | None, ...]:
    return *_scan_backward(grad_states, grad_last, *ctx.saved_tensors, ctx.method), None


torch.library.register_fake(_scan, _scan_shapes)
torch.library.register_fake(_scan_backward, _scan_backward_shapes)
torch.library.register_autograd(_scan, _gradients, setup_context=_keep)
torch.library.register_autograd(_scan_backward, no_second_derivative)


def plain(values: Tensor) -> Tensor:
    """Return the values contiguous, without gradient and without lazy conjugation, as the sweeps need them."""
    return values.detach().resolve_conj().contiguous()


def _real(values: Tensor) -> Tensor:
    if values.is_complex():
        return torch.view_as_real(values).flatten(-2)
    return values
