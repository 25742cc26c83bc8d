"""Compile loops with numba: cached on disk, and running without the interpreter lock."""

from collections.abc import Callable
from typing import Any

import numba

import rvtssm.system.compilations  # noqa: F401  tells a person who waits


def jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function when it is first called.

    The cache lies beside the source file, or in the user's cache folder if the source folder is read-only.
    """
    compiled: Callable[..., Any] = numba.njit(cache=True, nogil=True)(function)
    return compiled
