"""Writers of every format, for round trips: DSEC, AEDAT4, numpy files and text; the others have files of their own."""

import struct
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import lz4.frame
import numpy as np
import zstandard
from event_examples import HEIGHT, WIDTH, write_hdf5

from rvtssm.readers.dat import write_dat
from rvtssm.records import Events
from tests.contrib.ros.bag_writer import write_events
from tests.readers.ecf_encoder import write_ecf
from tests.readers.evt2_encoder import encode_evt2, encode_evt21, write_evt2, write_evt21
from tests.readers.evt3_encoder import encode, write_words

COMPRESSIONS = {0: bytes, 1: lz4.frame.compress, 3: zstandard.ZstdCompressor().compress}


def write_dsec(path: Path, events: Events, offset_us: int = 0, **changed: np.ndarray | None) -> Path:
    """A DSEC file; times are absolute and at or after the offset, `changed` replaces datasets (None leaves one out)."""
    t = (events.t - offset_us).astype(np.uint32)
    milliseconds = np.arange(int(t[-1]) // 1000 + 2 if len(t) else 0)
    datasets = {
        "events/t": t,
        "events/x": events.x,
        "events/y": events.y,
        "events/p": events.p,
        "ms_to_idx": np.searchsorted(t, (milliseconds * 1000).astype(np.uint32)).astype(np.uint64),
        "t_offset": np.int64(offset_us),
        **changed,
    }
    with h5py.File(path, "w") as file:
        for name, values in datasets.items():
            if values is not None:
                packing: Any = hdf5plugin.Blosc(cname="zstd") if np.size(values) > 1 else {}
                file.create_dataset(name, data=values, **packing)
    return path


def write_aedat4(
    path: Path, events: Events, compression: int = 1, packet_events: int = 1000, is_closed: bool = True, **changed
) -> Path:
    """An AEDAT4 file as DV writes it: packets of events between packets of other streams, then a data table."""
    pack = COMPRESSIONS[compression]
    body = b""
    for i in range(0, len(events), packet_events):
        part = slice(i, i + packet_events)
        structs = structured(events[part], kinds=("<i8", "<i2", "<i2", "<u4"))
        packets = (
            (changed.get("stream", 0), flatbuffer(b"EVTS", [struct.pack("<I", len(structs)) + structs.tobytes()])),
            (2, flatbuffer(b"IMUS", [])),
        )
        for stream, content in packets:
            content = pack(content)
            body += struct.pack("<ii", stream, len(content)) + content
    info = changed.get("info") or stream_description(changed.get("size_hw", (HEIGHT, WIDTH)))
    start = len(iohe(compression, -1, info)) + 14
    table = start + len(body) if is_closed else -1
    head = b"#!AER-DAT4.0\r\n" + iohe(compression, table, info)
    path.write_bytes(head + body + (pack(flatbuffer(b"FTAB", [])) if is_closed else b""))
    return path


def flatbuffer(identifier: bytes, vectors: list[bytes]) -> bytes:
    """A size-prefixed flatbuffer whose root table has these vectors as fields."""
    num_fields = len(vectors)
    vtable = struct.pack(f"<HH{num_fields}H", 4 + 2 * num_fields, 4 + 4 * num_fields, *range(4, 4 + 4 * num_fields, 4))
    table_position = 8 + len(vtable)  # after the root offset and the identifier
    table = struct.pack("<i", len(vtable))
    body = b""
    for i, vector in enumerate(vectors):
        field = table_position + 4 + 4 * i
        table += struct.pack("<I", table_position + 4 + 4 * num_fields + len(body) - field)
        body += vector
    content = struct.pack("<I", table_position) + identifier + vtable + table + body
    return struct.pack("<I", len(content)) + content


def iohe(compression: int, table_position: int, info: bytes) -> bytes:
    """The header of an AEDAT4 file: compression inline, then the position of the table, then the text."""
    vtable = struct.pack("<HHHHH", 10, 20, 4, 8, 16)
    text = struct.pack("<I", len(info)) + info
    table = struct.pack("<iiqI", len(vtable), compression, table_position, 4)
    content = struct.pack("<I", 8 + len(vtable)) + b"IOHE" + vtable + table + text
    return struct.pack("<I", len(content)) + content


def stream_description(size_hw: tuple[int, int], types: tuple[str, ...] = ("EVTS", "FRME", "IMUS")) -> bytes:
    """The XML of the streams of an AEDAT4 file, numbered in order."""
    height, width = size_hw
    nodes = "".join(
        f'<node name="{i}"><attr key="typeIdentifier" type="string">{kind}</attr><node name="info">'
        f'<attr key="sizeX" type="int">{width}</attr><attr key="sizeY" type="int">{height}</attr></node></node>'
        for i, kind in enumerate(types)
    )
    return f'<dv version="2.0"><node name="outInfo">{nodes}</node></dv>'.encode()


def rows_of(events: Events) -> np.ndarray:
    """(N, 4) int64 of t, x, y, p, as in PEDRo."""
    return np.stack([getattr(events, name).astype(np.int64) for name in "txyp"], axis=1)


def structured(events: Events, names=("t", "x", "y", "p"), kinds=("<i8", "<u2", "<i2", "?")) -> np.ndarray:
    rows = np.zeros(len(events), list(zip(names, kinds, strict=True)))
    for name, column in zip(names, (events.t, events.x, events.y, events.p), strict=True):
        rows[name] = column
    return rows


def write_npy(path: Path, events: Events) -> Path:
    with open(path, "wb") as file:
        np.save(file, rows_of(events))
    return path


def write_npz(path: Path, events: Events) -> Path:
    with open(path, "wb") as file:
        np.savez_compressed(file, t=events.t, x=events.x, y=events.y, p=events.p, height=HEIGHT, width=WIDTH)
    return path


def write_csv(path: Path, events: Events) -> Path:
    with open(path, "wb") as file:
        file.write(f"# height={HEIGHT} width={WIDTH}\nt,x,y,p\n".encode())
        np.savetxt(file, rows_of(events), fmt="%d", delimiter=",")
    return path


def write_dat_file(path: Path, events: Events) -> Path:
    write_dat(path, events, HEIGHT, WIDTH)
    return path


def write_plain_hdf5(path: Path, events: Events) -> Path:
    """An HDF5 file in no known layout: other names, and the size in attributes."""
    with h5py.File(path, "w") as file:
        for name in "txyp":
            file[f"recording/{name}s"] = getattr(events, name)
        file.attrs["height"], file.attrs["width"] = HEIGHT, WIDTH
    return path


WRITERS: dict[str, Any] = {  # by format, (path, events) -> the path to open
    "dat": write_dat_file,
    "evt2": lambda path, events: write_evt2(path, encode_evt2(events), HEIGHT, WIDTH),
    "evt21": lambda path, events: write_evt21(path, encode_evt21(events), HEIGHT, WIDTH),
    "evt3": lambda path, events: write_words(path, encode(events), HEIGHT, WIDTH),
    "ecf": lambda path, events: write_ecf(path, events, HEIGHT, WIDTH, chunk=max(64, len(events) // 5)),
    "rvt_hdf5": write_hdf5,
    "dsec": write_dsec,
    "hdf5": write_plain_hdf5,
    "aedat4": write_aedat4,
    "npy": write_npy,
    "npz": write_npz,
    "csv": write_csv,
    "ros1": partial(write_events, container="ros1", encoding="mono"),
    "ros2": partial(write_events, container="mcap", encoding="evt3"),
}
