"""Prophesee RAW files in EVT2.1: like EVT2, but with 64-bit words that hold up to 32 pixels of a row.

The lower half of a word is a mask: bit i is the pixel at x + i. Early cameras wrote the upper half first ("legacy").
Source: OpenEB 0499c95, hal/cpp/include/metavision/hal/decoders/evt21.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rvtssm.readers.byte_recording import ByteRecording
from rvtssm.readers.evt2 import MOST_STEPS
from rvtssm.readers.gate import JUMP_US, LATEST_US, NUM_COMMON, POSITION, EventBuffer, State
from rvtssm.readers.header import read_text_header
from rvtssm.readers.recording import MAX_EVENTS_PER_UNIT, Bytes
from rvtssm.readers.words import VECTOR, is_glitch, keep_vector, num_wraps, put_vector
from rvtssm.system.jit import jit

_LAST_EVENT, _TIME_HIGH = 1, 8  # word types, as in EVT2
_HIGH_BITS = 28
_LATE = 1 << 14  # a late event of at most so many time words, 1 s, may be from before a wrap
_MIN_WORDS = 2048  # the fewest words read at once, because most words hold few events

_HIGH, _WRAPPED = NUM_COMMON, NUM_COMMON + 1  # upper 28 bits of time (-1: not seen yet), microseconds added by wraps


class Evt21Recording(ByteRecording):
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
    own_state = (-1, 0)

    def __init__(self, path: Path, height: int, width: int, data_offset: int) -> None:
        super().__init__(path, height, width, data_offset)
        self.has_swapped_halves = read_text_header(path).has_swapped_halves

    def _time_words(self, words: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return words[int(not self.has_swapped_halves) :: 2]  # the upper halves, which have the layout of EVT2

    def _decode(self, state: State, buffer: EventBuffer) -> int:
        units = self._read_units(state, max(_MIN_WORDS, len(buffer.t) // 4))
        return self.decode_units(*units, state, (self.height, self.width), buffer, self.has_swapped_halves)

    @staticmethod
    def decode_units(
        units: Bytes,
        num_units: int,
        state: State,
        size_hw: tuple[int, int],
        buffer: EventBuffer,
        has_swapped_halves: bool = False,
    ) -> int:
        """Decode whole words until they end or the buffer is full.

        Args:
            units: Bytes of the words, and of words to look ahead.
            num_units: Number of words to decode.
            state: Decoder state, advanced in place.
            size_hw: Height and width of the sensor, pixels.
            buffer: Output.
            has_swapped_halves: The words have the order of early cameras, with the upper half first.

        Returns:
            The number of events kept.
        """
        halves, heads = units.view("<u4").reshape(-1, 2), int(not has_swapped_halves)
        num_kept: int = _decode_words(halves, num_units, heads, state, *size_hw, buffer.t, buffer.x, buffer.y, buffer.p)
        return num_kept


@jit
def _decode_words(halves, num_words, heads, state, height, width, t, x, y, p):  # type: ignore[no-untyped-def]
    """Decode the first of `halves` (N, 2) u32 until they end or t, x, y, p might overflow. Return the number kept.

    `heads` is the column of `halves` with type, time and pixel; the other column holds the masks.
    """
    latest, high, wrapped = state[LATEST_US], state[_HIGH], state[_WRAPPED]
    base = wrapped + (high << 6)
    last_start = len(t) - MAX_EVENTS_PER_UNIT
    num_kept = np.uint64(0)
    position = 0
    while position < num_words and np.int64(num_kept) <= last_start:
        head, mask = np.int64(halves[position, heads]), np.int64(halves[position, 1 - heads])
        position += 1
        kind = head >> 28
        if kind <= _LAST_EVENT:
            if high < 0:
                continue
            time = base + ((head >> 22) & 0x3F)
            column, row = (head >> 11) & 0x7FF, head & 0x7FF
            is_sound = time >= latest and row < height and column + 3 * VECTOR <= width
            while mask:
                part = mask & (1 << VECTOR) - 1
                if is_sound:
                    num_kept, latest = put_vector(part, column, row, kind, time, t, x, y, p, num_kept), time
                else:
                    num_kept, latest = keep_vector(
                        part, column, row, kind, time, latest, state, height, width, t, x, y, p, num_kept
                    )
                mask >>= VECTOR
                column += VECTOR
        elif kind == _TIME_HIGH:
            value = head & 0xFFFFFFF
            if is_glitch(halves[:, heads], position, _HIGH_BITS, high, value, MOST_STEPS, latest):
                base = latest - JUMP_US - (1 << 6)
                continue
            wrapped += num_wraps(high, value, 1 << _HIGH_BITS, _LATE, wrapped) << (_HIGH_BITS + 6)
            high = value
            base = wrapped + (high << 6)
    state[POSITION] += position
    state[LATEST_US], state[_HIGH], state[_WRAPPED] = latest, high, wrapped
    return np.int64(num_kept)
