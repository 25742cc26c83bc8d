"""Prepared sequences are written here, in the layout that `store.py` describes and reads."""

import contextlib
import io
import json
import signal
import threading
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rvtssm.datasets.store import FORMAT_VERSION, OPTIONAL, TABLES, Meta, crc_of_all_but_frames
from rvtssm.records import Labels, Windows
from rvtssm.system.files import atomic_file
from rvtssm.system.limits import field_names, values_of
from rvtssm.system.user_error import UserError

_CHUNK_BYTES = 1 << 16
_WRITE_BYTES = 1 << 20  # frames are collected until this many bytes can be written


class UnfailingFile(io.FileIO):
    """A new file whose writes never raise. After the first error it writes nothing more.

    After a write that fails, libhdf5 crashes the process some time later, so errors are raised only after the call.
    Pass it to `h5py.File`, and put every call that makes h5py write into a block of `errors_at_end`.

    Args:
        path: The file to create.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "w+")
        self._error: OSError | None = None

    def write(self, data: Any) -> int:
        rest = memoryview(data)
        with self._noted():
            while rest and self._error is None:
                rest = rest[super().write(rest) :]
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


class SequenceWriter:
    """Takes the compressed frames of a recording in order. `meta` must be set before the file is completed.

    Args:
        stored: The dataset to which frames are appended.
        disk: The file that holds it.
    """

    def __init__(self, stored: h5py.Dataset, disk: UnfailingFile) -> None:
        self.meta: Meta = {}
        self.crc = 0
        self._stored = stored
        self._disk = disk
        self._waiting: list[bytes] = []
        self.lengths: list[int] = []  # bytes of each frame so far

    def append(self, frames: Sequence[bytes]) -> None:
        """Append compressed frames."""
        self._waiting += frames
        self.lengths += map(len, frames)
        if sum(map(len, self._waiting)) >= _WRITE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the frames that are still in memory."""
        waiting = b"".join(self._waiting)
        self.crc = zlib.crc32(waiting, self.crc)
        data = np.frombuffer(waiting, np.uint8)
        size = len(self._stored)
        with self._disk.errors_at_end():
            self._stored.resize(size + len(data), axis=0)
            self._stored[size:] = data
        self._waiting = []


@contextlib.contextmanager
def sequence_writer(
    path: Path | str, windows: Windows, labels: Labels, frame_shape: tuple[int, int, int]
) -> Iterator[SequenceWriter]:
    """Write a prepared recording with one frame per window. The file only appears if the block ends without an error.

    The same frames and `meta` always give the same bytes.

    Args:
        path: The file to write.
        windows: T windows.
        labels: The labels, in sensor pixels.
        frame_shape: (C, h, w).

    Raises:
        UserError: The number of frames differs from the number of windows.
    """
    with atomic_file(path) as staged, UnfailingFile(staged) as disk:
        file = h5py.File(disk, "w")
        try:
            stored = file.create_dataset("frames", (0,), np.uint8, maxshape=(None,), chunks=(_CHUNK_BYTES,))
            stored.attrs["shape"] = frame_shape
            stored.attrs["dtype"] = np.bytes_("uint8")
            writer = SequenceWriter(stored, disk)
            yield writer
            writer.flush()
            # The small tables and the digest over all of them come last.
            offsets = np.cumsum([0, *writer.lengths], dtype=np.int64)
            if len(writer.lengths) != len(windows):
                found = f"received {len(writer.lengths)} frames for {len(windows)} windows"
                raise UserError("prepared.damaged", name=path, found=found)
            stored_labels = values_of(labels, field_names(Labels)).values()
            tables = dict(zip(TABLES, (offsets, windows.bounds_us, windows.dt_us, *stored_labels), strict=True))
            tables = {name: table for name, table in tables.items() if name not in OPTIONAL or table.any()}
            meta = {"format_version": FORMAT_VERSION, **writer.meta}
            digest = [writer.crc, crc_of_all_but_frames(Path(path).stem, writer.crc, meta, tables)]
            with disk.errors_at_end():
                for name, table in tables.items():
                    file[name] = table
                file.attrs["meta"] = np.bytes_(json.dumps({**meta, "digest": digest}))
        finally:
            with disk.errors_at_end():
                file.close()
