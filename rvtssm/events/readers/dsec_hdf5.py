"""DSEC HDF5 files: `events/{t, x, y, p}`, `ms_to_idx`, `t_offset`; optionally in the rectified frame.

Times are absolute, `t + t_offset`, as in the timestamps of images and labels of the dataset. Pixels are those of the
sensor (the distorted frame), in which the labels of DSEC-Det are too, unless a rectification map is given.
Source: Gehrig et al., DSEC: A Stereo Event Camera Dataset for Driving Scenarios, 2021, and the code beside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from rvtssm.events.readers.columns import LATEST_POSSIBLE_US, NAMES, Column, keep_events
from rvtssm.events.readers.hdf5 import check_storage, is_column, reading, whole_numbers
from rvtssm.events.readers.header import sensor_size
from rvtssm.events.readers.recording import (
    OUTSIDE,
    POSITION,
    EventBuffer,
    Recording,
    State,
    copy_events,
    join_events,
)
from rvtssm.records import Events

_SIZE_HW = (480, 640)
_BLOCK_EVENTS = 1 << 16  # read at once between two times

Map = npt.NDArray[np.int32]


class DsecRecording(Recording):
    """A DSEC file of `num_events` events; `frame` is distorted (the sensor) or rectified.

    In the rectified frame events move to the nearest pixel, and those that leave it are not part of the recording.
    """

    format = "dsec"

    def __init__(
        self, path: Path, size_hw: tuple[int, int], num_events: int, offset_us: int, rectify: Map | None
    ) -> None:
        super().__init__(path, *size_hw, num_events)
        self.offset_us = offset_us
        self.frame = "distorted" if rectify is None else "rectified"
        self._rectify = rectify

    def _open(self) -> Any:
        return h5py.File(self.path, "r")

    def _decode(self, state: State, buffer: EventBuffer) -> int:
        start = int(state[POSITION])
        stop = min(start + len(buffer.t), self._num_units)
        state[POSITION] = stop
        return self._keep(self._columns(start, stop), state, buffer)

    def _keep(self, columns: list[Column], state: State, buffer: EventBuffer) -> int:
        t, x, y, p = columns
        if self._rectify is not None:
            is_on_sensor = (x >= 0) & (x < _SIZE_HW[1]) & (y >= 0) & (y < _SIZE_HW[0])
            state[OUTSIDE] += len(t) - np.count_nonzero(is_on_sensor)
            t, x, y, p = t[is_on_sensor], x[is_on_sensor], y[is_on_sensor], p[is_on_sensor]
            x, y = self._rectify[y, x].T
            is_in_frame = (x >= 0) & (x < self.width) & (y >= 0) & (y < self.height)
            t, x, y, p = t[is_in_frame], x[is_in_frame], y[is_in_frame], p[is_in_frame]
        return keep_events(t, x, y, p, state, (self.height, self.width), buffer)

    def _columns(self, start: int, stop: int) -> list[Column]:
        """Raw t (absolute), x, y, p of the events [start, stop)."""
        with reading(self.path, f", events {start} to {stop}"):
            events = self._file()["events"]
            t, x, y, p = (whole_numbers(np.asarray(events[name][start:stop])) for name in NAMES)
        if len(t) and not 0 <= int(t.max()) < LATEST_POSSIBLE_US:
            raise ValueError(f"{self.path}, events {start} to {stop}: times that cannot be; copy it again")
        return [t.astype(np.int64) + self.offset_us, x, y, p]

    def between(self, start_us: int, end_us: int) -> Events:
        """The events with start_us <= t < end_us, found through `ms_to_idx`.

        The table is checked at both ends of the slice; where it is missing or wrong, an index is built instead.
        """
        bounds = self._bounds(start_us, end_us) if end_us > start_us else (0, 0)
        if bounds is None:
            return super().between(start_us, end_us)
        parts, state, buffer, latest_us = [], self._start(), EventBuffer(_BLOCK_EVENTS), 0
        for start in range(*bounds, _BLOCK_EVENTS):
            columns = self._columns(start, min(start + _BLOCK_EVENTS, bounds[1]))
            if columns[0][0] < latest_us or np.any(np.diff(columns[0]) < 0):
                return super().between(start_us, end_us)  # repaired times depend on all that came before
            latest_us = int(columns[0][-1])
            parts.append(copy_events(buffer.events(self._keep(columns, state, buffer)).between(start_us, end_us)))
        return join_events(parts)

    def _bounds(self, start_us: int, end_us: int) -> tuple[int, int] | None:
        """A range of events around the times, at millisecond edges; None where `ms_to_idx` does not give one."""
        first_ms = max(0, start_us - self.offset_us) // 1000
        end_ms = max(0, end_us - 1 - self.offset_us) // 1000 + 1
        begin, end = self._index_at(first_ms), self._index_at(end_ms)
        return None if begin is None or end is None or begin > end else (begin, end)

    def _index_at(self, ms: int) -> int | None:
        """The first event at or after a relative millisecond, by the table of the file, which is checked there."""
        try:
            file = self._file()
            table, t = file["ms_to_idx"], file["events/t"]
            if ms >= len(table):  # after the last millisecond of the table, which ends with the recording
                index, is_after = self._num_units, int(t[-1]) < ms * 1000
                return index if is_after else None
            index = int(table[ms])
            if not 0 <= index <= self._num_units:
                return None
            edges = [int(time) for time in t[max(0, index - 1) : index + 1]]
        except (OSError, RuntimeError, KeyError, TypeError, ValueError, IndexError):
            return None
        is_before = index == 0 or edges[0] < ms * 1000
        is_at = index == self._num_units or edges[-1] >= ms * 1000
        return index if is_before and is_at else None


def open_dsec(path: Path, height: int | None, width: int | None, rectify_map: Path | None = None) -> DsecRecording:
    """Open a DSEC event file; with `rectify_map`, the `rectify_map.h5` that lies beside it, in the rectified frame.

    ValueError for another layout or size, and for a file that announces more events than it can hold.
    """
    with reading(path), h5py.File(path, "r") as file:
        columns: list[Any] = [file.get(f"events/{name}") for name in NAMES]
        if not all(is_column(column) and column.dtype.kind in "iub" for column in columns):
            raise ValueError(f"{path} has no events/t, x, y, p of whole numbers, as DSEC has; copy it again")
        for column in columns:
            check_storage(path, column)
        lengths = {name: len(column) for name, column in zip(NAMES, columns, strict=True)}
        offset_us = _offset(path, file.get("t_offset"))
    if len(set(lengths.values())) > 1:
        raise ValueError(f"{path} has columns of different lengths {lengths}; copy it again")
    size_hw = sensor_size(path, _SIZE_HW, (height, width))
    rectify = None if rectify_map is None else _read_rectify_map(rectify_map)
    return DsecRecording(path, size_hw, lengths["t"], offset_us, rectify)


def is_dsec(file: h5py.File) -> bool:
    """Whether an HDF5 file has what sets DSEC apart from other layouts with the same columns."""
    return "events" in file and ("ms_to_idx" in file or "t_offset" in file)


def _offset(path: Path, item: Any) -> int:
    if item is None:
        return 0
    if not isinstance(item, h5py.Dataset) or item.size != 1 or item.dtype.kind not in "iu":
        raise ValueError(f"{path} has a t_offset that is not one whole number of microseconds; copy it again")
    offset_us = int(np.asarray(item[()]).reshape(()))
    if not 0 <= offset_us < LATEST_POSSIBLE_US:
        raise ValueError(f"{path} has a t_offset of {offset_us} us, which cannot be; copy it again")
    return offset_us


def _read_rectify_map(path: Path) -> Map:
    """(480, 640, 2) rectified (x, y) of each pixel, rounded; -1 for what has none."""
    try:
        with h5py.File(path, "r") as file:
            found = np.asarray(file["rectify_map"], np.float64)
    except (OSError, RuntimeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is not a rectification map ({error}); take rectify_map.h5 beside the events"
        ) from None
    if found.shape != (*_SIZE_HW, 2):
        raise ValueError(f"{path} has a map of shape {found.shape}, DSEC needs {(*_SIZE_HW, 2)}; copy it again")
    is_number = np.isfinite(found) & (np.abs(found) < 1 << 20)
    return np.rint(np.where(is_number, found, -1)).astype(np.int32)
