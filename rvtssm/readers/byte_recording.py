"""Formats whose file is a header followed by words of equal size: DAT, EVT2, EVT2.1 and EVT3 derive from this class."""

from pathlib import Path
from typing import Any, Self

import numpy as np

from rvtssm.readers.gate import POSITION, State
from rvtssm.readers.header import read_text_header, sensor_size
from rvtssm.readers.recording import Bytes, Recording
from rvtssm.records import ReadOptions
from rvtssm.system.user_error import UserError

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

    def _open(self) -> Any:
        return open(self.path, "rb", buffering=0)

    def _read_units(self, state: State, max_units: int) -> Bytes:
        """Return the bytes of the next units at the position of the state, in a buffer that later reads overwrite."""
        position = int(state[POSITION])
        num_units = min(max_units, _READ_BYTES // self.unit_bytes, self._num_units - position)
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
        return self._bytes[:num_bytes]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_bytes": np.empty(0, np.uint8)}
