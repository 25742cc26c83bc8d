"""A disk that fails: no file may become longer than a limit, or one call that changes a folder fails."""

import contextlib
import errno
import os
import resource
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

CALLS = ("fsync", "mkdir", "rename", "replace")  # of `os`; pathlib uses them, too


@contextlib.contextmanager
def files_of_at_most(most_bytes: int) -> Iterator[None]:
    """Let every write beyond this length of a file fail, in libraries as well."""
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, usual[1]))  # Python ignores the signal that comes with it
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)


@contextlib.contextmanager
def one_failing_call(folder: Path, number: int) -> Iterator[None]:
    """Let the call after `number` others of CALLS below a folder fail; every second number for want of space.

    Calls elsewhere do not count: a verb goes on without its caches, which may hold what another test has left there.
    Nor do those of other threads, whose failure is told by the next call of this one.
    """
    num_calls, make = 0, os.mkdir

    def counted(call: Callable[..., object]) -> Callable[..., object]:
        def instead(*arguments: object, **keywords: object) -> object:
            nonlocal num_calls
            where: Any = arguments[0]
            if isinstance(where, int):
                where = os.readlink(f"/proc/self/fd/{where}")
            is_aside = not os.fspath(where).startswith(str(folder))
            is_aside |= threading.current_thread() is not threading.main_thread()
            if is_aside or (call is make and os.path.isdir(where)):  # an error anyway, which pathlib expects
                return call(*arguments, **keywords)
            num_calls += 1
            if num_calls - 1 == number:
                code = errno.EIO if number % 2 else errno.ENOSPC
                raise OSError(code, os.strerror(code))
            return call(*arguments, **keywords)

        return instead

    instead: dict[str, Any] = {name: counted(getattr(os, name)) for name in CALLS}
    with patch.multiple(os, **instead):
        yield
