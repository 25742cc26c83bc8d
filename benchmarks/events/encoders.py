"""Fast writers of large recordings, and the events to put in them: rows of pixels as a sensor reads them out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt

from rvtssm.records import Events
from rvtssm.system.jit import jit

_ECF_CHUNK = 16384
_ECF_FILTER = 0x8ECF
_ECF_ROW = np.dtype({"names": ["x", "y", "p", "t"], "formats": ["<u2", "<u2", "<i2", "<i8"], "offsets": [0, 2, 4, 8]})
_ECF_MASKED, _ECF_PACKED = 0, 2  # rows, columns and polarities in runs; or together, where few runs are found


def readout(num_events: int, height: int, width: int, per_row: float) -> Events:
    """Return rows in order of readout, each with about `per_row` neighbouring pixels; 10 events per us."""
    rng = np.random.default_rng(0)
    lengths = np.minimum(rng.geometric(1 / per_row, int(num_events / per_row * 1.2) + 100), 30)
    group = np.repeat(np.arange(len(lengths)), lengths)[:num_events]
    is_first = np.diff(group, prepend=-1) > 0
    gaps = np.where(is_first, 0, rng.integers(1, 4, num_events))
    start = np.flatnonzero(is_first)
    offset = np.cumsum(gaps)
    offset -= np.repeat(offset[start], np.diff(np.append(start, num_events)))
    first = rng.integers(0, width - 100, len(lengths))
    t = start[group] // 10
    return Events(
        t.astype(np.int64),
        (first[group] + offset).astype(np.uint16),
        rng.integers(0, height, len(lengths))[group].astype(np.uint16),
        rng.integers(0, 2, len(lengths))[group].astype(np.uint8),
    )


def repeated(events: Events, num_events: int) -> Events:
    """Return a recording that is repeated until it has `num_events` events."""
    times = -(-num_events // len(events))
    span = int(events.t[-1] - events.t[0]) + 1
    t = (events.t - events.t[0] + np.arange(times)[:, None] * span).ravel()
    return Events(t, np.tile(events.x, times), np.tile(events.y, times), np.tile(events.p, times))


def write_dat_cd(path: Path, events: Events, height: int, width: int) -> None:
    """Write DAT of type 0x0c, which more libraries can read than Gen1's type 0."""
    words = np.empty((len(events), 2), "<u4")
    words[:, 0] = events.t
    words[:, 1] = events.x | events.y.astype(np.uint32) << 14 | events.p.astype(np.uint32) << 28
    header = f"% Data file containing CD events.\n% Version 2\n% Height {height}\n% Width {width}\n"
    _write(path, header.encode() + b"\x0c\x08", words)


def write_evt2(path: Path, events: Events, height: int, width: int) -> None:
    """Write one word per event, and one whenever the upper bits of time change."""
    high = events.t >> 6
    is_new = np.diff(high, prepend=-1) != 0
    place = np.arange(len(events)) + np.cumsum(is_new)
    words = np.empty(len(events) + np.count_nonzero(is_new), "<u4")
    words[place] = events.p.astype(np.uint32) << 28 | (events.t & 0x3F).astype(np.uint32) << 22
    words[place] |= events.x.astype(np.uint32) << 11 | events.y
    words[place[is_new] - 1] = 8 << 28 | high[is_new]
    _write(path, _raw_header("2.0", "EVT2", height, width), words)


def write_evt21(path: Path, events: Events, height: int, width: int) -> None:
    """Write words of up to 32 pixels of a row."""
    words = np.empty(2 * len(events) + 16, np.uint64)
    _write(path, _raw_header("2.1", "EVT21", height, width), words[: _evt21(*_columns(events), words)])


def write_evt3(path: Path, events: Events, height: int, width: int) -> None:
    """Write single pixels, and vectors of 12 + 12 + 8 pixels for three or more pixels of a row within 32."""
    words = np.empty(6 * len(events) + int(events.t[-1] >> 12) + 16, np.uint16)
    _write(path, _raw_header("3.0", "EVT3", height, width), words[: _evt3(*_columns(events), words)])


def write_ecf(path: Path, events: Events, height: int, width: int) -> None:
    """Write Metavision's HDF5; like the codec, pack a chunk in runs if every fifth event stays in its row."""
    settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    settings.set_chunk((_ECF_CHUNK,))
    settings.set_filter(_ECF_FILTER, h5py.h5z.FLAG_OPTIONAL)
    space = h5py.h5s.create_simple((len(events),), (h5py.h5s.UNLIMITED,))
    data = np.empty(16 * _ECF_CHUNK + 64, np.uint8)
    mode = _ECF_PACKED if np.mean(np.diff(events.y.astype(np.int64)) == 0) < 0.2 else _ECF_MASKED
    with h5py.File(path, "w") as file:
        file.attrs["geometry"] = f"{width}x{height}"
        file.create_group("CD")
        table = h5py.h5d.create(file.id, b"CD/events", h5py.h5t.py_create(_ECF_ROW), space, settings)
        for start in range(0, len(events), _ECF_CHUNK):
            part = (column[start : start + _ECF_CHUNK] for column in _columns(events))
            table.write_direct_chunk((start,), data[: _ecf(*part, mode, data)].tobytes())


WRITERS: dict[str, Callable[[Path, Events, int, int], None]] = {
    "dat": write_dat_cd,
    "evt2": write_evt2,
    "evt21": write_evt21,
    "evt3": write_evt3,
    "ecf": write_ecf,
}


def _raw_header(version: str, name: str, height: int, width: int) -> bytes:
    size = f"{width}x{height}"
    return f"% evt {version}\n% format {name};height={height};width={width}\n% geometry {size}\n% end\n".encode()


def _write(path: Path, header: bytes, words: npt.NDArray[np.unsignedinteger]) -> None:
    with open(path, "wb") as file:
        file.write(header)
        words.tofile(file)


def _columns(events: Events) -> tuple[np.ndarray, ...]:
    return events.t, events.x, events.y, events.p


@jit
def _row_end(t, x, y, p, i, reach):  # type: ignore[no-untyped-def]
    """Return the end of the pixels that can share words with pixel i: only x differs, and increases within `reach`."""
    k = i + 1
    while k < len(t) and t[k] == t[i] and y[k] == y[i] and p[k] == p[i] and x[k - 1] < x[k] < x[i] + reach:
        k += 1
    return k


@jit
def _evt21(t, x, y, p, words):  # type: ignore[no-untyped-def]
    high = np.int64(-1)
    used = i = 0
    while i < len(t):
        if t[i] >> 6 != high:
            high = t[i] >> 6
            words[used] = np.uint64(8 << 60) | np.uint64(high << 32)
            used += 1
        first = np.int64(x[i]) // 32 * 32
        end = _row_end(t, x, y, p, i, first + 32 - np.int64(x[i]))
        mask = np.int64(0)
        for k in range(i, end):
            mask |= np.int64(1) << (np.int64(x[k]) - first)
        head = np.int64(p[i]) << 28 | (t[i] & 0x3F) << 22 | first << 11 | np.int64(y[i])
        words[used] = np.uint64(head << 32 | mask)
        used += 1
        i = end
    return used


@jit
def _evt3(t, x, y, p, words):  # type: ignore[no-untyped-def]
    high = low = row = np.int64(-1)
    used = i = 0
    while i < len(t):
        while high < t[i] >> 12:
            high += 1
            words[used] = 8 << 12 | high & 0xFFF
            used, low = used + 1, np.int64(-1)
        if t[i] & 0xFFF != low:
            low = t[i] & 0xFFF
            words[used] = 6 << 12 | low
            used += 1
        if y[i] != row:
            row = np.int64(y[i])
            words[used] = row
            used += 1
        end = _row_end(t, x, y, p, i, 32)
        if end - i < 3:
            words[used] = 2 << 12 | np.int64(p[i]) << 11 | x[i]
            used, i = used + 1, i + 1
            continue
        mask = np.int64(0)
        for k in range(i, end):
            mask |= np.int64(1) << (np.int64(x[k]) - np.int64(x[i]))
        words[used] = 3 << 12 | np.int64(p[i]) << 11 | x[i]
        words[used + 1] = 4 << 12 | mask & 0xFFF
        words[used + 2] = 4 << 12 | mask >> 12 & 0xFFF
        words[used + 3] = 5 << 12 | mask >> 24
        used, i = used + 4, end
    return used


@jit
def _put(data, position, value, num_bytes):  # type: ignore[no-untyped-def]
    for i in range(num_bytes):
        data[position + i] = value >> 8 * i & 0xFF
    return position + num_bytes


@jit
def _run_end(values, i, longest):  # type: ignore[no-untyped-def]
    k = i + 1
    while k < len(values) and values[k] == values[i] and k - i < longest:
        k += 1
    return k


@jit
def _ecf(t, x, y, p, mode, data):  # type: ignore[no-untyped-def]
    n = len(t)
    used = _put(data, _put(data, 0, n << 2 | mode, 4), t[0], 8)
    now = t[0]
    i = 0
    while i < n:
        end = _run_end(t, i, 65535)
        step = t[i] - now
        if step >= 15:
            while step:
                used = _put(data, used, 0xF0 | step & 0xF, 1)
                step >>= 4
        used = _put(data, used, step << 4 | min(end - i, 15), 1)
        if end - i >= 15:
            used = _put(data, used, end - i, 2)
        now, i = t[i], end
    return _ecf_packed(x, y, p, data, used) if mode == _ECF_PACKED else _ecf_masked(x, y, p, data, used)


@jit
def _ecf_masked(x, y, p, data, used):  # type: ignore[no-untyped-def]
    i = 0
    while i < len(y):
        end = _run_end(y, i, 65535)
        used = _put(data, used, np.int64(y[i]) << 5 | min(end - i, 31), 2)
        if end - i >= 31:
            used = _put(data, used, end - i, 2)
        i = end
    i = 0
    while i < len(x):
        first, mask = np.int64(x[i]), 0
        i += 1
        for place in range(1, 6):
            if i < len(x) and np.int64(x[i]) == first + place:
                mask |= 32 >> place
                i += 1
        used = _put(data, used, first << 5 | mask, 2)
    i = 0
    while i < len(p):
        end = _run_end(p, i, 65535)
        used = _put(data, used, np.int64(p[i]) << 7 | min(end - i, 127), 1)
        if end - i >= 127:
            used = _put(data, used, end - i, 2)
        i = end
    return used


@jit
def _ecf_packed(x, y, p, data, used):  # type: ignore[no-untyped-def]
    values = np.zeros(4, np.int64)
    for i in range(0, len(x), 4):
        values[:] = 0
        for k in range(min(4, len(x) - i)):
            values[k] = np.int64(y[i + k]) << 12 | np.int64(x[i + k]) << 1 | np.int64(p[i + k])
        used = _put(data, used, values[0] << 8 | values[1] & 0xFF, 4)
        used = _put(data, used, values[1] >> 8 << 16 | values[2] & 0xFFFF, 4)
        used = _put(data, used, values[2] >> 16 << 24 | values[3], 4)
    return used
