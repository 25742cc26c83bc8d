"""What decoders of words share: clocks of few bits, and masks of up to 12 pixels of a row.

A mask becomes events without branches: all 12 output places are written, the set bits first. The next events overwrite
the surplus.
"""

import numpy as np
import numpy.typing as npt

from rvtssm.readers.gate import BACKWARD, fault_of
from rvtssm.system.jit import jit

VECTOR = 12  # pixels
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
def put_vector(mask, column, row, polarity, time, t, x, y, p, kept):  # type: ignore[no-untyped-def]
    """Write the pixels of a mask below 2^VECTOR, all of them valid, into t, x, y, p. Return the number kept so far.

    `kept` is uint64, so that indices need no check for negative values. VECTOR places are written, starting at `kept`.
    """
    places = _PLACES[mask]
    for i in range(VECTOR):
        place = (places >> np.uint64(_PLACE_BITS * i)) & np.uint64(0xF)
        x[kept + np.uint64(i)] = np.uint16(column + np.int64(place))
    for i in range(VECTOR):
        y[kept + np.uint64(i)] = row
    for i in range(VECTOR):
        p[kept + np.uint64(i)] = polarity
    for i in range(VECTOR):
        t[kept + np.uint64(i)] = time
    return kept + (places >> np.uint64(VECTOR * _PLACE_BITS))


@jit
def keep_pixels(mask, column, row, polarity, time, latest, state, height, width, t, x, y, p, kept):  # type: ignore[no-untyped-def]
    """Write the pixels of a mask with every repair. Return the number of events kept so far and the latest time."""
    while mask:
        if mask & 1:
            fault = fault_of(time, column, row, latest, height, width)
            if fault:
                state[fault] += 1
            if fault in (0, BACKWARD):
                latest = max(time, latest)
                t[kept] = latest
                x[kept] = column
                y[kept] = row
                p[kept] = polarity
                kept += np.uint64(1)
        mask >>= 1
        column += 1
    return kept, latest


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
