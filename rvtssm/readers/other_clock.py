"""Find the few events of another clock before the first and after the last event of a recording's own clock.

Cameras can send a few events with the times of their previous use, or from before their clock was set. Then the times
jump. Those events are left out; otherwise they would move all others to a wrong time, or add hours without events.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from rvtssm.readers.gate import (
    AHEAD_US,
    BACKWARD,
    JUMP_US,
    LATEST_US,
    MOST_STRAYS,
    NEVER_US,
    NUM_COMMON,
    OTHER_CLOCK,
    POSITION,
    EventBuffer,
    State,
)

_LONGEST_GAP_US = 10_000_000  # no sensor is silent for so long just after a few events, or just before the last few
_MORE = 10  # so many times as many events must follow without a jump, or have come before
_NUM_PROBED = 2048  # events

Decode = Callable[[State, EventBuffer], int]


def may_start_later(times_us: npt.NDArray[np.int64], state: State) -> bool:
    """Return whether the first events may have the time of another clock, so that `after_other_clock` has to look.

    Args:
        times_us: Times of the first events.
        state: The decoder state after them.
    """
    first_us = times_us[:_NUM_PROBED]
    return bool(state[OTHER_CLOCK] or (first_us[-1] - first_us[0] > _LONGEST_GAP_US and _has_gap(first_us)))


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
        before[LATEST_US], before[BACKWARD:NUM_COMMON] = NEVER_US, first[BACKWARD:NUM_COMMON]
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
            is_clock = num_after >= _MORE * num_strays and not _has_jump(after, num_after, strays - num_strays)
            if is_clock and not _jumps_to(times_us[-1], after.t[:num_after]):
                return before
        times_us.append(time_us)
        num_strays += count
    return first


def may_end_earlier(times_us: npt.NDArray[np.int64], before_us: int) -> bool:
    """Return whether the last events of a block may have the time of another clock.

    Args:
        times_us: Times of the events of the block, at least one.
        before_us: Time of the event before the block, NEVER_US without one.
    """
    if len(times_us) > MOST_STRAYS:
        before_us = times_us[-MOST_STRAYS - 1]
    elif before_us == NEVER_US:
        before_us = times_us[0]
    return bool(times_us[-1] - before_us > _LONGEST_GAP_US)


def num_before_other_clock(
    decode: Decode,
    state: State,
    num_units: int,
    smallest_block: int,
    times_us: npt.NDArray[np.int64],
    before: tuple[int, int],
) -> int:
    """Return how many events of a block come before the last events of a file, if those have the time of another clock.

    If there are such events, the state is advanced to the end of the file, and counts them.

    Args:
        decode: See `after_other_clock`.
        state: The state after the block.
        num_units: Number of units in the file.
        smallest_block: The least room for events that `decode` needs.
        times_us: Times of the events of the block, at least one.
        before: The number of events before the block, and the time of the last of them.
    """
    after, probe, num_more = state.copy(), EventBuffer(max(MOST_STRAYS + 1, smallest_block)), 0
    while after[POSITION] < num_units and num_more <= MOST_STRAYS:
        num_more += decode(after, probe)
    num_before, before_us = before
    start = max(0, len(times_us) - MOST_STRAYS)
    before_us = int(times_us[start - 1]) if start else before_us
    latest_us = np.r_[before_us, times_us[start:]]  # of the event before each event, and of the last event
    for jump in np.flatnonzero(np.diff(latest_us) > _LONGEST_GAP_US).tolist():
        num_strays = len(times_us) - start - jump + num_more
        if num_strays <= MOST_STRAYS and num_before + start + jump >= _MORE * num_strays:
            state[:] = after
            state[OTHER_CLOCK] += num_strays
            state[LATEST_US] = latest_us[jump]
            return int(start + jump)
    return len(times_us)


def _next_events(decode: Decode, state: State, num_units: int, buffer: EventBuffer) -> tuple[EventBuffer, int, int]:
    """Decode the next events. Return them, their number, and how many events of another clock the state counts."""
    count = 0
    while not count and state[POSITION] < num_units:
        count = decode(state, buffer)
    return buffer, count, int(state[OTHER_CLOCK])


def _has_jump(events: EventBuffer, count: int, num_strays: int) -> bool:
    return num_strays > 0 or _has_gap(events.t[:count])


def _has_gap(times_us: npt.NDArray[np.int64]) -> bool:
    return bool((np.diff(times_us) > _LONGEST_GAP_US).any())


def _jumps_to(time_us: int, times_us: npt.NDArray[np.int64]) -> bool:
    """Return whether times jump ahead to a time, so that only those before the jump come from another clock."""
    is_there = np.abs(times_us[1:] - time_us) <= JUMP_US
    return bool((is_there & (np.diff(times_us) > AHEAD_US)).any())


def _is_jump(step_us: int) -> bool:
    return not -JUMP_US <= step_us <= _LONGEST_GAP_US
