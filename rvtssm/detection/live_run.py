"""Live detection that keeps up: take in events as they arrive, and compute the newest closed window.

If the detector is slower than the events, windows are passed over as described in `StreamDetector.newest`. No queue
grows: all events that have arrived are counted before a window is computed, and a window waits for at most one
computation.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from rvtssm.detection.engine import StreamDetector
from rvtssm.detection.event_camera import NO_EVENTS, Arrival
from rvtssm.detection.window_results import WindowResult
from rvtssm.records import Events

_LONGEST_DRAIN_S = 0.5  # if reading takes longer than this, events arrive faster than they can be read
_MOST_WAITING = 1 << 24  # events, 0.3 GB; before more of them wait, a window is computed


class LiveSource(Protocol):
    """What sends events at its own pace: a camera, a recording that is played, or any source behind a `Feed`."""

    name: str
    height: int  # of the sensor, pixels
    width: int  # of the sensor, pixels
    is_ended: bool
    num_lost: int  # packets that were lost

    @property
    def broke_off(self) -> str:
        """Why the events ended early; empty if they did not."""

    @property
    def backlog(self) -> int:
        """More than 0 if events have arrived that were not read yet."""

    def clock(self) -> float:
        """Return the current time on the clock of `Arrival.arrived_s`, in seconds."""

    def begin(self) -> None:
        """Begin now: what arrived while the detector was prepared does not count."""

    def drop_backlog(self) -> None:
        """Drop what has arrived and was not read yet."""

    def arrivals(self) -> list[Arrival]:
        """Return what has arrived, or nothing after a short wait."""

    def end(self) -> None:
        """Stop after the events read so far."""


class LiveRun:
    """Runs a detector on a live source, one window at a time. Call `step` until `source.is_ended`.

    Args:
        source: The source.
        detector: The detector, with skip="late". If the clock of the source jumps, it restarts.
        on_events: Receives all events. Their arrays may be overwritten later.
    """

    def __init__(
        self, source: LiveSource, detector: StreamDetector, on_events: Callable[[Events], object] | None = None
    ) -> None:
        self.source, self.detector = source, detector
        self.num_restarts = 0
        self.now_us: int | None = None  # all events before this time of the source are known
        self._on_events = on_events
        self._arrived: deque[tuple[int, float]] = deque(maxlen=1 << 16)  # times of the source and of their arrival

    def warm_up(self) -> None:
        """Let the detector compile its code, and let the source begin afterwards. Call this before the first `step`."""
        self.detector.warm_up()
        self.source.begin()

    def step(self) -> WindowResult | None:
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
        return self._compute()

    def finish(self, until_us: int) -> WindowResult | None:
        """Compute the last window of a source that has ended, as if no events came until `until_us`.

        Return None if no window closes.
        """
        self._take(Arrival(NO_EVENTS, until_us, self.source.clock()))
        return self._compute()

    def _compute(self) -> WindowResult | None:
        began_s = self.source.clock()
        result = self.detector.newest()
        if result is None:
            return None
        while self._arrived[0][0] < result.t_us:
            self._arrived.popleft()
        arrived_s = self._arrived[0][1]
        waited_s, lag_s = max(began_s - arrived_s, 0.0), max(self.source.clock() - arrived_s, 0.0)
        return replace(result, waited_s=waited_s, lag_s=lag_s)

    def _take(self, arrival: Arrival) -> None:
        if arrival.is_restart and self.now_us is not None:
            self.detector.restart()
            self.num_restarts += 1
            self._arrived.clear()
        self.detector.feed(arrival.events, arrival.until_us)
        if self._on_events is not None and len(arrival.events):
            self._on_events(arrival.events)
        known = [arrival.until_us] if arrival.until_us is not None else arrival.events.t[-1:].tolist()
        if known:
            self.now_us = known[0]
            self._arrived.append((known[0], arrival.arrived_s))
