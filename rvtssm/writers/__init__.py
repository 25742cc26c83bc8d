"""Write events in the formats that other programs read; `convert` turns a recording of any format into one of them.

To add a format, write a function that takes a path, blocks of events and the size of the sensor, and add a line to
FORMATS.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rvtssm.readers import Recording
from rvtssm.readers.dat import write_dat
from rvtssm.readers.recording import EventBlocks
from rvtssm.records import Events
from rvtssm.system.files import atomic_file
from rvtssm.system.user_error import UserError
from rvtssm.writers.formats import write_aedat4, write_csv, write_evt2, write_evt3, write_npy, write_rvt_hdf5

Write = Callable[[Path, Iterable[Events], int, int], None]  # path, blocks, height and width of the sensor


@dataclass(frozen=True)
class Format:
    """A format that events are written in, and what it can hold."""

    write: Write
    suffixes: tuple[str, ...]  # ends of file names that mean this format
    end_us: int | None = None  # times lie from 0 up to this; None: any time
    largest_side: int = 1 << 14  # of the sensor, pixels; the readers allow no larger one
    holds_size: bool = True  # the file says the size of the sensor


FORMATS: dict[str, Format] = {
    "dat": Format(write_dat, (".dat",), end_us=1 << 32),
    "evt3": Format(write_evt3, (".raw",), end_us=1 << 36, largest_side=1 << 11),
    "evt2": Format(write_evt2, (".evt2.raw",), end_us=1 << 34, largest_side=1 << 11),
    "rvt_hdf5": Format(write_rvt_hdf5, (".h5", ".hdf5")),
    "aedat4": Format(write_aedat4, (".aedat4",)),
    "npy": Format(write_npy, (".npy",), holds_size=False),
    "csv": Format(write_csv, (".csv", ".txt")),
}


def format_for(path: Path) -> str:
    """Return the key of FORMATS that the end of a file name means; of several ends the longest counts.

    Raises:
        UserError: The end means no format.
    """
    by_suffix: dict[str, str] = {}
    for name, known in FORMATS.items():
        by_suffix |= dict.fromkeys(known.suffixes, name)
    matching = [suffix for suffix in by_suffix if path.name.lower().endswith(suffix)]
    if not matching:
        raise UserError(
            "convert.format",
            f"the name of {path} does not say in which format to write; end it with one of {', '.join(by_suffix)}",
        )
    return by_suffix[max(matching, key=len)]


def convert(
    recording: Recording, out: Path, format: str, advance: Callable[[int], object] = lambda num_events: None
) -> EventBlocks:
    """Write the events of a recording in another format. The file only appears when it is complete.

    The new file holds the same times, pixels and polarities. Events that the reader of the recording leaves out or
    repairs, such as those outside the sensor, are written as it returns them.

    Args:
        recording: The recording.
        out: The file to write.
        format: A key of FORMATS.
        advance: Called with the number of events of each block.

    Returns:
        The blocks of the recording, with their counts.

    Raises:
        UserError: The format cannot hold the times or the size of the sensor, or the recording is damaged.
    """
    known, height, width = FORMATS[format], recording.height, recording.width
    if max(height, width) > known.largest_side:
        raise UserError(
            "convert.size",
            f"{format} holds sensors of up to {known.largest_side} pixels per side, but {recording.path} has "
            f"{width} x {height}; choose another format, such as .dat or .h5",
        )
    blocks = EventBlocks(recording)

    def checked() -> Iterator[Events]:
        for block in blocks:
            if known.end_us is not None and not 0 <= blocks.first_us <= blocks.last_us < known.end_us:
                suffixes = [suffix for other in FORMATS.values() if other.end_us is None for suffix in other.suffixes]
                raise UserError(
                    "convert.time",
                    f"{format} holds times from 0 to {known.end_us} us, but {recording.path} has events from "
                    f"{blocks.first_us} to {blocks.last_us} us; write {', '.join(suffixes)}, which hold any time (to "
                    f"move the clock, write .npy, subtract {blocks.first_us} from its t_us, and convert that)",
                )
            yield block
            advance(len(block))

    with atomic_file(out) as staged:
        known.write(staged, checked(), height, width)
    return blocks
