"""Check events that another program made before they are counted: an invalid coordinate would write out of bounds."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from rvtssm.readers.columns import check_kinds, find_columns
from rvtssm.readers.faults import Reach, ReadFaults, say
from rvtssm.readers.gate import NEVER_US, POSITION, Column, EventBuffer, Gate, State, first_state
from rvtssm.readers.other_clock import after_other_clock, may_end_earlier, num_before_other_clock
from rvtssm.readers.recording import Recording
from rvtssm.records import Events, ReadOptions
from rvtssm.system.user_error import UserError

_UNSORTED = (
    'events must come in order of time; sort them: order = np.argsort(t, kind="stable"), then '
    "Events(t[order], x[order], y[order], p[order])"
)
_LARGEST_SIDE = 1 << 16  # what fits in Events.x and Events.y


def check_events(events: Events, height: int, width: int) -> None:
    """Raise UserError for events that cannot be counted.

    Args:
        events: The events to check.
        height: Height of the sensor, pixels.
        width: Width of the sensor, pixels.

    Raises:
        UserError: The events are not in order of time, lie outside the sensor, or have a polarity other than 0 and 1.
    """
    if not len(events):
        return
    if np.any(events.t[1:] < events.t[:-1]):
        raise UserError("events.unsorted", _UNSORTED)
    if events.x.max() >= width or events.y.max() >= height:
        raise UserError(
            "events.outside_frame",
            f"events reach x={events.x.max()}, y={events.y.max()} outside {width}x{height} (width x height) pixels; "
            "give the right height and width",
        )
    if events.p.max() > 1:
        raise UserError("events.polarity", f"polarity is {events.p.max()}, but must be 0 or 1; replace -1 with 0")


def to_events(given: object) -> Events:
    """Return events from `Events` or from a structured array.

    Args:
        given: `Events`, or a structured array (N,) with the fields t, x, y and p. Integer
            times are microseconds unless the name of the field gives a unit (`t_s`). Polarities are as in `Events`.

    Raises:
        UserError: The argument is anything else, or its values are not valid. The message does not print the array.
    """
    if isinstance(given, Events):
        return given if not len(given) or given.p.max() <= 1 else replace(given, p=given.p.astype(np.int64))
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
        raise UserError(
            "events.is_recording",
            f"{given} is a recording, but events are needed; give a part of it, as in "
            "recording.between(start_us, end_us), or all of it, recording.read()",
        )
    if not isinstance(given, np.ndarray) or given.dtype.names is None or given.ndim != 1:
        raise UserError(
            "events.other_object",
            f"{_kind_of(given)} holds no events; give rvtssm.Events, or a structured array (N,) with the fields t, x, "
            "y and p, which df.to_records(index=False) makes of a table of pandas",
        )
    where = Path("the array")
    columns = find_columns(where, given.dtype.names, ReadOptions())
    check_kinds(where, [given.dtype[i] for i in columns.index])
    return [np.ascontiguousarray(given[given.dtype.names[i]]) for i in columns.index], columns.time_unit


def gated(raw: Sequence[Column], gate: Gate, repair: bool = False) -> tuple[Events, ReadFaults]:
    """Return events in memory as if they had been read from a file, and the faults that were found.

    Args:
        raw: The columns t, x, y, p, each (N,).
        gate: The checks, with the size of the sensor and the name of the events.
        repair: Accept many faulty events, see `open_recording`.

    Raises:
        UserError: A polarity is outside its domain, or there are too many faults.
    """
    num_events, buffer = len(raw[0]), EventBuffer(len(raw[0]))

    def decode(state: State, room: EventBuffer) -> int:
        start = int(state[POSITION])
        stop = min(start + len(room.t), num_events)
        state[POSITION] = stop
        return gate.keep([column[start:stop] for column in raw], f"in events {start} to {stop}", state, room)

    def reach() -> Reach:
        return Reach((int(raw[1].min()), int(raw[1].max())), (int(raw[2].min()), int(raw[2].max())))

    state = after_other_clock(decode, first_state(), num_events, 1)
    count = decode(state, buffer)
    if count and may_end_earlier(buffer.t[:count], NEVER_US):
        count = num_before_other_clock(decode, state, num_events, 1, buffer.t[:count], (0, NEVER_US))
    faults = ReadFaults.of(state)
    if reason := faults.refusal(count, gate.height, gate.width, repair, reach):
        raise UserError("reader.refused", f"{gate.path} {reason}")
    if note := faults.note(count, gate.height, gate.width):
        say(f"{gate.path}: {note}")
    return buffer.events(count), faults


def _kind_of(given: object) -> str:
    """Describe an argument briefly: its type and, for an array, its dtype and shape."""
    if isinstance(given, np.ndarray):
        return f"an array of {given.dtype} with the shape {given.shape}"
    return f"a {type(given).__name__}"
