"""How the package compiles loops: with numba, cached on disk, without the interpreter lock."""

import atexit
import logging
import time
from collections.abc import Callable
from typing import Any

import numba
from numba.core import event

_log = logging.getLogger(__name__)


class Compilations(event.Listener):  # type: ignore[misc]
    """Logs that numba compiles, which it does once per installation, and at the end of the process how long it took."""

    def __init__(self) -> None:
        self.num_functions = self._depth = 0
        self.seconds = self._began = 0.0

    def on_start(self, event: Any) -> None:
        if self._depth == 0:
            self._began = time.perf_counter()
        if self.num_functions == self._depth == 0:
            _log.info("compiling loops for this machine, once")
            atexit.register(self.log_total)
        self._depth += 1

    def on_end(self, event: Any) -> None:
        self._depth -= 1
        self.num_functions += 1
        if self._depth == 0:
            self.seconds += time.perf_counter() - self._began

    def log_total(self) -> None:
        _log.info(f"compiled {self.num_functions} loops in {self.seconds:.1f} s; the next run finds them on the disk")


event.register("numba:compile", Compilations())


def jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function at its first call.

    The cache is beside the source, or in the user's cache if that folder is read-only.
    """
    compiled: Callable[..., Any] = numba.njit(cache=True, nogil=True)(function)
    return compiled
