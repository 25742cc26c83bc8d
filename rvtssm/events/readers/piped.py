"""Events from a pipe or a socket, decoded as they arrive: what a camera's driver sends, nothing kept of the past.

What can be read in order without knowing its end: RAW (EVT2, EVT2.1, EVT3) and DAT with their text header, as in
files, and bare 64-bit words of DAT (u32 time in us; u32 of x in 14 bits, y in 14, polarity in 4; little-endian), for
which the sensor must be told.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from rvtssm.events.readers import open_recording
from rvtssm.events.readers.recording import BACKWARD, OUTSIDE, POSITION, ByteRecording, EventBuffer, ReadFaults
from rvtssm.events.silence import LONGEST_SILENCE_US, first_jump
from rvtssm.records import Events

_READ_BYTES = 1 << 16  # at most at once, fewer where fewer have arrived
_MAX_HEADER_BYTES = 1 << 16
_MIN_HEAD_BYTES = 16  # what tells formats apart


class PipedRecording:
    """A recording that is read once, while it is made; sensor and format are known, its end is not."""

    def __init__(self, stream: BinaryIO, name: str, height: int | None = None, width: int | None = None) -> None:
        """Waits for the header. `stream` has `read1`; ValueError for a format that cannot be read in order."""
        self.name = name
        self._stream = stream
        head = _read_head(stream)
        if not head:
            raise ValueError(f"{name} ended before anything came; it needs a stream of events")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "head.dat"  # without a header it is DAT, as in the oldest files
            path.write_bytes(head)
            try:
                recording = open_recording(path, height, width)
            except ValueError as error:
                raise ValueError(str(error).replace(str(path), name) + "; a stream has to be RAW or DAT") from None
        if not isinstance(recording, ByteRecording):
            raise ValueError(f"{name} carries {recording.format}, which cannot be read as it comes; give it as a file")
        self._decoder = recording
        self.format, self.height, self.width = recording.format, recording.height, recording.width
        self.num_events = 0
        self.faults = ReadFaults()
        self._tail = _Tail(head)
        self.broke_off = ""  # why the stream ended before its end, if it did
        self._is_reading = self._is_ended = False

    def iterate(self) -> Iterator[Events]:
        """Events as soon as they have arrived, until the stream ends, breaks off or is interrupted (Ctrl-C); once.

        The arrays of a block are reused for the next one.
        """
        decoder, tail = self._decoder, self._tail
        decoder.path = Path(self.name)
        decoder._handle, decoder._handle_owner = tail, os.getpid()
        state, buffer = decoder._start(), EventBuffer(_READ_BYTES)
        data, last_us = b"", None
        while not self.broke_off:
            tail.append(data)
            num_bytes = tail.end - decoder._data_offset
            decoder._num_units = max(num_bytes, 0) // decoder.unit_bytes
            while state[POSITION] < decoder._num_units:
                count = decoder._decode(state, buffer)
                self.faults = ReadFaults(int(state[BACKWARD]), int(state[OUTSIDE]))
                events = self._before_jump(last_us, buffer.events(count))
                if len(events):
                    self.num_events += len(events)
                    last_us = int(events.t[-1])
                    yield events
                if self.broke_off:
                    return
            try:
                self._is_reading = True  # from here on, an end interrupts the waiting
                data = b"" if self._is_ended else self._stream.read1(_READ_BYTES)  # type: ignore[attr-defined]
                self._is_reading = False
            except KeyboardInterrupt:
                data = b""
            except OSError as error:
                data = b""
                self.broke_off = f"{self.name} broke off ({error.strerror or error}); start the sender again"
            if not data:
                break
        self.faults = ReadFaults(int(state[BACKWARD]), int(state[OUTSIDE]), max(num_bytes, 0) % decoder.unit_bytes)

    def _before_jump(self, last_us: int | None, events: Events) -> Events:
        """The events until the clock jumps, which ends a stream; `last_us`: of the event before them, if any."""
        jump = first_jump(last_us, events.t)
        if jump is None:
            return events
        self.broke_off = (
            f"{self.name} has no event for more than {LONGEST_SILENCE_US / 1e6:g} s, then one at "
            f"{events.t[jump]} us; its times are damaged, or it carries something else; give it as a file if that "
            "is right"
        )
        return Events(*(array[:jump] for array in (events.t, events.x, events.y, events.p)))

    def end(self) -> None:
        """For a handler of signals: the stream is as if it had ended after what has been read."""
        self._is_ended = True
        if self._is_reading:
            raise KeyboardInterrupt

    def close(self) -> None:
        """Leaves the stream to whoever opened it."""


class _Tail:
    """The bytes that are not decoded yet, with the interface of the file they would stand in."""

    def __init__(self, head: bytes) -> None:
        self._bytes = bytearray(head)
        self._start = 0  # place of the first of them in that file

    @property
    def end(self) -> int:
        return self._start + len(self._bytes)

    def append(self, data: bytes) -> None:
        self._bytes += data

    def seek(self, offset: int) -> None:
        """What lies before is forgotten: decoders only go forward."""
        del self._bytes[: offset - self._start]
        self._start = offset

    def readinto(self, target: npt.NDArray[np.uint8]) -> int:
        count = min(len(target), len(self._bytes))
        target[:count] = np.frombuffer(bytes(self._bytes[:count]), np.uint8)
        return count

    def close(self) -> None:
        self._bytes.clear()


def _read_head(stream: BinaryIO) -> bytes:
    """The header, and whatever came with it: enough to tell the format."""
    head = b""
    while len(head) < _MAX_HEADER_BYTES:
        data = stream.read1(_READ_BYTES)  # type: ignore[attr-defined]
        head += data
        if not data or _is_complete(head):
            break
    return head


def _is_complete(head: bytes) -> bool:
    position = 0
    while head.startswith(b"% ", position):
        end = head.find(b"\n", position)
        if end < 0:
            return False
        if head[position + 2 : end].strip() == b"end":
            return True
        position = end + 1
    return len(head) >= position + (2 if position else _MIN_HEAD_BYTES)
