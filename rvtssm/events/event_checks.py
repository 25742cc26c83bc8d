"""What is checked of events that another program made, before they are counted (a wrong one writes out of bounds)."""

import numpy as np

from rvtssm.records import Events
from rvtssm.system.user_error import UserError


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
