"""Our own operators for PyTorch, which `torch.compile` calls without looking inside.

`torch.library.custom_op` does the same, but its first call loads PyTorch's compiler, which would add a second to every
command that detects, and it compares inputs and outputs for shared memory at every call.
"""

from collections.abc import Callable
from typing import Any, NoReturn

import torch

from rvtssm.system.user_error import UserError


def operator(name: str) -> Callable[[Callable[..., Any]], Any]:
    """Make an operator of a function that changes none of its arguments and returns new tensors.

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
    raise UserError(
        "layer.second_derivative",
        "s5, selective_s5 and s7 have no second derivative, as after create_graph=True; use s4, s4d or lstm, which do",
    )
