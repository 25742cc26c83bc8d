"""Live detection that keeps up: take in events as they arrive, and compute the newest closed window.

If the detector is slower than the events, windows are passed over as described in `StreamDetector.newest`. No queue
grows: all events that have arrived are counted before a window is computed, and a window waits for at most one
computation. A `Feed` makes a live source of any source: a thread reads it.
"""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Protocol

import numpy as np

from rvtssm.detection.engine import StreamDetector
from rvtssm.detection.event_camera import NO_EVENTS, Arrival
from rvtssm.detection.sources import EventSource
from rvtssm.detection.window_results import WindowResult
from rvtssm.events.windows import clock_jumps
from rvtssm.readers import ReadFaults
from rvtssm.readers.event_checks import LiveGate, columns_of
from rvtssm.readers.recording import copy_events
from rvtssm.records import Events
from rvtssm.system.user_error import UserError

_MOST_PACKETS = 4096  # that wait to be taken; then reading waits, and so does the sender
_WAIT_S = 0.05  # longest wait for events before control returns to the caller
_LONGEST_DRAIN_S = 0.5  # if reading takes longer than this, events arrive faster than they can be read
_MOST_WAITING = 1 << 24  # events, 0.3 GB; before more of them wait, a window is computed


class LiveSource(Protocol):
    """What sends events at its own pace: a camera, a recording that is played, or any source behind a `Feed`."""

    name: str
    height: int  # of the sensor, pixels
    width: int  # of the sensor, pixels
    num_lost: int  # packets that were lost

    @property
    def is_ended(self) -> bool:
        """Whether no more events come."""

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
            self.now_us = None
            self._arrived.clear()
        self.detector.feed(arrival.events, arrival.until_us)
        if self._on_events is not None and len(arrival.events):
            self._on_events(arrival.events)
        last_us = int(arrival.events.t[-1]) if len(arrival.events) else None
        known_us = [time_us for time_us in (self.now_us, arrival.until_us, last_us) if time_us is not None]
        if known_us:
            self.now_us = max(known_us)
            self._arrived.append((self.now_us, arrival.arrived_s))


Packet = Events | np.ndarray | tuple[Events | np.ndarray, int | None]


class PythonSource:
    """Packets from a Python iterator, such as a generator that reads the SDK of a camera.

    A packet is Events, a structured array with the fields t (integer microseconds), x, y and p, or a pair of one of
    these and a time before which no event follows. The latter closes windows while nothing happens.

    Args:
        given: The packets.
        height: Height of the sensor, pixels.
        width: Width of the sensor, pixels.
        name: Name in messages.
    """

    time_range_us = None  # not known before it ends

    def __init__(self, given: Iterable[Packet], height: int, width: int, name: str = "packets") -> None:
        self.given, self.height, self.width, self.name = given, height, width, name
        self._gate = LiveGate(name, height, width)

    @property
    def faults(self) -> ReadFaults:
        """The events that were moved or left out so far."""
        return self._gate.faults

    def packets(self) -> Iterator[tuple[Events, int | None]]:
        """Yield the events of each packet, and the time before which no event follows (None: unknown)."""
        for packet in self.given:
            if not isinstance(packet, tuple):
                packet = packet, None
            events, until_us = packet
            yield self._gate.push(*columns_of(events)), until_us
        self._gate.conclude()

    def blocks(self) -> Iterator[Events]:
        """Yield the events of each packet."""
        return (events for events, _ in self.packets() if len(events))


class Feed:
    """Reads a source in a thread of its own, for a `LiveRun`.

    No event is lost without a count: a sender waits while 4096 packets wait here, and packets that are dropped because
    they arrive faster than they can be counted are `num_lost`. A jump of the clock begins a new
    stream, also within a packet.

    Args:
        source: The source. If it has `packets`, as `PacketStream` and `PythonSource` do, these are read, otherwise
            `blocks`.
    """

    def __init__(self, source: EventSource) -> None:
        self.source = source
        self.name, self.height, self.width = source.name, source.height, source.width
        self.num_lost = 0
        self._has_ended, self._own_broke_off = False, ""
        self._latest_us: int | None = None
        self._arrived: queue.Queue[Arrival | Exception | None] = queue.Queue(_MOST_PACKETS)
        self._thread = threading.Thread(target=self._read, name="rvtssm feed", daemon=True)

    @property
    def is_ended(self) -> bool:
        """Whether all events were taken, or `end` was called, or a signal has interrupted the source."""
        return self._has_ended or getattr(self.source, "is_interrupted", False)

    @property
    def broke_off(self) -> str:
        """Why the source ended early; empty if it did not."""
        return self._own_broke_off or getattr(self.source, "broke_off", "")

    @property
    def backlog(self) -> int:
        """Number of packets that have arrived and were not read yet."""
        return 0 if self.is_ended else self._arrived.qsize()

    def clock(self) -> float:
        """Return the current time on the clock of `arrived_s`, in seconds."""
        return time.monotonic()

    def begin(self) -> None:
        """Begin to read."""
        self._thread.start()

    def drop_backlog(self) -> None:
        """Drop the packets that have arrived and were not read yet, and count them."""
        for _ in range(self._arrived.qsize()):
            arrival = self._arrived.get()
            if isinstance(arrival, Arrival):
                self.num_lost += 1
            else:
                self._finish(arrival)

    def arrivals(self) -> list[Arrival]:
        """Return what has arrived, or nothing after a short wait."""
        try:
            arrival = self._arrived.get(timeout=_WAIT_S)
        except queue.Empty:
            return []
        if isinstance(arrival, Arrival):
            return [arrival]
        self._finish(arrival)
        return []

    def end(self) -> None:
        """Stop after the events read so far."""
        self._has_ended = True

    def _finish(self, error: Exception | None) -> None:
        """Note the end of the source. Raise what its own program raised."""
        self._has_ended = True
        if isinstance(error, UserError | OSError):
            reason = str(error)
            self._own_broke_off = reason if reason.startswith(self.name) else f"{self.name}: {reason}"
        elif error is not None:
            raise error

    def _packets(self) -> Iterator[tuple[Events, int | None]]:
        if hasattr(self.source, "packets"):
            yield from self.source.packets()
        else:
            for block in self.source.blocks():
                yield block, None

    def _read(self) -> None:
        try:
            for events, until_us in self._packets():
                if self.is_ended:
                    return
                for arrival in self._parts(copy_events(events), until_us):
                    self._arrived.put(arrival)
            self._arrived.put(None)
        except Exception as error:  # of the source, raised again where its events are taken
            self._arrived.put(error)

    def _parts(self, events: Events, until_us: int | None) -> list[Arrival]:
        """Return a packet as one arrival, or as several if the clock jumps between its events."""
        arrived_s = time.monotonic()
        if not len(events):  # before the first event, `until_us` closes no window, and may be of any clock
            return [Arrival(events, None if self._latest_us is None else until_us, arrived_s)]
        jumps = clock_jumps(self._latest_us, events.t)
        self._latest_us = int(events.t[-1])
        bounds = sorted({0, *jumps, len(events)})
        parts = [Arrival(events[start:stop], None, arrived_s, start in jumps) for start, stop in pairwise(bounds)]
        return [*parts[:-1], replace(parts[-1], until_us=until_us)]
