"""Write AEDAT4 files, which DV and dv-processing read: a header, then packets of events compressed with LZ4.

There is no data table at the end, which the format allows; programs then find the packets by themselves. Source: the
schemas of dv-processing, as in `rvtssm.readers.aedat4`.
"""

import struct
from collections.abc import Iterable
from pathlib import Path

import lz4.frame
import numpy as np

from rvtssm.records import Events

_EVENT = np.dtype([("t", "<i8"), ("x", "<i2"), ("y", "<i2"), ("p", "u1"), ("unused", "V3")])
_LZ4 = 1  # the code of the compression
_STREAM = 0  # the number of the stream of events
_NO_TABLE = -1
_PACKET_EVENTS = 1 << 13  # so that a seek unpacks little
_ALIGNMENT = 8  # of the times of events within a packet
_STREAMS = (
    '<dv version="2.0"><node name="outInfo" path="/mainloop/Recorder/outInfo/"><node name="0" '
    'path="/mainloop/Recorder/outInfo/0/"><attr key="compression" type="string">LZ4</attr><attr key="typeIdentifier" '
    'type="string">EVTS</attr><node name="info" path="/mainloop/Recorder/outInfo/0/info/"><attr key="sizeX" '
    'type="int">{width}</attr><attr key="sizeY" type="int">{height}</attr></node></node></node></dv>'
)


def write_aedat4(path: Path, blocks: Iterable[Events], height: int, width: int) -> None:
    """Write events as an AEDAT4 file with one stream.

    Args:
        path: The file to write.
        blocks: The events; coordinates below 2^15.
        height: Height of the sensor, pixels.
        width: Width of the sensor, pixels.
    """
    with open(path, "wb") as file:
        file.write(b"#!AER-DAT4.0\r\n" + _header(_STREAMS.format(height=height, width=width).encode()))
        for events in blocks:
            for start in range(0, len(events), _PACKET_EVENTS):
                content = lz4.frame.compress(_packet(events[start : start + _PACKET_EVENTS]))
                file.write(struct.pack("<ii", _STREAM, len(content)) + content)


def _header(streams: bytes) -> bytes:
    """Return the flatbuffer IOHE with its size: compression, no data table, the description of the streams."""
    vtable = struct.pack("<HHHHH", 10, 20, 4, 8, 16)
    table = struct.pack("<iiqI", len(vtable), _LZ4, _NO_TABLE, 4)
    content = struct.pack("<I", 8 + len(vtable)) + b"IOHE" + vtable + table
    content += struct.pack("<I", len(streams)) + streams + b"\0"
    return struct.pack("<I", len(content)) + content


def _packet(events: Events) -> bytes:
    """Return the flatbuffer EVTS with its size: a table whose one field is a vector of events."""
    structs = np.zeros(len(events), _EVENT)
    for name in "txyp":
        structs[name] = getattr(events, name)
    vtable = struct.pack("<HHH", 6, 8, 4)
    root = 8 + len(vtable)  # after the root offset and the identifier
    vector = root + 8  # after the table: its place of the vtable, and the offset of the vector
    padding = -(4 + vector + 4) % _ALIGNMENT  # the events begin after the size of the file and of the vector
    table = struct.pack("<iI", len(vtable), 4 + padding)
    content = struct.pack("<I", root) + b"EVTS" + vtable + table + bytes(padding)
    content += struct.pack("<I", len(structs)) + structs.tobytes()
    return struct.pack("<I", len(content)) + content
