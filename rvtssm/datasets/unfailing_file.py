"""A file for libhdf5 that raises errors only after the call.

After a write that fails, libhdf5 crashes the process some time later.
"""

import contextlib
import io
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class UnfailingFile(io.FileIO):
    """A new file whose writes never raise. After the first error it writes nothing more.

    Pass it to `h5py.File`, and put every call that makes h5py write into a block of `errors_at_end`.

    Args:
        path: The file to create.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "w+")
        self._error: OSError | None = None

    def write(self, data: Any) -> int:
        left = memoryview(data)
        with self._noted():
            while left and self._error is None:
                left = left[super().write(left) :]
        return len(data)

    def truncate(self, size: int | None = None) -> int:
        with self._noted():
            super().truncate(size)
        return self.tell() if size is None else size

    @contextlib.contextmanager
    def errors_at_end(self) -> Iterator[None]:
        """Raise the first error when the block ends. KeyboardInterrupt waits too, since it must not end `write`."""
        usual: Any = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is not threading.main_thread() or not callable(usual):
            yield  # signals are not handled here
        else:
            interruptions: list[Any] = []
            signal.signal(signal.SIGINT, lambda *arguments: interruptions.append(arguments))
            try:
                yield
            finally:
                signal.signal(signal.SIGINT, usual)
                for arguments in interruptions[:1]:
                    usual(*arguments)
        if self._error is not None:
            raise self._error

    @contextlib.contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # without its traceback, which refers to memory of libhdf5
            self._error = self._error or error.with_traceback(None)
