"""Ends this process if a library never returns from reading a file.

libhdf5 can loop for ever over a damaged file and holds the interpreter lock meanwhile, so that no thread of Python can
run. Therefore a small process of its own watches. This file is also the program of that process, so it imports nothing
of ours.

The watched process ends with the exit code of an error that one line explains. For that it has a signal handler in
machine code, because one in Python would wait for the interpreter lock.
"""

import atexit
import contextlib
import functools
import mmap
import os
import select
import signal
import struct
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

LIMIT_S = 30.0  # of computing in one block; waiting for a slow disk does not count where the system can tell
EXIT_CODE = 2  # of a watched process that was ended

_STOP_SIGNAL = getattr(signal, "SIGRTMAX", signal.SIGUSR2)  # one that programs hardly use
_HEADER = struct.Struct("qq")  # the number of entries and exits, odd inside; the thread
_SIZE = 8192


class _Watcher:
    """The memory that this process shares with the process that watches it."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.lock = threading.RLock()
        self.depth = self.count = 0
        _handle_stop_signal()
        self.shared = mmap.mmap(-1, _SIZE)
        reading, self.writing = os.pipe()  # closes when this process ends, which ends the watching process
        try:
            with _memory_file() as file:
                file.write(bytes(_SIZE))
                file.flush()
                self.shared = mmap.mmap(file.fileno(), _SIZE)
                parent = _parent if _parent == os.getppid() else 0
                argv = [sys.executable, "-I", "-S", __file__, *map(str, (self.owner, parent, LIMIT_S))]
                actions = [(os.POSIX_SPAWN_DUP2, reading, 0), (os.POSIX_SPAWN_DUP2, file.fileno(), 1)]
                pid = os.posix_spawn(sys.executable, argv, os.environ, file_actions=actions, setpgroup=0)
        except OSError:  # no process or no file can be made: reading goes on without
            return
        finally:
            os.close(reading)
        atexit.register(self._end, pid)

    def _end(self, pid: int) -> None:
        if self.owner == os.getpid():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGTERM)
                os.waitpid(pid, 0)


_watcher: _Watcher | None = None
_parent = 0  # of this process if it must not outlive it


def supervise(parent: int) -> None:
    """Let the watching process end this one also when its parent has ended."""
    global _parent
    _parent = parent


@contextlib.contextmanager
def watched(path: Path | str) -> Iterator[None]:
    """End this process with a line that names `path` if the block computes for longer than LIMIT_S. Use it for short
    blocks: only one thread at a time can be inside."""
    global _watcher
    if _watcher is None or _watcher.owner != os.getpid():  # a fork has no watcher of its own yet
        if _watcher is not None:
            os.close(_watcher.writing)
        _watcher = _Watcher()
    watcher = _watcher
    with watcher.lock:
        watcher.depth += 1
        if watcher.depth == 1:
            name = os.fsencode(path)[: _SIZE - _HEADER.size - 1]
            watcher.shared[_HEADER.size : _HEADER.size + len(name) + 1] = name + b"\0"
            watcher.count += 1
            _HEADER.pack_into(watcher.shared, 0, watcher.count, threading.get_native_id())
        try:
            yield
        finally:
            watcher.depth -= 1
            if watcher.depth == 0:
                watcher.count += 1
                _HEADER.pack_into(watcher.shared, 0, watcher.count, 0)


@functools.cache
def _handle_stop_signal() -> Any:
    """Let the stop signal end this process with EXIT_CODE; return what must stay in memory. Forks inherit both.

    A handler that the program has set for this signal stays; then the process is killed, some seconds later.
    """
    if signal.getsignal(_STOP_SIGNAL) is not signal.SIG_DFL:
        return None
    import ctypes  # here, because the watching process needs neither

    import numba

    end = numba.types.ExternalFunction("_exit", numba.types.void(numba.int32))

    @numba.cfunc("void(int32)")
    def handle(number):  # type: ignore[no-untyped-def]
        end(EXIT_CODE)

    ctypes.CDLL(None).signal(int(_STOP_SIGNAL), ctypes.c_void_p(handle.address))
    return handle


def _memory_file() -> IO[bytes]:
    """Return an open file without a name, in memory if the system has such files."""
    if hasattr(os, "memfd_create"):  # Linux
        return open(os.memfd_create("rvtssm"), "r+b")
    import tempfile  # takes half of the time that the watching process needs to start

    return tempfile.TemporaryFile()


def _watch(pid: int, parent: int, limit_s: float) -> None:
    """Watch a process until it closes standard input. Standard output is the memory it shares."""
    shared = mmap.mmap(1, _SIZE)
    last, since_s = 0, 0.0
    while not select.select([0], [], [], limit_s / 4)[0]:
        if not is_running(pid):  # a process that it forked still has the other end
            return
        if parent and not is_running(parent):
            os.kill(pid, signal.SIGKILL)
            return
        count, thread = _HEADER.unpack_from(shared)
        now_s = _computing_s(pid, thread)
        if count % 2 == 0 or count != last:
            last, since_s = count, now_s
        elif now_s - since_s >= limit_s:
            name = shared[_HEADER.size :].partition(b"\0")[0].decode(errors="replace")
            line = f"{name} is damaged: reading it did not end within {limit_s:g} s; copy it or prepare it again\n"
            os.write(2, line.encode())
            os.kill(pid, _STOP_SIGNAL)
            if not select.select([0], [], [], 5)[0]:  # something else handles the signal
                os.kill(pid, signal.SIGKILL)
            return


def _computing_s(pid: int, thread: int) -> float:
    """Return the processor time of a thread; the time of day where the system does not tell it."""
    try:
        fields = Path(f"/proc/{pid}/task/{thread}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return time.monotonic()


def is_running(pid: int) -> bool:
    """Return whether there is a process with this number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


if __name__ == "__main__":
    _watch(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
