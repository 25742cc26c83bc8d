"""Prophesee RAW files in EVT2 and EVT2.1: a text header, then words that hold events or a time.

The upper four bits of a word are its type. Time has 34 bits and wraps every 4 h 46 min: time words, sent every 64 us,
carry the upper 28 bits, and events carry the lower six. A word of EVT2 has 32 bits and one event. A word of EVT2.1 has
64 bits and up to 32 pixels of a row: its lower half is a mask, in which bit i is the pixel at x + i. Early cameras
wrote the upper half first ("legacy"). Source: OpenEB 0499c95, hal/cpp/include/metavision/hal/decoders/evt2 and evt21.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rvtssm.readers.byte_recording import TIME_HIGH, VECTOR, RawRecording, is_glitch, keep_vector, num_wraps, put_vector
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
from rvtssm.readers.header import read_text_header
from rvtssm.readers.recording import MAX_EVENTS_PER_UNIT, Bytes
from rvtssm.system.jit import jit

_LAST_EVENT = 1  # word types 0 (darker) and 1 (brighter) are events; others are triggers etc.
_HIGH_BITS = 28
_LOW_BITS = 6
_MOST_STEPS = AHEAD_US >> _LOW_BITS  # of the upper bits; more is a jump of the clock
_LATE = 1 << 14  # a late event of at most so many time words, 1 s, may be from before a wrap
_LEAST_MASKS = 2048  # the fewest words of EVT2.1 read at once, because most words hold few events

# slots of the state: upper 28 bits of time (-1: not seen yet), microseconds added by wraps, the time to which the lower
# bits are added, and (only in EVT2) whether the word before is all zeros
_HIGH, _WRAPPED, _BASE, _AFTER_ZERO = range(NUM_COMMON, NUM_COMMON + 4)


class Evt2Recording(RawRecording):
    """A Prophesee RAW file in EVT2."""

    format = "evt2"
    unit_bytes = 4
    own_state = (-1, 0, 0, 0)
    time_dtype = "<u4"
    time_bits = _HIGH_BITS
    time_step_us = 1 << _LOW_BITS

    @staticmethod
    def decode_units(units: Bytes, num_units: int, state: State, size_hw: tuple[int, int], buffer: EventBuffer) -> int:
        """Decode whole words. See `RawRecording.decode_units`."""
        words = units.view("<u4")
        num_words = min(num_units, len(buffer.t))
        return int(_decode_words(words, num_words, state, *size_hw, buffer.t, buffer.x, buffer.y, buffer.p))


@jit
def _decode_words(words, num_words, state, height, width, t, x, y, p):  # type: ignore[no-untyped-def]
    """Decode the first u32 in `words` into t, x, y, p (each at least as long). Return the number of events kept.

    The loop over sound words calls nothing, which keeps its values in registers.
    """
    position = np.uint64(0)
    num_kept = np.uint64(0)
    stop = np.uint64(num_words)
    while position < stop:
        position, num_kept = _decode_sound(words, position, stop, state, height, width, t, x, y, p, num_kept)
        if position < stop:
            num_kept = _decode_word(words, np.int64(position), state, height, width, t, x, y, p, num_kept)
            position += np.uint64(1)
    state[POSITION] += num_words
    if num_words:
        state[_AFTER_ZERO] = words[num_words - 1] == 0
    return np.int64(num_kept)


@jit
def _decode_sound(words, position, stop, state, height, width, t, x, y, p, num_kept):  # type: ignore[no-untyped-def]
    """Decode up to a word that needs a check. Return its position and the number of events kept so far."""
    latest = state[LATEST_US]
    high = state[_HIGH]
    wrapped = state[_WRAPPED]
    base = state[_BASE]
    if high < 0:
        return position, num_kept
    # Until the first word that needs a closer look.
    largest_column = np.uint32(width - 1)
    largest_row = np.uint32(height - 1)
    while position < stop:  # the counts are unsigned, so that no index is tested for being negative
        word = words[position]
        kind = word >> np.uint32(28)
        if kind <= np.uint32(_LAST_EVENT):
            time = base + np.int64((word >> np.uint32(22)) & np.uint32(0x3F))
            column = (word >> np.uint32(11)) & np.uint32(0x7FF)
            row = word & np.uint32(0x7FF)
            if (column > largest_column) | (row > largest_row) | (time < latest) | (word == 0):
                break
            latest = time
            t[num_kept] = time
            x[num_kept] = np.uint16(column)
            y[num_kept] = np.uint16(row)
            p[num_kept] = np.uint8(kind)
            num_kept += np.uint64(1)
        elif kind == np.uint32(TIME_HIGH):
            value = np.int64(word & np.uint32(0xFFFFFFF))
            if np.uint64(value - high) > np.uint64(_MOST_STEPS):  # a step back is a very long one
                break
            high = value
            base = wrapped + (high << _LOW_BITS)
        position += np.uint64(1)
    state[LATEST_US] = latest
    state[_HIGH] = high
    state[_BASE] = base
    return position, num_kept


@jit
def _decode_word(words, position, state, height, width, t, x, y, p, num_kept):  # type: ignore[no-untyped-def]
    """Decode one word of an event or of the upper time with every repair. Return the number of events kept so far."""
    word = np.int64(words[position])
    latest = state[LATEST_US]
    high = state[_HIGH]
    # Words of zeros were never written; a single one is an event, since a pixel does not give two in a row.
    if word == 0:
        is_after = words[position - 1] == 0 if position else state[_AFTER_ZERO] != 0
        if is_after or (position + 1 < len(words) and words[position + 1] == 0):
            state[EMPTY] += 1
            return num_kept
    # The upper time: a glitch, a wrap, or a step ahead.
    if word >> 28 == TIME_HIGH:
        value = word & 0xFFFFFFF
        if is_glitch(words, position + 1, _HIGH_BITS, high, value, _MOST_STEPS, latest):
            state[_BASE] = latest - JUMP_US - (1 << _LOW_BITS)
            return num_kept
        state[_WRAPPED] += num_wraps(high, value, 1 << _HIGH_BITS, _LATE, state[_WRAPPED]) << (_HIGH_BITS + _LOW_BITS)
        state[_HIGH], state[_BASE] = value, state[_WRAPPED] + (value << _LOW_BITS)
        return num_kept
    if high < 0:
        return num_kept
    # An event: the rule of all formats says whether it is kept.
    time = state[_BASE] + ((word >> 22) & 0x3F)
    column = (word >> 11) & 0x7FF
    row = word & 0x7FF
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


class Evt21Recording(RawRecording):
    """A Prophesee RAW file in EVT2.1.

    Args:
        path: The file.
        height: Height of the sensor, pixels.
        width: Width of the sensor, pixels.
        data_offset: Byte of the first word.
    """

    format = "evt21"
    unit_bytes = 8
    smallest_block = MAX_EVENTS_PER_UNIT
    own_state = (-1, 0, 0)
    time_dtype = "<u4"
    time_bits = _HIGH_BITS
    time_step_us = 1 << _LOW_BITS

    def __init__(self, path: Path, height: int, width: int, data_offset: int) -> None:
        super().__init__(path, height, width, data_offset)
        self.has_swapped_halves = read_text_header(path).has_swapped_halves

    def _time_words(self, words: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return words[int(not self.has_swapped_halves) :: 2]  # the upper halves, which have the layout of EVT2

    def _decode(self, state: State, buffer: EventBuffer) -> int:
        units, num_units = self._read_units(state, max(_LEAST_MASKS, len(buffer.t) // 4))
        if self.has_swapped_halves:
            units = units.view("<u4").reshape(-1, 2)[:, ::-1].flatten().view(np.uint8)
        return self.decode_units(units, num_units, state, (self.height, self.width), buffer)

    @staticmethod
    def decode_units(units: Bytes, num_units: int, state: State, size_hw: tuple[int, int], buffer: EventBuffer) -> int:
        """Decode whole words. See `RawRecording.decode_units`."""
        halves = units.view("<u4").reshape(-1, 2)
        return int(_decode_masks(halves, num_units, state, *size_hw, buffer.t, buffer.x, buffer.y, buffer.p))


@jit
def _decode_masks(halves, num_words, state, height, width, t, x, y, p):  # type: ignore[no-untyped-def]
    """Decode the first of `halves` (N, 2) u32 until they end or t, x, y, p might overflow. Return the number kept.

    The second column of `halves` has type, time and pixel; the first one holds the masks.
    """
    latest = state[LATEST_US]
    high = state[_HIGH]
    wrapped = state[_WRAPPED]
    base = state[_BASE]
    last_start = len(t) - MAX_EVENTS_PER_UNIT
    num_kept = np.uint64(0)
    position = 0
    while position < num_words and np.int64(num_kept) <= last_start:
        # One word: events of a row, or the upper time.
        head = np.int64(halves[position, 1])
        mask = np.int64(halves[position, 0])
        position += 1
        kind = head >> 28
        if kind <= _LAST_EVENT:
            if high < 0:
                continue
            time = base + ((head >> 22) & 0x3F)
            column = (head >> 11) & 0x7FF
            row = head & 0x7FF
            # All events of the mask are sound, or each is looked at.
            is_sound = time >= latest and row < height and column + 3 * VECTOR <= width
            while mask:
                part = mask & (1 << VECTOR) - 1
                if is_sound:
                    num_kept = put_vector(part, column, row, kind, time, t, x, y, p, num_kept)
                    latest = time
                else:
                    num_kept, latest = keep_vector(
                        part, column, row, kind, time, latest, state, height, width, t, x, y, p, num_kept
                    )
                mask >>= VECTOR
                column += VECTOR
        elif kind == TIME_HIGH:
            value = head & 0xFFFFFFF
            if is_glitch(halves[:, 1], position, _HIGH_BITS, high, value, _MOST_STEPS, latest):
                base = latest - JUMP_US - (1 << 6)
                continue
            wrapped += num_wraps(high, value, 1 << _HIGH_BITS, _LATE, wrapped) << (_HIGH_BITS + 6)
            high = value
            base = wrapped + (high << 6)
    state[POSITION] += position
    state[LATEST_US] = latest
    state[_HIGH] = high
    state[_WRAPPED] = wrapped
    state[_BASE] = base
    return np.int64(num_kept)
