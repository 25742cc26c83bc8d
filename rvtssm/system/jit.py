"""Compile loops with numba: cached on disk, without the interpreter lock, and with a word to a person who waits."""

import atexit
import contextlib
import logging
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core import event

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

    The cache lies beside the source file, in the user's cache folder if the source folder is read-only, or in a
    temporary folder if neither can be written.
    """
    compile_it = numba.njit(cache=True, nogil=True)
    try:
        compiled: Callable[..., Any] = compile_it(function)
    except RuntimeError:  # numba finds no folder that it can write to
        _use_temporary_folder()
        compiled = compile_it(function)
    return compiled


def _use_temporary_folder() -> None:
    """Let this process and its workers keep compiled code in a temporary folder of this user, and say so."""
    folder = Path(tempfile.gettempdir()) / f"rvtssm-compiled-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():  # somebody else could put code there
        folder = Path(tempfile.mkdtemp(prefix="rvtssm-compiled-"))
    numba.config.CACHE_DIR = os.environ["NUMBA_CACHE_DIR"] = str(folder)
    if multiprocessing.parent_process() is None and sys.stderr is not None:
        sys.stderr.write(
            f"rvtssm: neither the folder of the package nor that of the user can be written; compiled loops go to "
            f"{folder} (NUMBA_CACHE_DIR=DIR chooses another folder)\n"
        )


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
