"""Prophesee RAW files in EVT2.1: as EVT2, in 64-bit words of which one holds up to 32 pixels of a row.

The lower half of a word is a mask: bit i stands for the pixel i to the right of x. Early cameras wrote the upper half
first ("legacy"). Source: OpenEB 0499c95, hal/cpp/include/metavision/hal/decoders/evt21.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rvtssm.events.jit import jit
from rvtssm.events.readers.header import read_text_header, sensor_size
from rvtssm.events.readers.recording import (
    LATEST_US,
    MAX_EVENTS_PER_UNIT,
    NUM_COMMON,
    POSITION,
    ByteRecording,
    EventBuffer,
    State,
    new_state,
)
from rvtssm.events.readers.vectors import VECTOR, keep_pixels, put_vector

_LAST_EVENT, _TIME_HIGH = 1, 8  # word types, as in EVT2
_HIGH_BITS = 28
_MIN_WORDS = 2048  # read at once, whatever the buffer: most words hold few events

_HIGH, _WRAPPED = NUM_COMMON, NUM_COMMON + 1  # upper 28 bits of time (-1: not seen yet), time added by wraps


class Evt21Recording(ByteRecording):
    """An EVT2.1 file whose first word lies at byte `data_offset`."""

    format = "evt21"
    unit_bytes = 8

    def __init__(self, path: Path, height: int, width: int, data_offset: int, has_swapped_halves: bool) -> None:
        super().__init__(path, height, width, data_offset)
        self.has_swapped_halves = has_swapped_halves

    def _start(self) -> State:
        state = new_state(2)
        state[_HIGH] = -1
        return state

    def _decode(self, state: State, buffer: EventBuffer) -> int:
        halves = self._read_units(state, max(_MIN_WORDS, len(buffer.t) // 4)).view("<u4").reshape(-1, 2)
        heads = int(not self.has_swapped_halves)
        kept: int = _decode_words(halves, heads, state, self.height, self.width, buffer.t, buffer.x, buffer.y, buffer.p)
        return kept


def open_evt21(path: Path, height: int | None, width: int | None) -> Evt21Recording:
    """Open an EVT2.1 file; a header without a size falls back on the caller, then on the camera it names."""
    header = read_text_header(path)
    height, width = sensor_size(path, header.size_hw, (height, width), header.camera_size_hw)
    return Evt21Recording(path, height, width, header.num_bytes, header.has_swapped_halves)


@jit
def _decode_words(halves, heads, state, height, width, t, x, y, p):  # type: ignore[no-untyped-def]
    """Decode (N, 2) u32 until they end or t, x, y, p might overflow; return the number of events kept.

    `heads` is the column of the halves with type, time and place; the other one holds the masks.
    """
    latest, high, wrapped = state[LATEST_US], state[_HIGH], state[_WRAPPED]
    base = wrapped + (high << 6)
    last_start = len(t) - MAX_EVENTS_PER_UNIT
    kept = np.uint64(0)
    position = 0
    while position < len(halves) and np.int64(kept) <= last_start:
        head, mask = np.int64(halves[position, heads]), np.int64(halves[position, 1 - heads])
        position += 1
        kind = head >> 28
        if kind <= _LAST_EVENT:
            if high < 0:
                continue
            time = base + ((head >> 22) & 0x3F)
            column, row = (head >> 11) & 0x7FF, head & 0x7FF
            if time >= latest and row < height and column + 3 * VECTOR <= width:
                latest = time if mask else latest
                while mask:
                    kept = put_vector(mask & (1 << VECTOR) - 1, column, row, kind, time, t, x, y, p, kept)
                    mask >>= VECTOR
                    column += VECTOR
            else:
                kept, latest = keep_pixels(
                    mask, column, row, kind, time, latest, state, height, width, t, x, y, p, kept
                )
        elif kind == _TIME_HIGH:
            value = head & 0xFFFFFFF
            if high - value > 1 << (_HIGH_BITS - 1):  # a smaller step back is a glitch, not a wrap
                wrapped += 1 << (_HIGH_BITS + 6)
            high = value
            base = wrapped + (high << 6)
    state[POSITION] += position
    state[LATEST_US], state[_HIGH], state[_WRAPPED] = latest, high, wrapped
    return np.int64(kept)
