"""Find where the clock of a recording starts, if a few events before it have the time of another clock.

Cameras can send a few events with the times of their previous use, or from before their clock was set. Then the times
jump. Those events are left out; otherwise they would move all others to a wrong time, or add hours without events.
"""

from collections.abc import Callable

import numpy as np

from rvtssm.readers.gate import (
    BACKWARD,
    JUMP_US,
    LATEST_US,
    MOST_STRAYS,
    NEVER_US,
    OTHER_CLOCK,
    POSITION,
    EventBuffer,
    State,
)

_LONGEST_GAP_US = 10_000_000  # no sensor is silent for so long just after a few events
_MORE = 10  # so many times as many events must follow without a jump
_NUM_PROBED = 2048  # events

Decode = Callable[[State, EventBuffer], int]


def after_other_clock(decode: Decode, first: State, num_units: int, smallest_block: int) -> State:
    """Return the decoder state after the first events of another clock; the given state if there are none.

    Args:
        decode: Writes the next events into a buffer, advances the state and returns the number of events.
        first: The state at the start of the file.
        num_units: Number of units in the file.
        smallest_block: The least room for events that `decode` needs.
    """
    if not _has_jump(*_next_events(decode, first.copy(), num_units, EventBuffer(_NUM_PROBED))):
        return first
    state, buffer, times_us, num_strays = first.copy(), EventBuffer(smallest_block), list[int](), 0
    while num_strays <= MOST_STRAYS:
        before = state.copy()
        before[LATEST_US], before[BACKWARD:OTHER_CLOCK] = NEVER_US, first[BACKWARD:OTHER_CLOCK]
        before[OTHER_CLOCK] = num_strays
        state[LATEST_US] = NEVER_US  # so that a step back shows
        count = decode(state, buffer)
        if not count:
            if state[POSITION] >= num_units:
                return first
            continue
        time_us = int(buffer.t[0])
        if times_us and all(_is_jump(time_us - earlier_us) for earlier_us in times_us):
            probe = EventBuffer(max(2 * _MORE * num_strays, smallest_block))
            after, num_after, strays = _next_events(decode, before.copy(), num_units, probe)
            if num_after >= _MORE * num_strays and not _has_jump(after, num_after, strays - num_strays):
                return before
        times_us.append(time_us)
        num_strays += count
    return first


def _next_events(decode: Decode, state: State, num_units: int, buffer: EventBuffer) -> tuple[EventBuffer, int, int]:
    """Decode the next events. Return them, their number, and how many events of another clock the state counts."""
    count = 0
    while not count and state[POSITION] < num_units:
        count = decode(state, buffer)
    return buffer, count, int(state[OTHER_CLOCK])


def _has_jump(events: EventBuffer, count: int, num_strays: int) -> bool:
    return num_strays > 0 or bool((np.diff(events.t[:count]) > _LONGEST_GAP_US).any())


def _is_jump(step_us: int) -> bool:
    return not -JUMP_US <= step_us <= _LONGEST_GAP_US
