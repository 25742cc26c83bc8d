"""Prophesee DAT files (Gen1, N-CARS): a text header, then one 64-bit word per event.

The header lines start with `% `. Two bytes follow (event type, event size). Then every event is a u32 time in
microseconds and a u32 of x (14 bits), y (14 bits) and polarity (4 bits, any but 0 is brighter), all little-endian. In
version 1, x has 9 bits, y 8 and the polarity 1.
Source: prophesee-automotive-dataset-toolbox, src/io/dat_events_tools.py.

The way of the bytes: `open_dat` reads the header. `_read_units` (`byte_recording.py`) reads the next words of the file,
and 100 more to look ahead. `_decode_words` takes them apart; a block with a fault goes through `keep_block`
(`gate.py`), which keeps, moves or drops each event and counts the faults. `_block_sizes` (`decoder.py`) repeats this to
the end of the file, without a few events of another clock at its start and end. `Recording` (`recording.py`) yields all
events in blocks, or decodes those of a time range, from a state of the decoder that its index holds.
`FrameCounter.push` takes such blocks.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rvtssm.readers.byte_recording import ByteRecording
from rvtssm.readers.gate import (
    AHEAD_US,
    CLOCK_BITS,
    LATEST_US,
    MOST_STRAYS,
    NEVER_US,
    POSITION,
    WRAPPED_US,
    EventBuffer,
    State,
    keep_block,
)
from rvtssm.readers.header import read_text_header, sensor_size
from rvtssm.records import Events, ReadOptions
from rvtssm.records.arrays import check_inside
from rvtssm.system.files import atomic_file
from rvtssm.system.jit import jit
from rvtssm.system.user_error import UserError

_CD_TYPES = (0x00, 0x0C)  # "2D" in the automotive datasets, "CD" in newer software; both have the same eight bytes
_WORD = np.dtype([("t", "<u4"), ("xyp", "<u4")])
_BLOCK = 2048  # events that are decoded at once if they are all valid, otherwise one by one
_VERSION = 2  # of files that do not say it
_CLOCK_US = 1 << CLOCK_BITS  # after which the clock begins again
# Of `keep_block`: a step back by half the period or more is a wrap, if times do not return.
_CLOCK = 0, _CLOCK_US, _CLOCK_US >> 1


class DatRecording(ByteRecording):
    """A Prophesee DAT file.

    Args:
        path: The file.
        height: Height of the sensor, pixels.
        width: Width of the sensor, pixels.
        data_offset: Byte of the first event.
        version: The version of the format, which decides the number of bits of x and y.
    """

    format = "dat"
    unit_bytes = 8
    ahead_units = MOST_STRAYS

    def __init__(self, path: Path, height: int, width: int, data_offset: int, version: int = _VERSION) -> None:
        super().__init__(path, height, width, data_offset)
        self._version = version

    def _decode(self, state: State, buffer: EventBuffer) -> int:
        units, num_words = self._read_units(state, len(buffer.t))
        words = units.view("<u8")
        if self._version < _VERSION:
            words = _of_version_2(words)
        size_hw = self.height, self.width
        return int(_decode_words(words, num_words, state, *size_hw, buffer.t, buffer.x, buffer.y, buffer.p))


def open_dat(path: Path, options: ReadOptions) -> DatRecording:
    """Open a DAT file, with or without a header.

    Args:
        path: The file.
        options: What the caller says about the file.

    Raises:
        UserError: The file does not hold events, its version is unknown, or the size of the sensor is unknown.
    """
    # The header, and the two bytes after it that say what the words are.
    header = read_text_header(path)
    data_offset = header.num_bytes
    if header.lines:
        with open(path, "rb") as file:
            file.seek(data_offset)
            kind = file.read(2)
        if len(kind) < 2:
            raise UserError("file.cut", name=path, found="ends within its header", advice="copy it again")
        if kind[0] not in _CD_TYPES or kind[1] != DatRecording.unit_bytes:
            found = f"holds DAT type 0x{kind[0]:02x} of {kind[1]} bytes"
            advice = f"only events (0x00 or 0x0c, {DatRecording.unit_bytes} bytes) can be read, give another file"
            raise UserError("file.kind", name=path, found=found, advice=advice)
        data_offset += 2
    # The version decides where x, y and p lie in a word.
    version = header.value("Version") or str(_VERSION)
    if version not in ("1", "2"):
        found = f"has version {version} of DAT, but only 1 and 2 can be read"
        raise UserError("file.kind", name=path, found=found, advice="convert it to version 2")
    height, width = sensor_size(path, header.size_hw, options)
    return DatRecording(path, height, width, data_offset, int(version))


def _of_version_2(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return words of version 1 (after the time x in 9 bits, y in 8, p in 1) in the layout of version 2."""
    x, y, p = words >> 32 & 0x1FF, words >> 41 & 0xFF, words >> 49 & 1
    return (words & 0xFFFFFFFF | x << 32 | y << 46 | p << 60).astype(np.uint64)


def write_dat(
    path: Path | str, events: Events | Iterable[Events], height: int, width: int, event_type: int = _CD_TYPES[0]
) -> None:
    """Write events as a DAT file. The file only appears when it is complete.

    Args:
        path: The file to write.
        events: The events, as a whole or in blocks.
        height: Height of the sensor, pixels.
        width: Width of the sensor, pixels.
        event_type: 0x00, as in Gen1, or 0x0C, as newer software writes the same events.

    Raises:
        UserError: Times do not fit a 32-bit clock that starts at 0, or coordinates lie outside the sensor.
    """
    header = f"% Data file containing Event2D events.\n% Version 2\n% Height {height}\n% Width {width}\n"
    with atomic_file(path) as staged, open(staged, "wb") as file:
        file.write(header.encode() + bytes((event_type, DatRecording.unit_bytes)))
        for block in (events,) if isinstance(events, Events) else events:
            file.write(_to_words(block, height, width).tobytes())


def _to_words(events: Events, height: int, width: int) -> npt.NDArray[np.void]:
    if not len(events):
        return np.empty(0, _WORD)
    if events.t[0] < 0 or events.t[-1] >= _CLOCK_US:
        found = f"DAT holds times from 0 to 2^32 us, got {events.t[0]} to {events.t[-1]}"
        raise UserError("file.cannot_hold", found=found, advice="subtract the first")
    check_inside(events, height, width)
    words = np.empty(len(events), _WORD)
    words["t"] = events.t
    words["xyp"] = events.x | events.y.astype(np.uint32) << 14 | events.p.astype(np.uint32) << 28
    return words


@jit
def _decode_words(words, num_words, state, height, width, t, x, y, p):  # type: ignore[no-untyped-def]
    """Decode the first `num_words` u64 of `words` into t, x, y, p (each as long). Return the number of events kept.

    The words after them are only looked at, to see whether times fall back. The loop detects faults without a branch,
    so that it compiles to vector instructions. A block with a fault or a long gap goes through the gate event by event.
    """
    num_kept = 0
    for start in range(0, num_words, _BLOCK):
        block = words[start : min(start + _BLOCK, num_words)]
        size = len(block)
        # Every word is taken apart; faults are only noted.
        latest, wrapped, stop = state[LATEST_US], state[WRAPPED_US], num_kept + size
        times, columns, rows, polarities = t[num_kept:stop], x[num_kept:stop], y[num_kept:stop], p[num_kept:stop]
        largest_column = largest_row = np.uint16(0)
        step, before = np.uint64(0), np.int64(block[0] & np.uint64(0xFFFFFFFF))
        for i in range(size):
            word = block[i]
            time = np.int64(word & np.uint64(0xFFFFFFFF))
            times[i] = time + wrapped
            column = np.uint16((word >> np.uint64(32)) & np.uint64(0x3FFF))
            row = np.uint16((word >> np.uint64(46)) & np.uint64(0x3FFF))
            columns[i], rows[i] = column, row
            polarities[i] = np.uint8((word >> np.uint64(60)) != np.uint64(0))
            largest_column, largest_row = max(largest_column, column), max(largest_row, row)
            step, before = max(step, np.uint64(time - before)), time  # a step back is a very long one
        # A sound block is written already, any other goes through the gate.
        has_fault = step > np.uint64(AHEAD_US) or largest_column >= width or largest_row >= height
        has_fault |= times[0] < latest or (latest != NEVER_US and times[0] - latest > AHEAD_US)
        if has_fault:
            raw_t = (words[start : start + size + MOST_STRAYS] & np.uint64(0xFFFFFFFF)).astype(np.int64)
            raw_x, raw_y, raw_p = columns.copy(), rows.copy(), polarities.copy()
            num_kept = keep_block(raw_t, raw_x, raw_y, raw_p, state, height, width, _CLOCK, t, x, y, p, num_kept)
        else:
            state[LATEST_US] = times[size - 1]
            num_kept += size
    state[POSITION] += num_words
    return num_kept
