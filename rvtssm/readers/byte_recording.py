"""Formats whose file is a header followed by words of equal size: DAT, EVT2, EVT2.1 and EVT3 derive from these classes.

They also share clocks of few bits, and masks of up to 12 pixels of a row. A mask becomes events without branches: all
12 output places are written, the set bits first. The next events overwrite the surplus.
"""

from abc import abstractmethod
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from rvtssm.readers.gate import BACKWARD, NEVER_US, OUTSIDE, POSITION, EventBuffer, State, fault_of
from rvtssm.readers.header import read_text_header, sensor_size
from rvtssm.readers.recording import Bytes, Recording
from rvtssm.records import ReadOptions
from rvtssm.system.jit import jit
from rvtssm.system.user_error import UserError

TIME_HIGH = 8  # in RAW files, the type of the word with the upper bits of time
VECTOR = 12  # pixels
_PLACE_BITS = 4  # bits that hold the position of a pixel in its vector
_SEARCHED_BYTES = 1 << 20  # a camera writes the time every few microseconds
_READ_BYTES = 1 << 19  # read at once; these bytes and their events fit in the processor's cache


class ByteRecording(Recording):
    """A file that consists of a header and words of equal size, `unit_bytes` each.

    Args:
        path: The file.
        height: Height of the sensor, pixels.
        width: Width of the sensor, pixels.
        data_offset: Byte of the first word.
    """

    unit_bytes: int
    ahead_units = 2048  # that follow those to decode, to find out whether a jump of the clock lasts
    index_events = 1 << 13

    def __init__(self, path: Path, height: int, width: int, data_offset: int) -> None:
        num_units, truncated_bytes = divmod(path.stat().st_size - data_offset, self.unit_bytes)
        super().__init__(path, height, width, num_units, truncated_bytes)
        self._data_offset = data_offset
        self._bytes = np.empty(0, np.uint8)

    def _open(self) -> Any:
        return open(self.path, "rb", buffering=0)

    def _read_units(self, state: State, max_units: int) -> tuple[Bytes, int]:
        """Return the bytes of the next units at the position of the state, and how many to decode.

        The other units are there to look ahead. Later reads overwrite the bytes.
        """
        position = int(state[POSITION])
        num_left = self._num_units - position
        num_units = min(max_units + self.ahead_units, _READ_BYTES // self.unit_bytes, num_left)
        num_bytes = num_units * self.unit_bytes
        if len(self._bytes) < num_bytes:
            self._bytes = np.empty(num_bytes, np.uint8)
        offset = self._data_offset + position * self.unit_bytes
        file = self._file()
        file.seek(offset)
        if file.readinto(self._bytes[:num_bytes]) != num_bytes:
            found = f"became shorter while it was read and ends before byte {offset + num_bytes}"
            raise UserError("file.cut", name=self.path, found=found, advice="read it again when it is complete")
        is_last = num_units == num_left
        return self._bytes[:num_bytes], min(num_units if is_last else num_units - self.ahead_units, max_units)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_bytes": np.empty(0, np.uint8)}


class RawRecording(ByteRecording):
    """A Prophesee RAW file, whose words have a type in their upper bits."""

    least_units = 1  # the fewest words that are read at once
    time_dtype: str  # of a word, or of the part of it that holds its type
    time_bits: int  # of such a word, below its type
    time_step_us: int  # of TIME_HIGH
    steps_back = 0  # by which the SDK's time shift is earlier than the first TIME_HIGH

    @classmethod
    def open_raw(cls, path: Path, options: ReadOptions) -> Self:
        """Open a Prophesee RAW file.

        Args:
            path: The file.
            options: What the caller says about the file.

        Raises:
            UserError: Neither the header, nor the caller, nor the camera named in the header gives the size.
        """
        header = read_text_header(path)
        size_hw = sensor_size(path, header.size_hw, options, header.camera_size_hw)
        return cls(path, *size_hw, header.num_bytes)

    @property
    def time_shift_us(self) -> int | None:
        """The time that Prophesee's SDK subtracts: the first TIME_HIGH word of a RAW file; of EVT3, the step before.

        Source: OpenEB, hal/cpp/include/metavision/hal/decoders.
        """
        with open(self.path, "rb") as file:
            file.seek(self._data_offset)
            content = file.read(_SEARCHED_BYTES)
        dtype = np.dtype(self.time_dtype)
        words = self._time_words(np.frombuffer(content, dtype, len(content) // dtype.itemsize))
        time_words = words[words >> self.time_bits == TIME_HIGH]
        if not len(time_words):
            return None
        steps = int(time_words[0]) & ((1 << self.time_bits) - 1)
        return self.time_step_us * max(steps - self.steps_back, 0)

    def _time_words(self, words: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return those of the words that can be TIME_HIGH."""
        return words

    def _decode(self, state: State, buffer: EventBuffer) -> int:
        units, num_units = self._read_units(state, max(self.least_units, len(buffer.t)))
        return self.decode_units(units, num_units, state, (self.height, self.width), buffer)

    @staticmethod
    @abstractmethod
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


def _places_of_bits() -> npt.NDArray[np.uint64]:
    """Return, for every mask, the positions of its set bits, 4 bits each from the lowest bit up, then their number."""
    masks = np.arange(1 << VECTOR, dtype=np.uint64)
    packed, count = np.zeros_like(masks), np.zeros_like(masks)
    for place in range(VECTOR):
        is_one = (masks >> np.uint64(place)) & np.uint64(1)
        packed |= (is_one * np.uint64(place)) << (count * np.uint64(_PLACE_BITS))
        count += is_one
    return packed | count << np.uint64(VECTOR * _PLACE_BITS)


_PLACES = _places_of_bits()


@jit
def put_vector(mask, column, row, polarity, time, t, x, y, p, num_kept):  # type: ignore[no-untyped-def]
    """Write the pixels of a mask below 2^VECTOR, all of them valid, into t, x, y, p. Return the number kept so far.

    `num_kept` is uint64, so that indices need no check for negative values. VECTOR places are written from there on.
    """
    places = _PLACES[mask]
    for i in range(VECTOR):
        place = (places >> np.uint64(_PLACE_BITS * i)) & np.uint64(0xF)
        x[num_kept + np.uint64(i)] = np.uint16(column + np.int64(place))
    for i in range(VECTOR):
        y[num_kept + np.uint64(i)] = row
    for i in range(VECTOR):
        p[num_kept + np.uint64(i)] = polarity
    for i in range(VECTOR):
        t[num_kept + np.uint64(i)] = time
    return num_kept + (places >> np.uint64(VECTOR * _PLACE_BITS))


@jit
def keep_vector(mask, column, row, polarity, time, latest, state, height, width, t, x, y, p, num_kept):  # type: ignore[no-untyped-def]
    """Write the pixels of a mask below 2^VECTOR with every repair. Return the number kept so far and the latest time.

    The pixels have one row and one time, so all of them that lie within the width have the same fault, if any.
    """
    inside = mask & ((1 << min(max(width - column, 0), VECTOR)) - 1)
    num_inside = np.int64(_PLACES[inside] >> np.uint64(VECTOR * _PLACE_BITS))
    state[OUTSIDE] += np.int64(_PLACES[mask] >> np.uint64(VECTOR * _PLACE_BITS)) - num_inside
    fault = fault_of(time, np.int64(0), row, latest, height, width)
    if fault:
        state[fault] += num_inside
    if num_inside and (fault == 0 or fault == BACKWARD):
        latest = max(time, latest)
        num_kept = put_vector(inside, column, row, polarity, latest, t, x, y, p, num_kept)
    return num_kept, latest


@jit
def is_glitch(words, start, bits, before, value, most, latest):  # type: ignore[no-untyped-def]
    """Return whether the upper bits of time jump in one word, and are back in the next one.

    Args:
        words: Words with their type above `bits` bits.
        start: The first word after the jump.
        bits: Number of bits below the type.
        before: The upper bits before the jump.
        value: The upper bits after it.
        most: The largest step that is no jump; a clock that begins again is none.
        latest: Time of the latest event; without one there is no clock yet.
    """
    mask = (np.int64(1) << bits) - 1
    if latest == NEVER_US or (value - before) & mask <= most or (before - value) & mask <= most:
        return False
    for i in range(start, len(words)):
        word = np.int64(words[i])
        if word >> bits == TIME_HIGH and word & mask != value:
            return 0 <= (word & mask) - before <= most
    return False


@jit
def num_wraps(before, now, period, late, wrapped):  # type: ignore[no-untyped-def]
    """Return how often a clock of few bits has begun again between two values: 1, 0, or -1 for back to before it did.

    A late event or a glitch may go back to before that.

    Args:
        before: The value before, or -1.
        now: The value.
        period: The number of values that the clock has.
        late: By how many values a late event or a glitch is older at most.
        wrapped: The time that was added because the clock has begun again; 0: it has not yet.
    """
    if before - now >= period // 2:  # a smaller step back is a glitch
        return 1
    return -1 if now - before > period - late and wrapped else 0
