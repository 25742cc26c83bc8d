"""What a window of events becomes: named representations with one contract, behind the table REPRESENTATIONS.

`histogram`: uint8, 2 channels per bin: events per polarity, bin and pixel, saturating (Gehrig and Scaramuzza, 2023).
`voxel_grid`: float16, 1 channel per bin: polarities, each shared by the two bins next to its time (Zhu et al., 2019).
`event_stack`: int8, 1 channel per bin: the polarity of the latest event at a pixel, among all events of the window,
the later half of them, the later quarter ...: mixed density (Nam et al., 2022).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from rvtssm.events.jit import jit
from rvtssm.records import CHANNELS_PER_BIN

CONVENTIONS = ("exact", "rvt")

Ints = npt.NDArray[np.int64]
Cells = npt.NDArray[np.int32]
Frames = npt.NDArray[np.generic]


def check_convention(convention: str) -> None:
    """ValueError for a name that is not in CONVENTIONS."""
    if convention not in CONVENTIONS:
        raise ValueError(f"convention={convention!r}; choose from {', '.join(CONVENTIONS)}")


@dataclass(frozen=True, slots=True)
class Counting:
    """What a window becomes: the settings of every function below. ValueError for what cannot be counted."""

    num_bins: int = 10
    count_cutoff: int = 10
    convention: str = "exact"
    representation: str = "histogram"

    def __post_init__(self) -> None:
        check_convention(self.convention)
        if self.representation not in REPRESENTATIONS:
            raise ValueError(f"representation={self.representation!r}; choose from {', '.join(REPRESENTATIONS)}")
        if self.convention == "rvt" and self.representation != "histogram":
            raise ValueError(
                f"convention=rvt reproduces RVT's histograms, not representation={self.representation}; use exact"
            )
        if not 1 <= self.count_cutoff <= 255 or self.num_bins < 1:
            raise ValueError(
                f"cannot count with count_cutoff={self.count_cutoff} (1 to 255), num_bins={self.num_bins} (at least 1)"
            )

    @property
    def num_channels(self) -> int:
        return CHANNELS_PER_BIN[self.representation] * self.num_bins

    @property
    def dtype(self) -> np.dtype[np.generic]:
        return REPRESENTATIONS[self.representation].dtype

    @property
    def needs_time(self) -> bool:
        return REPRESENTATIONS[self.representation].needs_time

    @property
    def adds_up(self) -> bool:
        """Whether the events of a window can be counted bin by bin as they come, without knowing the later ones."""
        return self.representation == "histogram" and self.convention == "exact"

    def ranges(self, t: Ints, bounds_us: Ints) -> Ints:
        """Which events make which bin: (T, R, 2) index ranges into t (N,), for windows (T, 2)."""
        if self.convention == "rvt":
            return _closed_bins(t, bounds_us, self.num_bins)
        return REPRESENTATIONS[self.representation].ranges(t, bounds_us, self.num_bins)


@dataclass(slots=True)
class SliceRing:
    """The latest bins that were counted, so that windows which share a bin count it once.

    A bin is known by the events in it; whatever windows it comes from, the same events give the same counts.
    """

    num_slices: int
    num_pixels: int
    keys: Ints = field(init=False)  # (S, 2) first event and the one after the last, -1 while unused
    used: Ints = field(init=False)  # (S + 1,) when each was used last; the clock
    planes: npt.NDArray[np.uint8] = field(init=False)  # (S, 2, num_pixels)

    def __post_init__(self) -> None:
        self.keys = np.full((self.num_slices, 2), -1, np.int64)
        self.used = np.zeros(self.num_slices + 1, np.int64)
        self.planes = np.empty((self.num_slices, 2, self.num_pixels), np.uint8)


_NO_RING = SliceRing(0, 0)


@dataclass(frozen=True, slots=True)
class Binned:
    """The events of T windows, ready to be counted. Times and bounds may count from any common zero."""

    cells: Cells  # (K,) 2 * pixel + polarity
    times: npt.NDArray[np.integer]  # (K,) where the representation needs them, otherwise empty
    ranges: Ints  # (T, R, 2) into cells
    bounds_us: Ints  # (T, 2)
    first: int = 0  # number of the first cell since the ring began

    def __len__(self) -> int:
        """The number of windows."""
        return len(self.ranges)


def fill(binned: Binned, counting: Counting, out: Frames, places: Ints, ring: SliceRing | None = None) -> None:
    """Write window w to out[places[w]]; out (F, C, num_pixels) of the dtype of the representation, contiguous."""
    REPRESENTATIONS[counting.representation].fill(binned, counting, out, places, ring)


def _equal_bins(t: Ints, bounds_us: Ints, num_bins: int) -> Ints:
    """Bins are equal parts of the half-open window: bin = (t - start) * num_bins // (end - start)."""
    ranges = np.empty((len(bounds_us), num_bins, 2), np.int64)
    _bisect_equal(t, bounds_us, ranges)
    return ranges


@jit
def _bisect_equal(t, bounds, ranges):  # type: ignore[no-untyped-def]
    num_bins = ranges.shape[1]
    for w in range(len(bounds)):
        start, length = bounds[w, 0], bounds[w, 1] - bounds[w, 0]
        low = _first_from(t, 0, start)
        for b in range(num_bins):
            ranges[w, b, 0] = low
            low = _first_from(t, low, start - (-(b + 1) * length // num_bins))  # rounded up
            ranges[w, b, 1] = low


@jit
def _first_from(t, low, time):  # type: ignore[no-untyped-def]
    """The first event from `low` on that is not before `time`."""
    high = len(t)
    while low < high:
        middle = (low + high) // 2
        if t[middle] < time:
            low = middle + 1
        else:
            high = middle
    return low


def _closed_bins(t: Ints, bounds_us: Ints, num_bins: int) -> Ints:
    """RVT: the window includes its end, bins are equal parts of the time from its first to its last event, float32."""
    ranges = np.empty((len(bounds_us), num_bins, 2), np.int64)
    _bisect_closed(t, bounds_us, ranges)
    return ranges


@jit
def _bisect_closed(t, bounds, ranges):  # type: ignore[no-untyped-def]
    num_bins = ranges.shape[1]
    for w in range(len(bounds)):
        low = _first_from(t, 0, bounds[w, 0])
        last = _first_from(t, low, bounds[w, 1] + 1)
        begin, span = np.int64(0), np.float32(1)
        if low < last:
            begin = t[low]
            span = np.float32(max(t[last - 1] - begin, 1))
        for b in range(num_bins):
            ranges[w, b, 0] = low
            high = last
            while low < high:
                middle = (low + high) // 2
                part = np.float32(t[middle] - begin) / span
                if min(np.int64(part * np.float32(num_bins)), num_bins - 1) > b:
                    high = middle
                else:
                    low = middle + 1
            ranges[w, b, 1] = low


def _steps_between_bins(t: Ints, bounds_us: Ints, num_bins: int) -> Ints:
    """Bin centres lie from the start of the window to its end: the events between each two, or all for one bin."""
    return _equal_bins(t, bounds_us, max(num_bins - 1, 1))


def _later_halves(t: Ints, bounds_us: Ints, num_bins: int) -> Ints:
    first, last = (np.searchsorted(t, bounds_us[:, i])[:, None] for i in (0, 1))
    last = np.maximum(first, last)
    count = (last - first) >> np.minimum(np.arange(num_bins), 62)
    return np.stack([last - count, np.broadcast_to(last, count.shape)], axis=2).astype(np.int64)


def _fill_histogram(binned: Binned, counting: Counting, out: Frames, places: Ints, ring: SliceRing | None) -> None:
    ring = ring or _NO_RING
    wraps = counting.convention == "rvt"
    kept = (ring.keys, ring.used, ring.planes, binned.first)
    _count(binned.cells, binned.ranges, places, np.uint8(counting.count_cutoff), wraps, *kept, out)


@jit
def _count(cells, ranges, places, cutoff, wraps, keys, used, planes, first_cell, out):  # type: ignore[no-untyped-def]
    """Counts saturate, or in `rvt` wrap at 256 and are cut off after that."""
    num_bins, num_pixels = ranges.shape[1], out.shape[2]
    for w in range(len(ranges)):
        frame = out[places[w]]
        flat = frame.reshape(-1)
        for b in range(num_bins):
            start, stop = ranges[w, b, 0], ranges[w, b, 1]
            darker, brighter = frame[b], frame[num_bins + b]
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
            _clear(darker)
            _clear(brighter)
            here, jump = np.uint64(b * num_pixels), np.uint64(num_bins * num_pixels)
            is_over = False  # rare, and looking for it costs less than cutting every frame
            for i in range(np.uint64(start), np.uint64(stop)):
                cell = np.uint64(cells[i])
                place = here + (cell >> np.uint64(1)) + jump * (cell & np.uint64(1))
                count = flat[place]
                below = count < cutoff
                flat[place] = count + (np.uint8(1) if wraps else np.uint8(below))
                is_over |= not below
            if wraps and is_over:
                _cut(darker, cutoff)
                _cut(brighter, cutoff)
            if start < stop and len(keys):
                oldest = np.argmin(used[:-1])
                _copy(darker, planes[oldest, 0])
                _copy(brighter, planes[oldest, 1])
                keys[oldest, 0], keys[oldest, 1] = first_cell + start, first_cell + stop
                used[oldest] = used[-1]


@jit
def _copy(source, target):  # type: ignore[no-untyped-def]
    for i in range(len(source)):
        target[i] = source[i]


@jit
def _clear(plane):  # type: ignore[no-untyped-def]
    for i in range(len(plane)):
        plane[i] = 0


@jit
def _cut(plane, cutoff):  # type: ignore[no-untyped-def]
    for i in range(len(plane)):
        plane[i] = min(plane[i], cutoff)


def _fill_voxel_grid(binned: Binned, counting: Counting, out: Frames, places: Ints, ring: SliceRing | None) -> None:
    grid = np.empty(out.shape[1:], np.float32)  # sums are rounded to float16 once
    for ranges, bounds, place in zip(binned.ranges, binned.bounds_us, places, strict=True):
        _share(binned.cells, binned.times, ranges, *bounds, grid)
        out[place] = grid


@jit
def _share(cells, times, ranges, start_us, end_us, grid):  # type: ignore[no-untyped-def]
    grid[:] = 0
    num_steps = len(grid) - 1
    for r in range(len(ranges)):
        for i in range(ranges[r, 0], ranges[r, 1]):
            pixel, polarity = cells[i] >> 1, np.float32(2 * (cells[i] & 1) - 1)
            # float64, so that the two shares add up to one event
            later = np.float32((times[i] - start_us) * num_steps / (end_us - start_us) - r)
            grid[r, pixel] += polarity * (np.float32(1) - later)
            if num_steps:
                grid[r + 1, pixel] += polarity * later


def _fill_event_stack(binned: Binned, counting: Counting, out: Frames, places: Ints, ring: SliceRing | None) -> None:
    _stack(binned.cells, binned.ranges, places, out)


@jit
def _stack(cells, ranges, places, out):  # type: ignore[no-untyped-def]
    for w in range(len(ranges)):
        for b in range(ranges.shape[1]):
            plane = out[places[w], b]
            _clear(plane)
            for i in range(ranges[w, b, 0], ranges[w, b, 1]):
                plane[cells[i] >> 1] = 2 * (cells[i] & 1) - 1


@dataclass(frozen=True, slots=True)
class Representation:
    """dtype of the frames; whether cells need their times; which events make which bin; bins to frames."""

    dtype: np.dtype[np.generic]
    needs_time: bool
    ranges: Callable[[Ints, Ints, int], Ints]
    fill: Callable[[Binned, Counting, Frames, Ints, SliceRing | None], None]


REPRESENTATIONS = {
    "histogram": Representation(np.dtype(np.uint8), False, _equal_bins, _fill_histogram),
    "voxel_grid": Representation(np.dtype(np.float16), True, _steps_between_bins, _fill_voxel_grid),
    "event_stack": Representation(np.dtype(np.int8), False, _later_halves, _fill_event_stack),
}
