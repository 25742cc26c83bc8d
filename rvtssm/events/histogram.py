"""Events to stacked histograms: counts per polarity, time bin and pixel, for many windows in one call.

Convention `exact`: windows are half-open, bins are equal parts of the window, counts saturate.
Convention `rvt` equals the files of RVT byte for byte: windows are closed, bins are equal parts of the time between
the first and the last event of a window in float32, and counts wrap at 256 before they are cut off.
Source: RVT data/utils/representations.py (StackedHistogram, fast mode).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from rvtssm.events.jit import jit
from rvtssm.events.readers.recording import copy_events, join_events
from rvtssm.records import Events, Windows

CONVENTIONS = ("exact", "rvt")
_DROPPED = -(1 << 31)  # stays negative whatever is added to it

Histograms = npt.NDArray[np.uint8]


def check_convention(convention: str) -> None:
    """ValueError for a name that is not in CONVENTIONS."""
    if convention not in CONVENTIONS:
        raise ValueError(f"convention={convention!r}; choose from {', '.join(CONVENTIONS)}")


def count_windows(
    events: Events,
    windows: Windows,
    height: int,
    width: int,
    *,
    num_bins: int = 10,
    count_cutoff: int = 10,
    downsample: int = 1,
    convention: str = "exact",
) -> Histograms:
    """Count the events of T windows into (T, 2 * num_bins, height // downsample, width // downsample) uint8.

    Sizes are sensor pixels; channel = polarity * num_bins + bin; of downsample x downsample pixels one is kept, the
    one right below the middle (nearest-exact). Events outside all windows are ignored. ValueError for events
    outside the sensor and for an unknown convention.
    """
    check_convention(convention)
    if not 1 <= count_cutoff <= 255 or num_bins < 1 or downsample < 1:
        raise ValueError(f"cannot count with {count_cutoff=} (1 to 255), {num_bins=} and {downsample=} (at least 1)")
    if len(events) and (events.x.max() >= width or events.y.max() >= height):
        raise ValueError(f"events reach x={events.x.max()}, y={events.y.max()} outside {width}x{height} pixels")
    is_rvt = convention == "rvt"
    first = np.searchsorted(events.t, windows.bounds_us[:, 0], side="left")
    last = np.searchsorted(events.t, windows.bounds_us[:, 1], side="right" if is_rvt else "left")
    counts = np.zeros((len(windows), 2 * num_bins, height // downsample, width // downsample), np.uint8)
    row_offsets = _kept_pixels(height, downsample) * (width // downsample)
    columns = _kept_pixels(width, downsample)
    spans = (windows.bounds_us, first, last)
    _count(events.t, events.x, events.y, events.p, *spans, row_offsets, columns, num_bins, count_cutoff, is_rvt, counts)
    return np.minimum(counts, np.uint8(count_cutoff), out=counts) if is_rvt else counts


def count_stream(
    blocks: Iterable[Events],
    windows: Windows,
    height: int,
    width: int,
    *,
    num_bins: int = 10,
    count_cutoff: int = 10,
    downsample: int = 1,
    convention: str = "exact",
    max_windows: int = 8,
) -> Iterator[Histograms]:
    """Count a recording while it is read: the histograms of all windows in order, at most `max_windows` at a time.

    Arguments as for `count_windows`, which it equals. However long the recording, this holds one block, the events
    of the windows it is in, and `max_windows` histograms. Blocks may reuse their arrays.
    """
    ends_us, starts_us = windows.ends_us, windows.bounds_us[:, 0]
    kept: list[Events] = []  # earlier events that a window still needs
    done = 0

    def counted(events: Events, start: int, stop: int) -> Iterator[Histograms]:
        for i in range(start, stop, max_windows):
            group = slice(i, min(i + max_windows, stop))
            yield count_windows(
                events,
                Windows(windows.bounds_us[group], windows.dt_us[group]),
                height,
                width,
                num_bins=num_bins,
                count_cutoff=count_cutoff,
                downsample=downsample,
                convention=convention,
            )

    for block in blocks:
        if not len(block) or done == len(windows):
            continue
        # No later event can enter a window that ended before the last one seen, whether its end is open or closed.
        ready = int(np.searchsorted(ends_us, block.t[-1]))
        if ready > done:
            block, kept = join_events([*kept, block]), []
            yield from counted(block, done, ready)
            done = ready
        if done < len(windows):
            kept.append(copy_events(block.between(int(starts_us[done]), int(block.t[-1]) + 1)))
    yield from counted(join_events(kept), done, len(windows))


def _kept_pixels(size: int, downsample: int) -> npt.NDArray[np.int64]:
    """The frame coordinate of every sensor coordinate, _DROPPED where it has none (also at a ragged edge)."""
    sensor = np.arange(size)
    frame = sensor // downsample
    is_kept = (sensor % downsample == downsample // 2) & (frame < size // downsample)
    return np.where(is_kept, frame, _DROPPED)


@jit
def _bin(time, begin, end, num_bins, is_rvt):  # type: ignore[no-untyped-def]
    if is_rvt:
        part = np.float32(time - begin) / np.float32(max(end - begin, 1))
        return min(np.int64(part * np.float32(num_bins)), num_bins - 1)
    return (time - begin) * num_bins // (end - begin)


@jit
def _count(t, x, y, p, bounds, first, last, row_offsets, columns, num_bins, cutoff, is_rvt, counts):  # type: ignore[no-untyped-def]
    """Add the events first[w]:last[w] to counts[w] for every window w; `rvt` lets counts wrap and cuts off later.

    Bins never decrease with time, so the end of each is found by bisection and the loop over events holds no division.
    """
    cells = counts.reshape(counts.shape[0], counts.shape[1], -1)
    for w in range(len(bounds)):
        start, stop = first[w], last[w]
        if start >= stop:
            continue
        begin, end = (t[start], t[stop - 1]) if is_rvt else (bounds[w, 0], bounds[w, 1])
        for b in range(num_bins):
            low, high = start, stop
            while low < high:
                middle = (low + high) // 2
                if _bin(t[middle], begin, end, num_bins, is_rvt) > b:
                    high = middle
                else:
                    low = middle + 1
            for i in range(start, low):
                cell = row_offsets[y[i]] + columns[x[i]]
                if cell < 0:
                    continue
                channel = num_bins + b if p[i] else b
                if is_rvt or cells[w, channel, cell] < cutoff:
                    cells[w, channel, cell] += 1
            start = low
