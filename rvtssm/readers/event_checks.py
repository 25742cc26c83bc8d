"""Check events that another program made before they are counted: an invalid coordinate would write out of bounds."""

from pathlib import Path

import numpy as np

from rvtssm.readers.columns import EventColumns, check_kinds, find_columns
from rvtssm.readers.recording import BACKWARD, NUM_COMMON, OUTSIDE, EventBuffer, Recording
from rvtssm.records import Events
from rvtssm.system.user_error import UserError

_UNSORTED = 'events must come in order of time; sort them: order = np.argsort({}, kind="stable"), then {}'
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
        raise UserError(_UNSORTED.format("t", "Events(t[order], x[order], y[order], p[order])"))
    if events.x.max() >= width or events.y.max() >= height:
        raise UserError(
            f"events reach x={events.x.max()}, y={events.y.max()} outside {width}x{height} (width x height) pixels; "
            "give the right height and width"
        )
    if events.p.max() > 1:
        raise UserError(f"polarity is {events.p.max()}, but must be 0 or 1; replace -1 with 0")


def to_events(given: object) -> Events:
    """Return events from `Events` or from a structured array.

    Args:
        given: `Events`, which are returned unchanged, or a structured array (N,) with the fields t, x, y and p. Integer
            times are microseconds unless the name of the field gives a unit (`t_s`). Polarities are as in `Events`.

    Raises:
        UserError: The argument is anything else, or its values are not valid. The message does not print the array.
    """
    if isinstance(given, Events):
        return given
    if isinstance(given, Recording):
        raise UserError(
            f"{given} is a recording, but events are needed; give a part of it, as in "
            "recording.between(start_us, end_us), or all of it, recording.read()"
        )
    if not isinstance(given, np.ndarray) or given.dtype.names is None or given.ndim != 1:
        raise UserError(
            f"{_kind_of(given)} holds no events; give rvtssm.Events, or a structured array (N,) with the fields t, x, "
            "y and p, which df.to_records(index=False) makes of a table of pandas"
        )
    where = Path("the array")
    columns = find_columns(where, given.dtype.names)
    check_kinds(where, [given.dtype[i] for i in columns.index])
    raw = [np.ascontiguousarray(given[given.dtype.names[i]]) for i in columns.index]
    state, buffer = np.zeros(NUM_COMMON, np.int64), EventBuffer(len(given))
    EventColumns(where, columns, _LARGEST_SIDE, _LARGEST_SIDE).keep(raw, "in it", state, buffer)
    if state[BACKWARD]:
        raise UserError(_UNSORTED.format(f'array["{given.dtype.names[columns.index[0]]}"]', "array[order]"))
    if state[OUTSIDE]:
        raise UserError(f"the array has {state[OUTSIDE]} events with x or y below 0 or above {_LARGEST_SIDE - 1}")
    return buffer.events(len(given))


def _kind_of(given: object) -> str:
    """Describe an argument briefly: its type and, for an array, its dtype and shape."""
    if isinstance(given, np.ndarray):
        return f"an array of {given.dtype} with the shape {given.shape}"
    return f"a {type(given).__name__}"
