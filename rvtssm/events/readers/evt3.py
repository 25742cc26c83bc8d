"""Prophesee RAW files in EVT3: a text header, then 16-bit words that set time, row and column or emit events.

The type is in the upper four bits. Time has 24 bits in two words and wraps every 16.777216 s; a whole line of
pixels can share one word (vectors). Source: OpenEB 0499c95, hal/cpp/include/metavision/hal/decoders/evt3.
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

# word types; the rest (triggers, IMU, OTHERS and CONTINUED) carries no events
_ADDR_Y, _OTHER_Y, _ADDR_X, _VECT_BASE_X, _VECT_12, _VECT_8, _TIME_LOW, _TIME_HIGH = 0, 1, 2, 3, 4, 5, 6, 8

_MIN_WORDS = 8192  # read at once, whatever the buffer: sparse recordings have several words per event

# decoder state: upper and lower 12 bits of time (-1: not seen yet), time added by wraps, row, and the vector's
# next column and polarity
_HIGH, _LOW, _WRAPPED, _ROW, _COLUMN, _POLARITY = range(NUM_COMMON, NUM_COMMON + 6)


class Evt3Recording(ByteRecording):
    """An EVT3 file whose first word lies at byte `data_offset`."""

    format = "evt3"
    unit_bytes = 2

    def _start(self) -> State:
        state = new_state(6)
        state[[_HIGH, _ROW]] = -1
        return state

    def _decode(self, state: State, buffer: EventBuffer) -> int:
        words = self._read_units(state, max(_MIN_WORDS, len(buffer.t))).view("<u2")
        kept: int = _decode_words(words, state, self.height, self.width, buffer.t, buffer.x, buffer.y, buffer.p)
        return kept


def open_evt3(path: Path, height: int | None, width: int | None) -> Evt3Recording:
    """Open an EVT3 file; a header without a size falls back on the caller, then on the camera it names."""
    header = read_text_header(path)
    height, width = sensor_size(path, header.size_hw, (height, width), header.camera_size_hw)
    return Evt3Recording(path, height, width, header.num_bytes)


@jit
def _decode_words(words, state, height, width, t, x, y, p):  # type: ignore[no-untyped-def]
    """Decode words until they end or t, x, y, p might overflow; advance the state, return the number of events."""
    latest, high, low, wrapped = state[LATEST_US], state[_HIGH], state[_LOW], state[_WRAPPED]
    row, column, polarity = state[_ROW], state[_COLUMN], state[_POLARITY]
    time = wrapped + (high << 12) + low
    is_sound = high >= 0 and 0 <= row < height and time >= latest  # events can be written without a further look
    last_start = len(t) - MAX_EVENTS_PER_UNIT
    kept = position = np.uint64(0)
    num_words, one = np.uint64(len(words)), np.uint64(1)
    while position < num_words and np.int64(kept) <= last_start:
        kind = words[position] >> 12
        payload = np.int64(words[position] & 0xFFF)
        position += one
        if kind in (_VECT_12, _VECT_8):
            length = 12 if kind == _VECT_12 else 8
            mask = payload & ((1 << length) - 1)
            if is_sound and column + VECTOR <= width:
                kept = put_vector(mask, column, row, polarity, time, t, x, y, p, kept)
                latest = time if mask else latest
            elif high >= 0 and row >= 0:
                kept, latest = keep_pixels(
                    mask, column, row, polarity, time, latest, state, height, width, t, x, y, p, kept
                )
            column += length
        elif kind == _ADDR_X:
            first = payload & 0x7FF
            if is_sound and first < width:
                t[kept] = latest = time
                x[kept] = first
                y[kept] = row
                p[kept] = payload >> 11
                kept += one
            elif high >= 0 and row >= 0:
                kept, latest = keep_pixels(
                    1, first, row, payload >> 11, time, latest, state, height, width, t, x, y, p, kept
                )
        elif kind == _VECT_BASE_X:
            column, polarity = payload & 0x7FF, payload >> 11
        elif kind == _ADDR_Y:
            row = payload & 0x7FF
            is_sound = high >= 0 and row < height and time >= latest
        elif kind == _TIME_LOW:
            low = payload
            time = wrapped + (high << 12) + low
            is_sound = high >= 0 and 0 <= row < height and time >= latest
        elif kind == _TIME_HIGH:
            if payload != high:  # sent again and again: only a new value clears the lower bits
                if high - payload >= 2048:  # a smaller step back is a glitch, not a wrap
                    wrapped += 1 << 24
                high, low = payload, np.int64(0)
                time = wrapped + (high << 12)
                is_sound = 0 <= row < height and time >= latest
        elif kind == _OTHER_Y:  # what follows until the next row is not change detection
            row = np.int64(-1)
            is_sound = False
    state[POSITION] += np.int64(position)
    state[LATEST_US], state[_HIGH], state[_LOW], state[_WRAPPED] = latest, high, low, wrapped
    state[_ROW], state[_COLUMN], state[_POLARITY] = row, column, polarity
    return np.int64(kept)
