"""How the package compiles loops: with numba, cached on disk, without the interpreter lock."""

from collections.abc import Callable
from typing import Any

import numba


def jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function at its first call.

    The cache is beside the source, or in the user's cache if that folder is read-only.
    """
    compiled: Callable[..., Any] = numba.njit(cache=True, nogil=True)(function)
    return compiled
