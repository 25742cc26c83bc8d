"""What the names of labelled images say: the recording and the number of the frame, or its time.

The name of a recording is a folder of the path or the beginning of the file name, as in `walk/frame_0010.png` or
`walk_0010.txt`. The number at the end is that of a frame, or without a rate of frames a time in microseconds.
"""

import re
from collections.abc import Collection, Iterable

from rvtssm.system.user_error import UserError

# Roboflow writes `walk_0010_png.rf.0f3a.jpg`.
_EXPORTED = re.compile(r"_(?:png|jpe?g|bmp)\.rf\.[0-9a-zA-Z]+$")
_SHORTEST_US = 1000  # numbers of images closer than this are not times in microseconds


def image_stem(name: str) -> str:
    """Return the path of an image without suffix, with / between folders; tools on Windows write a backslash."""
    path = name.replace("\\", "/")
    folder, _, file = path.rpartition("/")
    stem = re.sub(r"\.[A-Za-z]\w*$", "", file)
    return f"{folder}/{_EXPORTED.sub('', stem)}".lstrip("/")


def frame_number(stem: str) -> int | None:
    """Return the number at the end of a name, or None."""
    digits = re.search(r"(\d+)$", stem)
    return int(digits[1]) if digits else None


class RecordingNames:
    """Finds the recording that the name of an image contains. Of several, the longest name wins.

    Args:
        names: The names of all recordings.
    """

    def __init__(self, names: Collection[str]) -> None:
        ordered = sorted(names, key=len, reverse=True)
        self._pattern = re.compile(f"/({'|'.join(map(re.escape, ordered))})(?![0-9A-Za-z])")

    def split(self, stem: str) -> tuple[str, str] | None:
        """Return the recording and the rest of the name of an image, or None if it belongs to no recording.

        Args:
            stem: The path of the image without its suffix.
        """
        match = self._pattern.search(f"/{stem}")
        return (match[1], f"/{stem}"[match.end() :]) if match else None


def counts_from_one(numbers: Iterable[int]) -> bool:
    """Return whether frames are numbered from 1: 1 is the smallest number."""
    return min(numbers, default=0) == 1


def frame_times_us(numbers: list[int], fps: float, is_from_one: bool) -> list[int]:
    """Return the times of frames in microseconds.

    Args:
        numbers: The numbers in the names of the images.
        fps: Frames per second. 0: the numbers are times in microseconds.
        is_from_one: Whether the first frame has the number 1.

    Raises:
        UserError: The numbers count frames, but their rate is not known.
    """
    if fps > 0:
        return [round(1e6 * (number - is_from_one) / fps) for number in numbers]
    ascending = sorted(set(numbers))
    if len(ascending) > 1 and (ascending[-1] - ascending[0]) / (len(ascending) - 1) < _SHORTEST_US:
        raise UserError(
            "labels.no_frame_rate",
            f"the names of the images have the numbers {ascending[0]} to {ascending[-1]}, which count frames; give "
            "their rate, as in `label_fps: 30` in dataset.yaml",
        )
    return numbers
