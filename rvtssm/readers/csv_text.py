"""Events as text: one event per line, columns separated by comma, semicolon, tab or spaces.

The first line may name the columns, optionally after a `#`. Without names they are t, x, y, p. Lines with `#` may come
first and give the size of the sensor (`# height=260 width=346`). The lines are parsed with numpy.loadtxt, which needs
no further package and names the row of an error. pandas is 1.4 times as fast.
"""

import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rvtssm.readers.columns import EventColumns, find_columns
from rvtssm.readers.header import sensor_size
from rvtssm.readers.recording import POSITION, EventBuffer, Recording, State
from rvtssm.system.user_error import UserError

_HEAD_BYTES = 1 << 16
_BYTES_PER_LINE = 24  # an estimate that decides how much is read at once
_MAX_LINE_BYTES = 1 << 12
_NEWLINE = ord("\n")
_POLARITIES = ("0", "1", "-1")  # none is a prefix of another, so a complete one was not cut off
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class _Layout:
    """What the first lines of a file tell."""

    offset: int  # byte of the first line of numbers
    delimiter: str | None  # None means spaces
    names: tuple[str, ...] | None
    first_row: tuple[str, ...]  # empty if the file has no events
    size_hw: tuple[int, int] | None


class CsvRecording(Recording):
    """A text file of events in a given layout.

    A last line without a newline may have been cut off. It is read only if it ends with a complete polarity.

    Args:
        path: The file.
        layout: What the first lines tell.
        dtype: Structured dtype of the columns t, x, y, p.
        events: The conversion of columns to events.
    """

    format = "csv"

    def __init__(self, path: Path, layout: _Layout, dtype: np.dtype[Any], events: EventColumns) -> None:
        num_bytes, rest = _up_to_last_newline(path, layout.offset)
        fields = rest.decode("latin1").strip().split(layout.delimiter)
        is_polarity_last = events.columns.index[3] == len(layout.first_row) - 1
        if is_polarity_last and len(fields) == len(layout.first_row) and fields[-1].strip() in _POLARITIES:
            num_bytes, rest = num_bytes + len(rest), b""
        super().__init__(path, events.height, events.width, num_bytes, len(rest))
        self._layout = layout
        self._dtype = dtype
        self._events = events

    def _open(self) -> Any:
        return open(self.path, "rb", buffering=0)

    def _decode(self, state: State, buffer: EventBuffer) -> int:
        start = int(state[POSITION])
        lines = self._lines(start, len(buffer.t))
        state[POSITION] += len(lines)
        if not lines.strip():
            return 0
        place = f"in the lines from byte {self._layout.offset + start}"
        try:
            rows = np.loadtxt(
                io.BytesIO(lines),
                self._dtype,
                comments=None,
                delimiter=self._layout.delimiter,
                usecols=self._events.columns.index,
                ndmin=1,
                encoding="latin1",
            )
        except ValueError as error:
            has_decimals = self._events.columns.time_unit is None and re.search(r"\.\d*' .* column 1\.", str(error))
            hint = "; times with decimals need a unit, as in a column t_s" if has_decimals else ""
            raise UserError(f"{self.path}, {place}: {error}{hint}") from None
        return self._events.keep([rows[name] for name in "txyp"], place, state, buffer)

    def _lines(self, start: int, max_lines: int) -> bytes:
        """Return at most `max_lines` whole lines from `start` on. The last line of the file may lack its newline."""
        file = self._file()
        file.seek(self._layout.offset + start)
        wanted = min(max(max_lines * _BYTES_PER_LINE, _MAX_LINE_BYTES), self._num_units - start)
        data: bytes = file.read(wanted)
        ends = np.flatnonzero(np.frombuffer(data, np.uint8) == _NEWLINE)[:max_lines]
        if len(ends) < max_lines and len(data) == self._num_units - start:
            return data
        if not len(ends):
            raise UserError(
                f"{self.path}, byte {self._layout.offset + start}: no line ends within {len(data)} bytes; "
                "this is not a file of events, or it became shorter; copy it again"
            )
        return data[: ends[-1] + 1]


def open_csv(path: Path, height: int | None, width: int | None) -> CsvRecording:
    """Open a text file of events.

    Args:
        path: The file.
        height: Height of the sensor in pixels, if the file does not state it.
        width: Width of the sensor in pixels, if the file does not state it.

    Raises:
        UserError: A column or the size of the sensor is missing, or the file is not text with one event per line.
    """
    layout = _read_layout(path)
    if layout is None:
        raise UserError(f"{path} is not a text file with one event per line; choose another reader")
    if layout.names is None and len(layout.first_row) != 4:
        raise UserError(
            f"{path} has {len(layout.first_row)} columns without names; name them in the first line, such as t,x,y,p"
        )
    found = find_columns(path, layout.names)
    texts = [layout.first_row[i] if layout.first_row else "0" for i in found.index]
    kinds = [np.int64 if re.fullmatch(r"[+-]?\d+", text) else np.float64 for text in texts]
    if found.time_unit in ("s", "ms", "us"):  # later times may have decimals even if the first one is a plain 0
        kinds[0] = np.float64
    dtype = np.dtype(list(zip("txyp", kinds, strict=True)))
    height, width = sensor_size(path, layout.size_hw, (height, width))
    return CsvRecording(path, layout, dtype, EventColumns(path, found, height, width))


def is_csv(path: Path) -> bool:
    """Return whether a file starts with lines of numbers, with or without names above them."""
    try:
        return _read_layout(path) is not None
    except ValueError:
        return False


def _read_layout(path: Path) -> _Layout | None:
    """Return the layout of a text file, or None if the file does not start like text of this form.

    Raise ValueError if a line is not UTF-8.
    """
    with open(path, "rb") as file:
        head = file.read(_HEAD_BYTES)
    position = len(_BOM) if head.startswith(_BOM) else 0
    names, noted, size_hw, notes = None, None, None, ""
    while True:
        line, is_whole, _ = head[position:].partition(b"\n")
        if len(line) > _MAX_LINE_BYTES or any(byte < 9 or 13 < byte < 32 for byte in line):
            return None
        text = line.decode().strip()
        if text.startswith("#"):
            notes += text
            noted = noted or _names_in(text)
        elif text:
            delimiter = _delimiter(text)
            fields = tuple(field.strip() for field in text.split(delimiter))
            if len(fields) < 4:
                return None
            num_numbers = sum(_is_number(field) for field in fields)
            if num_numbers == len(fields) or (names is not None and num_numbers >= 4):
                break
            if names is not None or num_numbers:
                return None
            names = fields
        elif not is_whole:
            fields, delimiter = (), ","
            if names is None:
                return None
            break
        position += len(line) + len(is_whole)
    if names is None and noted is not None and len(noted) == len(fields):
        names = noted
    sides = [re.search(rf"{name}\s*[=:]\s*(\d{{1,5}})\b", notes) for name in ("height", "width")]
    if sides[0] and sides[1]:
        size_hw = (int(sides[0][1]), int(sides[1][1]))
    return _Layout(position, delimiter, names, fields, size_hw)


def _names_in(note: str) -> tuple[str, ...] | None:
    """Return the columns named in a line with `#` (numpy.savetxt writes such a header), or None if it names none."""
    text = note.lstrip("# ")
    fields = tuple(field.strip() for field in text.split(_delimiter(text)))
    try:
        find_columns(Path(), fields)
    except ValueError:
        return None
    return fields


def _delimiter(text: str) -> str | None:
    return next((mark for mark in ",;\t" if mark in text), None)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _up_to_last_newline(path: Path, offset: int) -> tuple[int, bytes]:
    """Return the number of bytes from the offset to the last newline, and the bytes after it, which may be cut off."""
    num_bytes = path.stat().st_size
    with open(path, "rb") as file:
        start = max(offset, num_bytes - _MAX_LINE_BYTES)
        file.seek(start)
        tail = file.read()
    end = start + tail.rfind(b"\n") + 1
    if end == start and start > offset:
        raise UserError(f"{path}, byte {start}: no line ends here; this is not a file of events, choose another file")
    return end - offset, tail[end - start :]
