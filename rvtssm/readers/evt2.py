"""Prophesee RAW files in EVT2: a text header, then 32-bit words, each of which holds one event or a time.

The upper four bits of a word are its type. Time has 34 bits and wraps every 4 h 46 min: time words, sent every 64 us,
carry the upper 28 bits, and events carry the lower six. Source: OpenEB 0499c95,
hal/cpp/include/metavision/hal/decoders/evt2.
"""

import numpy as np

from rvtssm.readers.byte_recording import ByteRecording
from rvtssm.readers.gate import BACKWARD, LATEST_US, NUM_COMMON, POSITION, EventBuffer, State, fault_of
from rvtssm.readers.recording import Bytes
from rvtssm.readers.words import num_wraps
from rvtssm.system.jit import jit

_LAST_EVENT, _TIME_HIGH = 1, 8  # word types 0 (darker) and 1 (brighter) are events; others are triggers etc.
_HIGH_BITS = 28
_LATE = 1 << 14  # a late event of at most so many time words, 1 s, may be from before a wrap

_HIGH, _WRAPPED = NUM_COMMON, NUM_COMMON + 1  # upper 28 bits of time (-1: not seen yet), microseconds added by wraps


class Evt2Recording(ByteRecording):
    """A Prophesee RAW file in EVT2."""

    format = "evt2"
    unit_bytes = 4
    own_state = (-1, 0)

    def _decode(self, state: State, buffer: EventBuffer) -> int:
        return self.decode_units(self._read_units(state, len(buffer.t)), state, (self.height, self.width), buffer)

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
        words = units.view("<u4")[: len(buffer.t)]
        kept: int = _decode_words(words, state, *size_hw, buffer.t, buffer.x, buffer.y, buffer.p)
        return kept


@jit
def _decode_words(words, state, height, width, t, x, y, p):  # type: ignore[no-untyped-def]
    """Decode the u32 in `words` into t, x, y, p (each at least as long); return the number of events kept."""
    latest, high, wrapped = state[LATEST_US], state[_HIGH], state[_WRAPPED]
    base = wrapped + (high << 6)
    # One branch, almost never taken, detects every fault of an event. The code inside finds out which fault it is.
    earliest = latest if high >= 0 else np.int64(np.iinfo(np.int64).max)
    largest_column, largest_row = np.uint32(width - 1), np.uint32(height - 1)
    kept = np.uint64(0)  # unsigned, so that no index is tested for being negative
    for i in range(np.uint64(len(words))):
        word = words[i]
        kind = word >> np.uint32(28)
        if kind <= np.uint32(_LAST_EVENT):
            time = base + np.int64((word >> np.uint32(22)) & np.uint32(0x3F))
            column, row = (word >> np.uint32(11)) & np.uint32(0x7FF), word & np.uint32(0x7FF)
            if (column > largest_column) | (row > largest_row) | (time < earliest):
                if high < 0:
                    continue
                fault = fault_of(time, np.int64(column), np.int64(row), latest, height, width)
                state[fault] += 1
                if fault != BACKWARD:
                    continue
                time = latest
            earliest = latest = time
            t[kept] = time
            x[kept] = np.uint16(column)
            y[kept] = np.uint16(row)
            p[kept] = np.uint8(kind)
            kept += np.uint64(1)
        elif kind == np.uint32(_TIME_HIGH):
            value = np.int64(word & np.uint32(0xFFFFFFF))
            wrapped += num_wraps(high, value, 1 << _HIGH_BITS, _LATE, wrapped) << (_HIGH_BITS + 6)
            high = value
            earliest = latest
            base = wrapped + (high << 6)
    state[POSITION] += len(words)
    state[LATEST_US], state[_HIGH], state[_WRAPPED] = latest, high, wrapped
    return kept
