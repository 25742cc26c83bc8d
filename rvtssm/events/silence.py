"""How long a live stream may say nothing before its clock is taken to have jumped."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

LONGEST_SILENCE_US = 600_000_000  # the empty windows of more would be endless work


def first_jump(before_us: int | None, times_us: npt.NDArray[np.int64]) -> int | None:
    """Place of the first of times (N,), in order, that comes more than LONGEST_SILENCE_US after the one before it.

    `before_us`: what came before the first of them, None: nothing. None where no time does.
    """
    if not len(times_us):
        return None
    start_us = times_us[0] if before_us is None else np.int64(before_us)
    if times_us[-1] - start_us <= LONGEST_SILENCE_US:  # nearly always, and then nothing has to be searched
        return None
    jumps = np.flatnonzero(np.diff(times_us, prepend=start_us) > LONGEST_SILENCE_US)
    return int(jumps[0]) if len(jumps) else None
