"""Open recordings of any supported format with one function that recognises the format by its content.

To add a format, write one file with a class derived from `Recording` (its docstring lists what the class must provide)
and a function that opens it. Then add a line to READERS. Formats of other packages, among them folders of
`rvtssm.contrib`, are entry points of the group `rvtssm.readers`: the name is that of the format, the value a `Reader`.
"""

import re
import tarfile
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import h5py

from rvtssm.readers.aedat4 import SIGNATURE as AEDAT4_SIGNATURE
from rvtssm.readers.aedat4 import aedat4_streams, open_aedat4
from rvtssm.readers.arrays import NPY_SIGNATURE, NPZ_SIGNATURE, open_npy, open_npz
from rvtssm.readers.csv_text import is_csv, open_csv
from rvtssm.readers.dat import open_dat
from rvtssm.readers.ecf import is_ecf, open_ecf
from rvtssm.readers.evt2 import Evt2Recording, Evt21Recording
from rvtssm.readers.evt3 import Evt3Recording
from rvtssm.readers.faults import ReadFaults as ReadFaults
from rvtssm.readers.hdf5 import HDF5_SIGNATURE, open_hdf5, reading
from rvtssm.readers.hdf5_events import open_hdf5_events
from rvtssm.readers.header import LARGEST_SIDE, TextHeader, UnknownSensorSize, read_text_header
from rvtssm.readers.recording import Recording as Recording
from rvtssm.records import ReadOptions
from rvtssm.system.extras import installed_parts
from rvtssm.system.files import did_you_mean, file_errors
from rvtssm.system.limits import check_choice
from rvtssm.system.remote import local_path
from rvtssm.system.user_error import UserError

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


_ENCODINGS = {"EVT2": "evt2", "EVT21": "evt21", "EVT3": "evt3"}
USUAL_SENSORS_HW = {  # in order of their number of pixels
    "DAVIS240": (180, 240),
    "the sensor of Gen1": (240, 304),
    "DAVIS346": (260, 346),
    "GenX320": (320, 320),
    "VGA": (480, 640),
    "720p": (720, 1280),
}
_NO_OPTIONS = ReadOptions()
_TO_AEDAT4 = "open it in the software DV of iniVation and save it as AEDAT4, or export it from jAER as text"
_TO_ARRAYS = "save t, x, y and p with `numpy.savez`, or as text"
_OTHERS = {  # what files are that no reader knows, and what to do
    b"#!AER-DAT1": ("a recording in AEDAT 1", _TO_AEDAT4),
    b"#!AER-DAT2": ("a recording in AEDAT 2", _TO_AEDAT4),
    b"#!AER-DAT3": ("a recording in AEDAT 3", _TO_AEDAT4),
    b"\x1f\x8b": ("compressed with gzip", "unpack it with `gunzip`"),
    b"\x28\xb5\x2f\xfd": ("compressed with Zstandard", "unpack it with `zstd -d`"),
    b"BZh": ("compressed with bzip2", "unpack it with `bunzip2`"),
    b"\xfd7zXZ\0": ("compressed with xz", "unpack it with `unxz`"),
    b"version https://git-lfs": ("a pointer of Git LFS in place of the file", "fetch the file with `git lfs pull`"),
    b"<!DOCTYPE": ("a web page in place of the file", "download the file again"),
    b"<html": ("a web page in place of the file", "download the file again"),
    b"\xff\xfe": ("text in UTF-16", "save it as UTF-8"),
    b"\xfe\xff": ("text in UTF-16", "save it as UTF-8"),
    b"MATLAB 5.0": ("a file of MATLAB before version 7.3", "save it with `save(..., '-v7.3')`"),
    b"Event Stream": ("an Event Stream file (.es)", _TO_ARRAYS),
    b"PAR1": ("a Parquet file", _TO_ARRAYS),
    b"ARROW1": ("an Arrow file", _TO_ARRAYS),
    b"\x80\x04\x95": ("a Python pickle, which can run any code", _TO_ARRAYS),
    b"\x80\x05\x95": ("a Python pickle, which can run any code", _TO_ARRAYS),
    b"7z\xbc\xaf\x27\x1c": ("an archive of 7-Zip", "unpack it with `7z x`"),
}


def open_recording(
    path: Path | str,
    height: int | None = None,
    width: int | None = None,
    repair: bool = False,
    time_unit: str | None = None,
    format: str | None = None,
    columns: Mapping[str, str | int] | None = None,
    key: str | None = None,
) -> Recording:
    """Open an event file of any format in READERS.

    An AEDAT4 file with several cameras is opened as `FILE:/0`, a bag with several topics of events as `FILE:/TOPIC`. A
    bag of ROS 2 can also be opened by the name of its folder. A URL is copied to the cache folder first, see `remote`.

    >>> recording = rvtssm.open("street/test/test_0000_td.dat")
    >>> recording.format, recording.height, recording.width, len(recording.between(0, 50_000)) > 0
    ('dat', 64, 96, True)

    Args:
        path: The file, folder or URL.
        height: Height of the sensor in pixels, if the file does not state it.
        width: Width of the sensor in pixels, if the file does not state it.
        repair: Read the file even if more events are faulty than a camera explains (docs/your_files.md). Events outside
            the sensor and unreadable ones are left out; events that are earlier than one before them get its time.
        time_unit: Unit of the times: us, ns, ms or s, if the file does not state it.
        format: A key of READERS, for a file that does not tell its format, such as evt3 for a RAW file without header.
        columns: The name, or the number from 0, of the columns t, x, y and p, if they cannot be told.
        key: The group or the table of the events in an HDF5 file that holds several, such as davis/left/events.

    Raises:
        UserError: The file is empty or has an unknown format, neither the file nor the caller gives the size of the
            sensor, or the caller contradicts the file.
    """
    named = {name: str(place) for name, place in (columns or {}).items()}
    return open_with(path, ReadOptions(height, width, repair, time_unit, format, named, key))


def open_with(path: Path | str, options: ReadOptions) -> Recording:
    """Open an event file like `open_recording`, with the arguments in one record."""
    # What is there: a file with some content.
    path, part = split_part(local_path(path))
    named = path  # as messages name it
    path = index_of(path) or path
    if not path.exists():
        advice = did_you_mean(path).removeprefix("; ") or "give an event recording"
        raise UserError("file.missing", name=path, found="does not exist", advice=advice)
    if not path.is_file():
        raise UserError("file.kind", name=path, found="is not a file", advice="give an event recording")
    if path.stat().st_size == 0:
        advice = "copy it again if the original is not, or record it again"
        raise UserError("file.cut", name=path, found="is empty (0 bytes)", advice=advice)
    if options.format is not None:
        check_choice("format", options.format, readers())
    # The content tells the format, and the format its reader.
    with file_errors(named):
        name = recording_format(path, options)
        reader = readers()[name]
        if reader.parts is not None:
            recording = reader.open(path, options, part)
        elif part is None:
            recording = reader.open(path, options)
        else:
            raise UserError(
                "file.kind", name=named, found=f"a recording in {name} has no parts", advice=f"leave out :{part}"
            )
        if recording.is_unit_fixed and options.time_unit not in (None, "us") and "time_unit" not in options.yields:
            found = f"it is {name}, which counts microseconds, but time_unit={options.time_unit} was given"
            raise UserError("file.kind", name=path, found=found, advice="leave it out")
        for given in ("columns", "key"):
            value = getattr(options, given)
            if value and given not in (*recording.options_used, *options.yields):
                found = f"it is {name}, which has no such choice, but {given}={value} was given"
                raise UserError("file.kind", name=path, found=found, advice="leave it out")
        recording.repair = bool(options.repair)
        return recording


def usual_sensor(path: Path | str, options: ReadOptions = _NO_OPTIONS) -> tuple[str, tuple[int, int]] | None:
    """Return the most likely sensor of a file.

    The whole file is read.

    Args:
        path: The file.
        options: What the caller says about the file, without a size.

    Returns:
        Name, and height and width in pixels. None if the file states its size.

    Raises:
        UnknownSensorSize: No common sensor is large enough, or the file has no events.
        UserError: The file cannot be read.
    """
    try:
        open_with(path, options).close()
        return None
    except UnknownSensorSize as unknown:
        error = unknown
    # The pixels that the events reach.
    height = width = 0
    with closing(open_with(path, replace(options, height=LARGEST_SIDE, width=LARGEST_SIDE, repair=True))) as recording:
        for events in recording.iterate(reuse=True):
            height, width = max(height, int(events.y.max()) + 1), max(width, int(events.x.max()) + 1)
    for name, (rows, columns) in USUAL_SENSORS_HW.items():
        if 0 < height <= rows and width <= columns:
            return name, (rows, columns)
    raise error


def parts_of(path: Path) -> list[str]:
    """Return the parts of a recording that can be named, as in `FILE:/PART`; none if its format has no parts.

    Raises:
        UserError: The file cannot be read.
    """
    path = index_of(path) or path
    parts = readers()[recording_format(path)].parts
    return parts(path) if parts is not None else []


def recording_format(path: Path, options: ReadOptions = _NO_OPTIONS) -> str:
    """Return the key of READERS that fits the first bytes of a file.

    Args:
        path: The file.
        options: What the caller says; its format is for a file that does not tell it.

    Raises:
        UserError: No format fits, or the caller contradicts the file.
    """
    given = options.format
    signatures = {signature: name for name, reader in readers().items() for signature in reader.signatures}
    with open(path, "rb") as file:
        head = file.read(max(map(len, (*signatures, *_OTHERS))))
    told = _told_format(path, head, signatures)
    if told is None and given is None and path.suffix == ".dat" and not read_text_header(path).lines:
        return "dat"  # the oldest DAT files start with their first event
    if told is None and given is None:
        raise UserError("file.kind", found=_unknown(path, head))
    is_other = told is not None and given is not None and readers()[given].open is not readers()[told].open
    if is_other and "format" not in options.yields:
        raise UserError(
            "file.kind", name=path, found=f"it is {told}, but format={given} was given", advice="leave it out"
        )
    return told or given or ""


def _told_format(path: Path, head: bytes, signatures: Mapping[bytes, str]) -> str | None:
    """Return the format that the content of a file tells; None if it tells none."""
    if head.startswith(HDF5_SIGNATURE):
        return _hdf5_format(path)
    for signature, name in signatures.items():
        if head.startswith(signature):
            return name
    for signature, (what, advice) in _OTHERS.items():
        if head.startswith(signature):
            raise UserError("file.kind", name=path, found=f"is {what}, which cannot be read", advice=advice)
    if (indexed := format_of_index(path)) is not None:
        return indexed
    header = read_text_header(path)
    # Formats with a header of text, then those that have none.
    if header.encoding is not None:
        if header.encoding not in _ENCODINGS:
            cure = f"choose from {', '.join(readers())}"
            raise UserError("file.kind", name=path, found=f"has the encoding {header.encoding}", advice=cure)
        return _ENCODINGS[header.encoding]
    if header.value("Data") is not None or header.value("Version") is not None:
        return "dat"
    if h5py.is_hdf5(path):  # after a block of another program, as in files of MATLAB 7.3
        return _hdf5_format(path)
    if not _is_raw(header) and is_csv(path):
        return "csv"
    return None


def _is_raw(header: TextHeader) -> bool:
    return any(header.value(key) is not None for key in ("integrator_name", "plugin_name", "system_ID"))


def _unknown(path: Path, head: bytes) -> str:
    """Return the message about a file whose format cannot be told."""
    if tarfile.is_tarfile(path):
        return f"{path} is an archive of files; unpack it with `tar xf`"
    if _is_raw(read_text_header(path)):
        return (
            f"{path} is a RAW file that does not say its encoding; say it, as in format=evt2, format=evt21 or "
            "format=evt3"
        )
    known = "which no reader knows; say it, as in format=evt3 for a RAW file without a header,"
    if head.isascii() and b"".join(head.split()).decode().isprintable():
        known = "so it is text, but its lines are not events (at least four numbers: t, x, y, p);"
    return f"{path} starts with {head!r}, {known} one of {', '.join(readers())}"


def _hdf5_format(path: Path) -> str:
    with reading(path), open_hdf5(path) as file:
        return "ecf" if is_ecf(file) else "hdf5"
