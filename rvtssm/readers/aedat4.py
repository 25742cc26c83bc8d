"""AEDAT4 files of iniVation cameras (DV software): packets of several streams. Only the events are read.

A file begins with `#!AER-DAT4.0` and a flatbuffer IOHE (compression, position of the data table, streams as XML).
Packets follow: i32 stream, i32 size and a compressed, size-prefixed flatbuffer. Events are structs of 16 bytes. The
library `aedat` also reads such files, but it cannot seek and is no faster.
Source: the schemas of dv-processing; the byte layout as described by faery and the `aedat` package.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from xml.etree import ElementTree

import lz4.frame
import numpy as np
import numpy.typing as npt
import zstandard

from rvtssm.readers.columns import NAMES, GatedRecording
from rvtssm.readers.gate import NUM_COMMON, POSITION, Column, Gate, State
from rvtssm.readers.header import sensor_size
from rvtssm.records import ReadOptions
from rvtssm.system.files import file_errors
from rvtssm.system.user_error import UserError

SIGNATURE = b"#!AER-DAT4.0\r\n"
EVENT = np.dtype([("t", "<i8"), ("x", "<i2"), ("y", "<i2"), ("p", "u1"), ("unused", "V3")])
_CODECS = {0: "none", 1: "lz4", 2: "lz4", 3: "zstd", 4: "zstd"}
_PACKET_HEADER = struct.Struct("<ii")
_MAX_HEADER_BYTES = 1 << 20
_MAX_PACKET_BYTES = 1 << 27  # decompressed; cameras write packets of 10 ms, so a larger size comes from a damaged file
_DONE = NUM_COMMON  # slot of the state: how many events of the packet at POSITION have been read


class _DamagedError(Exception):
    """A header or packet is damaged. The reader adds the file and the place to the message."""


@dataclass(frozen=True, slots=True)
class _Header:
    num_bytes: int  # from the start of the file to the first packet
    codec: str
    table_position: int  # where the packets end, -1 if the recorder was interrupted
    event_streams: dict[int, tuple[int, int] | None]  # height and width by stream id; None: not given


class Aedat4Recording(GatedRecording):
    """The events of one stream of an AEDAT4 file, with the times of the file (usually microseconds since 1970).

    Args:
        path: The file.
        height: Height of the sensor, pixels.
        width: Width of the sensor, pixels.
        header: The header of the file.
        stream: Id of the stream.
    """

    format = "aedat4"
    own_state = (0,)

    def __init__(self, path: Path, height: int, width: int, header: _Header, stream: int) -> None:
        end, num_bytes = header.table_position, path.stat().st_size
        truncated_bytes = 0
        if end < 0 or end > num_bytes:  # the recorder was interrupted, or the file was cut off
            end = _end_of_last_packet(path, header.num_bytes, num_bytes)
            truncated_bytes = num_bytes - end
        super().__init__(Gate(path, height, width), end - header.num_bytes, truncated_bytes)
        self._header = header
        self._stream = stream
        self._packet = (-1, np.empty(0, EVENT))  # start and events of the packet that was decompressed last

    def _open(self) -> Any:
        return open(self.path, "rb")

    def _next_columns(self, state: State, max_events: int) -> tuple[Sequence[Column], str]:
        position = self._header.num_bytes + int(state[POSITION])
        stream, size = self._packet_header(position)
        events = np.empty(0, EVENT)  # of the packets of other streams
        if stream == self._stream:
            events = self._events_at(position, size)
        part = events[state[_DONE] : state[_DONE] + max_events]
        state[_DONE] += len(part)
        if state[_DONE] >= len(events):
            state[_DONE] = 0
            state[POSITION] += _PACKET_HEADER.size + size
        return [part[name] for name in NAMES], f"in the packet at byte {position}"

    def _packet_header(self, position: int) -> tuple[int, int]:
        file = self._file()
        file.seek(position)
        head = file.read(_PACKET_HEADER.size)
        end = self._header.num_bytes + self._num_units
        if len(head) < _PACKET_HEADER.size or position + len(head) > end:
            found = "a packet starts after the last packet"
            raise UserError("file.damaged", name=f"{self.path}, byte {position}", found=found, advice="copy it again")
        stream, size = _PACKET_HEADER.unpack(head)
        if size < 0 or position + len(head) + size > end:
            found = f"a packet of {size} bytes does not fit in the {end - position} bytes that are left"
            advice = "the file is damaged, copy it again"
            raise UserError("file.damaged", name=f"{self.path}, byte {position}", found=found, advice=advice)
        return stream, size

    def _events_at(self, position: int, size: int) -> npt.NDArray[np.void]:
        if self._packet[0] != position:
            place = f", packet at byte {position}, is damaged"
            with file_errors(self.path, place, errors=(_DamagedError,)):
                file = self._file()
                file.seek(position + _PACKET_HEADER.size)
                events = _events_of(_unpacked(file.read(size), self._header.codec))
            self._packet = (position, events)
        return self._packet[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_packet": (-1, np.empty(0, EVENT))}


def open_aedat4(path: Path, options: ReadOptions, part: str | None = None) -> Aedat4Recording:
    """Open an event stream of an AEDAT4 file.

    If the recorder was interrupted or the file was cut off, it is read up to its last complete packet.

    Args:
        path: The file.
        options: What the caller says about the file.
        part: Id of the stream, as in /0; needed if there are several event streams, as in stereo recordings.

    Raises:
        UserError: The file is damaged, incomplete or without events.
    """
    header = _checked_header(path)
    streams = {f"/{stream}": stream for stream in header.event_streams}
    if part is None and len(streams) > 1:
        found = f"it holds the event streams {', '.join(streams)}"
        advice = f"choose one, as in {path}:{next(iter(streams))}"
        raise UserError("file.ambiguous", name=path, found=found, advice=advice)
    if part is None:
        part = next(iter(streams))
    if part not in streams:
        raise UserError("file.content", name=path, found=f"it has no event stream {part}", needed=list(streams))
    stream = streams[part]
    height, width = sensor_size(path, header.event_streams[stream], options)
    return Aedat4Recording(path, height, width, header, stream)


def aedat4_streams(path: Path) -> list[str]:
    """Return the event streams of an AEDAT4 file, as `FILE:/PART` names them.

    Raises:
        UserError: The file is damaged, incomplete or without events.
    """
    return [f"/{stream}" for stream in _checked_header(path).event_streams]


def _checked_header(path: Path) -> _Header:
    """Return the header of a file; raise UserError if it is damaged or names no event stream."""
    fault = " has a damaged header of AEDAT4"
    with file_errors(path, fault, errors=(_DamagedError,)), open(path, "rb") as file:
        header = _read_header(file)
    if 0 <= header.table_position < header.num_bytes:
        found = (
            f"should have its data table at byte {header.table_position}, within its header of {header.num_bytes} bytes"
        )
        raise UserError("file.damaged", name=path, found=found, advice="the header is damaged, copy it again")
    if not header.event_streams:
        advice = "record it again with events enabled"
        raise UserError("file.content", name=path, found="holds no event stream", advice=advice)
    return header


def _read_header(file: BinaryIO) -> _Header:
    # The size of the header, then as many bytes.
    head = file.read(len(SIGNATURE) + 4)
    if len(head) < len(SIGNATURE) + 4:
        raise _DamagedError("it ends within its first line")
    (size,) = struct.unpack_from("<I", head, len(SIGNATURE))
    if size > _MAX_HEADER_BYTES:
        raise _DamagedError(f"byte {len(SIGNATURE)} claims a header of {size} bytes")
    body = file.read(size)
    if len(body) < size:
        raise _DamagedError(f"it ends at byte {len(head) + len(body)}, within its header of {size} bytes")
    data = head[-4:] + body  # begins with its own size, like a packet
    # Fields that are missing have the defaults of DV.
    fields = _root_fields(data, b"IOHE")
    compression = _number(data, "<i", fields[0]) if fields[0] else 0
    if compression not in _CODECS:
        raise _DamagedError(f"its header names the compression {compression}, which DV does not define")
    table_position = _number(data, "<q", fields[1]) if fields[1] else -1
    streams = _event_streams(bytes(_vector(data, fields[2], 1)) if fields[2] else b"")
    return _Header(len(head) + size, _CODECS[compression], table_position, streams)


def _event_streams(xml: bytes) -> dict[int, tuple[int, int] | None]:
    try:
        if b"<!" in xml:  # entities, which DV does not write, can make a short text very long
            raise _DamagedError("its description of the streams is not plain XML")
        root = ElementTree.fromstring(xml.rstrip(b"\0"))
        streams: dict[int, tuple[int, int] | None] = {}
        for node in root.iterfind("node[@name='outInfo']/node"):
            if (node.findtext("attr[@key='typeIdentifier']") or "") == "EVTS":
                sides = [node.findtext(f"node[@name='info']/attr[@key='{key}']") for key in ("sizeY", "sizeX")]
                height, width = int(sides[0] or 0), int(sides[1] or 0)
                streams[int(node.get("name", ""))] = (height, width) if height or width else None
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise _DamagedError(f"its description of the streams cannot be read ({error})") from None
    return streams


def _end_of_last_packet(path: Path, start: int, num_bytes: int) -> int:
    position = start
    with open(path, "rb") as file:
        while position + _PACKET_HEADER.size <= num_bytes:
            file.seek(position)
            size = _PACKET_HEADER.unpack(file.read(_PACKET_HEADER.size))[1]
            if size < 0:
                found = f"a packet of {size} bytes"
                advice = "the file is damaged"
                raise UserError("file.damaged", name=f"{path}, byte {position}", found=found, advice=advice)
            if position + _PACKET_HEADER.size + size > num_bytes:
                break
            position += _PACKET_HEADER.size + size
    return position


def _unpacked(data: bytes, codec: str) -> bytes:
    """Return the decompressed flatbuffer of a packet, at most _MAX_PACKET_BYTES."""
    try:
        if codec == "lz4":
            decoder = lz4.frame.LZ4FrameDecompressor()
            # A byte of LZ4 becomes at most 255 bytes. Only packets that could get too long need the slower limit.
            limit = -1 if 255 * len(data) <= _MAX_PACKET_BYTES else _MAX_PACKET_BYTES
            if lz4.frame.get_frame_info(data)["content_size"] > _MAX_PACKET_BYTES:
                raise _DamagedError("it announces more bytes than a packet can have")
            unpacked = decoder.decompress(data, max_length=limit)
            if not decoder.eof or decoder.unused_data:
                raise _DamagedError("its LZ4 frame is incomplete")
            return bytes(unpacked)
        if codec == "zstd":
            parameters = zstandard.get_frame_parameters(data)
            is_known = parameters.content_size not in (zstandard.CONTENTSIZE_UNKNOWN, zstandard.CONTENTSIZE_ERROR)
            if is_known and parameters.content_size > _MAX_PACKET_BYTES:
                raise _DamagedError("it announces more bytes than a packet can have")
            return zstandard.ZstdDecompressor(max_window_size=_MAX_PACKET_BYTES).decompress(
                data, max_output_size=_MAX_PACKET_BYTES, allow_extra_data=False
            )
    except (RuntimeError, zstandard.ZstdError, MemoryError, EOFError) as error:
        raise _DamagedError(f"its {codec} data cannot be unpacked ({error})") from None
    return data


def _events_of(data: bytes) -> npt.NDArray[np.void]:
    """Return the events in an unpacked packet as a view."""
    (vector,) = _root_fields(data, b"EVTS")[:1]
    if vector == 0:
        return np.empty(0, EVENT)
    return np.frombuffer(_vector(data, vector, EVENT.itemsize), EVENT)


def _root_fields(data: bytes, identifier: bytes) -> tuple[int, int, int]:
    """Return the positions of the first three fields in the root table of a size-prefixed flatbuffer; 0 if missing."""
    if data[8:12] != identifier:
        raise _DamagedError(f"it should hold {identifier.decode()} but holds {data[8:12]!r}")
    if _number(data, "<I", 0) + 4 > len(data):
        raise _DamagedError(f"it claims {_number(data, '<I', 0)} bytes but holds {len(data) - 4}")
    table = 4 + _number(data, "<I", 4)
    vtable = table - _number(data, "<i", table)
    num_fields = (_number(data, "<H", vtable) - 4) // 2
    places = []
    for i in range(3):
        offset = _number(data, "<H", vtable + 4 + 2 * i) if i < num_fields else 0
        places.append(table + offset if offset else 0)
    return tuple(places)  # type: ignore[return-value]


def _vector(data: bytes, field: int, item_bytes: int) -> memoryview:
    """Return the bytes of the vector or text that a field refers to."""
    start = field + _number(data, "<I", field)
    num_bytes = _number(data, "<I", start) * item_bytes
    if start + 4 + num_bytes > len(data):
        raise _DamagedError(f"it claims a vector of {num_bytes} bytes but holds {len(data)}")
    return memoryview(data)[start + 4 : start + 4 + num_bytes]


def _number(data: bytes, code: str, position: int) -> int:
    if not 0 <= position <= len(data) - struct.calcsize(code):
        raise _DamagedError(f"it refers to byte {position} of its {len(data)}")
    number: int = struct.unpack_from(code, data, position)[0]
    return number
