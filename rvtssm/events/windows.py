"""The time grid: where windows end, and from where they count. Length and stride are independent.

`length_us=None` (shrink) lets every window begin where the one before ended, so that each event is in exactly one;
a number (slide) keeps that length whatever the stride.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from rvtssm.records import Windows

_MOST_WINDOWS = 10_000_000  # 14 hours at 200 Hz; a grid that is longer comes from a damaged time


def label_grid(
    label_times_us: npt.NDArray[np.int64], stride_us: float, length_us: int | None, start_us: int
) -> Windows:
    """Windows of which one ends at every label time.

    Between two label times the ends are spread evenly, in the number that comes nearest the stride; before the
    first they go back by the stride as long as a window begins at or after `start_us`. The last label ends the
    grid. ValueError without label times, and for more windows than a recording can have.
    """
    _check(stride_us, length_us)
    times = np.unique(label_times_us)
    if not len(times):
        raise ValueError("a label grid needs at least one label time; use the free grid for recordings without labels")
    _check_span(start_us, int(times[-1]), stride_us)
    reach = stride_us if length_us is None else length_us
    num_before = max(0, int((times[0] - reach - start_us) // stride_us))
    ends = [_rounded(times[0] - stride_us * np.arange(num_before, -1, -1))]
    for left, right in pairwise(times):
        num_steps = max(1, round((right - left) / stride_us))
        # Rounded down as RVT does, so that its files can be reproduced.
        ends.append(np.linspace(left, right, num_steps + 1).astype(np.int64)[1:])
    return _windows(np.concatenate(ends), stride_us, length_us)


def free_grid(first_us: int, last_us: int, stride_us: float, length_us: int | None) -> Windows:
    """Windows at a fixed stride from the first event on, edges rounded to the microsecond.

    The last window is the one that holds the last event; its end may lie after it. ValueError for more windows than
    a recording can have.
    """
    _check(stride_us, length_us)
    _check_span(first_us, last_us, stride_us)
    num_windows = int((last_us - first_us) // stride_us) + 1
    ends = _rounded(first_us + stride_us * np.arange(1, num_windows + 1))
    if ends[-1] <= last_us:  # rounding down can leave the last event on the edge
        ends = np.append(ends, _rounded(np.array([first_us + stride_us * (num_windows + 1)])))
    return _windows(ends, stride_us, length_us)


def _check(stride_us: float, length_us: int | None) -> None:
    if not (1 <= stride_us < math.inf) or (length_us is not None and length_us < 1):
        raise ValueError(f"stride and length must be at least 1 us, got {stride_us} and {length_us}")


def _check_span(first_us: int, last_us: int, stride_us: float) -> None:
    if (last_us - first_us) / stride_us > _MOST_WINDOWS:
        raise ValueError(
            f"times reach from {first_us} to {last_us} us, which is more than {_MOST_WINDOWS} windows of "
            f"{stride_us:g} us; a time in the file is damaged, or the stride is too short"
        )


def _rounded(times: npt.NDArray[np.floating]) -> npt.NDArray[np.int64]:
    rounded: npt.NDArray[np.int64] = np.rint(times).astype(np.int64)
    return rounded


def _windows(ends: npt.NDArray[np.int64], stride_us: float, length_us: int | None) -> Windows:
    dt_us = np.diff(ends, prepend=ends[0] - round(stride_us))
    starts = ends - (dt_us if length_us is None else length_us)
    return Windows(np.stack([starts, ends], axis=1), dt_us)
