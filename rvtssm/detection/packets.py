"""Packets of events as bytes, and events from a pipe or a socket: such packets, RAW or DAT, as the first bytes say.

Any program can send the events of a camera to `rvtssm live -` or over TCP. A stream of packets begins with 12 bytes:
the letters RVTE, then height and width of the sensor in pixels (uint32). A packet of n events is

    n                uint32
    until_us         int64      no event before this time follows; -1 says nothing
    t                n int64    microseconds, in order
    x, y             n uint16   each, pixels from the left and from the top
    p                n uint8    1 for brighter, 0 for darker

All numbers are little-endian, without gaps. A packet without events (n = 0) closes windows while nothing happens.
"""

import socket
import struct
from collections.abc import Callable, Iterator

import numpy as np

from rvtssm.readers import ReadFaults
from rvtssm.readers.event_checks import LiveGate
from rvtssm.readers.gate import Column
from rvtssm.readers.piped import ByteStream, PipedRecording, PipeReader
from rvtssm.records import Events, ReadOptions
from rvtssm.system.user_error import UserError

MAGIC = b"RVTE"
SOCKET = "tcp://"
_CONNECT_S = 10.0
_HEAD, _PACKET = struct.Struct("<4sII"), struct.Struct("<Iq")
_COLUMNS = ("<i8", "<u2", "<u2", "u1")  # t, x, y, p
_EVENT_BYTES = 13
_MOST_EVENTS = 1 << 24  # in a packet; more come from bytes of another format
_LARGEST_SIDE = 1 << 16


class PacketStream(PipeReader):
    """The events of a stream of packets. Creating an instance waits for the head of the stream.

    Args:
        stream: The bytes.
        name: Name of the stream in messages.

    Raises:
        UserError: The stream does not begin as described above.
    """

    format = "packets"
    time_range_us = None  # not known before the stream ends

    def __init__(self, stream: ByteStream, name: str) -> None:
        super().__init__(stream, name)
        head = self._read(_HEAD.size)
        if len(head) < _HEAD.size or not head.startswith(MAGIC):
            raise UserError(
                "packets.header", f"{name} begins with {head!r}, but a stream of packets with RVTE, height and width"
            )
        _, self.height, self.width = _HEAD.unpack(head)
        if not (0 < self.height <= _LARGEST_SIDE and 0 < self.width <= _LARGEST_SIDE):
            raise UserError(
                "packets.sensor_size",
                f"{name} says that its sensor has {self.width} x {self.height} pixels; send its size",
            )
        self._gate = LiveGate(name, self.height, self.width)

    @property
    def faults(self) -> ReadFaults:
        """The events that were moved or left out so far."""
        return self._gate.faults

    def packets(self) -> Iterator[tuple[Events, int | None]]:
        """Yield the events of each packet, and the time before which no event follows (None: unknown)."""
        while not self.is_interrupted:
            head = self._read(_PACKET.size)
            if len(head) < _PACKET.size:
                self._note_end(head)
                return
            num_events, until_us = _PACKET.unpack(head)
            if num_events > _MOST_EVENTS:
                self.broke_off = f"{self.name} announces a packet of {num_events} events; at most {_MOST_EVENTS} fit"
                return
            content = self._read(num_events * _EVENT_BYTES)
            if len(content) < num_events * _EVENT_BYTES:
                self._note_end(head)
                return
            yield self._gate.push(_columns(content, num_events)), None if until_us < 0 else until_us

    def blocks(self) -> Iterator[Events]:
        """Yield the events of each packet."""
        for events, _ in self.packets():
            if len(events):
                yield events

    def _note_end(self, head: bytes) -> None:
        self._gate.conclude()
        if head and not self.is_interrupted:
            self.broke_off = self.broke_off or f"{self.name} ended within a packet; start the sender again"

    def _read(self, size: int) -> bytes:
        """Return the next bytes; fewer at the end of the stream."""
        data = b""
        while len(data) < size and (part := self._read_some(size - len(data))):
            data += part
        return data


def _columns(content: bytes, num_events: int) -> list[Column]:
    columns, offset = [], 0
    for dtype in _COLUMNS:
        columns.append(np.frombuffer(content, dtype, num_events, offset))
        offset += columns[-1].nbytes
    return columns


class _Pushed:
    """Bytes of a pipe or a socket, of which the first can be looked at."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read, self._head = read, b""

    def head(self, size: int) -> bytes:
        while len(self._head) < size:
            part = self._read(1 << 16)
            if not part:
                break
            self._head += part
        return self._head[:size]

    def read1(self, size: int, /) -> bytes:
        if not self._head:
            return self._read(size)
        part, self._head = self._head[:size], self._head[size:]
        return part


def piped_events(read: Callable[[int], bytes], name: str, options: ReadOptions) -> PipedRecording | PacketStream:
    """Return the events of a pipe: packets if it begins as they do, otherwise RAW or DAT."""
    stream = _Pushed(read)
    if stream.head(len(MAGIC)) == MAGIC:
        return PacketStream(stream, name)
    return PipedRecording(stream, name, options)


def connected_to(where: str) -> socket.socket:
    """Return a connection to tcp://HOST:PORT; raise UserError if there is none."""
    host, _, port = where.removeprefix(SOCKET).rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise UserError("pipes.address", f"{where} is not of the form {SOCKET}HOST:PORT; name the sender of the events")
    try:
        connection = socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S)
    except OSError as error:
        raise UserError(
            "pipes.not_reached", f"{where} cannot be reached ({error}); start the sender first, it must listen there"
        ) from None
    connection.settimeout(None)
    return connection
