"""The text header that Prophesee's DAT and RAW files share: lines `% key value`, sometimes closed by `% end`.

Source: OpenEB 0499c95, hal_psee_plugins (keys and sizes of cameras).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_MAX_HEADER_BYTES = 1 << 16
_LARGEST_SIDE = 1 << 14  # pixels: coordinates have at most 14 bits, those of DAT
_CAMERA_SIZES_HW = {"gen3": (480, 640), "gen4": (720, 1280), "imx636": (720, 1280), "genx320": (320, 320)}


@dataclass(frozen=True, slots=True)
class TextHeader:
    """The header lines of a file and the number of bytes they take, 0 for a file without a header."""

    lines: tuple[str, ...]
    num_bytes: int

    def value(self, key: str) -> str | None:
        """What follows `% key`, None where there is no such line."""
        for line in self.lines:
            name, _, value = line.partition(" ")
            if name.lower() == key.lower():
                return value.strip()
        return None

    @property
    def size_hw(self) -> tuple[int, int] | None:
        """Height and width of the sensor in pixels, if the header tells."""
        if (height := self.value("Height")) and (width := self.value("Width")):
            return _number(height), _number(width)
        if found := re.search(r"height=(\d+);width=(\d+)", self.value("format") or ""):
            return int(found[1]), int(found[2])
        if found := re.fullmatch(r"(\d+)x(\d+)", self.value("geometry") or ""):
            return int(found[2]), int(found[1])
        return None

    @property
    def camera_size_hw(self) -> tuple[int, int] | None:
        """The full size of the camera named in a header that gives no size."""
        plugin = self.value("plugin_name") or ""
        return next((size for camera, size in _CAMERA_SIZES_HW.items() if camera in plugin), None)


def read_text_header(path: Path) -> TextHeader:
    """The lines from the start of the file that begin with `% `, up to and including `% end`."""
    with open(path, "rb") as file:
        head = file.read(_MAX_HEADER_BYTES)
    lines, position = [], 0
    while head.startswith(b"% ", position):
        end = head.find(b"\n", position)
        if end < 0:
            raise ValueError(f"{path} has a header line without an end; this is not a recording")
        lines.append(head[position + 2 : end].decode("ascii", "replace").strip())
        position = end + 1
        if lines[-1] == "end":
            break
    return TextHeader(tuple(lines), position)


def _number(text: str) -> int:
    """A whole number in a header; 0, which no sensor has, for anything else."""
    return int(text) if text.isascii() and text.isdigit() else 0


def sensor_size(path: Path, in_file: tuple[int, int] | None, asked: tuple[int | None, int | None]) -> tuple[int, int]:
    """Height and width from the file or the caller.

    ValueError if neither gives them, if both do and they differ, and for a size in the file that no sensor has.
    """
    height, width = asked
    if in_file is not None and not all(1 <= side <= _LARGEST_SIDE for side in in_file):
        raise ValueError(
            f"{path} names a sensor of {in_file[0]}x{in_file[1]} (height x width) pixels, which cannot be; "
            "its header is damaged, copy it again"
        )
    if in_file is not None and height in (None, in_file[0]) and width in (None, in_file[1]):
        return in_file
    if in_file is not None:
        raise ValueError(
            f"{path} comes from a sensor of {in_file[0]}x{in_file[1]} (height x width), but "
            f"{height or 'any'}x{width or 'any'} was asked for; choose the dataset or the size that fits"
        )
    if height is None or width is None:
        raise ValueError(f"{path} does not say the size of its sensor; give height and width")
    return height, width
