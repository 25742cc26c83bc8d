"""Events to frames while they come: of a recording that is read, or live, window by window; equal to `histogram`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from rvtssm.events.cells import FramePixels, check_inside, pack, times_of_cells
from rvtssm.events.histogram import checked_pixels, fill_frames, shared_slices
from rvtssm.events.jit import jit
from rvtssm.events.representations import Binned, Counting, Frames, SliceRing
from rvtssm.records import Events, Windows

Ints = npt.NDArray[np.int64]
_FIRST_ROOM = 1 << 16  # events a new stream has room for


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
    representation: str = "histogram",
    max_windows: int = 8,
) -> Iterator[Frames]:
    """Count a recording while it is read: the frames of all windows in order, at most `max_windows` at a time.

    Arguments as for `count_windows`, which it equals. However long the recording, this holds one block, the events
    of the windows it is in, and `max_windows` frames. Blocks may reuse their arrays.
    """
    counting = Counting(num_bins, count_cutoff, convention, representation)
    pixels = checked_pixels(height, width, downsample)
    is_apart = bool((windows.bounds_us[1:, 0] >= windows.bounds_us[:-1, 1]).all())
    stream = _stream_apart if is_apart and counting.adds_up else _stream_sliding
    yield from stream(blocks, windows, pixels, counting, max_windows)


def _stream_apart(
    blocks: Iterable[Events], windows: Windows, pixels: FramePixels, counting: Counting, max_windows: int
) -> Iterator[Frames]:
    """Windows that share no event: each event is counted when it comes, and none is kept."""
    shape = (counting.num_channels, pixels.height, pixels.width)
    done, latest_us = 0, np.iinfo(np.int64).min
    begun = np.empty((0, *shape), counting.dtype)  # the frame of window `done`, once an event may be in it
    for block in blocks:
        if not len(block) or done == len(windows):
            continue
        check_inside(block, pixels.sensor_height, pixels.sensor_width)
        _check_order(block, latest_us)
        latest_us = int(block.t[-1])
        ready = int(np.searchsorted(windows.ends_us, latest_us, side="right"))
        stop = int(np.searchsorted(windows.bounds_us[:, 0], latest_us, side="right"))  # ready, or one more
        ranges = counting.ranges(block.t, windows.bounds_us[done:stop])
        cells, before = pack(block, pixels)
        if before is not None:
            ranges = before[ranges].astype(np.int64)
        first = done
        while done < stop:
            frames = begun
            if not len(frames):
                frames = np.zeros((min(max_windows, max(ready - done, 1)), *shape), counting.dtype)
            for window, frame in enumerate(frames, done - first):
                _add(cells, ranges[window], np.uint8(counting.count_cutoff), frame.reshape(-1), pixels.num_pixels)
            if done >= ready:
                begun = frames
                break
            begun = frames[:0]
            done += len(frames)
            yield frames
    while done < len(windows):
        frames = begun if len(begun) else np.zeros((min(max_windows, len(windows) - done), *shape), counting.dtype)
        begun = frames[:0]
        done += len(frames)
        yield frames


@jit
def _add(cells, ranges, cutoff, flat, num_pixels):  # type: ignore[no-untyped-def]
    """Count the cells ranges[b] (R, 2) into bin b of a frame that other events may be in already."""
    jump = np.uint64(len(ranges) * num_pixels)
    for b in range(len(ranges)):
        here = np.uint64(b * num_pixels)
        for i in range(np.uint64(ranges[b, 0]), np.uint64(ranges[b, 1])):
            cell = np.uint64(cells[i])
            place = here + (cell >> np.uint64(1)) + jump * (cell & np.uint64(1))
            count = flat[place]
            flat[place] = count + np.uint8(count < cutoff)


def _stream_sliding(
    blocks: Iterable[Events], windows: Windows, pixels: FramePixels, counting: Counting, max_windows: int
) -> Iterator[Frames]:
    """Windows of any kind: events are kept as long as a window may need them."""
    sliding = SlidingWindows(pixels, counting, shared_slices(windows.bounds_us, counting, pixels.num_pixels))
    done = 0

    def counted(stop: int) -> Iterator[Frames]:
        for i in range(done, stop, max_windows):
            bounds_us = windows.bounds_us[i : min(i + max_windows, stop)]
            frames = np.empty((len(bounds_us), counting.num_channels, pixels.height, pixels.width), counting.dtype)
            for frame, (start_us, end_us) in zip(frames, bounds_us.tolist(), strict=True):
                sliding.take(start_us, end_us, frame)
            yield frames

    for block in blocks:
        if not len(block) or done == len(windows):
            continue
        sliding.push(block.between(int(windows.bounds_us[done, 0]), int(block.t[-1]) + 1))
        # No later event can enter a window that ended before the last one seen, whether its end is open or closed.
        ready = int(np.searchsorted(windows.ends_us, block.t[-1]))
        if ready > done:
            yield from counted(ready)
            done = ready
    yield from counted(len(windows))


class SlidingWindows:
    """A live stream of events: push what arrives, take any window that does not begin before the last one taken.

    Where the bins of windows coincide, as those of 50 ms windows with 10 bins do every 5 ms, each is counted once and
    kept in a ring; all other bins are counted from their events. Both give what `count_windows` gives.
    """

    def __init__(self, pixels: FramePixels, counting: Counting, ring: SliceRing | None = None) -> None:
        self.pixels = pixels
        self.counting = counting
        self._ring = ring
        self._t = np.empty(_FIRST_ROOM, np.int64)
        self._cells = np.empty(_FIRST_ROOM, np.int32)
        self._before: Ints = np.zeros(_FIRST_ROOM + 1, np.int64)  # place of the first cell of each event
        self._is_whole = pixels.shows_all  # cell i belongs to event i, and `_before` is not kept
        self._begin = self._end = 0  # of the events that are kept
        self._num_forgotten = 0  # cells that were in front of the arrays before
        self._begin_us: int | None = None  # events before this time may be forgotten

    @classmethod
    def of(
        cls,
        height: int,
        width: int,
        *,
        length_us: int,
        stride_us: float,
        num_bins: int = 10,
        count_cutoff: int = 10,
        downsample: int = 1,
        convention: str = "exact",
        representation: str = "histogram",
    ) -> SlidingWindows:
        """For windows of a length, taken about every `stride_us`, which decides how many bins are kept."""
        counting = Counting(num_bins, count_cutoff, convention, representation)
        pixels = checked_pixels(height, width, downsample)
        bounds_us = np.array([[0, length_us], [round(stride_us), round(stride_us) + length_us]])
        return cls(pixels, counting, shared_slices(bounds_us, counting, pixels.num_pixels))

    def push(self, events: Events) -> None:
        """Append events, which must not be earlier than those before; the arrays may be reused. ValueError if so."""
        if not len(events):
            return
        check_inside(events, self.pixels.sensor_height, self.pixels.sensor_width)
        if self._begin < self._end:
            _check_order(events, int(self._t[self._end - 1]))
        cells, before = pack(events, self.pixels)
        self._make_room(len(events), len(cells))
        start, stop = self._end, self._end + len(events)
        self._t[start:stop] = events.t
        place = self._place(start)
        self._cells[place : place + len(cells)] = cells
        if before is not None:
            np.add(before, place, out=self._before[start : stop + 1])
        self._end = stop

    def take(self, start_us: int, end_us: int, out: Frames | None = None) -> Frames:
        """The frame (C, h, w) of the events pushed so far with start_us <= t < end_us (`rvt`: t <= end_us).

        Events before start_us may be forgotten; ValueError for a window that begins before an earlier one.
        """
        if self._begin_us is not None and start_us < self._begin_us:
            raise ValueError(f"the window from {start_us} us begins before the last one taken, at {self._begin_us} us")
        self._begin_us = start_us
        if out is None:
            out = np.empty((self.counting.num_channels, self.pixels.height, self.pixels.width), self.counting.dtype)
        self._begin += int(np.searchsorted(self._t[self._begin : self._end], start_us))
        bounds_us = np.array([[start_us, end_us]])
        ranges = self.counting.ranges(self._t[self._begin : self._end], bounds_us)
        ranges += self._begin
        first, last = int(ranges.min()), int(ranges.max())
        low, high = self._place(first), self._place(last)
        times: Ints = np.empty(0, np.int64)
        if self.counting.needs_time:
            times = times_of_cells(self._t[first:last], None if self._is_whole else self._before[first : last + 1])
        places = ranges if self._is_whole else self._before[ranges]
        binned = Binned(self._cells[low:high], times, places - low, bounds_us, first=self._num_forgotten + low)
        fill_frames(binned, self.counting, out[None], np.zeros(1, np.int64), self._ring)
        return out

    def _place(self, event: int) -> int:
        """Where the cells of a kept event begin."""
        return event if self._is_whole else int(self._before[event])

    def _make_room(self, num_events: int, num_cells: int) -> None:
        """Move what is kept to the front of the arrays, or into longer ones, where the new would not fit behind it."""
        begin, end = self._begin, self._end
        first, last = self._place(begin), self._place(end)
        if end + num_events <= len(self._t) and last + num_cells <= len(self._cells):
            return
        # twice as long as needed: what is moved was at most once pushed since it last moved
        room, cell_room = 2 * (end - begin + num_events), 2 * (last - first + num_cells)
        self._t = _moved(self._t, begin, end, room)
        self._cells = _moved(self._cells, first, last, cell_room)
        if not self._is_whole:
            self._before = _moved(self._before, begin, end + 1, room + 1)
            self._before[: end - begin + 1] -= first
        self._num_forgotten += first
        self._begin, self._end = 0, end - begin


def _check_order(events: Events, latest_us: int) -> None:
    if events.t[0] < latest_us:
        raise ValueError(f"events at {events.t[0]} us follow events at {latest_us} us; push in order")


def _moved(array: npt.NDArray[Any], begin: int, end: int, room: int) -> npt.NDArray[Any]:
    """An array of at least `room` that begins with array[begin:end]: the same one if it is long enough."""
    moved = array if len(array) >= room else np.empty(room, array.dtype)
    moved[: end - begin] = array[begin:end]
    return moved
