"""Runs a verb on a disk that fails: no file may become longer than a limit, or one call that changes a folder fails."""

import contextlib
import errno
import io
import os
import resource
import signal
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext

from rvtssm.cli.main import main

CALLS = ("fsync", "mkdir", "rename", "replace")  # of `os`; pathlib uses them, too
BOUND_S = 300.0


@dataclass(frozen=True)
class Run:
    """What a verb did: its exit code, and what it printed."""

    code: int
    printed: str


def run_verb(
    context: ForkServerContext, words: list[str], most_bytes: int | None = None, failing_call: int | None = None
) -> Run:
    """Run a verb in a new process. `failing_call` counts from 0; every second one fails for want of space."""
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(sender, words, most_bytes, failing_call))
    process.start()
    sender.close()
    try:
        assert receiver.poll(BOUND_S), f"{words} does not end"
        return Run(*receiver.recv())
    finally:
        process.kill()
        process.join()


def _run(sender, words: list[str], most_bytes: int | None, failing_call: int | None) -> None:
    printed, num_calls, make = io.StringIO(), 0, os.mkdir

    def counted(call: Callable[..., object]) -> Callable[..., object]:
        def instead(*arguments: object, **keywords: object) -> object:
            nonlocal num_calls
            if call is make and os.path.isdir(arguments[0]):  # an error anyway, which pathlib expects
                return call(*arguments, **keywords)
            num_calls += 1
            if num_calls - 1 == failing_call:
                code = errno.EIO if failing_call % 2 else errno.ENOSPC
                raise OSError(code, os.strerror(code))
            return call(*arguments, **keywords)

        return instead

    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))
    if most_bytes is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # then writing beyond the limit is an error, in libraries as well
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
    with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(printed):
        code = main(words)
    sender.send((code, printed.getvalue()))
