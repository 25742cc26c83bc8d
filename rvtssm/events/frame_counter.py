"""Turn events into frames: push events as they arrive, take the frames of windows that have closed.

Preparation, training, prediction and live detection all count with this class, so they all get the same frames.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from rvtssm.events.cells import FramePixels, frame_pixels, pack
from rvtssm.events.representations import (
    Frames,
    SliceRing,
    Surfaces,
    add_events,
    adds_up,
    bin_ranges,
    fill_frames,
    num_shared_slices,
)
from rvtssm.events.windows import WindowClock
from rvtssm.readers.event_checks import check_events
from rvtssm.records import Events, PackedEvents, Windows, WindowSettings
from rvtssm.system.machine import check_memory

Ints = npt.NDArray[np.int64]
_FIRST_ROOM = 1 << 16  # events that a new counter has room for


class FrameCounter:
    """Use this to count the events of one recording or camera: `push` events, then `take` the frames of windows.

    The counter keeps events until `forget_before` says that no window needs them any more, or until `count_ahead` has
    counted them. If the bins of overlapping windows coincide (50 ms windows with 10 bins do so every 5 ms), each bin is
    counted once and kept in a ring; the frames are the same. `surfaces` have no windows: a frame depends on all events
    pushed before its time, including those that were forgotten.

    Args:
        settings: How events become frames.
        pixels: The map from sensor to frame.

    Raises:
        UserError: A frame of this size would not fit in memory.
    """

    def __init__(self, settings: WindowSettings, pixels: FramePixels) -> None:
        self.settings = settings
        self.pixels = pixels
        self.frame_shape = settings.num_channels, pixels.height, pixels.width
        num_bytes = math.prod(self.frame_shape)
        check_memory(2 * num_bytes, f"num_bins={settings.num_bins} gives frames of {self.frame_shape}, use fewer")
        # Surfaces decay from window to window; histograms start each window at zero.
        self._surfaces: Surfaces | None = None
        if settings.representation == "surfaces":
            self._surfaces = Surfaces(settings.time_constants_us, pixels.height * pixels.width)
        # Kept events: their times, and the cells of the frame that each one counts in.
        self._t = self._own_t = np.empty(_FIRST_ROOM, np.int64)
        self._cells = np.empty(_FIRST_ROOM, np.int32)
        self._before = np.empty(_FIRST_ROOM + 1, np.int32)  # index of the first cell of each event
        self._is_whole = pixels.shows_all  # cell i belongs to event i, and `_before` is not filled
        self._before[0] = self._begin = self._end = 0  # kept events are [_begin, _end)
        self._num_forgotten = 0  # cells dropped from the front of the arrays so far
        self.ring: SliceRing | None = None
        self._last_end_us: int | None = None  # end of the window taken last
        self._ahead: Frames | None = None  # partial frame of the next window, from events that are forgotten

    @property
    def times_us(self) -> Ints:
        """Times of the kept events, in order, as a view that is valid until the next call."""
        return self._t[self._begin : self._end]

    @property
    def is_ahead(self) -> bool:
        """Whether events of the next window were counted ahead, so that this window must be taken alone."""
        return self._ahead is not None

    def push(self, events: Events, is_lent: bool = False) -> None:
        """Append events. Their arrays may be reused afterwards.

        Args:
            events: Events on the sensor, none earlier than the events pushed before.
            is_lent: Do not copy the times. All earlier events must be forgotten, and the caller must forget these
                events before their array changes.

        Nothing is checked again: a gate has put the events in order and on the sensor.
        """
        if not len(events):
            return
        self._make_room(len(events), len(events) * self.pixels.most + 1)
        start, self._end = self._end, self._end + len(events)
        if is_lent:
            assert start == 0, "earlier events are still kept"
            self._t = events.t
        else:
            self._t[start : self._end] = events.t
        before = np.array([start], np.int32) if self._is_whole else self._before[start : self._end + 1]
        pack(events, self.pixels, self._cells, before)

    def take(self, bounds_us: Ints, out: Frames | None = None) -> Frames:
        """Return the frames of windows, counted from the events pushed so far.

        Args:
            bounds_us: (n, 2), windows [start, end), closed windows under convention `rvt`. Ends increase from call to
                call.
            out: A contiguous array (n, C, h, w) to write instead of a new one.

        Returns:
            (n, C, h, w) uint8.
        """
        shape = len(bounds_us), *self.frame_shape
        ring = self._ring_for(bounds_us)
        # Windows that do not share events: their counts are added to what was counted ahead.
        if out is None and ring is None and adds_up(self.settings):
            frames = self._ahead
            self._ahead = None
            if frames is None:
                frames = np.zeros(shape, np.uint8)
            assert frames.shape == shape, "a window that is counted ahead is taken alone"
            add_events(self._cells, self._cell_ranges(bounds_us), self.settings, frames)
            return frames
        if out is None:
            out = np.empty(shape, np.uint8)
        if self._surfaces is not None:
            for end_us, frame in zip(bounds_us[:, 1].tolist(), out, strict=True):
                self._add_until(end_us)
                self._surfaces.write(end_us, frame)
            return out
        # Overlapping windows: counts of shared slices are kept in a ring.
        fill_frames(self.pack(bounds_us), out, ring)
        return out

    def count_ahead(self, bounds_us: Ints) -> None:
        """Count the events pushed so far into the next window, and forget them.

        This bounds the memory of windows that share no events. The settings must satisfy `adds_up`.

        Args:
            bounds_us: (1, 2), the next window. It must be taken alone.
        """
        if self._ahead is None:
            self._ahead = np.zeros((1, *self.frame_shape), np.uint8)
        add_events(self._cells, self._cell_ranges(bounds_us), self.settings, self._ahead)
        self.forget_before(int(bounds_us[0, 1]))

    def pack(self, bounds_us: Ints) -> PackedEvents:
        """Return the events of windows without counting them, small enough to send to another process.

        Args:
            bounds_us: (n, 2), the windows.

        Returns:
            Views that are valid until the next call.
        """
        assert self._surfaces is None, "frames of surfaces need more than the events of their windows"
        places = self._cell_ranges(bounds_us)
        low = high = self._place(self._begin)
        if places.size:
            low, high = int(places.min()), int(places.max())
        return PackedEvents(
            self.settings,
            (len(bounds_us), *self.frame_shape),
            self._cells[low:high],
            places - low,
            bounds_us,
            np.arange(len(bounds_us)),
            first=self._num_forgotten + low,
        )

    def forget_before(self, time_us: int) -> None:
        """Forget the events before `time_us`, which no later window needs."""
        if self._surfaces is not None:
            self._add_until(time_us)
        self._begin += int(np.searchsorted(self.times_us, time_us))

    def state(self) -> tuple[npt.NDArray[Any], ...]:
        """Return copies of what the counter keeps, for `load_state`.

        Returns:
            Times and cells of the kept events, and the index of the first cell of each event followed by the total
            number of cells (empty if every event has exactly one cell). For `surfaces`, the state of the sums follows.
        """
        first, last = self._place(self._begin), self._place(self._end)
        before = self._before[:0] if self._is_whole else self._before[self._begin : self._end + 1] - first
        surfaces = () if self._surfaces is None else self._surfaces.state()
        return self.times_us.copy(), self._cells[first:last].copy(), before, *surfaces

    def load_state(self, state: tuple[npt.NDArray[Any], ...]) -> None:
        """Continue from the `state` of another counter with the same settings and pixels."""
        t, cells, before, *surfaces = state
        if self._surfaces is not None:
            self._surfaces.load_state(*surfaces)
        self._begin = self._end = 0
        self._make_room(len(t), len(cells))
        self._end = len(t)
        self._t[: len(t)] = t
        self._cells[: len(cells)] = cells
        self._before[: len(before)] = before
        self.ring = self._last_end_us = self._ahead = None

    def _ring_for(self, bounds_us: Ints) -> SliceRing | None:
        """Return the ring of recently counted bins if later windows at this stride will need them again."""
        ends_us = bounds_us[:, 1].tolist()
        if not ends_us:
            return None
        # The distance to the window before says how many slices both share.
        before_us = self._last_end_us
        self._last_end_us = ends_us[-1]
        if len(ends_us) > 1:
            before_us = ends_us[-2]
        if before_us is None:
            return None
        num_slices = num_shared_slices(ends_us[-1] - int(bounds_us[-1, 0]), ends_us[-1] - before_us, self.settings)
        if not num_slices:
            return None
        if self.ring is None or len(self.ring.keys) < num_slices:
            self.ring = SliceRing(num_slices, self.pixels.height * self.pixels.width)
        return self.ring

    def _add_until(self, end_us: int) -> None:
        """Add the events before a time to the surfaces, unless they were added already."""
        assert self._surfaces is not None
        if end_us <= self._surfaces.until_us:
            return
        first, last = (self._begin + np.searchsorted(self.times_us, (self._surfaces.until_us, end_us))).tolist()
        cells = self._cells[self._place(first) : self._place(last)]
        self._surfaces.add(cells, self._times_of_cells(first, last), end_us)

    def _cell_ranges(self, bounds_us: Ints) -> Ints:
        """Return the index ranges (n, R, 2) of the cells in each bin of windows (n, 2)."""
        ranges = bin_ranges(self.times_us, bounds_us, self.settings)
        ranges += self._begin
        if self._is_whole:
            return ranges
        return self._before[ranges].astype(np.int64)

    def _times_of_cells(self, first: int, last: int) -> Ints:
        """Return the time of every cell of the kept events [first, last)."""
        times = self._t[first:last]
        return times if self._is_whole else np.repeat(times, np.diff(self._before[first : last + 1]))

    def _place(self, event: int) -> int:
        """Return the index of the first cell of an event."""
        return event if self._is_whole else int(self._before[event])

    def _make_room(self, num_events: int, num_cells: int) -> None:
        """Make room for new events: move the kept ones to the front of the arrays, or into longer arrays.

        If no events are kept, start at the front of the arrays again at once, because it is still in the cache.
        """
        begin = self._begin
        end = self._end
        assert begin == end or self._t is self._own_t, "events that were lent are still kept"
        self._t = self._own_t
        first, last = self._place(begin), self._place(end)
        # No event is kept, so the arrays start again.
        if begin == end and num_events <= len(self._t) and num_cells <= len(self._cells):
            self._begin = self._end = self._before[0] = 0
            self._num_forgotten += first
            return
        if begin < end and end + num_events <= len(self._t) and last + num_cells <= len(self._cells):
            return
        # Twice as long as needed, so that each event is moved a bounded number of times on average.
        room = 2 * (end - begin + num_events)
        cell_room = 2 * (last - first + num_cells)
        self._t = self._own_t = _moved(self._t, begin, end, room)
        self._cells = _moved(self._cells, first, last, cell_room)
        if not self._is_whole:
            self._before = _moved(self._before, begin, end + 1, room + 1)
            self._before[: end - begin + 1] -= first
        self._num_forgotten += first
        self._begin = 0
        self._end = end - begin


def count_as_they_close(
    blocks: Iterable[Events], windows: Windows | None, counter: FrameCounter, max_windows: int
) -> Iterator[tuple[Windows, Frames]]:
    """Yield the windows of a recording with their frames, in order, as soon as they close.

    A window closes with the first event that cannot belong to it. The remaining windows close when the blocks end.
    Memory holds one block, the events of the open windows (only their counts if windows share no events) and
    `max_windows` frames.

    Args:
        blocks: Events of the recording in order. Blocks may reuse their arrays.
        windows: The windows to count. None: the free grid of the counter's settings, starting at the first event.
        counter: A new counter.
        max_windows: The most windows to yield at a time.
    """
    clock = WindowClock(counter.settings, windows, None)
    is_ahead = clock.is_apart() and adds_up(counter.settings)

    def taken(stop: int) -> Iterator[tuple[Windows, Frames]]:
        while clock.done < stop:
            closed = clock.next_part(stop, 1 if counter.is_ahead else max_windows)
            yield closed, counter.take(closed.bounds_us)

    for block in blocks:
        if not len(block) or (windows is not None and clock.done == len(windows)):
            continue
        counter.push(block, is_lent=is_ahead)
        clock.advance(int(block.t[-1]))
        clock.note(block)
        yield from taken(clock.num_closed())
        # Events that no open window needs are forgotten, or counted ahead into the next one.
        open_us = clock.part(clock.done, clock.done + 1).bounds_us
        if not len(open_us):
            continue
        if is_ahead and block.t[-1] >= open_us[0, 0]:
            counter.count_ahead(open_us)
        else:
            counter.forget_before(int(open_us[0, 0]))
    yield from taken(clock.num_at_the_end() if windows is None else len(windows))


def count_windows(
    events: Events,
    windows: Windows,
    height: int,
    width: int,
    settings: WindowSettings | None = None,
    downsample: int = 1,
) -> Frames:
    """Return the frames of windows of a recording in memory.

    Events outside all windows are ignored.

    Args:
        events: The events of the recording.
        windows: T windows.
        height: Height of the sensor, pixels.
        width: Width of the sensor, pixels.
        settings: How events become frames; by default histograms with the usual settings.
        downsample: Side of the square of sensor pixels that becomes one frame pixel, see `frame_pixels`.

    Returns:
        (T, C, height // downsample, width // downsample). In histograms, channel = polarity * num_bins + bin.

    Raises:
        UserError: Events lie outside the sensor, or are not in order of time.
    """
    settings = settings or WindowSettings()
    check_events(events, height, width)
    counter = FrameCounter(settings, frame_pixels(height, width, downsample, reduce=settings.reduce))
    counter.push(events)
    return counter.take(windows.bounds_us)


def _moved(array: npt.NDArray[Any], begin: int, end: int, room: int) -> npt.NDArray[Any]:
    """Return an array of at least `room` elements that begins with array[begin:end]; `array` itself if long enough."""
    moved = array if len(array) >= room else np.empty(room, array.dtype)
    moved[: end - begin] = array[begin:end]
    return moved
