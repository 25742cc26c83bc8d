"""Compile loops with numba: cached on disk, and running without the interpreter lock."""

import atexit
import logging
import time
from collections.abc import Callable
from typing import Any

import numba
from numba.core import event

_log = logging.getLogger(__name__)


class Compilations(event.Listener):  # type: ignore[misc]
    """Logs when numba starts to compile, and at the end of the process how long it took.

    Thanks to the cache on disk, this happens once per installation.
    """

    def __init__(self) -> None:
        self.num_functions = self._depth = 0
        self.seconds = self._began = 0.0

    def on_start(self, event: Any) -> None:
        if self._depth == 0:
            self._began = time.perf_counter()
        if self.num_functions == self._depth == 0:
            _log.info("compiling loops for this machine; this happens once")
            atexit.register(self.log_total)
        self._depth += 1

    def on_end(self, event: Any) -> None:
        self._depth -= 1
        self.num_functions += 1
        if self._depth == 0:
            self.seconds += time.perf_counter() - self._began

    def log_total(self) -> None:
        _log.info(f"compiled {self.num_functions} loops in {self.seconds:.1f} s; later runs load them from the cache")


event.register("numba:compile", Compilations())


def jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function when it is first called.

    The cache lies beside the source file, or in the user's cache folder if the source folder is read-only.
    """
    compiled: Callable[..., Any] = numba.njit(cache=True, nogil=True)(function)
    return compiled
