"""How the events of a window become a histogram: events are counted per polarity, time bin and pixel.

Convention `exact`: windows are half-open, bins are equal parts of the window, counts saturate.
Convention `rvt` reproduces the files of RVT byte for byte: windows are closed, bins are equal parts of the time between
the first and the last event of a window, computed in float32, and counts wrap at 256 before they are clipped.
Source: RVT data/utils/representations.py (StackedHistogram, fast mode).

`surfaces`, frames without windows, are in `surfaces.py`.
"""

import math

import numpy as np
import numpy.typing as npt

from rvtssm.records import PackedEvents, WindowSettings
from rvtssm.system.jit import jit

Ints = npt.NDArray[np.int64]
Cells = npt.NDArray[np.int32]
Frames = npt.NDArray[np.generic]


class SliceRing:
    """The S bins that were counted most recently, so that a bin that several windows share is counted once.

    A bin is identified by the range of its events, because the same events give the same counts in any window.

    Args:
        num_slices: S.
        num_pixels: Number of pixels of a frame.
    """

    def __init__(self, num_slices: int, num_pixels: int) -> None:
        self.keys = np.full((num_slices, 2), -1, np.int64)  # the range of its cells, -1 while unused
        self.used = np.zeros(num_slices + 1, np.int64)  # when each was last used; the last element is the clock
        self.planes = np.empty((num_slices, 2, num_pixels), np.uint8)


_NO_RING = SliceRing(0, 0)


def adds_up(settings: WindowSettings) -> bool:
    """Return whether a window can be counted piece by piece, before its later events are known."""
    return settings.representation == "histogram" and settings.convention == "exact"


def num_shared_slices(length_us: int, stride_us: int, settings: WindowSettings) -> int:
    """Return the number of recent bins that later windows may need again, 0 if no bins coincide.

    Args:
        length_us: Length of the windows.
        stride_us: Time between the ends of the last two windows.
        settings: How events become frames.
    """
    if not adds_up(settings) or not 0 < stride_us < length_us or length_us % settings.num_bins:
        return 0
    bin_us = length_us // settings.num_bins
    # after this many strides, bins coincide with earlier bins
    num_strides = bin_us // math.gcd(bin_us, stride_us)
    if num_strides * stride_us >= length_us:
        return 0
    return num_strides * (settings.num_bins + 1)


def bin_ranges(t: Ints, bounds_us: Ints, settings: WindowSettings) -> Ints:
    """Return which events belong to each bin.

    Args:
        t: (N,), times of the events in order.
        bounds_us: (T, 2), the windows.
        settings: How events become frames.

    Returns:
        (T, R, 2), index ranges [start, stop) into `t`.
    """
    find_bins = _equal_bins
    if settings.convention == "rvt":
        find_bins = _closed_bins
    ranges: Ints = find_bins(t, bounds_us, settings.num_bins)
    return ranges


def fill_frames(packed: PackedEvents, frames: Frames, ring: SliceRing | None = None) -> None:
    """Count the events of each window into its frame. Frames without a window stay as they are.

    Args:
        packed: The events.
        frames: (F, C, h, w), contiguous; `packed.places` are indices into it.
        ring: Bins that were counted recently.
    """
    num_frames, num_channels, height, width = frames.shape
    flat = frames.reshape(num_frames, num_channels, height * width)
    ring = ring or _NO_RING
    recent = ring.keys, ring.used, ring.planes, packed.first
    cells, ranges, places = (np.asarray(part) for part in (packed.cells, packed.ranges, packed.places))
    settings = packed.settings
    _count(cells, ranges, places, np.uint8(settings.count_cutoff), settings.convention == "rvt", *recent, flat)


def add_events(cells: Cells, ranges: Ints, settings: WindowSettings, frames: Frames) -> None:
    """Add the counts of cells to histograms that may already hold counts; `adds_up` must be true for the settings.

    Args:
        cells: (K,), 2 * pixel + polarity.
        ranges: (T, R, 2), the cells [start, stop) of each bin.
        settings: How events become frames.
        frames: (T, C, h, w), contiguous: zeros or earlier counts.
    """
    _add(cells, ranges, np.uint8(settings.count_cutoff), frames.reshape(len(frames), -1))


@jit
def _equal_bins(t, bounds, num_bins):  # type: ignore[no-untyped-def]
    """Return the events of equal parts of half-open windows: bin = (t - start) * num_bins // (end - start)."""
    ranges = np.empty((len(bounds), num_bins, 2), np.int64)
    for w in range(len(bounds)):
        start = bounds[w, 0]
        length = bounds[w, 1] - bounds[w, 0]
        low = np.searchsorted(t, start)
        for b in range(num_bins):
            ranges[w, b, 0] = low
            low += np.searchsorted(t[low:], start - (-(b + 1) * length // num_bins))  # rounded up
            ranges[w, b, 1] = low
    return ranges


@jit
def _closed_bins(t, bounds, num_bins):  # type: ignore[no-untyped-def]
    """Return the events of RVT's bins: equal parts from the first to the last event of a closed window, in float32."""
    ranges = np.empty((len(bounds), num_bins, 2), np.int64)
    for w in range(len(bounds)):
        low = np.searchsorted(t, bounds[w, 0])
        last = np.searchsorted(t, bounds[w, 1] + 1)
        # RVT: bins are equal parts of the time between first and last event of the window.
        begin = np.int64(0)
        span = np.float32(1)
        if low < last:
            begin = t[low]
            span = np.float32(max(t[last - 1] - begin, 1))
        for b in range(num_bins):
            ranges[w, b, 0] = low
            high = last
            # The first event of the next bin, by bisection.
            while low < high:
                middle = (low + high) // 2
                part = np.float32(t[middle] - begin) / span
                if min(np.int64(part * np.float32(num_bins)), num_bins - 1) > b:
                    high = middle
                else:
                    low = middle + 1
            ranges[w, b, 1] = low
    return ranges


@jit
def _count(cells, ranges, places, cutoff, wraps, keys, used, planes, first_cell, out):  # type: ignore[no-untyped-def]
    """Count events. Counts saturate, or under `rvt` wrap at 256 before they are clipped."""
    num_bins = ranges.shape[1]
    num_pixels = out.shape[2]
    for w in range(len(ranges)):
        frame = out[places[w]]
        flat = frame.reshape(-1)
        for b in range(num_bins):
            start, stop = ranges[w, b, 0], ranges[w, b, 1]
            darker = frame[b]
            brighter = frame[num_bins + b]
            # A slice that an earlier window counted is copied.
            slot = -1
            if start < stop:
                used[-1] += 1
                for s in range(len(keys)):
                    if keys[s, 0] == first_cell + start and keys[s, 1] == first_cell + stop:
                        slot = s
            if slot >= 0:
                _copy(planes[slot, 0], darker)
                _copy(planes[slot, 1], brighter)
                used[slot] = used[-1]
                continue
            darker[:] = brighter[:] = 0
            # Otherwise its events are counted, polarity by polarity.
            here = np.uint64(b * num_pixels)
            jump = np.uint64(num_bins * num_pixels)
            if wraps:
                is_over = False  # rare; checking for it costs less than clipping every frame
                for i in range(np.uint64(start), np.uint64(stop)):
                    cell = np.uint64(cells[i])
                    place = here + (cell >> np.uint64(1)) + jump * (cell & np.uint64(1))
                    is_over |= flat[place] >= cutoff
                    flat[place] += np.uint8(1)
                if is_over:
                    np.minimum(darker, cutoff, darker)
                    np.minimum(brighter, cutoff, brighter)
            else:
                _saturate(cells, start, stop, cutoff, flat, here, jump)
            if start < stop and len(keys):
                # And kept for the next window, in place of the oldest slice.
                oldest = np.argmin(used[:-1])
                _copy(darker, planes[oldest, 0])
                _copy(brighter, planes[oldest, 1])
                keys[oldest, 0] = first_cell + start
                keys[oldest, 1] = first_cell + stop
                used[oldest] = used[-1]


@jit
def _add(cells, ranges, cutoff, frames):  # type: ignore[no-untyped-def]
    num_bins = ranges.shape[1]
    for w in range(len(ranges)):
        for b in range(num_bins):
            here = b * (frames.shape[1] // (2 * num_bins))
            jump = frames.shape[1] // 2
            start, stop = ranges[w, b, 0], ranges[w, b, 1]
            _saturate(cells, start, stop, cutoff, frames[w], np.uint64(here), np.uint64(jump))


@jit
def _saturate(cells, start, stop, cutoff, flat, here, jump):  # type: ignore[no-untyped-def]
    """Count the cells [start, stop) into the plane at index `here`, or `jump` later if the event is brighter."""
    for i in range(np.uint64(start), np.uint64(stop)):
        cell = np.uint64(cells[i])
        place = here + (cell >> np.uint64(1)) + jump * (cell & np.uint64(1))
        count = flat[place]
        flat[place] = count + np.uint8(count < cutoff)


@jit
def _copy(source, target):  # type: ignore[no-untyped-def]
    for i in range(len(source)):
        target[i] = source[i]
