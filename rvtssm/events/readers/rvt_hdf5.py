"""HDF5 event files as RVT distributes them: a group `events` with x, y, p, t and the size of the sensor.

Source: RVT scripts/genx/preprocess_dataset.py (H5Reader).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import hdf5plugin  # noqa: F401  registers the compression filters of published files
import numpy as np

from rvtssm.events.jit import jit
from rvtssm.events.readers.header import sensor_size
from rvtssm.events.readers.recording import (
    BACKWARD,
    LATEST_US,
    NUM_COMMON,
    OUTSIDE,
    POSITION,
    EventBuffer,
    Recording,
    State,
)

_COLUMNS = ("t", "x", "y", "p")


class RvtHdf5Recording(Recording):
    """An HDF5 file of `num_events` events."""

    format = "rvt_hdf5"

    def _open(self) -> Any:
        return h5py.File(self.path, "r")

    def _start(self) -> State:
        return np.zeros(NUM_COMMON, np.int64)

    def _decode(self, state: State, buffer: EventBuffer) -> int:
        start = int(state[POSITION])
        stop = min(start + len(buffer.t), self._num_units)
        try:
            events = self._file()["events"]
            columns = [np.asarray(events[name][start:stop]) for name in _COLUMNS]
        except (OSError, RuntimeError, KeyError) as error:
            raise ValueError(f"{self.path} is damaged ({error}); copy it again") from None
        kept: int = _repair(*columns, state, self.height, self.width, buffer.t, buffer.x, buffer.y, buffer.p)
        return kept


def open_rvt_hdf5(path: Path, height: int | None, width: int | None) -> RvtHdf5Recording:
    """Open an HDF5 event file; ValueError where it has another layout or no known size."""
    try:
        with h5py.File(path, "r") as file:
            if "CD/events" in file:
                raise ValueError(f"{path} is a Metavision ECF file, which is not supported; export it as EVT3 or DAT")
            events = file.get("events")
            if not isinstance(events, h5py.Group) or not all(_is_column(events.get(name)) for name in _COLUMNS):
                raise ValueError(f"{path} has no events/t, x, y, p of numbers; only the HDF5 layout of RVT can be read")
            lengths = {name: len(events[name]) for name in _COLUMNS}
            has_size = "height" in events and "width" in events
            in_file = (_number(events["height"]), _number(events["width"])) if has_size else None
    except (OSError, RuntimeError, KeyError) as error:
        raise ValueError(f"{path} cannot be opened as HDF5 ({error}); copy it again") from None
    if len(set(lengths.values())) > 1:
        raise ValueError(f"{path} has columns of different lengths {lengths}; copy it again")
    height, width = sensor_size(path, in_file, (height, width))
    return RvtHdf5Recording(path, height, width, lengths["t"])


def _is_column(item: Any) -> bool:
    return isinstance(item, h5py.Dataset) and item.ndim == 1 and item.dtype.kind in "iufb"


def _number(item: Any) -> int:
    """A whole number in the file; 0, which no sensor has, for anything else."""
    return int(item[()]) if isinstance(item, h5py.Dataset) and item.ndim == 0 and item.dtype.kind in "iu" else 0


@jit
def _repair(raw_t, raw_x, raw_y, raw_p, state, height, width, t, x, y, p):  # type: ignore[no-untyped-def]
    """Copy events into t, x, y, p with the rules every reader follows; return the number of events kept."""
    latest = state[LATEST_US]
    kept = 0
    for i in range(len(raw_t)):
        column, row = np.int64(raw_x[i]), np.int64(raw_y[i])
        if column < 0 or row < 0 or column >= width or row >= height:
            state[OUTSIDE] += 1
            continue
        time = np.int64(raw_t[i])
        if time < latest:
            state[BACKWARD] += 1
        else:
            latest = time
        t[kept] = latest
        x[kept] = column
        y[kept] = row
        p[kept] = raw_p[i] > 0
        kept += 1
    state[POSITION] += len(raw_t)
    state[LATEST_US] = latest
    return kept
