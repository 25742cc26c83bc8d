"""HDF5 event files as RVT distributes them: a group `events` with x, y, p, t and the size of the sensor.

Source: RVT scripts/genx/preprocess_dataset.py (H5Reader).
"""

from pathlib import Path
from typing import Any

import h5py

from rvtssm.readers.hdf5 import EventGroupRecording, count_events, open_hdf5, reading
from rvtssm.readers.header import sensor_size


class RvtHdf5Recording(EventGroupRecording):
    """An HDF5 file in the layout of RVT."""

    format = "rvt_hdf5"


def open_rvt_hdf5(path: Path, height: int | None, width: int | None) -> RvtHdf5Recording:
    """Open an HDF5 event file in the layout of RVT.

    Args:
        path: The file.
        height: Height of the sensor in pixels, if the file does not state it.
        width: Width of the sensor in pixels, if the file does not state it.

    Raises:
        UserError: The file has another layout, or the size of the sensor is unknown.
    """
    with reading(path), open_hdf5(path) as file:
        num_events = count_events(path, file, "iufb", "only the HDF5 layout of RVT can be read")
        sides = [file.get(f"events/{name}") for name in ("height", "width")]
        in_file = None if None in sides else (_number(sides[0]), _number(sides[1]))
    size_hw = sensor_size(path, in_file, (height, width))
    return RvtHdf5Recording(path, *size_hw, num_events)


def _number(item: Any) -> int:
    """Return a whole number from a dataset; 0, which is no valid size, for anything else."""
    return int(item[()].item()) if isinstance(item, h5py.Dataset) and item.size == 1 and item.dtype.kind in "iu" else 0
