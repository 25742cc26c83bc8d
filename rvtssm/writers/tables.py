"""Write events as columns: the HDF5 layout of RVT, a structured numpy array, or text."""

from collections.abc import Iterable
from pathlib import Path

import h5py
import hdf5plugin
import numpy as np

from rvtssm.records import Events

_ROW = np.dtype([("t_us", "<i8"), ("x", "<u2"), ("y", "<u2"), ("p", "u1")])
_CHUNK_EVENTS = 1 << 16


def write_rvt_hdf5(path: Path, blocks: Iterable[Events], height: int, width: int) -> None:
    """Write events as HDF5 with `events/t`, `x`, `y`, `p`, `height` and `width`, as RVT reads it, packed with Blosc.

    Args:
        path: The file to write.
        blocks: The events.
        height: Height of the sensor, pixels.
        width: Width of the sensor, pixels.
    """
    with h5py.File(path, "w") as file:
        columns = {}
        for name, kind in {"t": np.int64, "x": np.uint16, "y": np.uint16, "p": np.uint8}.items():
            packing = hdf5plugin.Blosc(cname="zstd", clevel=1)
            columns[name] = file.create_dataset(
                f"events/{name}", (0,), kind, maxshape=(None,), chunks=(_CHUNK_EVENTS,), **packing
            )
        file["events/height"], file["events/width"] = height, width
        for events in blocks:
            for name, column in columns.items():
                size = len(column)
                column.resize(size + len(events), axis=0)
                column[size:] = getattr(events, name)


def write_npy(path: Path, blocks: Iterable[Events], height: int, width: int) -> None:
    """Write events as a structured array with the fields t_us, x, y and p. It does not hold the size of the sensor.

    Args:
        path: The file to write.
        blocks: The events.
        height: Height of the sensor, not written.
        width: Width of the sensor, not written.
    """
    with open(path, "wb") as file:
        _write_npy_header(file, 0)
        num_events = 0
        for events in blocks:
            file.write(_rows(events).tobytes())
            num_events += len(events)
        file.seek(0)
        _write_npy_header(file, num_events)  # as long as before: numpy leaves room for a growing first dimension


def _write_npy_header(file: object, num_events: int) -> None:
    header = {"descr": np.lib.format.dtype_to_descr(_ROW), "fortran_order": False, "shape": (num_events,)}
    np.lib.format.write_array_header_1_0(file, header)  # type: ignore[arg-type]


def write_csv(path: Path, blocks: Iterable[Events], height: int, width: int) -> None:
    """Write events as text: a line with the size of the sensor, a line with names, and a line per event.

    Args:
        path: The file to write.
        blocks: The events.
        height: Height of the sensor, pixels.
        width: Width of the sensor, pixels.
    """
    with open(path, "wb") as file:
        file.write(f"# height={height} width={width}\nt_us,x,y,p\n".encode())
        for events in blocks:
            np.savetxt(file, _rows(events), fmt="%d", delimiter=",")


def _rows(events: Events) -> np.ndarray:
    rows = np.empty(len(events), _ROW)
    rows["t_us"], rows["x"], rows["y"], rows["p"] = events.t, events.x, events.y, events.p
    return rows
