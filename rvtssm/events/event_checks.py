"""What is checked of events that another program made, before they are counted (a wrong one writes out of bounds)."""

from pathlib import Path

import numpy as np

from rvtssm.events.readers.columns import EventColumns, find_columns
from rvtssm.events.readers.recording import BACKWARD, NUM_COMMON, OUTSIDE, EventBuffer
from rvtssm.records import Events
from rvtssm.system.user_error import UserError

_LARGEST_SIDE = 1 << 16  # what fits in Events.x and Events.y


def check_events(events: Events, height: int, width: int) -> None:
    """Raise ValueError for events that cannot be counted: out of order, outside the sensor (pixels), of no polarity."""
    if not len(events):
        return
    if np.any(events.t[1:] < events.t[:-1]):
        raise UserError("events must come in order of time; sort them")
    if events.x.max() >= width or events.y.max() >= height:
        raise UserError(
            f"events reach x={events.x.max()}, y={events.y.max()} outside {width}x{height} (width x height) pixels; "
            "give the right height and width"
        )
    if events.p.max() > 1:
        raise UserError(f"polarity is {events.p.max()}, and has to be 0 or 1; make -1 a 0")


def to_events(given: object) -> Events:
    """Return Events as they are, and a structured array with the fields t, x, y and p as Events.

    Times are integers in microseconds, or have a unit in their name (`t_s`). Polarities are 0 or -1, and 1. Raise
    ValueError for anything else, without printing the array.
    """
    if isinstance(given, Events):
        return given
    if not isinstance(given, np.ndarray) or given.dtype.names is None or given.ndim != 1:
        raise UserError(
            f"{_kind_of(given)} holds no events; give rvtssm.Events, or a structured array (N,) with the fields t, x, "
            "y and p"
        )
    where = Path("the array")
    columns = find_columns(where, given.dtype.names, None, None)
    raw = [np.ascontiguousarray(given[given.dtype.names[i]]) for i in columns.index]
    state, buffer = np.zeros(NUM_COMMON, np.int64), EventBuffer(len(given))
    EventColumns(where, columns, _LARGEST_SIDE, _LARGEST_SIDE).keep(raw, "in it", state, buffer)
    if state[BACKWARD]:
        raise UserError("events must come in order of time; sort them")
    if state[OUTSIDE]:
        raise UserError(f"the array has {state[OUTSIDE]} events with x or y below 0 or above {_LARGEST_SIDE - 1}")
    return buffer.events(len(given))


def _kind_of(given: object) -> str:
    """Return what an argument is in a few words: its type, and of an array also its type of numbers and its shape."""
    if isinstance(given, np.ndarray):
        return f"an array of {given.dtype} with the shape {given.shape}"
    return f"a {type(given).__name__}"
