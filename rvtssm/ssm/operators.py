"""Our own operators for PyTorch, which `torch.compile` calls without looking inside.

`torch.library.custom_op` does the same, but its first call loads PyTorch's compiler, which would add a second to every
command that detects, and it compares inputs and outputs for shared memory at every call.
"""

from collections.abc import Callable
from typing import Any

import torch


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
