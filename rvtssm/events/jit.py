"""The one way loops are compiled here: by numba, cached on disk, without the interpreter lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile on first call; the cache lies beside the source, or in the user's cache if that is read-only."""
    compiled: Callable[..., Any] = numba.njit(cache=True, nogil=True)(function)
    return compiled
