"""Formats whose file is a header followed by words of equal size: DAT, EVT2, EVT2.1 and EVT3 derive from this class."""

from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from rvtssm.readers.gate import POSITION, State
from rvtssm.readers.header import read_text_header, sensor_size
from rvtssm.readers.recording import Bytes, Recording
from rvtssm.records import ReadOptions
from rvtssm.system.user_error import UserError

# by format: the dtype of a word, its bits below the type, microseconds per step, and how many steps the SDK goes back
_TIME_HIGH = {"evt2": ("<u4", 28, 64, 0), "evt21": ("<u4", 28, 64, 0), "evt3": ("<u2", 12, 4096, 1)}
_TYPE_TIME_HIGH = 0x8
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
        size_hw = sensor_size(path, header.size_hw, (options.height, options.width), header.camera_size_hw)
        return cls(path, *size_hw, header.num_bytes)

    @property
    def time_shift_us(self) -> int | None:
        """The time that Prophesee's SDK subtracts: the first TIME_HIGH word of a RAW file; of EVT3, the step before.

        Source: OpenEB, hal/cpp/include/metavision/hal/decoders.
        """
        if self.format not in _TIME_HIGH:
            return None
        dtype, num_bits, step_us, num_back = _TIME_HIGH[self.format]
        with open(self.path, "rb") as file:
            file.seek(self._data_offset)
            content = file.read(_SEARCHED_BYTES)
        words = np.frombuffer(content, dtype, len(content) // np.dtype(dtype).itemsize)
        time_words = self._time_words(words)
        time_words = time_words[time_words >> num_bits == _TYPE_TIME_HIGH]
        if not len(time_words):
            return None
        steps = int(time_words[0]) & ((1 << num_bits) - 1)
        return step_us * max(steps - num_back, 0)

    def _time_words(self, words: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return those of the words of a RAW file that can be TIME_HIGH."""
        return words

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
            raise UserError(
                "reader.became_shorter",
                f"{self.path} became shorter while it was read and ends before byte {offset + num_bytes}; "
                "read it again when it is complete",
            )
        is_last = num_units == num_left
        return self._bytes[:num_bytes], min(num_units if is_last else num_units - self.ahead_units, max_units)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_bytes": np.empty(0, np.uint8)}
