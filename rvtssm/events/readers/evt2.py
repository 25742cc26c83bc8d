"""Prophesee RAW files in EVT2: a text header, then 32-bit words, one per event or per 64 us of time.

The type is in the upper four bits. Time has 34 bits, of which events carry the lower six, and wraps every 4 h 46 min.
Source: OpenEB 0499c95, hal/cpp/include/metavision/hal/decoders/evt2.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rvtssm.events.jit import jit
from rvtssm.events.readers.header import read_text_header, sensor_size
from rvtssm.events.readers.recording import (
    BACKWARD,
    LATEST_US,
    NUM_COMMON,
    OUTSIDE,
    POSITION,
    ByteRecording,
    EventBuffer,
    State,
    new_state,
)

_LAST_EVENT, _TIME_HIGH = 1, 8  # word types 0 (darker) and 1 (brighter) are events; the rest are triggers and others
_HIGH_BITS = 28

_HIGH, _WRAPPED = NUM_COMMON, NUM_COMMON + 1  # upper 28 bits of time (-1: not seen yet), time added by wraps


class Evt2Recording(ByteRecording):
    """An EVT2 file whose first word lies at byte `data_offset`."""

    format = "evt2"
    unit_bytes = 4

    def _start(self) -> State:
        state = new_state(2)
        state[_HIGH] = -1
        return state

    def _decode(self, state: State, buffer: EventBuffer) -> int:
        words = self._read_units(state, len(buffer.t)).view("<u4")
        kept: int = _decode_words(words, state, self.height, self.width, buffer.t, buffer.x, buffer.y, buffer.p)
        return kept


def open_evt2(path: Path, height: int | None, width: int | None) -> Evt2Recording:
    """Open an EVT2 file; a header without a size falls back on the caller, then on the camera it names."""
    header = read_text_header(path)
    height, width = sensor_size(path, header.size_hw, (height, width), header.camera_size_hw)
    return Evt2Recording(path, height, width, header.num_bytes)


@jit
def _decode_words(words, state, height, width, t, x, y, p):  # type: ignore[no-untyped-def]
    """Decode the u32 in `words` into t, x, y, p (each at least as long); return the number of events kept."""
    latest, high, wrapped = state[LATEST_US], state[_HIGH], state[_WRAPPED]
    base = wrapped + (high << 6)
    # what is wrong with an event is only asked when something is: one branch, that is guessed right
    earliest = latest if high >= 0 else np.int64(np.iinfo(np.int64).max)
    largest_column, largest_row = np.uint32(width - 1), np.uint32(height - 1)
    kept = np.uint64(0)  # unsigned, as no index is counted from the end
    for i in range(np.uint64(len(words))):
        word = words[i]
        kind = word >> np.uint32(28)
        if kind <= np.uint32(_LAST_EVENT):
            time = base + np.int64((word >> np.uint32(22)) & np.uint32(0x3F))
            column, row = (word >> np.uint32(11)) & np.uint32(0x7FF), word & np.uint32(0x7FF)
            if (column > largest_column) | (row > largest_row) | (time < earliest):
                if high < 0:
                    continue
                if column > largest_column or row > largest_row:
                    state[OUTSIDE] += 1
                    continue
                state[BACKWARD] += 1
                time = latest
            earliest = latest = time
            t[kept] = time
            x[kept] = np.uint16(column)
            y[kept] = np.uint16(row)
            p[kept] = np.uint8(kind)
            kept += np.uint64(1)
        elif kind == np.uint32(_TIME_HIGH):
            value = np.int64(word & np.uint32(0xFFFFFFF))
            if high - value > 1 << (_HIGH_BITS - 1):  # a smaller step back is a glitch, not a wrap
                wrapped += 1 << (_HIGH_BITS + 6)
            high = value
            earliest = latest
            base = wrapped + (high << 6)
    state[POSITION] += len(words)
    state[LATEST_US], state[_HIGH], state[_WRAPPED] = latest, high, wrapped
    return kept
