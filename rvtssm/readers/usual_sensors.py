"""Guess the size of a sensor that a file does not state: the smallest common sensor that contains all its events."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

from rvtssm.readers import open_with
from rvtssm.readers.header import LARGEST_SIDE, UnknownSensorSize
from rvtssm.records import ReadOptions

_NO_OPTIONS = ReadOptions()
USUAL_SENSORS_HW = {
    "DAVIS240": (180, 240),
    "the sensor of Gen1": (240, 304),
    "DAVIS346": (260, 346),
    "GenX320": (320, 320),
    "VGA": (480, 640),
    "720p": (720, 1280),
}  # in order of their number of pixels


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
    height = width = 0
    with closing(open_with(path, replace(options, height=LARGEST_SIDE, width=LARGEST_SIDE, repair=True))) as recording:
        for events in recording.iterate(reuse=True):
            if len(events.t):
                height, width = max(height, int(events.y.max()) + 1), max(width, int(events.x.max()) + 1)
    for name, (rows, columns) in USUAL_SENSORS_HW.items():
        if 0 < height <= rows and width <= columns:
            return name, (rows, columns)
    raise error
