"""Ends this process if a library never returns from reading a file.

libhdf5 can loop for ever over a damaged file and holds the interpreter lock meanwhile, so that no thread of Python can
run. The thread of `faulthandler` needs no such lock.
"""

import contextlib
import faulthandler
import os
import threading
from collections.abc import Iterator

LIMIT_S = 300.0  # of one block, waiting for a slow disk included
EXIT_CODE = 1  # of a process that was ended, as faulthandler has it
_STANDARD_ERROR = 2

_lock, _depth = threading.RLock(), 0


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """End this process with EXIT_CODE if the block takes longer than LIMIT_S, and print where its threads were.

    Use it for short blocks, since only one thread at a time can be inside. The process has one such timer: a block
    replaces one that the program has set itself.
    """
    global _depth
    with _lock:
        _depth += 1
        if _depth == 1:
            faulthandler.dump_traceback_later(LIMIT_S, exit=True, file=_STANDARD_ERROR)
        try:
            yield
        finally:
            _depth -= 1
            if _depth == 0:
                faulthandler.cancel_dump_traceback_later()


# A fork waits until no thread is inside: it would inherit a timer without the thread of the timer, and wait for that.
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
