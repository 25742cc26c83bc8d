"""What decoders of words share: clocks of few bits, and masks of up to 12 pixels of a row.

A mask becomes events without branches: all 12 output places are written, the set bits first. The next events overwrite
the surplus.
"""

import numpy as np
import numpy.typing as npt

from rvtssm.readers.gate import BACKWARD, NEVER_US, OUTSIDE, fault_of
from rvtssm.system.jit import jit

VECTOR = 12  # pixels
_TIME_HIGH = 8  # the type of the word with the upper bits of time
_PLACE_BITS = 4  # bits that hold the position of a pixel in its vector


def _places_of_bits() -> npt.NDArray[np.uint64]:
    """Return, for every mask, the positions of its set bits, 4 bits each from the lowest bit up, then their number."""
    masks = np.arange(1 << VECTOR, dtype=np.uint64)
    packed, count = np.zeros_like(masks), np.zeros_like(masks)
    for place in range(VECTOR):
        is_one = (masks >> np.uint64(place)) & np.uint64(1)
        packed |= (is_one * np.uint64(place)) << (count * np.uint64(_PLACE_BITS))
        count += is_one
    return packed | count << np.uint64(VECTOR * _PLACE_BITS)


_PLACES = _places_of_bits()


@jit
def put_vector(mask, column, row, polarity, time, t, x, y, p, num_kept):  # type: ignore[no-untyped-def]
    """Write the pixels of a mask below 2^VECTOR, all of them valid, into t, x, y, p. Return the number kept so far.

    `num_kept` is uint64, so that indices need no check for negative values. VECTOR places are written from there on.
    """
    places = _PLACES[mask]
    for i in range(VECTOR):
        place = (places >> np.uint64(_PLACE_BITS * i)) & np.uint64(0xF)
        x[num_kept + np.uint64(i)] = np.uint16(column + np.int64(place))
    for i in range(VECTOR):
        y[num_kept + np.uint64(i)] = row
    for i in range(VECTOR):
        p[num_kept + np.uint64(i)] = polarity
    for i in range(VECTOR):
        t[num_kept + np.uint64(i)] = time
    return num_kept + (places >> np.uint64(VECTOR * _PLACE_BITS))


@jit
def keep_vector(mask, column, row, polarity, time, latest, state, height, width, t, x, y, p, num_kept):  # type: ignore[no-untyped-def]
    """Write the pixels of a mask below 2^VECTOR with every repair. Return the number kept so far and the latest time.

    The pixels have one row and one time, so all of them that lie within the width have the same fault, if any.
    """
    inside = mask & ((1 << min(max(width - column, 0), VECTOR)) - 1)
    num_inside = np.int64(_PLACES[inside] >> np.uint64(VECTOR * _PLACE_BITS))
    state[OUTSIDE] += np.int64(_PLACES[mask] >> np.uint64(VECTOR * _PLACE_BITS)) - num_inside
    fault = fault_of(time, np.int64(0), row, latest, height, width)
    if fault:
        state[fault] += num_inside
    if num_inside and (fault == 0 or fault == BACKWARD):
        latest = max(time, latest)
        num_kept = put_vector(inside, column, row, polarity, latest, t, x, y, p, num_kept)
    return num_kept, latest


@jit
def is_glitch(words, start, bits, before, value, most, latest):  # type: ignore[no-untyped-def]
    """Return whether the upper bits of time jump in one word, and are back in the next one.

    Args:
        words: Words with their type above `bits` bits.
        start: The first word after the jump.
        bits: Number of bits below the type.
        before: The upper bits before the jump.
        value: The upper bits after it.
        most: The largest step that is no jump; a clock that begins again is none.
        latest: Time of the latest event; without one there is no clock yet.
    """
    mask = (np.int64(1) << bits) - 1
    if latest == NEVER_US or (value - before) & mask <= most or (before - value) & mask <= most:
        return False
    for i in range(start, len(words)):
        word = np.int64(words[i])
        if word >> bits == _TIME_HIGH and word & mask != value:
            return 0 <= (word & mask) - before <= most
    return False


@jit
def num_wraps(before, now, period, late, wrapped):  # type: ignore[no-untyped-def]
    """Return how often a clock of few bits has begun again between two values: 1, 0, or -1 for back to before it did.

    A late event or a glitch may go back to before that.

    Args:
        before: The value before, or -1.
        now: The value.
        period: The number of values that the clock has.
        late: By how many values a late event or a glitch is older at most.
        wrapped: The time that was added because the clock has begun again; 0: it has not yet.
    """
    if before - now >= period // 2:  # a smaller step back is a glitch
        return 1
    return -1 if now - before > period - late and wrapped else 0
