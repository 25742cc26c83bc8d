"""Events to ECF chunks and Metavision HDF5 files, for round trips in each of the codec's three modes."""

import struct
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import h5py
import numpy as np

from rvtssm.records import Events

MASKED, PACKED_COLUMNS, PACKED = 0, 1, 2
MODES = (MASKED, PACKED_COLUMNS, PACKED)
FILTER = 0x8ECF
ROW = np.dtype({"names": ["x", "y", "p", "t"], "formats": ["<u2", "<u2", "<i2", "<i8"], "offsets": [0, 2, 4, 8]})


def encode_chunk(events: Events, mode: int) -> bytes:
    """At most 65535 events with times that do not go back."""
    n = len(events)
    data = struct.pack("<IQ", n << 2 | mode, int(events.t[0])) + b"".join(times(events.t))
    x, y, p = (column.tolist() for column in (events.x, events.y, events.p))
    if mode == PACKED:
        return data + four_in_three([y[i] << 12 | x[i] << 1 | p[i] for i in range(n)], 32, 24)
    data += b"".join(
        struct.pack("<H", row << 5 | length) if length < 31 else struct.pack("<HH", row << 5 | 31, length)
        for row, length in runs(y)
    )
    if mode == PACKED_COLUMNS:
        return data + four_in_three([x[i] << 1 | p[i] for i in range(n)], 16, 12)
    data += b"".join(groups_of_columns(x))
    return data + b"".join(
        bytes([sign << 7 | length]) if length < 127 else struct.pack("<BH", sign << 7 | 127, length)
        for sign, length in runs(p)
    )


def times(t: np.ndarray) -> Iterator[bytes]:
    now = int(t[0])
    for time, length in runs(t.tolist()):
        step = time - now
        if step >= 15:
            while step:
                yield bytes([0xF0 | step & 0xF])
                step >>= 4
        yield bytes([step << 4 | length]) if length < 15 else struct.pack("<BH", step << 4 | 15, length)
        now = time


def runs(values: list[int]) -> Iterator[tuple[int, int]]:
    for value, group in groupby(values):
        yield value, len(list(group))


def groups_of_columns(x: list[int]) -> Iterator[bytes]:
    i = 0
    while i < len(x):
        first, mask = x[i], 0
        i += 1
        for place in range(5):
            if i < len(x) and x[i] == first + place + 1:
                mask |= 1 << 4 - place
                i += 1
        yield struct.pack("<H", first << 5 | mask)


def four_in_three(values: list[int], word_bits: int, value_bits: int) -> bytes:
    """Four numbers one after the other, highest bits first, in three words: a quarter spills over each time."""
    values = values + [0] * (-len(values) % 4)
    spill = word_bits - value_bits
    packed = []
    for i in range(0, len(values), 4):
        a, b, c, d = values[i : i + 4]
        low = (1 << spill) - 1
        packed += [
            a << spill | b & low,
            b >> spill << 2 * spill | c & (1 << 2 * spill) - 1,
            c >> 2 * spill << 3 * spill | d,
        ]
    return struct.pack(f"<{len(packed)}{'I' if word_bits == 32 else 'H'}", *packed)


def to_rows(events: Events) -> np.ndarray:
    rows = np.zeros(len(events), ROW)
    for name in ROW.names or ():
        rows[name] = getattr(events, name)
    return rows


def write_ecf(path: Path, events: Events, height: int, width: int, mode: int | None = None, chunk: int = 16384) -> Path:
    """A Metavision HDF5 file; without a mode, its chunks take turns."""
    with h5py.File(path, "w", libver="earliest") as file:
        file.attrs["geometry"] = f"{width}x{height}"
        table = create_table(file, len(events), chunk)
        for k, start in enumerate(range(0, len(events), chunk)):
            part = slice(start, start + chunk)
            block = Events(events.t[part], events.x[part], events.y[part], events.p[part])
            table.id.write_direct_chunk((start,), encode_chunk(block, k % 3 if mode is None else mode))
    return path


def create_table(file: h5py.File, num_events: int, chunk: int) -> h5py.Dataset:
    settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    settings.set_chunk((chunk,))
    settings.set_filter(FILTER, h5py.h5z.FLAG_OPTIONAL)
    file.create_group("CD")
    space = h5py.h5s.create_simple((num_events,), (h5py.h5s.UNLIMITED,))
    return h5py.Dataset(h5py.h5d.create(file.id, b"CD/events", h5py.h5t.py_create(ROW), space, settings))
