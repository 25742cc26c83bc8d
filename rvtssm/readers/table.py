"""The table of formats: how each is recognised, found in folders and opened.

Formats of other packages, among them folders of `rvtssm.contrib`, are entry points of the group `rvtssm.readers`: the
name is that of the format, the value a `Reader`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rvtssm.readers.aedat4 import SIGNATURE as AEDAT4_SIGNATURE
from rvtssm.readers.aedat4 import aedat4_streams, open_aedat4
from rvtssm.readers.arrays import NPY_SIGNATURE, NPZ_SIGNATURE, open_npy, open_npz
from rvtssm.readers.csv_text import open_csv
from rvtssm.readers.dat import open_dat
from rvtssm.readers.ecf import open_ecf
from rvtssm.readers.evt2 import Evt2Recording, Evt21Recording
from rvtssm.readers.evt3 import Evt3Recording
from rvtssm.readers.hdf5_events import open_hdf5_events
from rvtssm.readers.recording import Recording
from rvtssm.system.extras import installed_parts

_WITH_PART = re.compile(r"(.+?):(/.+)")


@dataclass(frozen=True, slots=True)
class Reader:
    """A format of recordings."""

    # Opens a file, given its path and `ReadOptions`; with `parts`, also given the part of FILE:/PART or None.
    open: Callable[..., Recording]
    suffixes: tuple[str, ...]  # ends of names in folders; a longer one comes before a shorter one that also fits
    signatures: tuple[bytes, ...] = ()  # first bytes that only files of this format have
    # Name of a file that makes its folder one recording, and bytes within the first KiB of that file.
    index: tuple[str, bytes] | None = None
    parts: Callable[[Path], list[str]] | None = None  # returns what FILE:/PART may name, such as topics of a bag


_RAW = ("_td.raw", ".raw")
_HDF5 = (".h5", ".hdf5")
READERS: dict[str, Reader] = {
    "dat": Reader(open_dat, ("_td.dat", ".dat")),
    "evt2": Reader(Evt2Recording.open_raw, _RAW),
    "evt21": Reader(Evt21Recording.open_raw, _RAW),
    "evt3": Reader(Evt3Recording.open_raw, _RAW),
    "ecf": Reader(open_ecf, _HDF5),
    "rvt_hdf5": Reader(open_hdf5_events, _HDF5),
    "dsec": Reader(open_hdf5_events, _HDF5),
    "hdf5": Reader(open_hdf5_events, _HDF5),
    "aedat4": Reader(open_aedat4, (".aedat4",), (AEDAT4_SIGNATURE,), parts=aedat4_streams),
    "npz": Reader(open_npz, (".npz",), (NPZ_SIGNATURE,)),
    "npy": Reader(open_npy, (".npy",), (NPY_SIGNATURE,)),
    "csv": Reader(open_csv, (".csv", ".txt")),
}


def readers() -> dict[str, Reader]:
    """Return all formats by name: those of READERS, and those of installed packages."""
    return {**READERS, **installed_parts("rvtssm.readers")}


def event_suffixes() -> tuple[str, ...]:
    """Return the ends of names of all readable recordings, in the order in which they are tried."""
    return tuple(dict.fromkeys(suffix for reader in readers().values() for suffix in reader.suffixes))


def split_part(path: Path | str) -> tuple[Path, str | None]:
    """Return file and part of `FILE:/PART`. A path that exists or names no part is returned as it is, with None."""
    match = _WITH_PART.fullmatch(str(path))
    if match and Path(match[1]).exists() and not Path(path).exists():
        return Path(match[1]), match[2]
    return Path(path), None


def index_of(folder: Path) -> Path | None:
    """Return the file that makes a folder one recording, such as the metadata of a bag; None if there is none."""
    for reader in readers().values():
        if reader.index is not None and _has_index(folder, *reader.index):
            return folder / reader.index[0]
    return None


def format_of_index(path: Path) -> str | None:
    """Return the key of the format that a file makes its folder a recording of; None if it does not."""
    for name, reader in readers().items():
        if reader.index is not None and path.name == reader.index[0] and _has_index(path.parent, *reader.index):
            return name
    return None


def _has_index(folder: Path, name: str, content: bytes) -> bool:
    path = folder / name
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return content in file.read(1 << 10)
