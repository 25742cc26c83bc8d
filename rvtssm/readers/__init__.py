"""Open recordings of any supported format with one function that recognises the format by its content.

To add a format, write one file with a class derived from `Recording` (its docstring lists what the class must provide)
and a function that opens it. Then add a line to READERS and the first bytes of the format to `recording_format`.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from rvtssm.readers.aedat4 import SIGNATURE as AEDAT4_SIGNATURE
from rvtssm.readers.aedat4 import open_aedat4
from rvtssm.readers.arrays import NPY_SIGNATURE, NPZ_SIGNATURE, open_npy, open_npz
from rvtssm.readers.bags import (
    BAG_METADATA,
    MCAP_SIGNATURE,
    ROS1_SIGNATURE,
    SQLITE_SIGNATURE,
    is_bag,
    open_bag,
    split_topic,
)
from rvtssm.readers.csv_text import is_csv, open_csv
from rvtssm.readers.dat import open_dat
from rvtssm.readers.dsec_hdf5 import is_dsec, open_dsec
from rvtssm.readers.ecf import is_ecf, open_ecf
from rvtssm.readers.evt2 import Evt2Recording
from rvtssm.readers.evt3 import Evt3Recording
from rvtssm.readers.evt21 import Evt21Recording
from rvtssm.readers.hdf5 import open_hdf5, reading
from rvtssm.readers.header import read_text_header
from rvtssm.readers.recording import ReadFaults, Recording
from rvtssm.readers.remote import local_path
from rvtssm.readers.rvt_hdf5 import open_rvt_hdf5
from rvtssm.system.file_errors import did_you_mean, file_errors
from rvtssm.system.user_error import UserError

__all__ = ["READERS", "ReadFaults", "Recording", "open_recording", "recording_format"]

READERS: dict[str, Callable[[Path, int | None, int | None], Recording]] = {
    "dat": open_dat,
    "evt2": Evt2Recording.open_raw,
    "evt21": Evt21Recording.open_raw,
    "evt3": Evt3Recording.open_raw,
    "ecf": open_ecf,
    "rvt_hdf5": open_rvt_hdf5,
    "dsec": open_dsec,
    "aedat4": open_aedat4,
    "npy": open_npy,
    "npz": open_npz,
    "csv": open_csv,
    "ros1": open_bag,
    "ros2": open_bag,
}
_HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_ENCODINGS = {"EVT2": "evt2", "EVT21": "evt21", "EVT3": "evt3"}
_BAG_SIGNATURES = {ROS1_SIGNATURE: "ros1", MCAP_SIGNATURE: "ros2", SQLITE_SIGNATURE: "ros2"}
_SIGNATURES = {AEDAT4_SIGNATURE: "aedat4", NPY_SIGNATURE: "npy", NPZ_SIGNATURE: "npz", **_BAG_SIGNATURES}


def open_recording(
    path: Path | str, height: int | None = None, width: int | None = None, repair: bool = False
) -> Recording:
    """Open an event file of any format in READERS.

    A bag with several topics of events is opened as `FILE:/TOPIC`. A ROS 2 bag can also be opened by the name of its
    folder. A URL is copied to the cache folder first, see `remote`.

    Args:
        path: The file, folder or URL.
        height: Height of the sensor in pixels, if the file does not state it.
        width: Width of the sensor in pixels, if the file does not state it.
        repair: Read the file even if more than 1 % of its events are earlier than an event before them. Such events get
            the latest time so far. Without `repair`, reading such a file raises UserError.

    Raises:
        UserError: The file is empty or has an unknown format, neither the file nor the caller gives the size of the
            sensor, or the caller contradicts the file.
    """
    for name, side in (("height", height), ("width", width)):
        if side is not None and (isinstance(side, bool) or not isinstance(side, int | np.integer)):
            raise UserError(f"{name}={side!r} is not a whole number of pixels")
    path, topic = split_topic(local_path(path))
    named = path  # as messages name it
    if is_bag(path):
        path = path / BAG_METADATA
    if not path.exists():
        raise UserError(f"{path} does not exist{did_you_mean(path) or '; give an event recording'}")
    if not path.is_file():
        raise UserError(f"{path} is not a file; give an event recording")
    if path.stat().st_size == 0:
        raise UserError(f"{path} is empty (0 bytes); copy it again")
    with file_errors(named):
        name = recording_format(path)
        if topic is None:
            recording = READERS[name](path, height, width)
        elif name not in _BAG_SIGNATURES.values():
            raise UserError(f"{path} is not a bag, so it has no topic {topic}; leave out the topic")
        else:
            recording = open_bag(path, height, width, topic)
        recording.repair = repair
        return recording


def recording_format(path: Path) -> str:
    """Return the key of READERS that fits the first bytes of a file. Raise UserError if none does."""
    with open(path, "rb") as file:
        head = file.read(max(map(len, _SIGNATURES)))
    if head.startswith(_HDF5_SIGNATURE):
        return _hdf5_format(path)
    for signature, name in _SIGNATURES.items():
        if head.startswith(signature):
            return name
    if path.name == BAG_METADATA and is_bag(path.parent):
        return "ros2"
    header = read_text_header(path)
    if header.encoding is not None:
        if header.encoding not in _ENCODINGS:
            raise UserError(f"{path} has the encoding {header.encoding}; choose from {', '.join(READERS)}")
        return _ENCODINGS[header.encoding]
    if header.value("Data") is not None or header.value("Version") is not None:
        return "dat"
    if not header.lines and is_csv(path):
        return "csv"
    if not header.lines and path.suffix == ".dat":  # the oldest DAT files start with their first event
        return "dat"
    known = "which no reader knows"
    if head.isascii() and b"".join(head.split()).decode().isprintable():
        known = "so it is text, but its lines are not events (at least four numbers: t, x, y, p)"
    raise UserError(f"{path} starts with {head!r}, {known}; choose from {', '.join(READERS)}")


def _hdf5_format(path: Path) -> str:
    with reading(path), open_hdf5(path) as file:
        if is_ecf(file):
            return "ecf"
        return "dsec" if is_dsec(file) else "rvt_hdf5"
