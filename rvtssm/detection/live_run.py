"""Live detection that keeps up: take in events as they arrive, and compute the newest closed window.

If the detector is slower than the events, windows are passed over as described in `StreamDetector.newest`. All events
that have arrived are joined and counted before a window is computed, so the cost does not depend on the size of packets
and a window waits for at most one computation.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from rvtssm.detection.engine import StreamDetector
from rvtssm.detection.window_results import WindowResult
from rvtssm.readers.gate import join_events
from rvtssm.readers.source import NO_EVENTS, Arrival, LiveSource
from rvtssm.records import Events

_LONGEST_DRAIN_S = 0.5  # if reading takes longer than this, events arrive faster than they can be read
_LONGEST_WAY_US = 50_000  # from the sensor to this process; later events count in the next window
_MOST_WAITING = 1 << 24  # events, 0.3 GB; before more of them wait, a window is computed


class LiveRun:
    """Runs a detector on a live source, one window at a time. Call `step` until `source.is_ended`.

    Args:
        source: The source.
        detector: The detector, with skip="late". If the clock of the source jumps, it restarts.
        on_events: Receives all events that the filters keep.
        heartbeat: While a source without a time of its own is silent, close windows by the clock of this computer. In
            any case, the window of the last events is closed so, one or two strides later. Events that come after all
            count in the next window.
    """

    def __init__(
        self,
        source: LiveSource,
        detector: StreamDetector,
        on_events: Callable[[Events], object] | None = None,
        heartbeat: bool = False,
    ) -> None:
        self.source = source
        self._on_events = on_events
        self._heartbeat = heartbeat
        self.use(detector)
        self.num_restarts = 0
        self.now_us: int | None = None  # all events before this time of the source are known
        self._closed_us: int | None = None  # the clock of this computer has closed windows until then
        self._num_lost = self._num_lost_events = 0  # of the source, at the last result
        self._later = list[Arrival]()  # after a jump of the clock, so after a window was computed
        self._arrived: deque[tuple[int, float]] = deque(maxlen=1 << 16)  # times of the source and of their arrival

    def use(self, detector: StreamDetector) -> None:
        """Go on with another detector, such as one with new weights, whose windows begin with the next events."""
        self.detector = detector
        self.detector.on_events = self._on_events

    def warm_up(self) -> None:
        """Let the detector compile its code, and let the source begin afterwards. Call this before the first `step`."""
        self.detector.warm_up()
        self.source.begin()

    def step(self) -> WindowResult | None:
        """Take in what has arrived, and compute the newest closed window. Return None if no window has closed."""
        arrived = self._later or self._arrivals()
        if arrived:
            self._take(arrived)
        elif not self.source.is_ended:
            self._close_by_clock()
        return self._compute()

    def finish(self, until_us: int) -> WindowResult | None:
        """Compute the last window of a source that has ended, as if no events came until `until_us`.

        Return None if no window closes.
        """
        self._take([Arrival(NO_EVENTS, until_us, self.source.clock())])
        return self._compute()

    def _compute(self) -> WindowResult | None:
        began_s = self.source.clock()
        result = self.detector.newest()
        # Nothing has closed.
        if result is None:
            return None
        # The first arrival at or after the end of the window tells when its events were here.
        while self._arrived[0][0] < result.t_us:
            self._arrived.popleft()
        arrived_s = self._arrived[0][1]
        waited_s = max(began_s - arrived_s, 0.0)
        lag_s = max(self.source.clock() - arrived_s, 0.0)
        # What was lost since the result before belongs to this one.
        num_lost = self.source.num_lost
        num_lost_events = self.source.num_lost_events
        lost = num_lost - self._num_lost
        lost_events = num_lost_events - self._num_lost_events
        self._num_lost = num_lost
        self._num_lost_events = num_lost_events
        return replace(
            result,
            waited_s=waited_s,
            lag_s=lag_s,
            time_s=time.time(),
            num_lost_packets=lost,
            num_lost_events=lost_events,
        )

    def _close_by_clock(self) -> None:
        """Close the window of the last events if nothing has come for a while, and with heartbeat later ones."""
        if self.source.says_time or not self._arrived:
            return
        last_us, arrived_s = self._arrived[-1]
        # Events may need some time from the sensor to here, and come in packets.
        margin_us = max(self.detector.windows.stride_us, _LONGEST_WAY_US)
        until_us = last_us + round(1e6 * (self.source.clock() - arrived_s) - margin_us)
        end_us = self.detector.end_of_last_events_us
        # Without a heartbeat, only the window that holds the last events is closed.
        if not self._heartbeat:
            if end_us is None or until_us < end_us:
                return
            until_us = end_us
        if until_us > last_us:
            self._closed_us = until_us
            self.detector.feed(NO_EVENTS, until_us)
            self._arrived.append((until_us, arrived_s + (until_us - last_us) / 1e6))

    def _arrivals(self) -> list[Arrival]:
        """Return what has arrived until nothing more waits, or so much that a window has to be computed first."""
        began_s = self.source.clock()
        arrived = list[Arrival]()
        num_events = self.detector.num_pending
        while True:
            new = self.source.arrivals()
            arrived += new
            num_events += sum(len(arrival.events) for arrival in new)
            if not self.source.backlog or num_events > _MOST_WAITING:
                return arrived
            # Events come faster than they can be read.
            if self.source.clock() - began_s > _LONGEST_DRAIN_S:
                self.source.drop_backlog()
                return arrived

    def _take(self, arrivals: list[Arrival]) -> None:
        """Let the detector count what has arrived, up to the next jump of the clock."""
        # Events after a jump of the clock wait, because a new stream begins with them.
        jumps = [place for place, arrival in enumerate(arrivals) if arrival.is_restart and place > 0]
        until = jumps[0] if jumps else len(arrivals)
        taken = arrivals[:until]
        self._later = arrivals[until:]
        if not taken:
            return
        if taken[0].is_restart and self.now_us is not None:
            self.detector.restart()
            self.num_restarts += 1
            self.now_us = self._closed_us = None
            self._arrived.clear()
        untils_us = []
        parts = []
        for arrival in taken:
            self._note_time(arrival)
            if arrival.until_us is not None:
                untils_us.append(arrival.until_us)
            if len(arrival.events):
                parts.append(arrival.events)
        events = join_events(parts)
        # What comes after the clock of this computer has closed a window counts in the next one.
        if self._closed_us is not None and len(events) and events.t[0] < self._closed_us:
            self.detector.num_late += int(np.searchsorted(events.t, self._closed_us))
            events = replace(events, t=np.maximum(events.t, self._closed_us))
        self.detector.feed(events, max(untils_us, default=None))

    def _note_time(self, arrival: Arrival) -> None:
        """Remember until when the events of the source are known, and since when."""
        last_us = int(arrival.events.t[-1]) if len(arrival.events) else None
        known_us = [time_us for time_us in (self.now_us, arrival.until_us, last_us) if time_us is not None]
        if known_us:
            self.now_us = max(known_us)
            self._arrived.append((self.now_us, arrival.arrived_s))
