"""Files of columns, and which of them are t, x, y and p: by name, by the caller, or by the only order that fits.

Names may say the unit of time (`t_s`, `timestamp_us`); otherwise the caller can (`time_unit=`).
"""

import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rvtssm.readers.gate import MOST_STRAYS, POSITION, Column, EventBuffer, Gate, State
from rvtssm.readers.header import LARGEST_SIDE
from rvtssm.readers.recording import Recording
from rvtssm.records import ReadOptions
from rvtssm.records.arrays import is_polarity
from rvtssm.records.settings import COLUMNS_EXAMPLE
from rvtssm.system.user_error import UserError

NAMES = ("t", "x", "y", "p")
_ALIASES = {
    "t": ("t", "ts", "time", "times", "timestamp", "timestamps"),
    "x": ("x", "xs", "col", "cols", "column", "columns"),
    "y": ("y", "ys", "row", "rows"),
    "p": ("p", "ps", "pol", "polarity", "polarities"),
}
_MEANINGS = {alias: name for name, aliases in _ALIASES.items() for alias in aliases}
# The orders that programs write, as the places of t, x, y, p.
ORDERS = {"t, x, y, p": (0, 1, 2, 3), "x, y, t, p": (2, 0, 1, 3), "x, y, p, t": (3, 0, 1, 2)}
FIRST_ROWS = 4096  # of a table whose order is not certain
_MOST_FAULTS = 0.01  # share of faulty events among the rows that tell the order


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns of a file are t, x, y and p, and the unit of time."""

    index: tuple[int, int, int, int]  # positions of t, x, y, p in the file
    time_unit: str | None  # a key of TIME_UNITS_US, or None if neither the file nor the caller names one

    def pick(self, items: Any) -> list[Any]:
        """Return those of t, x, y and p from a sequence with one item per column of the file."""
        return [items[i] for i in self.index]


class GatedRecording(Recording):
    """A file whose parts (chunks, packets, messages, lines) hold raw columns, which pass the gate.

    Args:
        gate: The conversion of columns to events.
        num_units: Number of units in the file, as POSITION counts them.
        truncated_bytes: Bytes after the last complete unit.
    """

    def __init__(self, gate: Gate, num_units: int, truncated_bytes: int = 0) -> None:
        super().__init__(gate.path, gate.height, gate.width, num_units, truncated_bytes)
        self._gate = gate

    def _decode(self, state: State, buffer: EventBuffer) -> int:
        num_kept = 0
        while state[POSITION] < self._num_units and len(buffer.t) - num_kept >= self.smallest_block:
            num_kept += self._decode_part(state, buffer.after(num_kept))
        return num_kept

    def _decode_part(self, state: State, room: EventBuffer) -> int:
        """Write the next events of one part of the file into the room, and return the number of events written."""
        columns, place = self._next_columns(state, len(room.t))
        return self._gate.keep(columns, place, state, room, lambda: self._next_times(state))

    def _next_times(self, state: State) -> Column:
        """Return the raw times of the next MOST_STRAYS events, of as many parts as it takes."""
        ahead = state.copy()
        times = list[Column]()
        num_left = MOST_STRAYS
        while ahead[POSITION] < self._num_units and num_left:
            columns, _ = self._next_columns(ahead, num_left)
            times.append(columns[0])
            num_left -= len(columns[0])
        return np.concatenate(times or [np.empty(0, np.int64)])

    @abstractmethod
    def _next_columns(self, state: State, max_events: int) -> tuple[Sequence[Column], str]:
        """Return t, x, y and p of the next events of one part, and its place for messages. Advance the state."""


class ColumnsRecording(GatedRecording):
    """A file of columns that can be read from any row on; its units are the rows."""

    is_unit_fixed = False
    options_used: tuple[str, ...] = ("columns",)
    most_rows = 1 << 62  # that are read at once

    def __init__(self, gate: Gate, num_units: int, truncated_bytes: int = 0) -> None:
        super().__init__(gate, num_units, truncated_bytes)
        self.is_unit_certain = gate.time_unit is not None

    def _next_columns(self, state: State, max_events: int) -> tuple[Sequence[Column], str]:
        start = int(state[POSITION])
        stop = min(start + max_events, start + self.most_rows, self._num_units)
        state[POSITION] = stop
        return self._columns(start, stop), f"in events {start} to {stop}"

    @abstractmethod
    def _columns(self, start: int, stop: int) -> list[Column]:
        """Return t, x, y and p of the rows [start, stop)."""


def find_columns(path: Path, names: Sequence[str], options: ReadOptions) -> Columns:
    """Find the columns t, x, y and p.

    Args:
        path: The file, for messages.
        names: Names of the columns in the file.
        options: What the caller says about the file.

    Raises:
        UserError: A column is missing or exists twice, or the caller names another unit than the file.
    """
    places_of, time_unit = matching(names)
    if options.columns and not is_told(names, options):
        return _given(path, names, options)
    for meaning, places in places_of.items():
        if len(places) > 1:
            both = " and ".join(names[i] for i in places)
            advice = f"choose one, as in {COLUMNS_EXAMPLE}"
            raise UserError("file.ambiguous", name=path, found=f"has two columns for {meaning}: {both}", advice=advice)
    if missing := [name for name in NAMES if name not in places_of]:
        found = f"has columns {', '.join(names)} and none for {', '.join(missing)}"
        raise UserError("file.content", name=path, found=found, advice=f"name them, as in {COLUMNS_EXAMPLE}")
    t, x, y, p = (places_of[name][0] for name in NAMES)
    return Columns((t, x, y, p), agreed_unit(path, time_unit, options))


def is_told(names: Sequence[str], options: ReadOptions) -> bool:
    """Return whether names tell the columns, where the caller's columns are meant for files that do not tell them."""
    is_other = any(str(name) not in names for name in options.columns.values())
    return are_complete(names) and is_other and "columns" in options.yields


def are_complete(names: Sequence[str]) -> bool:
    """Return whether there is exactly one name for each of t, x, y and p."""
    places_of, _ = matching(names)
    return set(places_of) == set(NAMES) and {*map(len, places_of.values())} == {1}


def columns_of(rows: npt.NDArray[np.void]) -> list[Column]:
    """Return t, x, y and p of a structured array as arrays of their own."""
    return [np.ascontiguousarray(rows[name]) for name in NAMES]


def matching(names: Sequence[str]) -> tuple[dict[str, list[int]], str | None]:
    """Return the places of the names for t, x, y and p, and the unit of time that a name gives."""
    places_of: dict[str, list[int]] = {}
    time_unit = None
    for i, name in enumerate(names):
        word, unit = _word_and_unit(name)
        meaning = _MEANINGS.get(word)
        if meaning is None or (unit and meaning != "t"):
            continue
        places_of.setdefault(meaning, []).append(i)
        time_unit = unit or time_unit
    return places_of, time_unit


def agreed_unit(path: Path, in_file: str | None, options: ReadOptions) -> str | None:
    """Return the unit of time that the file or the caller names. Raise UserError if they disagree."""
    said = options.time_unit
    if in_file and said and in_file != said and "time_unit" not in options.yields:
        found = f"its times are in {in_file} by the name of their column, but time_unit={said} was given"
        raise UserError("file.content", name=path, found=found, advice="leave it out")
    return in_file or said


def _given(path: Path, names: Sequence[str], options: ReadOptions) -> Columns:
    places = []
    for name in NAMES:
        given = str(options.columns[name])
        if given in names:
            places.append(names.index(given))
        elif given.isdecimal() and int(given) < len(names):
            places.append(int(given))
        else:
            found = f"has no column {given}, but {', '.join(names)}"
            raise UserError("file.content", name=path, found=found, advice="give columns= with those")
    t, x, y, p = places
    return Columns((t, x, y, p), agreed_unit(path, _word_and_unit(names[t])[1], options))


def order_of_unnamed(path: Path, rows: npt.NDArray[Any], options: ReadOptions, usual: str | None = None) -> Columns:
    """Find the columns of rows without names: as the caller says, in the usual order, or in the only one that fits.

    Args:
        path: The file, for messages.
        rows: (N, K), the first rows.
        options: What the caller says about the file.
        usual: A key of ORDERS, which is taken if the values allow it.

    Raises:
        UserError: The caller says no order, and several orders or none fit the values.
    """
    if options.columns:
        return _given(path, [*map(str, range(rows.shape[1]))], options)
    # The orders that fit the sensor, any sensor, or at least unsorted events.
    fitting = _fitting(rows, (options.height or LARGEST_SIDE, options.width or LARGEST_SIDE))
    fitting = fitting or _fitting(rows, (LARGEST_SIDE, LARGEST_SIDE))
    if not fitting:
        fitting = _fitting(rows, (LARGEST_SIDE, LARGEST_SIDE), is_sorted=False)  # the gate refuses unsorted times
    if usual is not None and rows.shape[1] == len(NAMES) and (usual in fitting or not fitting):
        fitting = [usual]
    if len(fitting) != 1:
        several = f"fit {' as well as '.join(fitting)}" if fitting else "fit no usual order of t, x, y and p"
        found = f"it has {rows.shape[1]} columns without names, which {several}"
        advice = "say which they are, as in columns={t: 0, x: 1, y: 2, p: 3}, counted from 0"
        raise UserError("file.ambiguous", name=path, found=found, advice=advice)
    return Columns(ORDERS[fitting[0]], options.time_unit)


def _fitting(rows: npt.NDArray[Any], size_hw: tuple[int, int], is_sorted: bool = True) -> list[str]:
    """Return the orders in which rows look like events of a sensor, apart from a few faults.

    Without `is_sorted`, the times may have any order, but one of them cannot be a pixel.
    """
    if rows.ndim != 2 or rows.shape[1] != len(NAMES):
        return []
    numbers = np.asarray(rows, np.float64)
    return [order for order, index in ORDERS.items() if _fits(numbers[:, index], size_hw, is_sorted)]


def _fits(rows: npt.NDArray[np.float64], size_hw: tuple[int, int], is_sorted: bool) -> bool:
    # Columns (N,): pixels are whole and on the sensor, times rise.
    t, x, y, p = rows.T
    if not is_sorted:
        if len(t) and t.max() < max(size_hw):
            return False
        t = np.sort(t)
    is_pixel = (x == np.rint(x)) & (y == np.rint(y)) & (x >= 0) & (y >= 0) & (x < size_hw[1]) & (y < size_hw[0])
    num_faults = max(np.count_nonzero(~is_pixel), np.count_nonzero(np.diff(t) < 0), np.count_nonzero(t < 0))
    return bool(num_faults <= _MOST_FAULTS * len(t) and np.all(is_polarity(p)))


def check_kinds(path: Path, kinds: Sequence[np.dtype[Any]]) -> None:
    """Raise UserError unless all columns hold numbers of at most 8 bytes.

    Args:
        path: The file, for messages.
        kinds: The data types of the columns.
    """
    if unreadable := [str(kind) for kind in kinds if kind.shape or kind.kind not in "iufb" or kind.itemsize > 8]:
        advice = "save events as integers or floats (dates: t.astype('datetime64[us]').astype('int64'))"
        raise UserError("file.content", name=path, found=f"has columns of {', '.join(unreadable)}", advice=advice)


def _word_and_unit(name: str) -> tuple[str, str | None]:
    word = name.strip().lower().replace("_", " ")
    if pixel := re.fullmatch(r"([xy]) ?[\[(]?(pos|position|coord|coordinate|addr|address|pixel|pixels|px)[\])]?", word):
        return pixel[1], None
    match = re.fullmatch(r"(.+?)[_\s]*[\[(]?\b(s|sec|ms|us|ns)[\])]?", word)
    if match is None:
        return name.strip().lower(), None
    return match[1].strip(" [("), {"sec": "s"}.get(match[2], match[2])
