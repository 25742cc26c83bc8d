"""How events become frames: a histogram of a window, or surfaces, which depend on all events before a time.

A histogram counts events per polarity, time bin and pixel. Convention `exact`: windows are half-open, bins are equal
parts of the window, counts saturate. Convention `rvt` reproduces the files of RVT byte for byte: windows are closed,
bins are equal parts of the time between the first and the last event of a window, computed in float32, and counts wrap
at 256 before they are clipped. Source: RVT data/utils/representations.py (StackedHistogram, fast mode).

Surfaces are exponential sums. With time constant tau[k], the sum of a pixel and polarity at time t is s[k](t) = sum of
exp(-(t - t[i]) / tau[k]) over its events with t[i] < t. This is leaky integration; the time surfaces of Lagorce et al.
(2017) use only the latest event. A frame stores 16 log2(1 + s) as uint8, interpolated linearly between powers of two: 0
for s below 1/32, and 16 for a single event at its own time.
"""

import math
from functools import cache

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
    cells, ranges, places = map(np.asarray, (packed.cells, packed.ranges, packed.places))
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


LEVELS_PER_OCTAVE = 16
_LONG_AGO_US = -(1 << 62)
_LEAST = 1e-6  # smaller sums are set to 0; a frame shows 0 for all sums below 1/32 anyway
_FINE_BITS = 10  # lower bits of a time within an epoch; a weight is the product of entries of two small tables


class Surfaces:
    """Use this to keep the sums of a stream: `add` its events in order of time, `write` a frame at a later time.

    For each time constant, time is divided into epochs of a fixed length, starting at time 0. A sum is stored with the
    value it would have at the start of the epoch of the latest event. An event then only adds its weight to one number,
    and the stored sums are identical to the last bit no matter when frames are written or how the events are split into
    calls.

    Args:
        time_constants_us: K time constants.
        num_pixels: Number of pixels of a frame.
    """

    def __init__(self, time_constants_us: tuple[int, ...], num_pixels: int) -> None:
        self._weights = _epoch_weights(time_constants_us)
        self._constants_us = np.array(time_constants_us, np.float64)
        self._sums = np.zeros((2 * len(time_constants_us), num_pixels), np.float32)  # channel = polarity * K + k
        self._epochs = np.int64(_LONG_AGO_US) >> self._weights[0]  # before all events
        self.until_us: int = _LONG_AGO_US  # all events before this time have been added

    def add(self, cells: npt.NDArray[np.int32], times_us: Ints, until_us: int) -> None:
        """Add events.

        Args:
            cells: (N,), 2 * pixel + polarity.
            times_us: (N,), in order, none before the `until_us` of the last call.
            until_us: All events before this time have been added after this call.
        """
        _add_to_sums(cells, times_us, self._constants_us, *self._weights, self._epochs, self._sums)
        self.until_us = until_us

    def write(self, time_us: int, frame: npt.NDArray[np.uint8]) -> None:
        """Write a frame.

        Args:
            time_us: The time of the frame, not before any event added so far.
            frame: (2K, h, w), contiguous output.
        """
        shifts, _, _ = self._weights
        factors = np.exp(((self._epochs << shifts) - time_us) / self._constants_us).astype(np.float32)
        _write_levels(self._sums, factors, frame.reshape(self._sums.shape))

    def state(self) -> tuple[npt.NDArray[np.float32], Ints]:
        """Return copies of the stored sums and of the times: the epochs, followed by `until_us`."""
        return self._sums.copy(), np.append(self._epochs, self.until_us)

    def load_state(self, sums: npt.NDArray[np.float32], times: Ints) -> None:
        """Continue from the `state` of another instance."""
        self._sums[:] = sums
        self._epochs[:] = times[:-1]
        self.until_us = int(times[-1])


def to_sums(frame: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    """Return the sums that the levels of a frame represent."""
    octaves = np.arange(256 // LEVELS_PER_OCTAVE + 1)
    sums: npt.NDArray[np.float64] = np.interp(frame, LEVELS_PER_OCTAVE * octaves, 2.0**octaves - 1)
    return sums


@cache
def _epoch_weights(time_constants_us: tuple[int, ...]) -> tuple[Ints, npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return log2 of the epoch lengths (K,) and the two tables of weights. An epoch is 4 to 8 time constants long.

    An event `offset` us after the start of its epoch weighs coarse[k, offset >> 10] * fine[k, offset & 1023].
    """
    shifts = np.array([max(_FINE_BITS, int(math.log2(8 * tau))) for tau in time_constants_us])
    tau = np.array(time_constants_us, np.float64)[:, None]
    steps = np.arange(1 << max(shifts) - _FINE_BITS) << _FINE_BITS
    coarse = np.exp(np.minimum(steps, 1 << shifts[:, None]) / tau)
    fine = np.exp(np.arange(1 << _FINE_BITS) / tau)
    return shifts, coarse.astype(np.float32), fine.astype(np.float32)


@jit
def _add_to_sums(cells, times, constants, shifts, coarse, fine, epochs, sums):  # type: ignore[no-untyped-def]
    num_constants = len(constants)
    for k in range(num_constants):
        first = 0
        while first < len(times):
            epoch = times[first] >> shifts[k]
            if epoch != epochs[k]:
                factor = np.float32(math.exp(-float((epoch - epochs[k]) << shifts[k]) / constants[k]))
                _decay(sums[k], factor)
                _decay(sums[num_constants + k], factor)
                epochs[k] = epoch
            stop = np.searchsorted(times, (epoch + 1) << shifts[k])
            _add_within(cells[first:stop], times[first:stop], epoch << shifts[k], coarse[k], fine[k], k, sums)
            first = stop


@jit
def _add_within(cells, times, start, coarse, fine, k, sums):  # type: ignore[no-untyped-def]
    """Add the events of the epoch that begins at `start` to the sums of time constant k."""
    num_pixels = sums.shape[1]
    flat = sums.reshape(-1)
    here = np.uint64(k * num_pixels)
    jump = np.uint64(sums.shape[0] // 2 * num_pixels)
    for i in range(np.uint64(len(times))):
        offset = np.uint64(times[i] - start)
        cell = np.uint64(cells[i])
        place = here + (cell >> np.uint64(1)) + jump * (cell & np.uint64(1))
        flat[place] += coarse[offset >> np.uint64(_FINE_BITS)] * fine[offset & np.uint64((1 << _FINE_BITS) - 1)]


@jit
def _decay(plane, factor):  # type: ignore[no-untyped-def]
    for i in range(len(plane)):
        value = plane[i] * factor
        plane[i] = value if value > np.float32(_LEAST) else np.float32(0)


@jit
def _write_levels(sums, factors, frame):  # type: ignore[no-untyped-def]
    """Write levels: the exponent and the first 4 bits of the fraction of 1 + s, rounded, read as one integer."""
    for channel in range(len(sums)):
        factor = factors[channel % len(factors)]
        plane = sums[channel]
        levels = frame[channel]
        for i in range(len(plane)):
            bits = np.float32(plane[i] * factor + np.float32(1)).view(np.int32) - np.int32(0x3F800000)  # bits of 1.0
            levels[i] = np.uint8(min((bits + np.int32(1 << 18)) >> np.int32(19), np.int32(255)))
