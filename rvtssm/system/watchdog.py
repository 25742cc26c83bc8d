"""End this process if a library never returns from reading a file.

libhdf5 can loop forever over a damaged file. Meanwhile it holds the interpreter lock, so no Python thread can run. The
thread of `faulthandler` does not need that lock.
"""

import contextlib
import faulthandler
import os
import threading
from collections.abc import Iterator

LIMIT_S = 300.0  # longest duration of one block, including waits for a slow disk
EXIT_CODE = 1  # exit code that faulthandler gives a process it ends
_STANDARD_ERROR = 2

_lock, _depth = threading.RLock(), 0


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """End this process with EXIT_CODE if the block takes longer than LIMIT_S, and print where its threads were.

    Use this for short blocks, since only one thread at a time can be inside. A process has only one such timer, so the
    block replaces a timer that the program has set itself.
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


# A fork waits until no thread is inside. Otherwise the child would inherit a timer without its thread and wait for it.
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
