"""The gate that events of every format pass: coordinates and order of time, of columns also unit and polarity.

Readers of columns call `Gate.keep`. Decoders of words have loops of their own; they hand a block that is not plainly
valid to `keep_block`, or ask `fault_of` about an event, so that all formats drop, move and count by the same rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rvtssm.records import Events
from rvtssm.records.arrays import is_polarity
from rvtssm.system.jit import jit
from rvtssm.system.user_error import UserError

# The first slots of every decoder state; formats append their own. Compiled functions read these as constants.
POSITION = 0  # index of the next unit of the file; a unit is an event, a word or a byte
LATEST_US = 1  # the largest time so far
BACKWARD = 2  # number of events that were earlier than an event before them; they get the latest time so far
OUTSIDE = 3  # number of events outside the sensor, which are dropped
UNREADABLE = 4  # number of events without a valid time or pixel, which are dropped
OTHER_CLOCK = 5  # number of events whose time comes from another clock, which are dropped
EMPTY = 6  # number of rows of zeros or NaN, as in arrays that were not filled to their end; they are dropped
COARSE_US = 7  # the distance between two times that the type of a column can tell apart, 0 if all are exact
WRAPPED_US = 8  # added to the times of columns, because their clock of 32 bits has begun again
NUM_COMMON = 9
NEVER_US = np.iinfo(np.int64).min  # LATEST_US before the first event

JUMP_US = 500_000  # an event that is earlier than the one before it by more than this comes from another clock
AHEAD_US = 100_000  # events ahead of their neighbours by more than this come from another clock if times fall back
MOST_STRAYS = 100  # so many events in a row, at most, are taken for events of another clock
CLOCK_BITS = 32  # of times that programs copy from a camera into a column, whose clock begins again after 71.6 minutes
_EXACT_WRAP = 12  # a step back by the period of the clock, to a part in 2^12 (1 s), is the clock that begins again
_BEGUN_US = 10_000  # a row of zeros is an empty row if the clock has passed this time
TIME_UNITS_US = {"s": 1e6, "ms": 1e3, "us": 1.0, "ns": 1e-3}  # microseconds in one unit
LATEST_POSSIBLE_US = 1 << 61  # the sum of two later times would not fit in int64
_BLOCK = 2048  # events that are copied at once if they are all valid, otherwise one by one
_LARGEST_PIXEL = (1 << 16) - 1
_MOST_COARSE_US = 1000  # a larger distance between times moves events to another window
# compared with these, since a comparison with a type makes a new dtype, which takes longer
_INT64, _UINT32, _UINT16, _INT16, _UINT8, _BOOL = map(np.dtype, ("i8", "u4", "u2", "i2", "u1", "?"))

Column = npt.NDArray[Any]
State = npt.NDArray[np.int64]


def first_state(*own_state: int) -> State:
    """Return the state of a decoder at the first unit of a file; `own_state` are the slots that a format appends."""
    return np.array([0, NEVER_US, *[0] * (NUM_COMMON - 2), *own_state], np.int64)


class EventBuffer:
    """Arrays for `capacity` events. Decoders overwrite them with every block."""

    def __init__(self, capacity: int) -> None:
        self.t = np.empty(capacity, np.int64)
        self.x = np.empty(capacity, np.uint16)
        self.y = np.empty(capacity, np.uint16)
        self.p = np.empty(capacity, np.uint8)

    def events(self, count: int) -> Events:
        """Return the first `count` events as views."""
        return Events(self.t[:count], self.x[:count], self.y[:count], self.p[:count])

    def after(self, count: int) -> EventBuffer:
        """Return a buffer on the same arrays that skips the first `count` places."""
        rest = EventBuffer(0)
        rest.t, rest.x, rest.y, rest.p = self.t[count:], self.x[count:], self.y[count:], self.p[count:]
        return rest


def copy_events(events: Events) -> Events:
    """Return the events in arrays of their own, since a reader overwrites its buffer."""
    return Events(events.t.copy(), events.x.copy(), events.y.copy(), events.p.copy())


def join_events(parts: list[Events]) -> Events:
    """Concatenate consecutive parts; an empty list gives no events."""
    if not parts:
        return EventBuffer(0).events(0)
    if len(parts) == 1:
        return parts[0]
    columns = zip(*map(attrgetter("t", "x", "y", "p"), parts), strict=True)
    return Events(*map(np.concatenate, columns))


@dataclass(frozen=True, slots=True)
class Gate:
    """Converts blocks of raw columns of one source to events, and checks every value."""

    path: Path  # for messages
    height: int  # of the sensor, pixels
    width: int  # of the sensor, pixels
    time_unit: str | None = None  # a key of TIME_UNITS_US; None: whole numbers are microseconds
    offset_us: int = 0  # added to every time

    def keep(
        self,
        raw: Sequence[Column],
        where: str,
        state: State,
        buffer: EventBuffer,
        next_times: Callable[[], Column] | None = None,
    ) -> int:
        """Write the events of raw columns into the buffer.

        An event that is earlier than one before it gets the latest time so far. An event outside the sensor, without a
        valid time or pixel, or of another clock is dropped. All are counted in the state.

        Args:
            raw: The columns t, x, y, p, each (N,).
            where: The place in the file, for messages.
            state: Decoder state, advanced in place.
            buffer: Output with room for N events.
            next_times: Returns the raw times of the next MOST_STRAYS events. It is called if the last times jump, to
                find out whether they fall back.

        Returns:
            The number of events kept.

        Raises:
            UserError: A polarity is outside its domain, or times with decimals have no unit.
        """
        if not len(raw[0]):
            return 0
        raw = [column if column.dtype.isnative else column.astype(column.dtype.newbyteorder("=")) for column in raw]
        raw = _without_empty_rows(raw, state)
        if not len(raw[0]):
            return 0
        # Columns (N,) in their final types, without events that cannot be read.
        t, is_time = self._microseconds(raw[0], where, state)
        self._check_fractions(raw[1:3], where)
        x, is_column = _pixels(raw[1])
        y, is_row = _pixels(raw[2])
        columns = [t, x, y, self._polarity(raw[3], where)]
        if valid := [mask for mask in (is_time, is_column, is_row) if mask is not None]:
            is_readable = np.logical_and.reduce(valid)
            state[UNREADABLE] += len(t) - int(np.count_nonzero(is_readable))
            columns = [column[is_readable] for column in columns]
        # Times of 32 bits begin again, and a jump may fall back in the next block.
        period_us = round(2**CLOCK_BITS * TIME_UNITS_US[self.time_unit or "us"])
        clock = self.offset_us, period_us, period_us >> _EXACT_WRAP
        next_t = np.empty(0, np.int64)
        near_us = int(t[-1]) - AHEAD_US
        is_ahead = near_us > int(state[LATEST_US] - state[WRAPPED_US])
        if is_ahead and len(t) > MOST_STRAYS:
            is_ahead = near_us > int(t[-MOST_STRAYS - 1 :].min())
        if next_times is not None and is_ahead and len(raw_t := next_times()):
            next_t = self._microseconds(raw_t, where, state)[0].astype(np.int64)
        room = buffer.t, buffer.x, buffer.y, buffer.p
        return int(_keep(*columns, next_t, state, self.height, self.width, clock, *room))

    def _microseconds(self, t: Column, where: str, state: State) -> tuple[Column, npt.NDArray[np.bool_] | None]:
        """Return times in microseconds and which of them are valid; None: all are."""
        # Floats, which need a unit if they have decimals.
        unit, is_valid = self.time_unit or "us", None
        if t.dtype.kind == "f":
            if self.time_unit is None and not np.all((t == np.rint(t)) | ~np.isfinite(t)):
                found = f"has times with decimals of {t.dtype} without a unit {where}"
                advice = "say it, as in time_unit=s, or name the column t_s, t_ms, t_us or t_ns"
                raise UserError("events.unit", name=self.path, found=found, advice=advice)
            with np.errstate(over="ignore", invalid="ignore"):
                in_us = t.astype(np.float64) * TIME_UNITS_US[unit] + self.offset_us
                is_valid = (in_us >= 0) & (in_us < LATEST_POSSIBLE_US)  # false for NaN
                if t.dtype.itemsize < 8 and is_valid.any():
                    self._note_coarse(t[is_valid].max(), where, state)
                rounded = np.floor if unit == "ns" else np.rint  # whole nanoseconds are cut, below
                return rounded(np.where(is_valid, in_us, 0)).astype(np.int64), None if is_valid.all() else is_valid
        if (t.dtype == _INT64 or t.dtype == _UINT32) and unit == "us" and not self.offset_us:
            return t, None  # `_keep` checks them
        # Whole numbers, which must not overflow in microseconds.
        factor = TIME_UNITS_US[unit]
        largest = min(LATEST_POSSIBLE_US / factor, 2.0**63 - 1024)
        if t.min() <= -largest or t.max() >= largest:
            is_valid = (t > -largest) & (t < largest)
            t = np.where(is_valid, t, np.zeros((), t.dtype))
        whole = t.astype(np.int64)
        in_whole_us = whole * int(factor) if factor >= 1 else whole // round(1 / factor)
        return in_whole_us + self.offset_us, is_valid  # `_keep` checks that none is negative

    def _note_coarse(self, latest: Any, where: str, state: State) -> None:
        """Count how exact times of few bits are. Raise UserError if they are too coarse."""
        unit_us = TIME_UNITS_US[self.time_unit or "us"]
        coarse_us = int(np.ceil(float(np.spacing(latest)) * unit_us))
        if coarse_us > _MOST_COARSE_US:
            found = (
                f"has times of {latest.dtype}, which are {coarse_us} us apart at the {latest * unit_us:.0f} us "
                f"reached {where}"
            )
            advice = "convert the recording again, with times of float64 or integer microseconds"
            raise UserError("events.times", name=self.path, found=found, advice=advice)
        state[COARSE_US] = max(state[COARSE_US], coarse_us if coarse_us > 1 else 0)

    def _check_fractions(self, pixels: Sequence[Column], where: str) -> None:
        """Raise UserError for coordinates from 0 to 1, which are fractions of the size of the sensor."""
        for name, values in zip("xy", pixels, strict=True):
            if values.dtype.kind != "f" or not np.abs(values[:_BLOCK]).max() <= 1:  # also true of NaN
                continue
            if np.any(values != np.rint(values)):
                found = f"has {name} from {values.min():g} to {values.max():g} {where}, fractions of the sensor"
                advice = "multiply x by its width and y by its height, and save whole numbers"
                raise UserError("events.form", name=self.path, found=found, advice=advice)

    def _polarity(self, p: Column, where: str) -> Column:
        if p.dtype == _BOOL or (p.dtype == _UINT8 and np.maximum.reduce(p) <= 1):
            return p
        if not (is_valid := is_polarity(p)).all():
            found = f"has the polarity {p[~is_valid][0]} {where} (event {int(np.argmin(is_valid))} of those)"
            advice = "1 is brighter, 0 and -1 are darker: check which column holds the polarity"
            raise UserError("events.polarity", name=self.path, found=found, advice=advice)
        brighter: Column = p == 1
        return brighter


def _without_empty_rows(raw: Sequence[Column], state: State) -> Sequence[Column]:
    """Return the rows without those of NaN alone, as in arrays that were not filled to their end."""
    is_float = raw[0].dtype.kind == raw[1].dtype.kind == raw[2].dtype.kind == "f"
    if not is_float or not np.isnan(raw[0][-1:]).any():
        return raw
    is_empty = np.isnan(raw[0]) & np.isnan(raw[1]) & np.isnan(raw[2])
    state[EMPTY] += int(np.count_nonzero(is_empty))
    return [column[~is_empty] for column in raw]


def _pixels(values: Column) -> tuple[Column, npt.NDArray[np.bool_] | None]:
    """Return coordinates as whole numbers, -1 where no sensor has such a pixel, and which are readable; None: all."""
    if values.dtype == _UINT16 or values.dtype == _INT16:
        return values, None
    is_readable = None
    if values.dtype.kind == "f":
        values = values.astype(np.float64, copy=False)  # float16 ends before the largest pixel
        is_whole = values == np.rint(values)  # false for NaN
        is_readable = None if is_whole.all() else is_whole
    elif values.min() >= 0 and values.max() <= _LARGEST_PIXEL:
        return values.astype(np.int64), None
    is_possible = (values >= 0) & (values <= _LARGEST_PIXEL)
    return np.where(is_possible, values, np.zeros((), values.dtype)).astype(np.int64) - ~is_possible, is_readable


@jit
def fault_of(time, column, row, latest, height, width):  # type: ignore[no-untyped-def]
    """Return the slot that counts the fault of an event, 0 for an event without a fault.

    This is the rule for events outside the sensor and for times that go back, which all formats share. An event is
    dropped unless its slot is 0 or BACKWARD. The state is no argument, since compiled code that hands it on is slower.
    """
    if column < 0 or row < 0 or column >= width or row >= height:
        return OUTSIDE
    if time >= latest:
        return 0
    return OTHER_CLOCK if latest - time > JUMP_US else BACKWARD


@jit
def _keep(raw_t, raw_x, raw_y, raw_p, next_t, state, height, width, clock, t, x, y, p):  # type: ignore[no-untyped-def]
    """Copy block by block, with one simple loop per column, which compiles to vector instructions.

    The few blocks with a fault, or with a long gap, are copied event by event.
    """
    num_kept = 0
    for start in range(0, len(raw_t), _BLOCK):
        block_t, block_x = raw_t[start : start + _BLOCK], raw_x[start : start + _BLOCK]
        block_y, block_p = raw_y[start : start + _BLOCK], raw_p[start : start + _BLOCK]
        # What is wrong in this block, over one column after the other.
        size = len(block_t)
        latest, wrapped = state[LATEST_US], state[WRAPPED_US]
        first = np.int64(block_t[0]) + wrapped
        has_fault = first < 0 or np.int64(block_t[size - 1]) + wrapped >= LATEST_POSSIBLE_US
        has_fault |= first < latest or (latest != NEVER_US and first - latest > AHEAD_US)
        earlier, later = block_t[: size - 1], block_t[1:]
        for i in range(size - 1):  # a step back is a very long one if it is read as unsigned
            has_fault |= np.uint64(np.int64(later[i]) - np.int64(earlier[i])) > np.uint64(AHEAD_US)
        for i in range(size):
            has_fault |= (np.int64(block_x[i]) < 0) | (np.int64(block_x[i]) >= width)
        for i in range(size):
            has_fault |= (np.int64(block_y[i]) < 0) | (np.int64(block_y[i]) >= height)
        if has_fault:
            times = np.concatenate((raw_t[start : start + size + MOST_STRAYS].astype(np.int64), next_t))
            num_kept = keep_block(times, block_x, block_y, block_p, state, height, width, clock, t, x, y, p, num_kept)
            continue
        # A sound block is copied column by column.
        out_t, out_x = t[num_kept : num_kept + size], x[num_kept : num_kept + size]
        out_y, out_p = y[num_kept : num_kept + size], p[num_kept : num_kept + size]
        for i in range(size):
            out_t[i] = np.int64(block_t[i]) + wrapped
        for i in range(size):
            out_x[i] = block_x[i]
        for i in range(size):
            out_y[i] = block_y[i]
        for i in range(size):
            out_p[i] = block_p[i] > 0
        state[LATEST_US] = np.int64(block_t[size - 1]) + wrapped
        num_kept += size
    return num_kept


@jit
def keep_block(raw_t, raw_x, raw_y, raw_p, state, height, width, clock, t, x, y, p, num_kept):  # type: ignore[no-untyped-def]
    """Write event by event, with every repair, into t, x, y, p from `num_kept` on. Return the number kept so far.

    `raw_t`, int64, may go on with the times of the next events. `clock` is the time of a row of zeros, the period after
    which the clock begins again, and by how much a step back may differ from it, microseconds.
    """
    latest, wrapped = state[LATEST_US], state[WRAPPED_US]
    zero_us, period_us, tolerance_us = clock
    exact_us = period_us >> _EXACT_WRAP
    for i in range(len(raw_x)):
        # Rows that were never written, and a clock that begins again.
        column, row = np.int64(raw_x[i]), np.int64(raw_y[i])
        time = raw_t[i] + wrapped
        if latest != NEVER_US:
            if time - wrapped == zero_us and column == 0 and row == 0 and latest - zero_us > _BEGUN_US:
                state[EMPTY] += 1
                continue
            from_period = abs(latest - time - period_us)
            if from_period <= exact_us or (
                from_period <= tolerance_us and not _returns(raw_t, i, latest - wrapped, -1)
            ):
                wrapped += period_us
                time += period_us
            elif wrapped and abs(time - latest - period_us) <= exact_us:  # late, from before the clock began again
                time -= period_us
        if time < 0 or time >= LATEST_POSSIBLE_US:
            state[UNREADABLE] += 1
            continue
        if latest != NEVER_US and time - latest > AHEAD_US and _returns(raw_t, i, latest - wrapped, 1):
            state[OTHER_CLOCK] += 1
            continue
        # The rule of all formats: keep, move or drop.
        fault = fault_of(time, column, row, latest, height, width)
        if fault:
            state[fault] += 1
            if fault != BACKWARD:
                continue
        latest = max(time, latest)
        t[num_kept] = latest
        x[num_kept] = raw_x[i]
        y[num_kept] = raw_y[i]
        p[num_kept] = raw_p[i] > 0
        num_kept += 1
    state[LATEST_US], state[WRAPPED_US] = latest, wrapped
    return num_kept


@jit
def _returns(raw_t, i, latest, direction):  # type: ignore[no-untyped-def]
    """Return whether the times return soon after a jump at event i, so that the events between have another clock.

    Args:
        raw_t: Times of the events, microseconds.
        i: The first event after the jump.
        latest: Time of the event before the jump.
        direction: 1 for a jump ahead, -1 for a jump back.
    """
    for j in range(i + 1, min(i + 1 + MOST_STRAYS, len(raw_t))):
        if (raw_t[i] - raw_t[j]) * direction > AHEAD_US and raw_t[j] >= latest - AHEAD_US:
            return True
    return False
