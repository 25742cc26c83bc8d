"""How long a live stream may be without events; a longer gap is a jump of its clock."""

import numpy as np
import numpy.typing as npt

LONGEST_SILENCE_US = 600_000_000  # a longer gap would take very long, because each empty window is computed


def first_jump(before_us: int | None, times_us: npt.NDArray[np.int64]) -> int | None:
    """Return the index of the first time that is more than LONGEST_SILENCE_US after the time before it, or None.

    `times_us` (N,) is sorted. `before_us` is the time before the first of them, None if there was none.
    """
    if not len(times_us):
        return None
    start_us = times_us[0] if before_us is None else np.int64(before_us)
    if times_us[-1] - start_us <= LONGEST_SILENCE_US:  # nearly always true, so that no search is needed
        return None
    jumps = np.flatnonzero(np.diff(times_us, prepend=start_us) > LONGEST_SILENCE_US)
    return int(jumps[0]) if len(jumps) else None
