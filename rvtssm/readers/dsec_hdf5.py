"""DSEC HDF5 files: `events/{t, x, y, p}`, `ms_to_idx`, `t_offset`.

Times are absolute (`t + t_offset`), like the timestamps of the images and labels of the dataset. Pixels are sensor
pixels (the distorted frame), as in the labels of DSEC-Det.
Source: Gehrig et al., DSEC: A Stereo Event Camera Dataset for Driving Scenarios, 2021, and its published code.
"""

from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rvtssm.readers.columns import LATEST_POSSIBLE_US, Column
from rvtssm.readers.hdf5 import EventGroupRecording, count_events, open_hdf5, reading
from rvtssm.readers.header import sensor_size
from rvtssm.system.user_error import UserError

_SIZE_HW = (480, 640)


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
