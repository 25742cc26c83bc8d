"""Prophesee RAW files in EVT2: a text header, then 32-bit words, each of which holds one event or a time.

The upper four bits of a word are its type. Time has 34 bits and wraps every 4 h 46 min: time words, sent every 64 us,
carry the upper 28 bits, and events carry the lower six. Source: OpenEB 0499c95,
hal/cpp/include/metavision/hal/decoders/evt2.
"""

import numpy as np

from rvtssm.readers.byte_recording import ByteRecording
from rvtssm.readers.gate import (
    AHEAD_US,
    BACKWARD,
    EMPTY,
    JUMP_US,
    LATEST_US,
    NUM_COMMON,
    POSITION,
    EventBuffer,
    State,
    fault_of,
)
from rvtssm.readers.recording import Bytes
from rvtssm.readers.words import is_glitch, num_wraps
from rvtssm.system.jit import jit

_LAST_EVENT, _TIME_HIGH = 1, 8  # word types 0 (darker) and 1 (brighter) are events; others are triggers etc.
_HIGH_BITS, _LOW_BITS = 28, 6
MOST_STEPS = AHEAD_US >> _LOW_BITS  # of the upper bits; more is a jump of the clock
_LATE = 1 << 14  # a late event of at most so many time words, 1 s, may be from before a wrap

# slots of the state: upper 28 bits of time (-1: not seen yet), microseconds added by wraps, and the time to which the
# lower bits are added
_HIGH, _WRAPPED, _BASE = range(NUM_COMMON, NUM_COMMON + 3)


class Evt2Recording(ByteRecording):
    """A Prophesee RAW file in EVT2."""

    format = "evt2"
    unit_bytes = 4
    own_state = (-1, 0, 0)

    def _decode(self, state: State, buffer: EventBuffer) -> int:
        return self.decode_units(*self._read_units(state, len(buffer.t)), state, (self.height, self.width), buffer)

    @staticmethod
    def decode_units(units: Bytes, num_units: int, state: State, size_hw: tuple[int, int], buffer: EventBuffer) -> int:
        """Decode whole words until they end or the buffer is full.

        Args:
            units: Bytes of the words, and of words to look ahead.
            num_units: Number of words to decode.
            state: Decoder state, advanced in place.
            size_hw: Height and width of the sensor, pixels.
            buffer: Output.

        Returns:
            The number of events kept.
        """
        words, num_words = units.view("<u4"), min(num_units, len(buffer.t))
        num_kept: int = _decode_words(words, num_words, state, *size_hw, buffer.t, buffer.x, buffer.y, buffer.p)
        return num_kept


@jit
def _decode_words(words, num_words, state, height, width, t, x, y, p):  # type: ignore[no-untyped-def]
    """Decode the first u32 in `words` into t, x, y, p (each at least as long). Return the number of events kept.

    The loop over sound words calls nothing, which keeps its values in registers.
    """
    num_written = np.int64(num_words)
    while num_written > 0 and words[num_written - 1] == 0:
        num_written -= 1
    if num_words - num_written == 1 and not (num_words < len(words) and words[num_words] == 0):
        num_written += 1  # a single word of zeros is an event; a pixel does not give two in a row
    state[EMPTY] += num_words - num_written
    position, num_kept, stop = np.uint64(0), np.uint64(0), np.uint64(num_written)
    while position < stop:
        position, num_kept = _decode_sound(words, position, stop, state, height, width, t, x, y, p, num_kept)
        if position < stop:
            num_kept = _decode_word(words, np.int64(position), state, height, width, t, x, y, p, num_kept)
            position += np.uint64(1)
    state[POSITION] += num_words
    return np.int64(num_kept)


@jit
def _decode_sound(words, position, stop, state, height, width, t, x, y, p, num_kept):  # type: ignore[no-untyped-def]
    """Decode up to a word that needs a check. Return its position and the number of events kept so far."""
    latest, high, wrapped, base = state[LATEST_US], state[_HIGH], state[_WRAPPED], state[_BASE]
    if high < 0:
        return position, num_kept
    largest_column, largest_row = np.uint32(width - 1), np.uint32(height - 1)
    while position < stop:  # the counts are unsigned, so that no index is tested for being negative
        word = words[position]
        kind = word >> np.uint32(28)
        if kind <= np.uint32(_LAST_EVENT):
            time = base + np.int64((word >> np.uint32(22)) & np.uint32(0x3F))
            column, row = (word >> np.uint32(11)) & np.uint32(0x7FF), word & np.uint32(0x7FF)
            if (column > largest_column) | (row > largest_row) | (time < latest):
                break
            latest = time
            t[num_kept] = time
            x[num_kept] = np.uint16(column)
            y[num_kept] = np.uint16(row)
            p[num_kept] = np.uint8(kind)
            num_kept += np.uint64(1)
        elif kind == np.uint32(_TIME_HIGH):
            value = np.int64(word & np.uint32(0xFFFFFFF))
            if np.uint64(value - high) > np.uint64(MOST_STEPS):  # a step back is a very long one
                break
            high = value
            base = wrapped + (high << _LOW_BITS)
        position += np.uint64(1)
    state[LATEST_US], state[_HIGH], state[_BASE] = latest, high, base
    return position, num_kept


@jit
def _decode_word(words, position, state, height, width, t, x, y, p, num_kept):  # type: ignore[no-untyped-def]
    """Decode one word of an event or of the upper time with every repair. Return the number of events kept so far."""
    word, latest, high = np.int64(words[position]), state[LATEST_US], state[_HIGH]
    if word >> 28 == _TIME_HIGH:
        value = word & 0xFFFFFFF
        if is_glitch(words, position + 1, _HIGH_BITS, high, value, MOST_STEPS, latest):
            state[_BASE] = latest - JUMP_US - (1 << _LOW_BITS)
            return num_kept
        state[_WRAPPED] += num_wraps(high, value, 1 << _HIGH_BITS, _LATE, state[_WRAPPED]) << (_HIGH_BITS + _LOW_BITS)
        state[_HIGH], state[_BASE] = value, state[_WRAPPED] + (value << _LOW_BITS)
        return num_kept
    if high < 0:
        return num_kept
    time, column, row = state[_BASE] + ((word >> 22) & 0x3F), (word >> 11) & 0x7FF, word & 0x7FF
    fault = fault_of(time, column, row, latest, height, width)
    if fault:
        state[fault] += 1
    if fault == 0 or fault == BACKWARD:
        state[LATEST_US] = t[num_kept] = max(time, latest)
        x[num_kept] = column
        y[num_kept] = row
        p[num_kept] = word >> 28
        num_kept += np.uint64(1)
    return num_kept
