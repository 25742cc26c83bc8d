"""Events as text: one event per line, columns separated by comma, semicolon, tab or spaces.

The first line may name the columns, optionally after a `#`. Without names they are what OpenEB writes (x, y, p, t)
after its `%geometry:WIDTH,HEIGHT`, and otherwise the only usual order that fits the first lines. Lines `t x y p`
between spaces whose times have fractions are in seconds, as RPG and v2e write them. Other times with a decimal point or
an exponent, as numpy.savetxt writes all numbers, need their unit. Lines with `#` may come first and give the size of
the sensor (`# height=260 width=346`). The lines are parsed with numpy.loadtxt, which needs no further package and names
the row of an error. pandas is 1.4 times as fast.
"""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rvtssm.readers.columns import NAMES, Columns, GatedRecording, columns_of, find_columns, matching, order_of_unnamed
from rvtssm.readers.gate import POSITION, Column, Gate, State
from rvtssm.readers.header import sensor_size
from rvtssm.records import ReadOptions
from rvtssm.system.user_error import UserError

_HEAD_BYTES = 1 << 16
_BYTES_PER_LINE = 24  # an estimate that decides how much is read at once
_MAX_LINE_BYTES = 1 << 12
_NEWLINE = ord("\n")
_POLARITIES = ("0", "1", "-1")  # none is a prefix of another, so a complete one was not cut off
_BOM = b"\xef\xbb\xbf"
_MOST_FIRST_ROWS = 1000  # that tell the order of columns without names
_WORDS = {"true": "1", "false": "0", "on": "1", "off": "0"}  # polarities as pandas and others write them
_OPENEB_NAMES = ("x", "y", "p", "t")
_AS_FLOATS = np.dtype({"names": NAMES, "formats": [np.float64] * len(NAMES)})


@dataclass(frozen=True, slots=True)
class _Layout:
    """What the first lines of a file tell."""

    offset: int  # byte of the first line of numbers
    delimiter: str | None  # None means spaces
    names: tuple[str, ...] | None
    first_rows: tuple[tuple[str, ...], ...]  # empty if the file has no events
    size_hw: tuple[int, int] | None

    @property
    def num_fields(self) -> int:
        return len(self.first_rows[0]) if self.first_rows else 0


class CsvRecording(GatedRecording):
    """A text file of events in a given layout.

    A last line without a newline may have been cut off. It is read only if it ends with a complete polarity.

    Args:
        path: The file.
        layout: What the first lines tell.
        columns: Which columns are t, x, y and p.
        gate: The conversion of columns to events.
    """

    format = "csv"
    is_unit_fixed = False
    options_used = ("columns",)

    def __init__(self, path: Path, layout: _Layout, columns: Columns, gate: Gate) -> None:
        # Whole lines, and a last one that is only read if nothing of it can be missing.
        num_bytes, rest = _up_to_last_newline(path, layout.offset)
        fields = rest.decode("latin1").strip().split(layout.delimiter)
        num_fields = layout.num_fields
        is_polarity_last = columns.index[3] == num_fields - 1
        if is_polarity_last and len(fields) == num_fields and fields[-1].strip() in _POLARITIES:
            num_bytes, rest = num_bytes + len(rest), b""
        super().__init__(gate, num_bytes, len(rest))
        self.is_unit_certain = columns.time_unit is not None
        self._layout = layout
        self._places = columns
        self._dtype = _dtype(layout, columns)

    def _open(self) -> Any:
        return open(self.path, "rb", buffering=0)

    def _next_columns(self, state: State, max_events: int) -> tuple[Sequence[Column], str]:
        start = int(state[POSITION])
        lines = self._lines(start, max_events)
        state[POSITION] += len(lines)
        return self._columns(lines), f"in the lines from byte {self._layout.offset + start}"

    def _columns(self, lines: bytes) -> list[Column]:
        """Return t, x, y, p of some lines. A line that is not numbers becomes an event without a valid time."""
        if not lines.strip():
            return columns_of(np.empty(0, self._dtype))
        try:
            rows = self._parsed(lines, self._dtype)
        except ValueError:
            rows = self._parsed(_with_whole_lines(lines, self._layout, self._places), _AS_FLOATS)
        return columns_of(rows)

    def _parsed(self, lines: bytes, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        rows: npt.NDArray[Any] = np.loadtxt(
            io.BytesIO(lines),
            dtype,
            comments=None,
            delimiter=self._layout.delimiter,
            usecols=self._places.index,
            ndmin=1,
            quotechar='"',
            encoding="latin1",
        )
        return rows

    def _lines(self, start: int, max_lines: int) -> bytes:
        """Return at most `max_lines` whole lines from `start` on. The last line of the file may lack its newline."""
        file = self._file()
        file.seek(self._layout.offset + start)
        num_bytes = min(max(max_lines * _BYTES_PER_LINE, _MAX_LINE_BYTES), self._num_units - start)
        data: bytes = file.read(num_bytes)
        ends = np.flatnonzero(np.frombuffer(data, np.uint8) == _NEWLINE)[:max_lines]
        if len(ends) < max_lines and len(data) == self._num_units - start:
            return data
        if not len(ends):
            found = f"no line ends within {len(data)} bytes"
            advice = "this is not a file of events, or it became shorter; write one event per line"
            name = f"{self.path}, byte {self._layout.offset + start}"
            raise UserError("file.content", name=name, found=found, advice=advice)
        return data[: ends[-1] + 1]


def open_csv(path: Path, options: ReadOptions) -> CsvRecording:
    """Open a text file of events.

    Args:
        path: The file.
        options: What the caller says about the file.

    Raises:
        UserError: A column or the size of the sensor is missing, the order of the columns is not certain, or the file
            is not text with one event per line.
    """
    layout = _read_layout(path)
    if layout is None:
        advice = "choose another reader"
        raise UserError("file.kind", name=path, found="is not a text file with one event per line", advice=advice)
    height, width = sensor_size(path, layout.size_hw, options)
    if layout.names is not None:
        columns = find_columns(path, layout.names, options)
    else:
        columns = order_of_unnamed(path, _numbers(layout), replace(options, height=height, width=width))
    if columns.time_unit is None:
        columns = replace(columns, time_unit=_unit_of_decimals(path, layout, columns.index[0]))
    return CsvRecording(path, layout, columns, Gate(path, height, width, columns.time_unit))


def _unit_of_decimals(path: Path, layout: _Layout, place: int) -> str | None:
    """Return the unit of times that are written with a decimal point or an exponent; None for whole numbers.

    Args:
        path: The file, for the message.
        layout: What the first lines tell.
        place: The column of the times.

    Raises:
        UserError: The times are floats, and the file does not have the form that RPG and v2e write in seconds.
    """
    floats = []
    for row in layout.first_rows:
        if place < len(row) and _is_number(row[place]) and set(row[place]) & set(".eE"):
            floats.append(row[place])
    if not floats:
        return None
    has_fractions = any(not float(word).is_integer() for word in floats)
    if has_fractions and layout.delimiter is None and layout.names is None and place == 0:
        return "s"
    found = f"the times are written as {floats[0]}, which can be of any unit"
    raise UserError("file.content", name=path, found=found, advice="say it, as in time_unit=us or time_unit=s")


def is_csv(path: Path) -> bool:
    """Return whether a file starts with lines of numbers, with or without names above them."""
    try:
        return _read_layout(path) is not None
    except UnicodeDecodeError:
        return False


def is_event_text(path: Path) -> bool:
    """Return whether a file begins with events, and not with notes or boxes, which `.txt` files hold as well."""
    try:
        layout = _read_layout(path)
    except (UnicodeDecodeError, UserError):
        return False
    if layout is None or not layout.first_rows:
        return False
    return layout.names is not None or len(layout.first_rows[0]) == len(NAMES)


def _read_layout(path: Path) -> _Layout | None:
    """Return the layout of a text file, or None if the file does not start like text of this form.

    Raise ValueError if a line is not UTF-8.
    """
    with open(path, "rb") as file:
        head = file.read(_HEAD_BYTES)
    # Line by line: notes, names, and at last a line of numbers.
    position = len(_BOM) if head.startswith(_BOM) else 0
    names, noted, size_hw, notes = None, None, None, ""
    while True:
        line, is_whole, _ = head[position:].partition(b"\n")
        if len(line) > _MAX_LINE_BYTES or any(byte < 9 or 13 < byte < 32 for byte in line):
            return None
        text = line.decode().strip()
        if text.startswith(("#", "%", "//")):
            notes += text
            noted = noted or _names_in(text)
        elif text:
            delimiter = _delimiter(text)
            fields = _fields(text, delimiter)
            if ";" in text and re.search(r"\d,\d", text):
                raise UserError("file.content", name=path, found="has decimal commas", advice="write decimal points")
            if len(fields) < 4:
                return None
            num_numbers = sum(map(_is_number, fields))
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
    # What notes say of columns and sensor.
    if names is None and noted is not None and len(noted) == len(fields):
        names = noted
    sides = [re.search(rf"{name}\s*[=:]\s*(\d{{1,5}})\b", notes) for name in ("height", "width")]
    if sides[0] and sides[1]:
        size_hw = (int(sides[0][1]), int(sides[1][1]))
    if geometry := re.match(r"%\s*geometry:(\d{1,5}),(\d{1,5})", notes):
        size_hw = (int(geometry[2]), int(geometry[1]))
        names = names or _OPENEB_NAMES
    # The first rows show what the columns hold.
    rows = _rows(head[position:], delimiter, len(fields)) if fields else ()
    return _Layout(position, delimiter, names, rows, size_hw)


def _rows(lines: bytes, delimiter: str | None, num_fields: int) -> tuple[tuple[str, ...], ...]:
    """Return the first lines as fields, without those that have another number of fields."""
    rows = []
    for line in lines.split(b"\n", _MOST_FIRST_ROWS)[:_MOST_FIRST_ROWS]:
        fields = line.decode("latin1").strip().split(delimiter)
        if len(fields) == num_fields:
            rows.append(_fields(line.decode("latin1"), delimiter))
    return tuple(rows)


def _numbers(layout: _Layout) -> npt.NDArray[np.float64]:
    """Return the first rows as numbers, without those that are none."""
    rows = []
    for row in layout.first_rows:
        if all(map(_is_number, row)):
            rows.append([_WORDS.get(text.lower(), text) for text in row])
    return np.array(rows, np.float64).reshape(len(rows), layout.num_fields)


def _dtype(layout: _Layout, columns: Columns) -> np.dtype[Any]:
    """Return the types of t, x, y and p: integers for columns that start with some."""
    kinds: list[type] = []
    for i in columns.index:
        has_fraction = layout.first_rows and not re.fullmatch(r"[+-]?\d+", layout.first_rows[0][i])
        kinds.append(np.float64 if has_fraction else np.int64)
    if columns.time_unit in ("s", "ms", "us"):  # later times may have decimals even if the first one is a plain 0
        kinds[0] = np.float64
    return np.dtype(list(zip(NAMES, kinds, strict=True)))


def _with_whole_lines(lines: bytes, layout: _Layout, columns: Columns) -> bytes:
    """Return lines of numbers, with `nan` as the time of a line that is not four numbers."""
    mark = layout.delimiter or " "
    whole = []
    for line in lines.decode("latin1").split("\n"):
        if not line.strip():
            continue
        fields = [_WORDS.get(field.lower(), field) for field in _fields(line, layout.delimiter)]
        is_event = max(columns.index) < len(fields) and all(_is_number(fields[i]) for i in columns.index)
        if not is_event:
            fields = ["0"] * (max(columns.index) + 1)
            fields[columns.index[0]] = "nan"
        whole.append(mark.join(fields))
    return "\n".join(whole).encode("latin1")


def _names_in(note: str) -> tuple[str, ...] | None:
    """Return the columns named in a line with `#` (numpy.savetxt writes such a header), or None if it names none."""
    text = note.lstrip("#%/ ")
    fields = tuple(map(str.strip, text.split(_delimiter(text))))
    return fields if set(matching(fields)[0]) == set(NAMES) else None


def _fields(text: str, delimiter: str | None) -> tuple[str, ...]:
    return tuple(field.strip().strip('"') for field in text.strip().split(delimiter))


def _delimiter(text: str) -> str | None:
    return next((mark for mark in ";,\t" if mark in text), None)


def _is_number(text: str) -> bool:
    try:
        float(_WORDS.get(text.lower(), text))
    except ValueError:
        return False
    return "_" not in text  # which Python allows between digits, but numpy does not


def _up_to_last_newline(path: Path, offset: int) -> tuple[int, bytes]:
    """Return the number of bytes from the offset to the last newline, and the bytes after it, which may be cut off."""
    num_bytes = path.stat().st_size
    with open(path, "rb") as file:
        start = max(offset, num_bytes - _MAX_LINE_BYTES)
        file.seek(start)
        tail = file.read()
    end = start + tail.rfind(b"\n") + 1
    if end == start and start > offset:
        advice = "this is not a file of events, choose another file"
        raise UserError("file.content", name=f"{path}, byte {start}", found="no line ends here", advice=advice)
    return end - offset, tail[end - start :]
