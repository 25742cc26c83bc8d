"""The engine for everything that comes in order of time: push events, get the results of windows that have closed.

`predict`, `live`, `serve` and a stream in Python all run a `StreamDetector`. They differ in where events come from and
in what they do with a window.

The way of a packet: `push` checks it, filters it and hands it to the `FrameCounter`; the `WindowClock` says which
windows have closed. `_compute` (`window_detector.py`) takes their frames, lets the network run a step for each, and
makes boxes on the sensor of its predictions. In place of `push`, `live` calls `feed` for all that has arrived, and then
`newest` (`live_run.py`).
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from rvtssm.detection.packets import check_packet, check_silence, in_order
from rvtssm.detection.track_objects import Tracker
from rvtssm.detection.window_detector import STORED, WindowDetector, in_pixels
from rvtssm.detection.window_results import WindowResult
from rvtssm.events.representations import adds_up
from rvtssm.events.windows import CLOCK_TIMES, FreeGrid, WindowClock
from rvtssm.models import PostprocessConfig
from rvtssm.models.checkpoint_meta import LoadedCheckpoint
from rvtssm.models.streams import check_causal
from rvtssm.readers.event_checks import to_events
from rvtssm.readers.filters import FilterChain, Filters
from rvtssm.readers.source import EventSource
from rvtssm.records import Events, Windows, WindowSettings
from rvtssm.system.limits import check_choice, check_counts, check_number
from rvtssm.system.user_error import UserError

SKIPS = ("never", "empty", "late")
MOST_PENDING = 1 << 26  # events that wait for a window to close, 0.8 GB
_LATEST_US = 1 << 61  # latest time that a caller may give
_LONGEST_US = 60_000_000  # longest window of a stream, which keeps the events of a window in memory
_FEWEST_EMPTY = 4  # empty windows that are one gap; fewer are computed one by one
_SILENCE_US = 1_000_000  # shortest gap that is stepped over with skip="late"


class StreamDetector(WindowDetector):
    """Push packets of events, and get the results of the windows that they close, with bounded work and memory.

    A window [start, end) closes with an event at or after its end (convention `rvt`: after it), or through `until_us`.
    Windows end at a fixed stride from the first event on, or where `grid` says. Results depend only on the events, not
    on how they are cut into packets. The rate can be changed at any time (`windows`); the new one applies from the end
    of the last window on. `state_dict` holds the whole state, including pending events.

    An event up to 10 ms earlier than an event before it gets the time of that event and counts in `num_late`.

    >>> weights = rvtssm.load("street-tiny")
    >>> stream = rvtssm.StreamDetector(weights.checkpoint, height=64, width=96)
    >>> packet = rvtssm.open("street/test/test_0000_td.dat").between(0, 120_000)
    >>> [window.t_us - window.start_us for window in stream.push(packet)]  # two windows have closed
    [50000, 50000]

    Args:
        checkpoint: The weights.
        height: Height of the sensor, pixels.
        width: Width of the sensor, pixels.
        windows: How events become frames, from `checkpoint.windows_at(hz, window, reduce)`; by default as in training.
        grid: The windows themselves, for recordings whose windows end at labels.
        start_us: Start of the first window; by default the first event.
        downsample: Each downsample x downsample square of the sensor is one pixel of the frame; by default the largest
            value that leaves frames as large as in training.
        tiles: Cut frames into overlapping tiles, such as 2x2, each with a state of its own, and merge their boxes.
        filters: Filters of the events, see `FilterChain`; `filters.removed()` says how much each has removed.
        config: Post-processing.
        windows_per_call: Windows per call of the detector, if a packet closes several. It affects speed and memory.
        skip: Which windows have no result of their own. `never`: all have one, as for files. `empty`: at least four
            consecutive windows without events are one result, the last of them, and the state steps over them. `late`:
            a push computes only the newest closed window, so that a slow detector does not fall behind.
        tracker: Numbers the objects; None does not.
        keeps_events: Keep the events of the windows of the last push, so that their results can be drawn.
        keeps_frames: Give results the frame that the detector saw.

    Raises:
        UserError: The weights need later windows (bidirectional), or an argument is out of range.
    """

    def __init__(
        self,
        checkpoint: LoadedCheckpoint,
        height: int,
        width: int,
        *,
        windows: WindowSettings | None = None,
        grid: Windows | None = None,
        start_us: int | None = None,
        downsample: int | None = None,
        tiles: str | None = None,
        filters: Filters = (),
        config: PostprocessConfig | None = None,
        windows_per_call: int = 1,
        skip: str = "empty",
        tracker: Tracker | None = None,
        keeps_events: bool = False,
        keeps_frames: bool = False,
    ) -> None:
        check_causal(checkpoint.detector)
        check_counts(height=height, width=width, downsample=downsample, windows_per_call=windows_per_call)
        check_choice("skip", skip, SKIPS)
        sensor_hw = int(height), int(width)
        super().__init__(checkpoint, sensor_hw, downsample, tiles, config, tracker, keeps_events, keeps_frames)
        self.windows_per_call = int(windows_per_call)
        self.skip = skip
        self.filters = FilterChain(filters, *sensor_hw)
        self.on_events: Callable[[Events], object] | None = None  # receives what the filters keep
        self.num_late = 0  # events whose time was raised to that of an event before them
        self._given_start_us = _whole_us("start_us", start_us)
        windows = windows or checkpoint.windows
        self._check_length(windows)
        self._clock = WindowClock(windows, grid, self._given_start_us)
        self.restart()

    @property
    def windows(self) -> WindowSettings:
        """Stride and length of the windows. A new value applies from the end of the last window on.

        If its windows are longer, the first of them may lack events that were already forgotten.
        """
        return self._clock.windows

    @windows.setter
    def windows(self, windows: WindowSettings) -> None:
        self._check_length(windows)
        self._clock.change_windows(windows)

    def restart(self) -> None:
        """Forget all events and the state, and begin a new stream with the next events, as after a jump of a clock."""
        self._begin(self.windows)
        self._clock = WindowClock(self.windows, self._clock.grid, self._given_start_us)
        self._counts_ahead = self.skip == "never" and adds_up(self.windows) and self._clock.is_apart()
        self.filters.restart()

    def push(self, events: Events | np.ndarray, until_us: int | None = None) -> list[WindowResult]:
        """Take in events, and return the results of the windows that they close.

        Args:
            events: Events, or a structured array with the fields t (integer microseconds), x, y and p.
            until_us: No event before this time is missing. This closes windows without events.

        Raises:
            UserError: Events lie outside the sensor, are more than 10 ms earlier than an earlier packet, `until_us` or
                `start_us`, or follow a gap of more than LONGEST_SILENCE_US. Nothing of the packet was taken: push the
                next one, or `restart` if the clock has jumped.
        """
        packet, num_late = check_packet(to_events(events), self._clock.known_us, *self.sensor_hw)
        self.num_late += num_late
        return list(self.closed_by(packet, until_us))

    def closed_by(self, events: Events, until_us: int | None = None) -> Iterator[WindowResult]:
        """Do the same as `push` for events of an `EventSource`, but yield every result as soon as it is computed.

        Use all of them before you go on.
        """
        self.feed(events, until_us)
        # Results of this push can be drawn until the next one.
        if self._kept is not None:
            self._kept.begin_push()
        if self.skip == "late":
            newest = self.newest()
            if newest is not None:
                yield newest
        else:
            yield from self._closed(self._clock.num_closed())
            self._forget()

    def feed(self, packet: Events, until_us: int | None = None) -> None:
        """Take in events of an `EventSource`, but compute nothing. With skip="late", call `newest` afterwards.

        The source has checked the events. What is left to check is how they fit to what is known: `until_us` of an
        earlier packet may have said too much.
        """
        until_us = _whole_us("until_us", until_us)
        known_us = self._clock.known_us
        # An earlier `until_us` may have promised too much: late events get the time that is known.
        if len(packet) and known_us is not None and packet.t[0] < known_us:
            packet, num_late = in_order(packet, known_us)
            self.num_late += num_late
        if self.skip != "never":
            check_silence(packet, known_us, until_us)
        if len(packet):
            if len(self._counter.times_us) + len(packet) > MOST_PENDING:
                found = f"more than {MOST_PENDING} events wait for a window to close at {packet.t[-1]} us"
                raise UserError("stream.full", found=found, advice="the clock stands still: start again")
            self._clock.advance(int(packet.t[-1]))
            packet = self.filters(packet)
        if len(packet):
            if self.on_events is not None:
                self.on_events(packet)
            self._counter.push(packet, is_lent=self._counts_ahead)
            if self._kept is not None:
                self._kept.add(packet)
            self._clock.note(packet)
        # Silence is known as well: no event before this time is missing.
        if until_us is not None:
            self._clock.advance(until_us)

    def newest(self) -> WindowResult | None:
        """Compute the newest closed window and pass over those before it. Return None if no window has closed.

        The step of the model is the whole time since the last computed window, so the state is carried correctly.
        Without a fixed length, the window begins where the last computed one ended, so its frame includes the events of
        the windows that were passed over. With a fixed length, the frame has the events of that length, as at a lower
        rate. A gap of a second is stepped over as with skip="empty". Shorter gaps join the windows that are
        passed over, because a late detector has no time for more than one step.
        """
        stop = self._clock.num_closed()
        begun = self._clock.done
        if stop <= begun:
            return None
        shortest_gap = max(_FEWEST_EMPTY, math.ceil(_SILENCE_US / self.windows.stride_us))
        # Before a gap: the window whose events came before it, which the events after the gap have closed.
        if self._num_empty(stop) < shortest_gap <= self._num_empty(stop, 1):
            result = self._merged(begun + 1)
        # The gap: its windows without events are stepped over.
        num_empty = self._num_empty(stop)
        num_silent = 0
        if num_empty >= shortest_gap:
            result = self._step_over(num_empty)
            num_silent = num_empty - (self._clock.done == stop)
        # The rest: the newest window takes the time of those before it.
        if self._clock.done < stop:
            result = self._merged(stop)
        self._forget()
        step_us = (stop - begun) * self.windows.stride_us
        return replace(result, num_passed=stop - begun - 1, num_silent=num_silent, step_us=step_us)

    def _merged(self, stop: int) -> WindowResult:
        """Compute the last of the windows until `stop`, in one step over all of them."""
        closed = self._clock.part(self._clock.done, stop)
        start_us, end_us = closed.bounds_us[-1].tolist()
        if self.windows.length_us is None:
            start_us = int(closed.bounds_us[0, 0])
        window = Windows(np.array([[start_us, end_us]]), np.array([end_us - start_us]))
        (result,) = self._compute(window, np.array([len(closed) * self.windows.stride_us]))
        self._clock.done = stop
        self._clock.end_us = end_us
        return result

    def finish(self) -> list[WindowResult]:
        """Return the windows up to the last event, as if no event followed. Events that are pushed later must be later.

        A recording ends in the same way.
        """
        num_windows = self._clock.num_at_the_end()
        if num_windows <= self._clock.done:
            return []
        results = list(self._closed(num_windows))
        self._clock.close()
        return results

    def warm_up(self, num_timed: int = 0) -> list[float]:
        """Compute two windows and forget them, so that the first window of the stream takes no longer than the others.

        The first computations compile code and allocate memory, and the second window shares events with the first.
        Call this before the first events.

        Args:
            num_timed: Compute so many further windows.

        Returns:
            The times of the further windows, in seconds.
        """
        grid = FreeGrid(0, self.windows)
        stride_us = np.array([self.windows.stride_us])
        corner = np.zeros(1, np.uint16)
        tracker = self.tracker
        self.tracker = None
        seconds = []
        for number in range(2 + num_timed):
            windows = grid.windows(number, number + 1)
            self._counter.push(Events(windows.ends_us - 1, corner, corner, np.zeros(1, np.uint8)))
            (result,) = self._compute(windows, stride_us)
            seconds.append(result.seconds)
        self.tracker = tracker
        self.restart()
        return seconds[2:]

    def state_dict(self) -> dict[str, Any]:
        """Return everything that is needed to continue elsewhere, as plain data and tensors for `torch.load`.

        The rate is not included. If the other detector has another one, it applies from the end of the last window on.

        Raises:
            UserError: With skip="never", whose pending events are counted ahead, or with filters.
        """
        self._check_storable()
        return self._state() | {"windows": repr(self.windows)} | self._clock.times()

    def load_state_dict(self, stored: dict[str, Any]) -> None:
        """Continue from a `state_dict`.

        Raises:
            UserError: The sensor, the weights or the detector differs, or this one has filters or skip="never".
        """
        self._check_storable()
        if missing := [name for name in (*STORED, "windows", *CLOCK_TIMES) if name not in stored]:
            found = f"the stored state lacks {', '.join(missing)}"
            raise UserError("memory.other_state", found=found, advice="give the result of `state_dict`")
        self._load_state(stored)
        self._clock.set_times(stored)
        # Another rate begins at the end of the last window.
        if stored["windows"] != repr(self.windows):
            self._clock.change_windows(self.windows)

    def _check_storable(self) -> None:
        if self._counts_ahead or self.filters.filters:
            found = 'a detector with filters or skip="never" has no state to store'
            raise UserError("setting.conflict", found=found, advice="use neither")

    @property
    def end_of_last_events_us(self) -> int | None:
        """When the window of the last event closes; None if it has closed, or if there was no event."""
        number = self._clock.num_at_the_end() - 1
        if number < self._clock.done:
            return None
        return int(self._clock.part(number, number + 1).ends_us[-1]) + self.windows.includes_end

    @property
    def num_pending(self) -> int:
        """Number of events kept for windows that have not been computed."""
        return len(self._counter.times_us)

    def __repr__(self) -> str:
        length_ms = self.windows.nominal_length_us / 1000
        return (
            f"StreamDetector({in_pixels(self.sensor_hw)} pixels in frames of {in_pixels(self.frame_hw)}, "
            f"{self.windows.hz:g} Hz with windows of {length_ms:g} ms, now at {(self._clock.end_us or 0) / 1e6:.3f} s)"
        )

    def _check_length(self, windows: WindowSettings) -> None:
        longest_us = max(windows.stride_us, windows.nominal_length_us)
        if self.skip != "never" and longest_us > _LONGEST_US:
            needed = f"a stream keeps the events of a window: give at most {_LONGEST_US} us"
            raise UserError("setting.out_of_range", name="windows", found=f"{longest_us:g} us", needed=needed)

    def _closed(self, stop: int) -> Iterator[WindowResult]:
        """Compute the windows until `stop`, and step over gaps if `skip` says so."""
        clock = self._clock
        while clock.done < stop:
            if self.skip == "empty" and (num_empty := self._num_empty(stop)) >= _FEWEST_EMPTY:
                yield self._step_over(num_empty)
                continue
            windows = clock.next_part(stop, 1 if self._counter.is_ahead else self.windows_per_call)
            clock.end_us = int(windows.ends_us[-1])
            yield from self._compute(windows, clock.steps_us(windows))

    def _num_empty(self, stop: int, ahead: int = 0) -> int:
        """Return how many of the windows from the next one (or `ahead` of it) to `stop` have frames of zeros."""
        begin = self._clock.done + ahead
        if begin >= stop or self._network.streams.memory_chunk is not None:
            return 0
        # A frame of zeros needs no events in the window, and of surfaces none before it either.
        if self.windows.warmup_us and (ahead or not self._was_silent):  # surfaces remember earlier events
            return 0
        start_us = int(self._clock.part(begin, begin + 1).bounds_us[0, 0])
        times_us = self._counter.times_us
        first = int(np.searchsorted(times_us, start_us))
        if first == len(times_us):
            return stop - begin
        return min(stop, self._clock.num_closed(int(times_us[first]))) - begin

    def _step_over(self, num_windows: int) -> WindowResult:
        """Compute the last of empty windows, and carry the state over those before it."""
        clock = self._clock
        clock.done += num_windows
        windows = clock.part(clock.done - 1, clock.done)
        ((start_us, end_us),) = windows.bounds_us.tolist()
        clock.end_us = end_us
        result = self._compute_after_gap(num_windows, start_us, end_us, self.windows.stride_us)
        return replace(result, num_passed=num_windows - 1, num_silent=num_windows - 1)

    def _forget(self) -> None:
        """Forget the events that no later window needs."""
        clock = self._clock
        if clock.last_us is None or clock.end_us is None:
            return
        # At a fixed stride, later windows reach back by at most a length from the last end.
        if clock.grid is None and not self._counts_ahead:
            self._counter.forget_before(clock.end_us - (self.windows.length_us or 0))
            return
        # After the last window of a grid, no event is needed.
        if clock.grid is not None and clock.done >= len(clock.grid):
            self._counter.forget_before(clock.last_us + 1)
            return
        bounds_us = clock.part(clock.done, clock.done + 1).bounds_us
        if self._counts_ahead and clock.last_us >= bounds_us[0, 0]:
            self._counter.count_ahead(bounds_us)
        else:
            self._counter.forget_before(int(bounds_us[0, 0]))


def detect(
    source: EventSource, detector: StreamDetector, on_events: Callable[[Events], object] | None = None
) -> Iterator[WindowResult]:
    """Yield the results of all windows of a source, in order, as soon as they close.

    >>> recording, weights = rvtssm.open("street/test/test_0000_td.dat"), rvtssm.load("street-tiny")
    >>> stream = rvtssm.StreamDetector(weights.checkpoint, recording.height, recording.width)
    >>> sum(1 for window in rvtssm.detect(recording, stream))
    20

    Args:
        source: The events.
        detector: The detector, which has seen nothing of the source.
        on_events: Receives the events that the filters keep, before they are counted.
    """
    detector.on_events = on_events
    for block in source.blocks():
        yield from detector.closed_by(block)
    yield from detector.finish()


def _whole_us(name: str, time_us: int | None) -> int | None:
    if time_us is None:
        return None
    check_number(name, time_us, -_LATEST_US, _LATEST_US)
    return int(time_us)
