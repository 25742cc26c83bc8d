"""Events from a pipe or a socket, such as those of a camera driver, decoded as they arrive without being stored.

The possible formats are those that can be read in order without knowing the end: RAW (EVT2, EVT2.1, EVT3) and DAT with
their text header, and DAT words without a header (see `rvtssm/readers/dat.py`), for which the caller gives the
size of the sensor.
"""

import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rvtssm.events.windows import LONGEST_SILENCE_US, first_jump
from rvtssm.readers import open_with
from rvtssm.readers.byte_recording import ByteRecording
from rvtssm.readers.event_checks import say_faults
from rvtssm.readers.faults import ReadFaults
from rvtssm.readers.gate import POSITION, EventBuffer
from rvtssm.readers.header import MAX_HEADER_BYTES
from rvtssm.readers.source import EventSource
from rvtssm.records import Events, ReadOptions
from rvtssm.system.user_error import UserError, key_of

_READ_BYTES = 1 << 16  # the most that is read at once; less is read if less has arrived
# A stream with more events in this time is ended, because its clock stands still. The fastest sensors send a third.
_CLOCK_US, _MOST_EVENTS = 10_000, 1 << 25
_MIN_HEAD_BYTES = 16  # bytes needed to recognise a format


class ByteStream(Protocol):
    """What bytes are read from, such as a file that was opened for reading."""

    def read1(self, size: int, /) -> bytes:
        """Return the next bytes, at most `size`, as soon as there are some; none at the end."""


class PipeReader(EventSource):
    """Reads the bytes of a pipe or a socket until it ends, breaks off or is interrupted.

    Args:
        stream: An open binary stream with the method `read1`.
        name: Name of the stream in messages.
    """

    def __init__(self, stream: ByteStream, name: str) -> None:
        self.name, self._stream = name, stream
        self._is_reading = False

    def _read_some(self, size: int) -> bytes:
        """Return the next bytes as soon as some arrive, at most `size`; none at the end."""
        try:
            # From here on, `end` interrupts the wait.
            self._is_reading = threading.current_thread() is threading.main_thread()
            data = b"" if self.is_interrupted else self._stream.read1(size)
            self._is_reading = False
            return data
        except KeyboardInterrupt:
            return b""
        except OSError as error:
            self.broke_off = f"{self.name} broke off ({error.strerror or error}); start the sender again"
            return b""

    def end(self) -> None:
        """End the stream after the bytes read so far. Signal handlers call this.

        A wait in the main thread, where handlers run, is interrupted; whoever reads in another one looks at
        `is_interrupted`.
        """
        self.is_interrupted = True
        if self._is_reading:
            raise KeyboardInterrupt


class PipedRecording(PipeReader):
    """A stream of events that is read once, while it is recorded. To read a file, use `open_recording`.

    Creating an instance waits for the header of the stream.

    Args:
        stream: An open binary stream with the method `read1`.
        name: Name of the stream in messages.
        options: What the caller says about the stream.

    Raises:
        UserError: The stream ended, or its format cannot be read in order.
    """

    faults = ReadFaults()

    def __init__(self, stream: ByteStream, name: str, options: ReadOptions | None = None) -> None:
        super().__init__(stream, name)
        # The head as a file, so that the same code recognises the format.
        head = _read_head(stream)
        if not head:
            advice = "a stream of events is needed, start the sender first"
            raise UserError("file.cut", name=name, found="ended before the first byte", advice=advice)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "head.dat"  # without a header it is read as DAT, like the oldest files
            path.write_bytes(head)
            try:
                recording = open_with(path, options or ReadOptions())
                if isinstance(recording, ByteRecording):
                    recording._start()  # finds a few events of another clock, if they have arrived
                recording.close()
            except ValueError as error:
                found = str(error).replace(str(path), name)
                needed = "a stream must be RAW, DAT or the packets of docs/live.md"
                raise UserError(key_of(error, "file.kind"), found=found, needed=needed) from None
        if not isinstance(recording, ByteRecording):
            found = f"carries {recording.format}, which cannot be read in order"
            raise UserError("file.kind", name=name, found=found, advice="give it as a file")
        # The decoder of that file goes on with what arrives.
        self._decoder = recording
        self.format, self.height, self.width = recording.format, recording.height, recording.width
        self.num_events = 0
        self._undecoded = _Undecoded(head)
        self._began_us: int | None = None  # `_check_clock` counts the events since this time
        self._num_since = 0

    def blocks(self) -> Iterator[Events]:
        """Yield events as soon as they arrive, until the stream ends, fails or is interrupted (Ctrl-C).

        Call this only once. Each block overwrites the arrays of the block before it.
        """
        # The decoder reads the bytes that have arrived as if they were its file.
        decoder, undecoded = self._decoder, self._undecoded
        decoder.path = Path(self.name)
        decoder._handle, decoder._handle_owner = undecoded, os.getpid()
        state, buffer = decoder._start(), EventBuffer(_READ_BYTES)
        data, last_us = b"", None
        while not self.broke_off:
            undecoded.append(data)
            num_bytes = undecoded.end - decoder._data_offset
            decoder._num_units = max(num_bytes, 0) // decoder.unit_bytes
            while state[POSITION] < decoder._num_units:
                # Whole words are decoded at once; the rest of a word waits for more bytes.
                count = decoder._decode(state, buffer)
                self.faults = ReadFaults.of(state)
                events = self._before_jump(last_us, buffer.events(count))
                self._check_clock(events)
                if len(events):
                    self.num_events += len(events)
                    last_us = int(events.t[-1])
                    yield events
                if self.broke_off:
                    return
            data = self._read_some(_READ_BYTES)
            if not data:
                break
        self.faults = ReadFaults.of(state, max(num_bytes, 0) % decoder.unit_bytes)
        say_faults(self.name, self.faults, self.num_events, (self.height, self.width))

    def _before_jump(self, last_us: int | None, events: Events) -> Events:
        """Return the events before a jump of the clock. `last_us` is the time of the last event before these."""
        jump = first_jump(last_us, events.t)
        if jump is None:
            return events
        self.broke_off = (
            f"{self.name} sent no event for more than {LONGEST_SILENCE_US / 1e6:g} s, then one at "
            f"{events.t[jump]} us; its times are damaged, or it is not a stream of events; if the times are right, "
            "give it as a file"
        )
        return events[:jump]

    def _check_clock(self, events: Events) -> None:
        """End the stream if its clock stands still: no window would close, and the events would fill the memory."""
        if not len(events):
            return
        if self._began_us is None or events.t[-1] - self._began_us > _CLOCK_US:
            self._began_us, self._num_since = int(events.t[-1]), 0
        self._num_since += len(events)
        if self._num_since > _MOST_EVENTS:
            self.broke_off = (
                f"{self.name} sent more than {_MOST_EVENTS} events within {_CLOCK_US / 1000:g} ms, the last at "
                f"{events.t[-1]} us, which no camera does; its clock stands still, start the sender again"
            )

    def close(self) -> None:
        """Do nothing, since the caller opened the stream and closes it."""


class _Undecoded:
    """The bytes that have not been decoded yet, with the interface of the file that the decoder expects."""

    def __init__(self, head: bytes) -> None:
        self._bytes = bytearray(head)
        self._start = 0  # position of the first byte in that file

    @property
    def end(self) -> int:
        return self._start + len(self._bytes)

    def append(self, data: bytes) -> None:
        self._bytes += data

    def seek(self, offset: int) -> None:
        """Drop the bytes before the offset, because decoders only move forward."""
        del self._bytes[: offset - self._start]
        self._start = offset

    def readinto(self, target: npt.NDArray[np.uint8]) -> int:
        count = min(len(target), len(self._bytes))
        target[:count] = np.frombuffer(bytes(self._bytes[:count]), np.uint8)
        return count

    def close(self) -> None:
        self._bytes.clear()


def _read_head(stream: ByteStream) -> bytes:
    """Read until the header is complete and the format can be recognised."""
    head = b""
    while len(head) < MAX_HEADER_BYTES:
        data = stream.read1(_READ_BYTES)
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
