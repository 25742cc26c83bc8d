"""Prophesee RAW files in EVT3: a text header, then 16-bit words that set time, row and column or emit events.

The upper four bits of a word are its type. Time has 24 bits, split over two words, and wraps every 16.777216 s. A
vector word holds up to 12 pixels of a row. Source: OpenEB 0499c95, hal/cpp/include/metavision/hal/decoders/evt3.
"""

import numpy as np

from rvtssm.readers.byte_recording import ByteRecording
from rvtssm.readers.gate import LATEST_US, NUM_COMMON, POSITION, EventBuffer, State
from rvtssm.readers.recording import MAX_EVENTS_PER_UNIT, Bytes
from rvtssm.readers.words import VECTOR, keep_pixels, num_wraps, put_vector
from rvtssm.system.jit import jit

# word types; all others (triggers, IMU, OTHERS and CONTINUED) carry no events
_ADDR_Y, _OTHER_Y, _ADDR_X, _VECT_BASE_X, _VECT_12, _VECT_8, _TIME_LOW, _TIME_HIGH = 0, 1, 2, 3, 4, 5, 6, 8

_GLITCH = 16  # a glitch of the upper time goes back by fewer steps, 66 ms
_MIN_WORDS = 8192  # the fewest words read at once, because sparse recordings have several words per event

# slots of the state: upper and lower 12 bits of time (-1: not seen yet), microseconds added by wraps, row, and the
# next column and the polarity of vectors
_HIGH, _LOW, _WRAPPED, _ROW, _COLUMN, _POLARITY = range(NUM_COMMON, NUM_COMMON + 6)


class Evt3Recording(ByteRecording):
    """A Prophesee RAW file in EVT3."""

    format = "evt3"
    unit_bytes = 2
    smallest_block = MAX_EVENTS_PER_UNIT
    own_state = (-1, 0, 0, -1, 0, 0)

    def _decode(self, state: State, buffer: EventBuffer) -> int:
        units = self._read_units(state, max(_MIN_WORDS, len(buffer.t)))
        return self.decode_units(units, state, (self.height, self.width), buffer)

    @staticmethod
    def decode_units(units: Bytes, state: State, size_hw: tuple[int, int], buffer: EventBuffer) -> int:
        """Decode whole words until they end or the buffer is full.

        Args:
            units: Bytes of the words.
            state: Decoder state, advanced in place.
            size_hw: Height and width of the sensor, pixels.
            buffer: Output.

        Returns:
            The number of events kept.
        """
        words = units.view("<u2")
        kept: int = _decode_words(words, state, *size_hw, buffer.t, buffer.x, buffer.y, buffer.p)
        return kept


@jit
def _decode_words(words, state, height, width, t, x, y, p):  # type: ignore[no-untyped-def]
    """Decode words until they end or t, x, y, p might overflow. Return the number of events kept."""
    latest, high, low, wrapped = state[LATEST_US], state[_HIGH], state[_LOW], state[_WRAPPED]
    row, column, polarity = state[_ROW], state[_COLUMN], state[_POLARITY]
    time = wrapped + (high << 12) + low
    is_sound = high >= 0 and 0 <= row < height and time >= latest  # if true, events need no further check
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
            if payload != high:  # the camera repeats this word; only a new value clears the lower bits
                wrapped += num_wraps(high, payload, 1 << 12, _GLITCH, wrapped) << 24
                high, low = payload, np.int64(0)
                time = wrapped + (high << 12)
                is_sound = 0 <= row < height and time >= latest
        elif kind == _OTHER_Y:  # events up to the next row come from another kind of pixel
            row = np.int64(-1)
            is_sound = False
    state[POSITION] += np.int64(position)
    state[LATEST_US], state[_HIGH], state[_LOW], state[_WRAPPED] = latest, high, low, wrapped
    state[_ROW], state[_COLUMN], state[_POLARITY] = row, column, polarity
    return np.int64(kept)
