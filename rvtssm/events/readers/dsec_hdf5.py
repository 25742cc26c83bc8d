"""DSEC HDF5 files: `events/{t, x, y, p}`, `ms_to_idx`, `t_offset`.

Times are absolute (`t + t_offset`), like the timestamps of the images and labels of the dataset. Pixels are sensor
pixels (the distorted frame), as in the labels of DSEC-Det.
Source: Gehrig et al., DSEC: A Stereo Event Camera Dataset for Driving Scenarios, 2021, and its published code.
"""

from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rvtssm.events.readers.columns import LATEST_POSSIBLE_US, Column, keep_events
from rvtssm.events.readers.hdf5 import EventGroupRecording, count_events, open_hdf5, reading
from rvtssm.events.readers.header import sensor_size
from rvtssm.events.readers.recording import EventBuffer, copy_events, join_events
from rvtssm.records import Events, check_time_range
from rvtssm.system.user_error import UserError

_SIZE_HW = (480, 640)
_BLOCK_EVENTS = 1 << 16  # events of a slice that are read at once


class DsecRecording(EventGroupRecording):
    """A DSEC file.

    Args:
        path: The file.
        size_hw: Height and width of the sensor, pixels.
        num_events: Number of events in the file.
        offset_us: `t_offset`, which is added to every stored time.
    """

    format = "dsec"

    def __init__(self, path: Path, size_hw: tuple[int, int], num_events: int, offset_us: int) -> None:
        super().__init__(path, *size_hw, num_events)
        self.offset_us = offset_us

    def _columns(self, start: int, stop: int) -> list[Column]:
        """Return t (absolute), x, y, p of the events [start, stop)."""
        t, *others = super()._columns(start, stop)
        return [t.astype(np.int64) + self.offset_us, *others]

    def between(self, start_us: int, end_us: int) -> Events:
        """Return the events with start_us <= t < end_us, found through `ms_to_idx`.

        The table is checked at both ends of the slice. If it is missing or wrong, an index is built instead.
        """
        check_time_range(start_us, end_us)
        bounds = self._bounds(start_us, end_us) if end_us > start_us else (0, 0)
        if bounds is None:
            return super().between(start_us, end_us)
        parts, state, buffer, latest_us = [], self._start(), EventBuffer(_BLOCK_EVENTS), 0
        for start in range(*bounds, _BLOCK_EVENTS):
            columns = self._columns(start, min(start + _BLOCK_EVENTS, bounds[1]))
            if columns[0][0] < latest_us or np.any(np.diff(columns[0]) < 0):
                return super().between(start_us, end_us)  # repaired times depend on all events before
            latest_us = int(columns[0][-1])
            count = keep_events(columns, state, (self.height, self.width), buffer)
            parts.append(copy_events(buffer.events(count).between(start_us, end_us)))
        return join_events(parts)

    def _bounds(self, start_us: int, end_us: int) -> tuple[int, int] | None:
        """Return the range of events around the times, at millisecond edges; None if `ms_to_idx` does not give it."""
        first_ms = max(0, start_us - self.offset_us) // 1000
        end_ms = max(0, end_us - 1 - self.offset_us) // 1000 + 1
        begin, end = self._index_at(first_ms), self._index_at(end_ms)
        return None if begin is None or end is None or begin > end else (begin, end)

    def _index_at(self, ms: int) -> int | None:
        """Return the first event at or after a relative millisecond, or None if `ms_to_idx` is wrong there."""
        try:
            with reading(self.path, ", ms_to_idx"):
                opened = self._file()
                table, t = opened.file["ms_to_idx"], opened.datasets[0]
                if ms >= len(table):  # the table ends with the recording
                    index, is_after = self._num_units, int(t[-1]) < ms * 1000
                    return index if is_after else None
                index = int(table[ms])
                if not 0 <= index <= self._num_units:
                    return None
                edges = [int(time) for time in t[max(0, index - 1) : index + 1]]
        except ValueError:
            return None
        is_before = index == 0 or edges[0] < ms * 1000
        is_at = index == self._num_units or edges[-1] >= ms * 1000
        return index if is_before and is_at else None


def open_dsec(path: Path, height: int | None, width: int | None) -> DsecRecording:
    """Open a DSEC event file.

    Args:
        path: The file.
        height: Height of the sensor in pixels; None or the height of DSEC's sensor.
        width: Width of the sensor in pixels; None or the width of DSEC's sensor.

    Raises:
        UserError: The file has another layout, or the caller gives another size.
    """
    with reading(path), open_hdf5(path) as file:
        num_events = count_events(path, file, "iub", "DSEC has whole numbers there, copy it again")
        offset_us = _offset(path, file.get("t_offset"))
    return DsecRecording(path, sensor_size(path, _SIZE_HW, (height, width)), num_events, offset_us)


def is_dsec(file: h5py.File) -> bool:
    """Return whether an HDF5 file contains a dataset that only DSEC has. Other layouts have the same columns."""
    return "events" in file and ("ms_to_idx" in file or "t_offset" in file)


def _offset(path: Path, item: Any) -> int:
    """Return the value of `t_offset`, 0 if there is none. Raise UserError if it is not a valid time."""
    if item is None:
        return 0
    if not isinstance(item, h5py.Dataset) or item.size != 1 or item.dtype.kind not in "iu":
        raise UserError(f"{path} has a t_offset that is not one whole number of microseconds; copy it again")
    offset_us = int(np.asarray(item[()]).reshape(()))
    if not 0 <= offset_us < LATEST_POSSIBLE_US:
        raise UserError(f"{path} has a t_offset of {offset_us} us, which is impossible; copy it again")
    return offset_us
