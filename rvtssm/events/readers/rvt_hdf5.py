"""HDF5 event files as RVT distributes them: a group `events` with x, y, p, t and the size of the sensor.

Source: RVT scripts/genx/preprocess_dataset.py (H5Reader).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rvtssm.events.readers.columns import LATEST_POSSIBLE_US, NAMES, keep_events
from rvtssm.events.readers.hdf5 import OpenDatasets, check_storage, is_column, reading, whole_numbers
from rvtssm.events.readers.header import sensor_size
from rvtssm.events.readers.recording import POSITION, EventBuffer, Recording, State


class RvtHdf5Recording(Recording):
    """An HDF5 file of `num_events` events."""

    format = "rvt_hdf5"
    index_events = 1 << 16  # also read at once, which bounds the memory, whatever the buffer

    def _open(self) -> OpenDatasets:
        return OpenDatasets(self.path, (f"events/{name}" for name in NAMES))

    def _decode(self, state: State, buffer: EventBuffer) -> int:
        start = int(state[POSITION])
        stop = min(start + len(buffer.t), start + self.index_events, self._num_units)
        with reading(self.path, f", events {start} to {stop}"):
            t, x, y, p = (whole_numbers(np.asarray(column[start:stop])) for column in self._file().datasets)
        if not np.all((t >= 0) & (t < LATEST_POSSIBLE_US)):
            raise ValueError(f"{self.path}, events {start} to {stop}: times that cannot be; copy it again")
        state[POSITION] = stop
        return keep_events(t, x, y, p, state, (self.height, self.width), buffer)


def open_rvt_hdf5(path: Path, height: int | None, width: int | None) -> RvtHdf5Recording:
    """Open an HDF5 event file; ValueError where it has another layout or no known size."""
    with reading(path), h5py.File(path, "r") as file:
        events = file.get("events")
        if not isinstance(events, h5py.Group) or not all(is_column(events.get(name)) for name in NAMES):
            raise ValueError(f"{path} has no events/t, x, y, p of numbers; only the HDF5 layout of RVT can be read")
        for name in NAMES:
            check_storage(path, events[name])
        lengths = {name: len(events[name]) for name in NAMES}
        has_size = "height" in events and "width" in events
        in_file = (_number(events["height"]), _number(events["width"])) if has_size else None
    if len(set(lengths.values())) > 1:
        raise ValueError(f"{path} has columns of different lengths {lengths}; copy it again")
    height, width = sensor_size(path, in_file, (height, width))
    return RvtHdf5Recording(path, height, width, lengths["t"])


def _number(item: Any) -> int:
    """A whole number in the file; 0, which no sensor has, for anything else."""
    return int(item[()]) if isinstance(item, h5py.Dataset) and item.ndim == 0 and item.dtype.kind in "iu" else 0
