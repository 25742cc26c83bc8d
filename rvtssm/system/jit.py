"""Compile loops with numba: cached on disk, and running without the interpreter lock."""

import sys
from collections.abc import Callable
from typing import Any

import numba

import rvtssm.system.compilations  # noqa: F401  tells a person who waits

# Before its first call, numba would import scipy.linalg, which takes as long as numba itself, only to note for `np.cov`
# whether it is there. What multiplies matrices imports it when it is compiled.
if "scipy" in sys.modules and "scipy.linalg" not in sys.modules:
    sys.modules["scipy.linalg"] = None  # type: ignore[assignment]  # an import of it fails
    try:
        import numba.np.arraymath

        numba.np.arraymath._HAVE_BLAS = True
    finally:
        del sys.modules["scipy.linalg"]


def jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function when it is first called.

    The cache lies beside the source file, or in the user's cache folder if the source folder is read-only.
    """
    compiled: Callable[..., Any] = numba.njit(cache=True, nogil=True)(function)
    return compiled
