"""Tell a person who waits that numba compiles, which happens once per installation. Import this where loops compile."""

import atexit
import logging
import multiprocessing
import sys
import time
from typing import Any

from numba.core import event

_log = logging.getLogger(__name__)


class Compilations(event.Listener):  # type: ignore[misc]
    """Tells when numba starts to compile loops of this package, and at the end of the process how long it took."""

    def __init__(self) -> None:
        self.num_functions = self._depth = 0
        self.seconds = self._began = 0.0

    def on_start(self, event: Any) -> None:
        if not _is_ours(event):
            return
        if self._depth == 0:
            self._began = time.perf_counter()
        if self.num_functions == self._depth == 0:
            _say("compiling loops for this machine; this happens once")
            atexit.register(self.say_total)
        self._depth += 1

    def on_end(self, event: Any) -> None:
        if not _is_ours(event):
            return
        self._depth -= 1
        self.num_functions += 1
        if self._depth == 0:
            self.seconds += time.perf_counter() - self._began

    def say_total(self) -> None:
        _say(f"compiled {self.num_functions} loops in {self.seconds:.1f} s; later runs load them from the cache")


def _is_ours(event: Any) -> bool:
    return bool(event.data["dispatcher"].py_func.__module__.partition(".")[0] == "rvtssm")


def _say(text: str) -> None:
    """Log a line. Without a handler, such as that of the commands, write it to a terminal or a notebook."""
    _log.info(text)
    is_seen = "ipykernel" in sys.modules or (sys.stderr is not None and sys.stderr.isatty())
    if is_seen and not _log.handlers and multiprocessing.parent_process() is None:
        sys.stderr.write(f"rvtssm: {text}\n")


event.register("numba:compile", Compilations())
