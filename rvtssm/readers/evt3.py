"""Prophesee RAW files in EVT3: a text header, then 16-bit words that set time, row and column or emit events.

The upper four bits of a word are its type. Time has 24 bits, split over two words, and wraps every 16.777216 s. A
vector word holds up to 12 pixels of a row. Source: OpenEB 0499c95, hal/cpp/include/metavision/hal/decoders/evt3.
"""

import numpy as np

from rvtssm.readers.byte_recording import TIME_HIGH, VECTOR, RawRecording, is_glitch, keep_vector, num_wraps, put_vector
from rvtssm.readers.gate import AHEAD_US, JUMP_US, LATEST_US, NUM_COMMON, POSITION, EventBuffer, State
from rvtssm.readers.recording import MAX_EVENTS_PER_UNIT, Bytes
from rvtssm.system.jit import jit

# word types; all others (triggers, IMU, OTHERS and CONTINUED) carry no events
_ADDR_Y = 0
_OTHER_Y = 1
_ADDR_X = 2
_VECT_BASE_X = 3
_VECT_12 = 4
_VECT_8 = 5
_TIME_LOW = 6

_MOST_STEPS = AHEAD_US >> 12  # of the upper time; more is a jump of the clock
_GLITCH = 16  # a glitch of the upper time goes back by fewer steps, 66 ms

# slots of the state: upper and lower 12 bits of time (-1: not seen yet), microseconds added by wraps, row, the next
# column and the polarity of vectors, and the time to which the lower bits are added
_HIGH, _LOW, _WRAPPED, _ROW, _COLUMN, _POLARITY, _BASE = range(NUM_COMMON, NUM_COMMON + 7)


class Evt3Recording(RawRecording):
    """A Prophesee RAW file in EVT3."""

    format = "evt3"
    unit_bytes = 2
    smallest_block = MAX_EVENTS_PER_UNIT
    own_state = (-1, 0, 0, -1, 0, 0, 0)
    least_units = 8192  # because sparse recordings have several words per event
    time_dtype = "<u2"
    time_bits = 12
    time_step_us = 1 << 12
    steps_back = 1

    @staticmethod
    def decode_units(units: Bytes, num_units: int, state: State, size_hw: tuple[int, int], buffer: EventBuffer) -> int:
        """Decode whole words. See `RawRecording.decode_units`."""
        words = units.view("<u2")
        return int(_decode_words(words, num_units, state, *size_hw, buffer.t, buffer.x, buffer.y, buffer.p))


@jit
def _decode_words(words, num_words, state, height, width, t, x, y, p):  # type: ignore[no-untyped-def]
    """Decode the first words until they end or t, x, y, p might overflow. Return the number of events kept.

    The loop over sound words calls nothing, which keeps its values in registers.
    """
    position = np.uint64(0)
    num_kept = np.uint64(0)
    stop = np.uint64(num_words)
    last_start = np.int64(len(t) - MAX_EVENTS_PER_UNIT)
    while position < stop and np.int64(num_kept) <= last_start:
        position, num_kept = _decode_sound(
            words, position, stop, last_start, state, height, width, t, x, y, p, num_kept
        )
        if position < stop and np.int64(num_kept) <= last_start:
            num_kept = _decode_word(words, position, state, height, width, t, x, y, p, num_kept)
            position += np.uint64(1)
    state[POSITION] += np.int64(position)
    return np.int64(num_kept)


@jit
def _decode_sound(words, position, stop, last_start, state, height, width, t, x, y, p, num_kept):  # type: ignore[no-untyped-def]
    """Decode up to a word that needs a check. Return its position and the number of events kept so far."""
    latest = state[LATEST_US]
    high = state[_HIGH]
    low = state[_LOW]
    base = state[_BASE]
    row = state[_ROW]
    column = state[_COLUMN]
    polarity = state[_POLARITY]
    time = base + low
    known_high = high if base == state[_WRAPPED] + (high << 12) else np.int64(-1)  # repeated, unless after a glitch
    num_rows = np.uint64(height if high >= 0 else 0)  # an event of such a row that is not late needs no further check
    while position < stop and np.int64(num_kept) <= last_start:
        kind = words[position] >> 12
        payload = np.int64(words[position] & 0xFFF)
        if kind == _ADDR_X:
            first = payload & 0x7FF
            if np.uint64(row) < num_rows and time >= latest and first < width:
                t[num_kept] = latest = time
                x[num_kept] = first
                y[num_kept] = row
                p[num_kept] = payload >> 11
                num_kept += np.uint64(1)
            elif row >= 0:
                break
        elif kind == _ADDR_Y:
            row = payload & 0x7FF
        elif kind == _TIME_LOW:
            low = payload
            time = base + low
        elif kind in (_VECT_12, _VECT_8):
            if np.uint64(row) < num_rows and time >= latest and column + VECTOR <= width:
                mask = payload & (0xFFF if kind == _VECT_12 else 0xFF)
                num_kept = put_vector(mask, column, row, polarity, time, t, x, y, p, num_kept)
                latest = time if mask else latest
            elif row >= 0:
                break
            column += 12 if kind == _VECT_12 else 8
        elif kind == _VECT_BASE_X:
            column = payload & 0x7FF
            polarity = payload >> 11
        elif kind == TIME_HIGH and payload != known_high:
            break
        elif kind == _OTHER_Y:  # events up to the next row come from another kind of pixel
            row = np.int64(-1)
        position += np.uint64(1)
    state[LATEST_US] = latest
    state[_LOW] = low
    state[_ROW] = row
    state[_COLUMN] = column
    state[_POLARITY] = polarity
    return position, num_kept


@jit
def _decode_word(words, position, state, height, width, t, x, y, p, num_kept):  # type: ignore[no-untyped-def]
    """Decode one word of events or of the upper time with every repair. Return the number of events kept so far."""
    kind = words[position] >> 12
    payload = np.int64(words[position] & 0xFFF)
    latest = state[LATEST_US]
    high = state[_HIGH]
    row = state[_ROW]
    column = state[_COLUMN]
    if kind == TIME_HIGH:
        state[_LOW] = 0
        if is_glitch(words, np.int64(position) + 1, 12, high, payload, _MOST_STEPS, latest):
            state[_BASE] = latest - JUMP_US - (1 << 12)
            return num_kept
        state[_WRAPPED] += num_wraps(high, payload, 1 << 12, _GLITCH, state[_WRAPPED]) << 24
        state[_HIGH] = payload
        state[_BASE] = state[_WRAPPED] + (payload << 12)
        return num_kept
    # A single event is a mask of one pixel.
    mask = np.int64(1)
    polarity = payload >> 11
    if kind == _ADDR_X:
        column = payload & 0x7FF
    else:
        mask = payload & (0xFFF if kind == _VECT_12 else 0xFF)
        polarity = state[_POLARITY]
        state[_COLUMN] += 12 if kind == _VECT_12 else 8
    if high < 0:
        return num_kept
    # The rule of all formats says which of them are kept.
    time = state[_BASE] + state[_LOW]
    num_kept, state[LATEST_US] = keep_vector(
        mask, column, row, polarity, time, latest, state, height, width, t, x, y, p, num_kept
    )
    return num_kept
