"""Recordings of any supported format behind one function, recognised by their content.

A new format is one file and one line in READERS.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rvtssm.events.readers.dat import open_dat
from rvtssm.events.readers.evt3 import open_evt3
from rvtssm.events.readers.header import read_text_header
from rvtssm.events.readers.recording import ReadFaults, Recording
from rvtssm.events.readers.rvt_hdf5 import open_rvt_hdf5

__all__ = ["READERS", "ReadFaults", "Recording", "open_recording", "recording_format"]

READERS: dict[str, Callable[[Path, int | None, int | None], Recording]] = {
    "dat": open_dat,
    "evt3": open_evt3,
    "rvt_hdf5": open_rvt_hdf5,
}
_HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"


def open_recording(path: Path | str, height: int | None = None, width: int | None = None) -> Recording:
    """Open an event file of any format in READERS; sizes are sensor pixels.

    ValueError for an empty file, a format that is not supported, a size that neither file nor caller gives,
    and a size that contradicts the file.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path} is not a file; give an event recording")
    if path.stat().st_size == 0:
        raise ValueError(f"{path} is empty (0 bytes); copy it again")
    return READERS[recording_format(path)](path, height, width)


def recording_format(path: Path) -> str:
    """The key in READERS that fits the first bytes of a file; ValueError where none does."""
    with open(path, "rb") as file:
        head = file.read(len(_HDF5_SIGNATURE))
    if head == _HDF5_SIGNATURE:
        return "rvt_hdf5"
    header = read_text_header(path)
    encoding = (header.value("format") or f"EVT{header.value('evt') or ''}").partition(";")[0].removesuffix(".0")
    if encoding == "EVT3":
        return "evt3"
    if encoding != "EVT":
        raise ValueError(f"{path} is encoded as {encoding}; choose from {', '.join(READERS)}")
    if header.value("Data") is not None or header.value("Version") is not None:
        return "dat"
    if not header.lines and path.suffix == ".dat":  # the oldest DAT files start with their first event
        return "dat"
    raise ValueError(f"{path} starts with {head!r}, which no reader knows; choose from {', '.join(READERS)}")
