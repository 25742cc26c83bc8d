"""Events stored as columns of numbers: the names of the columns, the unit of time and the allowed values.

Integer times are microseconds. Times with decimals need a unit in the name of the column (`t_s`, `timestamp_us`). The
unit is never guessed from the values.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rvtssm.readers.recording import BACKWARD, LATEST_US, OUTSIDE, EventBuffer, State
from rvtssm.records import is_polarity
from rvtssm.system.jit import jit
from rvtssm.system.user_error import UserError

NAMES = ("t", "x", "y", "p")
_BLOCK = 2048  # events that are copied at once if they are all valid, otherwise one by one
TIME_UNITS_US = {"s": 1e6, "ms": 1e3, "us": 1.0, "ns": 1e-3}  # microseconds in one unit
LATEST_POSSIBLE_US = 1 << 61  # the sum of two later times would not fit in int64
_FROM_ZERO = "; save times that count up from 0, in the unit that the column names"
_ALIASES = {
    "t": ("t", "ts", "time", "times", "timestamp", "timestamps"),
    "x": ("x", "xs"),
    "y": ("y", "ys"),
    "p": ("p", "ps", "pol", "polarity", "polarities"),
}
_MEANINGS = {alias: name for name, aliases in _ALIASES.items() for alias in aliases}
_LARGEST_EXACT = {2: 1 << 11, 4: 1 << 24, 8: 1 << 53}  # floats of this many bytes represent all integers up to this one

Column = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns of a file are t, x, y and p, and the unit of time."""

    index: tuple[int, int, int, int]  # positions of t, x, y, p in the file
    time_unit: str | None  # a key of TIME_UNITS_US, or None if the file does not name one
    are_named: bool  # if false, the order is only a convention, so values are checked more strictly


def find_columns(path: Path, names: Sequence[str] | None) -> Columns:
    """Find the columns t, x, y and p.

    Args:
        path: The file, for messages.
        names: Names of the columns in the file; None if they have no names and are t, x, y, p.

    Raises:
        UserError: A column is missing or exists twice.
    """
    if names is None:
        return Columns((0, 1, 2, 3), None, False)
    found: dict[str, int] = {}
    time_unit = None
    for i, name in enumerate(names):
        word, unit = _word_and_unit(name)
        meaning = _MEANINGS.get(word)
        if meaning is None or (unit and meaning != "t"):
            continue
        if meaning in found:
            raise UserError(f"{path} has two columns for {meaning}: {names[found[meaning]]} and {name}; rename one")
        found[meaning] = i
        time_unit = unit or time_unit
    if missing := [name for name in NAMES if name not in found]:
        raise UserError(
            f"{path} has columns {', '.join(names)} and none for {', '.join(missing)}; "
            "name the columns t, x, y, p, and times with decimals with their unit (t_s, t_us)"
        )
    return Columns((found["t"], found["x"], found["y"], found["p"]), time_unit, True)


def check_kinds(path: Path, kinds: Sequence[np.dtype[Any]]) -> None:
    """Raise UserError unless all columns hold numbers of at most 8 bytes.

    Args:
        path: The file, for messages.
        kinds: The data types of the columns.
    """
    if unreadable := [str(kind) for kind in kinds if kind.shape or kind.kind not in "iufb" or kind.itemsize > 8]:
        raise UserError(f"{path} has columns of {', '.join(unreadable)}; save events as integers or floats")


def _word_and_unit(name: str) -> tuple[str, str | None]:
    match = re.fullmatch(r"(.+?)[_\s]*[\[(]?\b(s|sec|ms|us|ns)[\])]?", name.strip().lower().replace("_", " "))
    if match is None:
        return name.strip().lower(), None
    return match[1].strip(" [("), {"sec": "s"}.get(match[2], match[2])


@dataclass(frozen=True, slots=True)
class EventColumns:
    """Converts blocks of raw columns of one file to events, and checks every value."""

    path: Path  # for messages
    columns: Columns
    height: int  # of the sensor, pixels
    width: int  # of the sensor, pixels

    def keep(self, raw: Sequence[Column], where: str, state: State, buffer: EventBuffer) -> int:
        """Write the events of raw columns into the buffer, by the rules of `keep_events`.

        Args:
            raw: The columns t, x, y, p, each (N,).
            where: The place in the file, for messages.
            state: Decoder state, advanced in place.
            buffer: Output.

        Returns:
            The number of events kept.

        Raises:
            UserError: A value is not a valid time, pixel or polarity.
        """
        t, x, y, p = raw
        outside = int(state[OUTSIDE])
        t, x, y = self._microseconds(t, where), self._whole(x, "x", where), self._whole(y, "y", where)
        kept = keep_events((t, x, y, self._polarity(p, where)), state, (self.height, self.width), buffer)
        if not self.columns.are_named and state[OUTSIDE] > outside:
            raise UserError(
                f"{self.path} has x or y outside {self.width}x{self.height} (width x height) {where}; its columns "
                "have no names and were read in the order t, x, y, p: name the columns, or give the size that fits"
            )
        return kept

    def _microseconds(self, t: Column, where: str) -> npt.NDArray[np.int64]:
        unit = self.columns.time_unit
        if t.dtype.kind == "f":
            if unit is None:
                raise UserError(
                    f"{self.path} has times of {t.dtype} without a unit; name the column t_s, t_ms, t_us or t_ns, "
                    "or convert t to integer microseconds: np.rint(t * 1e6).astype(np.int64) if it is in seconds"
                )
            _check_all(np.isfinite(t), self.path, f"time is not a number {where}")
            exact_us = _LARGEST_EXACT[t.dtype.itemsize] * min(TIME_UNITS_US[unit], 1.0)
            with np.errstate(over="ignore"):  # an overflow gives a time that is too late, which is checked below
                in_us = t.astype(np.float64) * TIME_UNITS_US[unit]
            if t.dtype.itemsize < 8 and len(t) and in_us.max() > exact_us:
                raise UserError(
                    f"{self.path} has times of {t.dtype}, too coarse for the {in_us.max():.0f} us reached {where}; "
                    "save them as float64 or as integer microseconds"
                )
            is_possible = (in_us >= 0) & (in_us < LATEST_POSSIBLE_US)
            _check_all(is_possible, self.path, f"time is negative or too late {where}", _FROM_ZERO)
            return np.rint(in_us).astype(np.int64)
        factor = TIME_UNITS_US[unit or "us"]
        limit = min(LATEST_POSSIBLE_US / factor, 2.0**63 - 1024)
        _check_all((t >= 0) & (t < limit), self.path, f"time is negative or too late {where}", _FROM_ZERO)
        whole: npt.NDArray[np.int64] = t.astype(np.int64)
        return whole * int(factor) if factor >= 1 else whole // round(1 / factor)

    def _whole(self, values: Column, name: str, where: str) -> npt.NDArray[np.int64]:
        """Return coordinates as integers. Coordinates that no sensor can have become -1."""
        if values.dtype.kind == "f":
            is_whole = values == np.rint(values)  # false for NaN
            _check_all(is_whole, self.path, f"{name} is not a whole pixel {where}; round it or remove the event")
        is_possible = (values >= 0) & (values < 1 << 16)
        return np.where(is_possible, values, np.zeros((), values.dtype)).astype(np.int64) - ~is_possible

    def _polarity(self, p: Column, where: str) -> npt.NDArray[np.bool_]:
        _check_all(is_polarity(p), self.path, f"polarity is not -1, 0 or 1 {where}; check the order of the columns")
        return p > 0


def _check_all(is_valid: npt.NDArray[np.bool_], path: Path, fault: str, advice: str = "") -> None:
    if not is_valid.all():
        raise UserError(f"{path}: {fault} (event {int(np.argmin(is_valid))} of those){advice}")


def keep_events(columns: Sequence[Column], state: State, size_hw: tuple[int, int], buffer: EventBuffer) -> int:
    """Copy raw events into the buffer by the rules that all readers share.

    An event that is earlier than one before it gets the latest time so far. An event outside the sensor is dropped.
    Both are counted in the state. Polarity is 1 if p is positive.

    Args:
        columns: t in microseconds, x, y and p, each (N,).
        state: Decoder state, advanced in place.
        size_hw: Height and width of the sensor, pixels.
        buffer: Output with room for N events.

    Returns:
        The number of events kept.
    """
    kept: int = _keep(*columns, state, *size_hw, buffer.t, buffer.x, buffer.y, buffer.p)
    return kept


@jit
def _keep(raw_t, raw_x, raw_y, raw_p, state, height, width, t, x, y, p):  # type: ignore[no-untyped-def]
    """Copy block by block, with one simple loop per column, which compiles to vector instructions.

    The few blocks with a fault are copied event by event.
    """
    kept = 0
    for start in range(0, len(raw_t), _BLOCK):
        block_t, block_x = raw_t[start : start + _BLOCK], raw_x[start : start + _BLOCK]
        block_y, block_p = raw_y[start : start + _BLOCK], raw_p[start : start + _BLOCK]
        size = len(block_t)
        has_fault = np.int64(block_t[0]) < state[LATEST_US]
        earlier, later = block_t[: size - 1], block_t[1:]
        for i in range(size - 1):
            has_fault |= np.int64(later[i]) < np.int64(earlier[i])
        for i in range(size):
            has_fault |= (np.int64(block_x[i]) < 0) | (np.int64(block_x[i]) >= width)
        for i in range(size):
            has_fault |= (np.int64(block_y[i]) < 0) | (np.int64(block_y[i]) >= height)
        if has_fault:
            kept = _keep_block(block_t, block_x, block_y, block_p, state, height, width, t, x, y, p, kept)
            continue
        out_t, out_x = t[kept : kept + size], x[kept : kept + size]
        out_y, out_p = y[kept : kept + size], p[kept : kept + size]
        for i in range(size):
            out_t[i] = block_t[i]
        for i in range(size):
            out_x[i] = block_x[i]
        for i in range(size):
            out_y[i] = block_y[i]
        for i in range(size):
            out_p[i] = block_p[i] > 0
        state[LATEST_US] = block_t[size - 1]
        kept += size
    return kept


@jit
def _keep_block(raw_t, raw_x, raw_y, raw_p, state, height, width, t, x, y, p, kept):  # type: ignore[no-untyped-def]
    """Write event by event, with every repair, into t, x, y, p from `kept` on. Return the number kept so far."""
    latest = state[LATEST_US]
    for i in range(len(raw_t)):
        column, row = np.int64(raw_x[i]), np.int64(raw_y[i])
        if column < 0 or row < 0 or column >= width or row >= height:
            state[OUTSIDE] += 1
            continue
        time = np.int64(raw_t[i])
        if time < latest:
            state[BACKWARD] += 1
        else:
            latest = time
        t[kept] = latest
        x[kept] = column
        y[kept] = row
        p[kept] = raw_p[i] > 0
        kept += 1
    state[LATEST_US] = latest
    return kept
