"""Events that come from a program or a camera instead of a file: the checks, the repairs and the counts of files."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from rvtssm.events.windows import LATE_US
from rvtssm.readers.columns import check_kinds, find_columns
from rvtssm.readers.decoder import Decode, after_other_clock, may_end_earlier, num_before_other_clock
from rvtssm.readers.faults import Reach, ReadFaults, say
from rvtssm.readers.gate import LATEST_US, NEVER_US, POSITION, WRAPPED_US, Column, EventBuffer, Gate, State, first_state
from rvtssm.readers.recording import Recording
from rvtssm.records import Events, ReadOptions
from rvtssm.records.arrays import check_inside
from rvtssm.system.user_error import UserError

_LARGEST_SIDE = 1 << 16  # what fits in Events.x and Events.y


def check_events(events: Events, height: int, width: int) -> None:
    """Raise UserError for events, as `to_events` returns them, that cannot be counted.

    Args:
        events: The events to check.
        height: Height of the sensor, pixels.
        width: Width of the sensor, pixels.

    Raises:
        UserError: The events are not in order of time, or lie outside the sensor.
    """
    if np.any(events.t[1:] < events.t[:-1]):
        raise UserError("events.unsorted", found="events must come in order of time")
    check_inside(events, height, width)


def to_events(given: object) -> Events:
    """Return events from `Events` or from a structured array.

    Args:
        given: `Events`, or a structured array (N,) with the fields t, x, y and p. Integer
            times are microseconds unless the name of the field gives a unit (`t_s`). Polarities are as in `Events`.

    Raises:
        UserError: The argument is anything else, or its values are not valid. The message does not print the array.
    """
    if isinstance(given, Events):
        if not len(given) or given.p.max() <= 1:
            return given
        return replace(given, p=given.p.astype(np.int64))
    raw, time_unit = columns_of(given)
    return gated(raw, Gate(Path("the array"), _LARGEST_SIDE, _LARGEST_SIDE, time_unit))[0]


def columns_of(given: object) -> tuple[list[Column], str | None]:
    """Return the raw columns t, x, y, p of `Events` or of a structured array, and the unit that its field of t names.

    Args:
        given: See `to_events`.

    Raises:
        UserError: The argument is anything else. The message does not print the array.
    """
    if isinstance(given, Events):
        return [given.t, given.x, given.y, given.p], None
    if isinstance(given, Recording):
        advice = "give a part of it, as in recording.between(start_us, end_us), or all of it, recording.read()"
        raise UserError("events.form", name=given, found="is a recording, but events are needed", advice=advice)
    if not isinstance(given, np.ndarray) or given.dtype.names is None or given.ndim != 1:
        advice = (
            "give rvtssm.Events, or a structured array (N,) with the fields t, x, y and p, which "
            "df.to_records(index=False) makes of a table of pandas"
        )
        raise UserError("events.form", name=_kind_of(given), found="holds no events", advice=advice)
    where = Path("the array")
    columns = find_columns(where, given.dtype.names, ReadOptions())
    check_kinds(where, columns.pick(given.dtype))
    return [np.ascontiguousarray(given[name]) for name in columns.pick(given.dtype.names)], columns.time_unit


def gated(raw: Sequence[Column], gate: Gate, repair: bool = False) -> tuple[Events, ReadFaults]:
    """Return events in memory as if they had been read from a file, and the faults that were found.

    Args:
        raw: The columns t, x, y, p, each (N,).
        gate: The checks, with the size of the sensor and the name of the events.
        repair: Accept many faulty events, see `open_recording`.

    Raises:
        UserError: A polarity is outside its domain, or there are too many faults.
    """
    num_events, buffer, decode = len(raw[0]), EventBuffer(len(raw[0])), _decoder(raw, gate)

    def reach() -> Reach:
        return Reach(_limits(raw[1]), _limits(raw[2]))

    state = after_other_clock(decode, first_state(), num_events, 1)
    count = decode(state, buffer)
    if count and may_end_earlier(buffer.t[:count], NEVER_US):
        count = num_before_other_clock(decode, state, num_events, 1, buffer.t[:count], (0, NEVER_US))
    faults = ReadFaults.of(state)
    if reason := faults.refusal(count, gate.height, gate.width, repair, reach):
        raise UserError("events.faulty", name=gate.path, found=f"{reason}")
    if note := faults.note(count, gate.height, gate.width):
        say(f"{gate.path}: {note}")
    return buffer.events(count), faults


def _decoder(raw: Sequence[Column], gate: Gate) -> Decode:
    """Return a function that decodes columns in memory as if they were a file."""

    def decode(state: State, room: EventBuffer) -> int:
        start = int(state[POSITION])
        stop = min(start + len(room.t), len(raw[0]))
        state[POSITION] = stop
        return gate.keep([column[start:stop] for column in raw], f"in events {start} to {stop}", state, room)

    return decode


def _limits(pixels: Column) -> tuple[int, int]:
    """Return the smallest and the largest of the coordinates that are numbers."""
    known = pixels[np.isfinite(pixels)]
    return (int(known.min()), int(known.max())) if len(known) else (0, 0)


def _kind_of(given: object) -> str:
    """Describe an argument briefly: its type and, for an array, its dtype and shape."""
    if isinstance(given, np.ndarray):
        return f"an array of {given.dtype} with the shape {given.shape}"
    return f"a {type(given).__name__}"


class LiveGate:
    """Converts the packets of one camera to events, and counts what was moved or left out.

    A packet whose events are all more than 10 ms earlier than one before it begins a new clock: its times stay as they
    are. Other late events are moved or left out as in files. The end of a stream is not known, so events of another
    clock there are kept.

    Args:
        name: The source, for messages.
        height: Height of the sensor, pixels.
        width: Width of the sensor, pixels.
    """

    def __init__(self, name: str, height: int, width: int) -> None:
        self._gate = Gate(Path(name), height, width)
        self._state = first_state()
        self._has_begun = False
        self.num_events = 0  # that were kept

    @property
    def faults(self) -> ReadFaults:
        """What was moved or left out so far."""
        return ReadFaults.of(self._state)

    @property
    def latest_us(self) -> int:
        """Time of the latest event; NEVER_US before the first one."""
        return int(self._state[LATEST_US])

    def begins_new_clock(self, raw: Sequence[Column], time_unit: str | None = None) -> bool:
        """Return whether all events of a packet are more than 10 ms earlier than an event before it.

        Args:
            raw: The columns t, x, y, p of the packet, each (N,).
            time_unit: Unit of the times; None: whole numbers are microseconds.
        """
        if self.latest_us == NEVER_US or not len(raw[0]):
            return False
        newest = np.array([np.fmax.reduce(raw[0])], raw[0].dtype)  # of the times that are numbers
        in_us, is_valid = replace(self._gate, time_unit=time_unit)._microseconds(newest, "in a packet", self._state)
        return is_valid is None and bool(in_us[0] + self._state[WRAPPED_US] < self.latest_us - LATE_US)

    def push(self, raw: Sequence[Column], time_unit: str | None = None) -> Events:
        """Return the events of the next packet.

        Args:
            raw: The columns t, x, y, p of the packet, each (N,).
            time_unit: Unit of the times; None: whole numbers are microseconds.

        Raises:
            UserError: A polarity is outside its domain, or times with decimals have no unit.
        """
        decode, num_raw = _decoder(raw, replace(self._gate, time_unit=time_unit)), len(raw[0])
        if self.begins_new_clock(raw, time_unit):
            self.restart()
        if not self._has_begun and num_raw:
            self._state, self._has_begun = after_other_clock(decode, self._state, num_raw, 1), True
        buffer = EventBuffer(num_raw)
        count = decode(self._state, buffer)
        self._state[POSITION] = 0
        self.num_events += count
        return buffer.events(count)

    def restart(self) -> None:
        """Take the next packet for the first one of a new clock. The counts go on."""
        self._state[LATEST_US], self._state[WRAPPED_US] = NEVER_US, 0

    def conclude(self) -> None:
        """Say what was left out, and whether so much was left out that a file would be refused."""
        say_faults(str(self._gate.path), self.faults, self.num_events, (self._gate.height, self._gate.width))


def say_faults(name: str, faults: ReadFaults, num_events: int, size_hw: tuple[int, int]) -> None:
    """Say what was left out of a stream that has ended, and why a file with as many faults would be refused.

    Args:
        name: The source.
        faults: What was moved or left out.
        num_events: Number of events that were kept.
        size_hw: Height and width of the sensor, pixels.
    """
    if note := faults.refusal(num_events, *size_hw, is_repaired=False):
        say(f"{name} {note}")
    elif note := faults.note(num_events, *size_hw):
        say(f"{name}: {note}")
