"""Packets of events: what is asked of those that a program pushes, and packets as bytes from a pipe or a socket.

The first bytes of a pipe say whether they are packets, RAW or DAT. Any program can send the events of a camera to
`rvtssm live -` or over TCP. A stream of packets begins with 12 bytes: the letters RVTE, then height and width of the
sensor in pixels (uint32). A packet of n events is

    n                uint32
    until_us         int64      no event before this time follows; -1 says nothing
    t                n int64    microseconds, in order
    x, y             n uint16   each, pixels from the left and from the top
    p                n uint8    1 for brighter, 0 for darker

All numbers are little-endian, without gaps. A packet without events (n = 0) closes windows while nothing happens.
"""

import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from rvtssm.events.windows import LATE_US, LONGEST_SILENCE_US, first_jump
from rvtssm.readers import ReadFaults
from rvtssm.readers.event_checks import LiveGate, check_events
from rvtssm.readers.gate import Column, join_events
from rvtssm.readers.piped import ByteStream, PipedRecording, PipeReader
from rvtssm.readers.source import Arrival
from rvtssm.records import Events, ReadOptions
from rvtssm.system.user_error import UserError


def in_order(packet: Events, known_us: int | None) -> tuple[Events, int]:
    """Return a packet whose events up to 10 ms late have the time of the event before them, and their number.

    A packet whose events are in another order is returned unchanged; `check_events` refuses it.

    Args:
        packet: The events.
        known_us: All events before this time are known; None: there was no event yet.

    Raises:
        UserError: The packet starts more than 10 ms before `known_us`.
    """
    if not len(packet):
        return packet, 0
    before_us = int(packet.t[0]) if known_us is None else known_us
    if packet.t[0] < before_us - LATE_US:
        raise UserError(
            "stream.order",
            found=f"this packet starts at {packet.t[0]} us",
            needed=f"events must come in order of time, at or after {before_us} us, as set by an earlier packet, "
            "until_us or start_us",
            advice="leave it out and push the next one, or call restart() if the clock has jumped",
        )
    times_us = np.maximum.accumulate(np.maximum(packet.t, before_us))
    late_us = times_us - packet.t
    if not 0 < late_us.max() <= LATE_US:
        return packet, 0
    return replace(packet, t=times_us), int(np.count_nonzero(late_us))


def check_packet(packet: Events, known_us: int | None, height: int, width: int) -> tuple[Events, int]:
    """Return events of a program in order, and how many of them were late.

    This is the gate of what is pushed. Sources have gates of their own.

    Args:
        packet: The events.
        known_us: As in `in_order`.
        height: Height of the sensor, pixels.
        width: Width of the sensor, pixels.

    Raises:
        UserError: See `in_order` and `check_events`.
    """
    packet, num_late = in_order(packet, known_us)
    check_events(packet, height, width)
    return packet, num_late


def check_silence(packet: Events, known_us: int | None, until_us: int | None) -> None:
    """Raise UserError if no event came for more than LONGEST_SILENCE_US, as after a jump of the clock.

    Args:
        packet: The events.
        known_us: All events before this time are known; None: there was no event yet.
        until_us: No event before this time is missing; None says nothing.
    """
    last_us = int(packet.t[-1]) if len(packet) else known_us
    until = np.array([] if until_us is None else [until_us], np.int64)
    for before_us, times in ((known_us, packet.t), (last_us, until)):
        jump = first_jump(before_us, times)
        if jump is not None:
            longest_s = LONGEST_SILENCE_US / 1e6
            raise UserError(
                "stream.silence",
                found=f"no event for more than {longest_s:g} s before {times[jump]} us",
                advice="if the clock has jumped, or start_us belongs to another clock, call restart(); if nothing "
                f"happened, pass until_us in steps of at most {longest_s:g} s",
            )


class KeptEvents:
    """The events of the windows that the last push closed, for pictures of their results."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._packets: list[Events] = []
        self._from_us: int | None = None
        self._is_new_push = False

    def add(self, packet: Events) -> None:
        self._packets.append(packet)

    def begin_push(self) -> None:
        self._is_new_push = True

    def note(self, start_us: int) -> None:
        """Forget the events before the first window of a push, which starts at a time."""
        if self._is_new_push:
            self._from_us = start_us
            self._is_new_push = False
            self._packets = [packet for packet in self._packets if packet.t[-1] >= start_us]

    def between(self, start_us: int, end_us: int) -> Events:
        """Return the events of a window that the last push closed. Raise UserError for an earlier window."""
        if self._from_us is None or start_us < self._from_us:
            found = "a stream only keeps the events of the windows that closed last"
            advice = "draw results before the next push, or pass its events: draw(EVENTS)"
            raise UserError("stream.not_kept", found=found, advice=advice)
        return join_events([packet.between(start_us, end_us) for packet in self._packets])


MAGIC = b"RVTE"
SOCKET = "tcp://"
_CONNECT_S = 10.0
_HEAD = struct.Struct("<4sII")
_PACKET = struct.Struct("<Iq")
_COLUMNS = ("<i8", "<u2", "<u2", "u1")  # t, x, y, p
_EVENT_BYTES = 13
_MOST_EVENTS = 1 << 24  # in a packet; more come from bytes of another format
_LARGEST_SIDE = 1 << 16
_READ_BYTES = 1 << 16
_Packet = tuple[list[Column], int | None]  # t, x, y, p, and the time before which no event follows


class PacketStream(PipeReader):
    """The events of a stream of packets. Creating an instance waits for the head of the stream.

    Args:
        stream: The bytes.
        name: Name of the stream in messages.

    Raises:
        UserError: The stream does not begin as described above.
    """

    format = "packets"

    def __init__(self, stream: ByteStream, name: str) -> None:
        super().__init__(stream, name)
        head = self._read(_HEAD.size)
        if len(head) < _HEAD.size or not head.startswith(MAGIC):
            needed = "a stream of packets begins with RVTE, height and width"
            raise UserError("source.form", name=name, found=f"it begins with {head!r}", needed=needed)
        _, self.height, self.width = _HEAD.unpack(head)
        if not (0 < self.height <= _LARGEST_SIDE and 0 < self.width <= _LARGEST_SIDE):
            found = f"it says that its sensor has {self.width} x {self.height} pixels"
            raise UserError("source.form", name=name, found=found, advice="send its size")
        self._gate = LiveGate(name, self.height, self.width)
        self._bytes = bytearray()  # that have arrived, from the head of a packet on
        self._needed = _PACKET.size  # so many bytes hold a packet

    @property
    def faults(self) -> ReadFaults:
        """The events that were moved or left out so far."""
        return self._gate.faults

    def packets(self) -> Iterator[Arrival]:
        """Yield the events that have arrived, many packets as one, and the time before which no event follows.

        A busy machine lets this process run rarely, so that the cost of each turn must not depend on the number of
        packets.
        """
        while not self.broke_off and (data := self._read_some(_READ_BYTES)):
            self._bytes += data
            for columns, until_us in _joined(self._whole_packets()):
                yield Arrival(self._gate.push(columns), until_us, time.monotonic())
        self._gate.conclude()
        if self._bytes and not self.is_interrupted:
            self.broke_off = self.broke_off or f"{self.name} ended within a packet; start the sender again"

    def _whole_packets(self) -> Iterator[_Packet]:
        """Yield the columns of the packets that have arrived completely, and what they say of the time after them."""
        start = 0
        while len(self._bytes) - start >= self._needed:
            # The head of a packet says how long it is.
            num_events, until_us = _PACKET.unpack_from(self._bytes, start)
            if num_events > _MOST_EVENTS:
                self.broke_off = f"{self.name} announces a packet of {num_events} events; at most {_MOST_EVENTS} fit"
                break
            stop = start + _PACKET.size + num_events * _EVENT_BYTES
            # The rest of this packet has not arrived.
            if len(self._bytes) < stop:
                self._needed = stop - start
                break
            content = bytes(self._bytes[start + _PACKET.size : stop])
            yield _columns(content, num_events), None if until_us < 0 else until_us
            start = stop
            self._needed = _PACKET.size
        del self._bytes[:start]

    def _read(self, size: int) -> bytes:
        """Return the next bytes; fewer at the end of the stream."""
        data = b""
        while len(data) < size and (part := self._read_some(size - len(data))):
            data += part
        return data


def _joined(packets: Iterator[_Packet]) -> Iterator[_Packet]:
    """Yield consecutive packets as one. A packet that goes back in time stays alone, since its clock may be another."""
    waiting: list[_Packet] = []
    last_us: int | None = None
    for columns, until_us in packets:
        t = columns[0]
        goes_back = last_us is not None and len(t) > 0 and t[0] < last_us - LATE_US
        # Another clock, perhaps: what waits is one packet, and this is another.
        if goes_back:
            yield from _as_one(waiting)
            yield columns, until_us
            waiting = []
        else:
            waiting.append((columns, until_us))
        if len(t):
            last_us = int(t[-1])
    yield from _as_one(waiting)


def _as_one(packets: list[_Packet]) -> Iterator[_Packet]:
    if not packets:
        return
    if len(packets) == 1:
        yield packets[0]
        return
    by_packet, untils_us = zip(*packets, strict=True)
    columns = [*map(np.concatenate, zip(*by_packet, strict=True))]
    known_us = [until_us for until_us in untils_us if until_us is not None]
    yield columns, max(known_us, default=None)


def _columns(content: bytes, num_events: int) -> list[Column]:
    columns = []
    offset = 0
    for dtype in _COLUMNS:
        columns.append(np.frombuffer(content, dtype, num_events, offset))
        offset += columns[-1].nbytes
    return columns


class _Pushed:
    """Bytes of a pipe or a socket, of which the first can be looked at."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._head = b""

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
        part = self._head[:size]
        self._head = self._head[size:]
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
        needed = f"name the sender of the events in the form {SOCKET}HOST:PORT"
        raise UserError("setting.form", name="recording", found=where, needed=needed)
    try:
        connection = socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S)
    except OSError as error:
        advice = "start the sender first, it must listen there"
        raise UserError(
            "source.not_opened", name=where, found=f"it cannot be reached ({error})", advice=advice
        ) from None
    connection.settimeout(None)
    return connection
