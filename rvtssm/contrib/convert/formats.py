"""Write events in the formats that other programs read; `convert` turns a recording of any format into one of them.

To add a format, write a function that takes a path, blocks of events and the size of the sensor, and add a line to
FORMATS.

Cameras of Prophesee group pixels of a row into vectors. Here every event is a word, so that their order stays. An
AEDAT4 file gets no data table at its end, which the format allows; programs then find the packets by themselves.
Sources: OpenEB 0499c95, hal/cpp/include/metavision/hal/decoders; the schemas of dv-processing.
"""

import itertools
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import h5py
import hdf5plugin
import lz4.frame
import numpy as np

from rvtssm.readers import Recording
from rvtssm.readers.aedat4 import EVENT, SIGNATURE
from rvtssm.readers.dat import write_dat
from rvtssm.readers.recording import EventBlocks
from rvtssm.records import Events
from rvtssm.system.files import atomic_file
from rvtssm.system.user_error import UserError

_HEADER = "% evt {version}\n% format {name};height={height};width={width}\n% geometry {width}x{height}\n% end\n"
_CD = 12
_EVT2_LOW_BITS = 6
_ADDR_Y, _ADDR_X, _TIME_LOW, _TIME_HIGH = 0x0, 0x2, 0x6, 0x8
_EVT3_LOW_BITS, _EVT3_MASK = 12, 0xFFF
_LONG_STEP = 1 << 16  # of the upper time, 268 s; the words of a longer gap are written apart, which bounds the memory
_LZ4 = 1  # the code of the compression
_STREAM = 0  # the number of the stream of events
_NO_TABLE = -1
_PACKET_EVENTS = 1 << 13  # so that a seek unpacks little
_ALIGNMENT = 8  # bytes; of tables with numbers of 64 bits
_STREAMS = (
    '<dv version="2.0"><node name="outInfo" path="/mainloop/Recorder/outInfo/"><node name="0" '
    'path="/mainloop/Recorder/outInfo/0/"><attr key="compression" type="string">LZ4</attr>'
    '<attr key="originalModuleName" type="string">rvtssm</attr>'
    '<attr key="originalOutputName" type="string">events</attr>'
    '<attr key="typeDescription" type="string">Array of events (polarity ADDR).</attr>'
    '<attr key="typeIdentifier" type="string">EVTS</attr><node name="info" path="/mainloop/Recorder/outInfo/0/info/">'
    '<attr key="sizeX" type="int">{width}</attr><attr key="sizeY" type="int">{height}</attr>'
    '<attr key="source" type="string">rvtssm</attr></node></node></node></dv>'
)
_ROW = np.dtype([("t_us", "<i8"), ("x", "<u2"), ("y", "<u2"), ("p", "u1")])
_CHUNK_EVENTS = 1 << 16


def write_cd_dat(path: Path, blocks: Iterable[Events], height: int, width: int) -> None:
    """Write events as DAT with the type of newer cameras (CD), which more programs know than that of Gen1.

    Args:
        path: The file to write.
        blocks: The events; times below 2^32 us.
        height: Height of the sensor, pixels.
        width: Width of the sensor, pixels.
    """
    write_dat(path, blocks, height, width, event_type=_CD)


def write_evt2(path: Path, blocks: Iterable[Events], height: int, width: int) -> None:
    """Write events as EVT2: a word for the upper 28 bits of a time when they change, and a word per event.

    Args:
        path: The file to write.
        blocks: The events; times below 2^34 us, coordinates below 2^11.
        height: Height of the sensor, pixels.
        width: Width of the sensor, pixels.
    """
    with open(path, "wb") as file:
        file.write(_HEADER.format(version="2.0", name="EVT2", height=height, width=width).encode())
        latest_high = -1
        for events in blocks:
            high = events.t >> _EVT2_LOW_BITS
            is_new = np.diff(high, prepend=latest_high) != 0
            latest_high = int(high[-1])
            low = events.t & ((1 << _EVT2_LOW_BITS) - 1)
            pixel = events.p.astype(np.int64) << 28 | low << 22 | events.x.astype(np.int64) << 11 | events.y
            words = np.stack([_TIME_HIGH << 28 | high, pixel], axis=1)
            is_written = np.stack([is_new, np.ones(len(events), bool)], axis=1)
            file.write(words[is_written].astype("<u4").tobytes())


def write_evt3(path: Path, blocks: Iterable[Events], height: int, width: int) -> None:
    """Write events as EVT3: words for the upper time, the lower time and the row when they change, and for the pixel.

    The clock of the format has 24 bits. As cameras do, a word for the upper time is written for each of its steps of
    4096 us, also in gaps and before the first event, so that readers see when the clock begins again.

    Args:
        path: The file to write.
        blocks: The events; times from 0 on, coordinates below 2^11.
        height: Height of the sensor, pixels.
        width: Width of the sensor, pixels.
    """
    with open(path, "wb") as file:
        file.write(_HEADER.format(version="3.0", name="EVT3", height=height, width=width).encode())
        latest_high, latest_low, latest_row = 0, -1, -1
        file.write(np.array([_TIME_HIGH << 12], "<u2").tobytes())
        for events in blocks:
            high = events.t >> _EVT3_LOW_BITS
            # The words of a long gap are written apart, and the events after it begin a new piece.
            far = np.flatnonzero(np.diff(high, prepend=latest_high) > _LONG_STEP)
            for start, stop in itertools.pairwise([0, *far, len(events)]):
                if start in far:
                    upper = np.arange(latest_high + 1, int(high[start]) + 1) & _EVT3_MASK | _TIME_HIGH << 12
                    file.write(upper.astype("<u2").tobytes())
                    latest_high, latest_low = int(high[start]), -1  # a reader forgets the lower time at an upper one
                if start < stop:
                    piece = events[start:stop]
                    file.write(_evt3_words(piece, latest_high, latest_low, latest_row).astype("<u2").tobytes())
                    latest_high = int(high[stop - 1])
                    latest_low, latest_row = int(piece.t[-1]) & _EVT3_MASK, int(piece.y[-1])


def _evt3_words(events: Events, latest_high: int, latest_low: int, latest_row: int) -> np.ndarray:
    """Return the words of events after an event with this upper time, lower time and row."""
    high, low, row = events.t >> _EVT3_LOW_BITS, events.t & _EVT3_MASK, events.y.astype(np.int64)
    num_high = np.diff(high, prepend=latest_high)
    has_low = (num_high > 0) | (np.diff(low, prepend=latest_low) != 0)
    has_row = np.diff(row, prepend=latest_row) != 0
    # An event has a row for each of its upper times. The last of these rows holds its other words.
    num_rows = np.maximum(num_high, 1)
    event = np.repeat(np.arange(len(events)), num_rows)
    num_left = num_rows.cumsum()[event] - np.arange(len(event)) - 1  # rows of the event that follow
    is_last = num_left == 0
    pixel = _ADDR_X << 12 | events.p.astype(np.int64) << 11 | events.x
    upper = _TIME_HIGH << 12 | (high[event] - num_left) & _EVT3_MASK
    words = np.stack([upper, (_TIME_LOW << 12 | low)[event], (_ADDR_Y << 12 | row)[event], pixel[event]], axis=1)
    is_written = np.stack([num_high[event] > 0, has_low[event] & is_last, has_row[event] & is_last, is_last], axis=1)
    return words[is_written]


def write_aedat4(path: Path, blocks: Iterable[Events], height: int, width: int) -> None:
    """Write events as an AEDAT4 file with one stream.

    Args:
        path: The file to write.
        blocks: The events; coordinates below 2^15.
        height: Height of the sensor, pixels.
        width: Width of the sensor, pixels.
    """
    with open(path, "wb") as file:
        file.write(SIGNATURE + _header(_STREAMS.format(height=height, width=width).encode()))
        for events in blocks:
            for start in range(0, len(events), _PACKET_EVENTS):
                content = lz4.frame.compress(_packet(events[start : start + _PACKET_EVENTS]))
                file.write(struct.pack("<ii", _STREAM, len(content)) + content)


def _header(streams: bytes) -> bytes:
    """Return the flatbuffer IOHE with its size: compression, no data table, the description of the streams."""
    text = struct.pack("<I", len(streams)) + streams + b"\0"
    fields = struct.pack("<iqI", _LZ4, _NO_TABLE, 4)  # the text begins 4 bytes after its offset
    return _flatbuffer(b"IOHE", (4, 8, 16), fields, text)


def _packet(events: Events) -> bytes:
    """Return the flatbuffer EVTS with its size: a table whose one field is a vector of events."""
    structs = np.zeros(len(events), EVENT)
    for name in "txyp":
        structs[name] = getattr(events, name)
    vector = struct.pack("<I", len(structs)) + structs.tobytes()
    return _flatbuffer(b"EVTS", (4,), struct.pack("<I", 8), bytes(4) + vector)  # the events are at a multiple of 8


def _flatbuffer(identifier: bytes, places: tuple[int, ...], fields: bytes, rest: bytes) -> bytes:
    """Return a flatbuffer with one table, after its size. Other programs check that numbers are aligned.

    Args:
        identifier: Four letters.
        places: The places of the fields in the table.
        fields: The table after the offset of its list of places, from byte 4 on.
        rest: What follows the table.
    """
    places_of = struct.pack(f"<HH{len(places)}H", 4 + 2 * len(places), 4 + len(fields), *places)
    begin = 12  # of the list of places: after the size, the offset of the table and the identifier
    table = -(-(begin + len(places_of)) // _ALIGNMENT) * _ALIGNMENT
    padding = bytes(table - begin - len(places_of))
    content = struct.pack("<I", table - 4) + identifier + places_of + padding
    content += struct.pack("<i", table - begin) + fields + rest
    return struct.pack("<I", len(content)) + content


def write_rvt_hdf5(path: Path, blocks: Iterable[Events], height: int, width: int) -> None:
    """Write events as HDF5 with `events/t`, `x`, `y`, `p`, `height` and `width`, as RVT reads it, packed with Blosc.

    Args:
        path: The file to write.
        blocks: The events.
        height: Height of the sensor, pixels.
        width: Width of the sensor, pixels.
    """
    with h5py.File(path, "w") as file:
        columns = {}
        for name, kind in {"t": np.int64, "x": np.uint16, "y": np.uint16, "p": np.uint8}.items():
            packing = hdf5plugin.Blosc(cname="zstd", clevel=1)
            columns[name] = file.create_dataset(
                f"events/{name}", (0,), kind, maxshape=(None,), chunks=(_CHUNK_EVENTS,), **packing
            )
        file["events/height"], file["events/width"] = height, width
        for events in blocks:
            for name, column in columns.items():
                size = len(column)
                column.resize(size + len(events), axis=0)
                column[size:] = getattr(events, name)


def write_npy(path: Path, blocks: Iterable[Events], height: int, width: int) -> None:
    """Write events as a structured array with the fields t_us, x, y and p. It does not hold the size of the sensor.

    Args:
        path: The file to write.
        blocks: The events.
        height: Height of the sensor, not written.
        width: Width of the sensor, not written.
    """
    with open(path, "wb") as file:
        _write_npy_header(file, 0)
        num_events = 0
        for events in blocks:
            file.write(_rows(events).tobytes())
            num_events += len(events)
        file.seek(0)
        _write_npy_header(file, num_events)  # as long as before: numpy leaves room for a growing first dimension


def _write_npy_header(file: object, num_events: int) -> None:
    header = {"descr": np.lib.format.dtype_to_descr(_ROW), "fortran_order": False, "shape": (num_events,)}
    np.lib.format.write_array_header_1_0(file, header)  # type: ignore[arg-type]


def write_csv(path: Path, blocks: Iterable[Events], height: int, width: int) -> None:
    """Write events as text: a line with the size of the sensor, a line with names, and a line per event.

    Args:
        path: The file to write.
        blocks: The events.
        height: Height of the sensor, pixels.
        width: Width of the sensor, pixels.
    """
    with open(path, "wb") as file:
        file.write(f"# height={height} width={width}\nt_us,x,y,p\n".encode())
        for events in blocks:
            np.savetxt(file, _rows(events), fmt="%d", delimiter=",")


def _rows(events: Events) -> np.ndarray:
    rows = np.empty(len(events), _ROW)
    rows["t_us"], rows["x"], rows["y"], rows["p"] = events.t, events.x, events.y, events.p
    return rows


Write = Callable[[Path, Iterable[Events], int, int], None]  # path, blocks, height and width of the sensor


@dataclass(frozen=True)
class Format:
    """A format that events are written in, and what it can hold."""

    write: Write
    suffixes: tuple[str, ...]  # ends of file names that mean this format
    end_us: int | None = None  # times lie from 0 up to this; None: any time
    largest_side: int = 1 << 14  # of the sensor, pixels; the readers allow no larger one
    holds_size: bool = True  # the file says the size of the sensor


FORMATS: dict[str, Format] = {
    "dat": Format(write_cd_dat, (".dat",), end_us=1 << 32),
    "evt3": Format(write_evt3, (".raw",), end_us=1 << 36, largest_side=1 << 11),
    "evt2": Format(write_evt2, (".evt2.raw",), end_us=1 << 34, largest_side=1 << 11),
    "rvt_hdf5": Format(write_rvt_hdf5, (".h5", ".hdf5")),
    "aedat4": Format(write_aedat4, (".aedat4",)),
    "npy": Format(write_npy, (".npy",), holds_size=False),
    "csv": Format(write_csv, (".csv", ".txt")),
}


def format_for(path: Path) -> str:
    """Return the key of FORMATS that the end of a file name means; of several ends the longest counts.

    Raises:
        UserError: The end means no format.
    """
    by_suffix: dict[str, str] = {}
    for name, known in FORMATS.items():
        by_suffix |= dict.fromkeys(known.suffixes, name)
    matching = [suffix for suffix in by_suffix if path.name.lower().endswith(suffix)]
    if not matching:
        raise UserError(
            "file.kind", name=path, found="its name does not say in which format to write",
            advice=f"end it with one of {', '.join(by_suffix)}",
        )  # fmt: skip
    return by_suffix[max(matching, key=len)]


def convert(
    recording: Recording, out: Path, format: str, advance: Callable[[int], object] = lambda num_events: None
) -> EventBlocks:
    """Write the events of a recording in another format. The file only appears when it is complete.

    The new file holds the same times, pixels and polarities. Events that the reader of the recording leaves out or
    repairs, such as those outside the sensor, are written as it returns them.

    Args:
        recording: The recording.
        out: The file to write.
        format: A key of FORMATS.
        advance: Called with the number of events of each block.

    Returns:
        The blocks of the recording, with their counts.

    Raises:
        UserError: The format cannot hold the times or the size of the sensor, or the recording is damaged.
    """
    known, height, width = FORMATS[format], recording.height, recording.width
    if max(height, width) > known.largest_side:
        raise UserError(
            "file.content", name=recording.path, found=f"a sensor of {width} x {height} pixels",
            needed=f"at most {known.largest_side} per side, which {format} holds",
            advice="choose another format, such as .dat or .h5",
        )  # fmt: skip
    blocks = EventBlocks(recording)

    def checked() -> Iterator[Events]:
        for block in blocks:
            if known.end_us is not None and not 0 <= blocks.first_us <= blocks.last_us < known.end_us:
                suffixes = [suffix for other in FORMATS.values() if other.end_us is None for suffix in other.suffixes]
                raise UserError(
                    "file.content",
                    name=recording.path,
                    found=f"events from {blocks.first_us} to {blocks.last_us} us",
                    needed=f"times from 0 to {known.end_us} us, which {format} holds",
                    advice=f"write {', '.join(suffixes)}, which hold any time (to move the clock, write .npy, subtract "
                    f"{blocks.first_us} from its t_us, and convert that)",
                )
            yield block
            advance(len(block))

    with atomic_file(out) as staged:
        known.write(staged, checked(), height, width)
    return blocks
