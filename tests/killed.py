"""Kills a writer at each of the calls by which it changes a folder."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

CALLS = ("fsync", "mkdir", "rename", "replace", "rmdir", "unlink")  # of `os`; pathlib uses them, too
_MOST = 200


def killed_at_each_call(
    tmp_path: Path, begin: Callable[[Path], object], act: Callable[[Path], object]
) -> Iterator[Path]:
    """Yield a folder in which `begin` has run and `act` was killed before its first, second, ... call of CALLS.

    It ends after the first `act` that ends by itself.
    """
    for number in range(_MOST):
        folder = tmp_path / f"killed_{number}"
        begin(folder)
        child = os.fork()
        if not child:
            code = 1
            try:
                _kill_before(number)
                act(folder)
                code = 0
            finally:
                os._exit(code)  # nothing of pytest must run here
        _, status = os.waitpid(child, 0)
        yield folder
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            return
    raise AssertionError(f"still killed after {_MOST} calls")


def _kill_before(number: int) -> None:
    """Let this process be killed when it makes the call after `number` others."""
    left = number

    def counted(call: Callable[..., object]) -> Callable[..., object]:
        def instead(*arguments: object, **keywords: object) -> object:
            nonlocal left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return call(*arguments, **keywords)

        return instead

    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))
