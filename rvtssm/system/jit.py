"""Compile loops with numba: cached on disk, without the interpreter lock, and with a word to a person who waits."""

import contextlib
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numba
from numba.core import event
from numba.core.caching import FunctionCache

# Before its first call, numba would import scipy.linalg, which takes as long as numba itself, only to note for `np.cov`
# whether it is there. What multiplies matrices imports it when it is compiled.
if "scipy" in sys.modules and "scipy.linalg" not in sys.modules:
    sys.modules["scipy.linalg"] = None  # type: ignore[assignment]  # an import of it fails
    try:
        import numba.np.arraymath

        numba.np.arraymath._HAVE_BLAS = True
    finally:
        del sys.modules["scipy.linalg"]


def jit(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Compile a function when it is first called, with further options of numba.

    The cache lies beside the source file, in the user's cache folder if the source folder is read-only, or in a
    temporary folder if neither can be written.
    """
    compile_it = numba.njit(cache=True, nogil=True, **options)
    try:
        compiled: Any = compile_it(function)
    except RuntimeError:  # numba finds no folder that it can write to
        _use_temporary_folder()
        compiled = compile_it(function)
    compiled._cache.__class__ = HealingCache
    result: Callable[..., Any] = compiled
    return result


class HealingCache(FunctionCache):  # type: ignore[misc]
    """Compiles a loop again if its file in the cache is cut or empty, as after a full disk or a kill while writing."""

    def load_overload(self, *signature: Any) -> Any:
        """Return the compiled loop, or None, after which numba compiles and stores it."""
        try:
            return super().load_overload(*signature)
        except Exception as error:  # unpickling raises many kinds of errors
            if sys.stderr is not None:
                sys.stderr.write(
                    f"rvtssm: a compiled loop in {self.cache_path} cannot be read ({type(error).__name__}); it is "
                    "compiled again\n"
                )
        with contextlib.suppress(OSError):
            self.flush()
        return None

    def save_overload(self, *compiled: Any) -> None:
        """Store the compiled loop, unless the folder holds a file that can be neither read nor replaced."""
        with contextlib.suppress(OSError, EOFError, UnpicklingError):
            super().save_overload(*compiled)


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


class Compilations(event.Listener):  # type: ignore[misc]
    """Tells a person at a terminal or in a notebook, once, that numba compiles loops of this package."""

    is_told = False

    def on_start(self, event: Any) -> None:
        if self.is_told or event.data["dispatcher"].py_func.__module__.partition(".")[0] != "rvtssm":
            return
        self.is_told = True
        is_seen = "ipykernel" in sys.modules or (sys.stderr is not None and sys.stderr.isatty())
        if is_seen and multiprocessing.parent_process() is None:
            sys.stderr.write("rvtssm: compiling loops for this machine; this happens once, and takes seconds\n")

    def on_end(self, event: Any) -> None:
        """Say nothing, since the work goes on."""


event.register("numba:compile", Compilations())
