"""Live detection that keeps up: take in events as they arrive, and compute the newest closed window.

If the detector is slower than the events, windows are skipped as described in `StreamDetector.newest`. No queue grows:
all events that have arrived are counted before a window is computed, and a window waits for at most one computation.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from rvtssm.detection.event_camera import NO_EVENTS, Arrival, Camera
from rvtssm.detection.live import LiveWindow, StreamDetector
from rvtssm.detection.replay import Replay
from rvtssm.records import Events

_LONGEST_DRAIN_S = 0.5  # if reading takes longer than this, events arrive faster than they can be read
_MOST_WAITING = 1 << 24  # events, 0.3 GB; before more of them wait, a window is computed


@dataclass(frozen=True, slots=True)
class LiveResult:
    """A computed window with its delays."""

    window: LiveWindow
    waited_s: float  # from the arrival of the window's last events to the start of its computation
    lag_s: float  # from the arrival of the window's last events to its boxes


class LiveRun:
    """Runs a detector on a live source, one window at a time. Call `step` until `source.is_ended`.

    Args:
        source: A camera or a replay.
        build: Returns a new detector. It is called at the start, and whenever the clock of the source has jumped,
            because the old state does not fit the new times.
        on_events: Receives all events. Their arrays may be overwritten later.
    """

    def __init__(
        self,
        source: Camera | Replay,
        build: Callable[[], StreamDetector],
        on_events: Callable[[Events], None] | None = None,
    ) -> None:
        self.source = source
        self.detector = build()
        self.num_computed = self.num_passed = self.num_restarts = 0
        self.now_us: int | None = None  # all events before this time of the source are known
        self._build, self._on_events = build, on_events
        self._arrived: deque[tuple[int, float]] = deque(maxlen=1 << 16)  # times of the source and of their arrival

    def warm_up(self) -> None:
        """Let the detector compile its code, and let the source begin afterwards. Call this before the first `step`."""
        self.detector.warm_up()
        self.source.begin()

    def step(self) -> LiveResult | None:
        """Take in what has arrived, and compute the newest closed window. Return None if no window has closed."""
        began_s = self.source.clock()
        while True:
            for arrival in self.source.arrivals():
                self._take(arrival)
            if not self.source.backlog or self.detector.num_pending > _MOST_WAITING:
                break
            if self.source.clock() - began_s > _LONGEST_DRAIN_S:
                self.source.drop_backlog()
                break
        return self.compute()

    def compute(self) -> LiveResult | None:
        """Compute the newest closed window from the events taken in so far. Return None if no window has closed."""
        began_s = self.source.clock()
        window = self.detector.newest()
        if window is None:
            return None
        while self._arrived[0][0] < window.end_us:
            self._arrived.popleft()
        arrived_s = self._arrived[0][1]
        self.num_computed += 1
        self.num_passed += window.num_passed
        return LiveResult(window, max(began_s - arrived_s, 0.0), max(self.source.clock() - arrived_s, 0.0))

    def finish(self, until_us: int) -> LiveResult | None:
        """Compute the last window of a source that has ended, as if no events came until `until_us`.

        Return None if no window closes.
        """
        self._take(Arrival(NO_EVENTS, until_us, self.source.clock()))
        return self.compute()

    def _take(self, arrival: Arrival) -> None:
        if arrival.is_restart and self.now_us is not None:
            self.detector = self._build()
            self.num_restarts += 1
            self._arrived.clear()
        self.detector.feed(arrival.events, arrival.until_us)
        if self._on_events is not None and len(arrival.events):
            self._on_events(arrival.events)
        known = [arrival.until_us] if arrival.until_us is not None else arrival.events.t[-1:].tolist()
        if known:
            self.now_us = known[0]
            self._arrived.append((known[0], arrival.arrived_s))
