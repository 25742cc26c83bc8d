"""Live sources: packets of a Python program, any source that a thread reads, and a recording at its own pace."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np

from rvtssm.events.windows import clock_jumps
from rvtssm.readers import ReadFaults, Recording
from rvtssm.readers.event_checks import LiveGate, columns_of
from rvtssm.readers.source import NO_EVENTS, Arrival, EventSource, LiveSource
from rvtssm.records import Events
from rvtssm.system.user_error import UserError

_MOST_WAITING = 1 << 24  # events that wait to be taken, 0.3 GB
_WAIT_S = 0.05  # longest wait for events before control returns to the caller
_LONGEST_WAIT_S = 1.0  # a sender waits so long for room before the oldest events are dropped

Packet = Events | np.ndarray | tuple[Events | np.ndarray, int | None]


class PythonSource(EventSource):
    """Packets from a Python iterator, such as a generator that reads the SDK of a camera.

    A packet is Events, a structured array with the fields t (integer microseconds), x, y and p, or a pair of one of
    these and a time before which no event follows. The latter closes windows while nothing happens.

    Args:
        given: The packets.
        height: Height of the sensor, pixels.
        width: Width of the sensor, pixels.
        name: Name in messages.
    """

    def __init__(self, given: Iterable[Packet], height: int, width: int, name: str = "packets") -> None:
        self.given = given
        self.height = height
        self.width = width
        self.name = name
        self._gate = LiveGate(name, height, width)

    @property
    def faults(self) -> ReadFaults:
        """The events that were moved or left out so far."""
        return self._gate.faults

    def packets(self) -> Iterator[Arrival]:
        """Yield the events of each packet, and the time before which no event follows (None: unknown)."""
        for packet in self.given:
            events, until_us = packet if isinstance(packet, tuple) else (packet, None)
            arrived_s = time.monotonic()
            yield Arrival(self._gate.push(*columns_of(events)), until_us, arrived_s)
        self._gate.conclude()


class Feed(LiveSource):
    """Reads a source in a thread of its own, for a `LiveRun`.

    The thread only puts packets aside, whatever their size; all that wait are taken at once. If more than 2^24 events
    wait for a second, the oldest are dropped and counted in `num_lost` and `num_lost_events`. A jump of the clock
    begins a new stream, also within a packet.

    Args:
        source: The source.
    """

    says_time = False

    def __init__(self, source: EventSource) -> None:
        self.source = source
        self.name = source.name
        self.height = source.height
        self.width = source.width
        self.format = source.format
        self._num_dropped = self.num_lost_events = 0
        self._has_ended = False
        self._own_broke_off = ""
        self._latest_us: int | None = None
        # packets, and the number of their events
        self._waiting = deque[Arrival]()
        self._num_waiting = 0
        self._is_read = False  # whether the source has ended, with this error:
        self._error: BaseException | None = None
        self._changed = threading.Condition()  # of the four attributes above
        self._thread = threading.Thread(target=self._read, name="rvtssm feed", daemon=True)

    @property
    def num_lost(self) -> int:  # type: ignore[override]
        """Packets that were dropped here, or that the source has lost."""
        return self._num_dropped + self.source.num_lost

    @property
    def is_ended(self) -> bool:
        """Whether all events were taken, or `end` was called, or a signal has interrupted the source."""
        return self._has_ended or self.source.is_interrupted

    @property
    def broke_off(self) -> str:  # type: ignore[override]
        """Why the source ended early; empty if it did not."""
        return self._own_broke_off or self.source.broke_off

    @property
    def faults(self) -> ReadFaults:
        """The events that were moved or left out so far."""
        return self.source.faults

    def begin(self) -> None:
        """Begin to read, unless the thread reads already."""
        if self._thread.ident is None:
            self._thread.start()

    def arrivals(self) -> list[Arrival]:
        """Return all that has arrived, or nothing after a short wait. Raise what the program of the source raised."""
        with self._changed:
            if not self._waiting and not self._is_read:
                self._changed.wait(_WAIT_S)
            found = list(self._waiting)
            self._waiting.clear()
            self._num_waiting = 0
            self._changed.notify_all()
        # The thread has ended, and all that it read was taken.
        if not found and self._is_read:
            self._finish()
        return found

    def end(self) -> None:
        """Stop after the events read so far."""
        self._has_ended = True

    def _finish(self) -> None:
        """Note the end of the source."""
        self._has_ended = True
        error = self._error
        if isinstance(error, UserError | OSError):
            reason = str(error)
            self._own_broke_off = reason if reason.startswith(self.name) else f"{self.name}: {reason}"
        elif error is not None:
            raise error

    def _read(self) -> None:
        try:
            # Its own thread puts aside whatever comes, until the source or the caller ends.
            for packet in self.source.packets():
                if self.is_ended:
                    return
                for arrival in self._parts(packet):
                    self._put(arrival)
        except BaseException as error:  # of the source, raised again where its events are taken
            self._error = error
        with self._changed:
            self._is_read = True
            self._changed.notify_all()

    def _put(self, arrival: Arrival) -> None:
        """Let a packet wait. If there is no room for long, drop the oldest ones."""
        with self._changed:
            self._changed.wait_for(lambda: self._num_waiting < _MOST_WAITING or self.is_ended, _LONGEST_WAIT_S)
            self._waiting.append(arrival)
            while self._num_waiting >= _MOST_WAITING:
                oldest = self._waiting.popleft()
                self._num_waiting -= len(oldest.events)
                self.num_lost_events += len(oldest.events)
                self._num_dropped += 1
                # What follows a jump of the clock is still a new stream.
                if oldest.is_restart:
                    self._waiting[0] = replace(self._waiting[0], is_restart=True)
            self._num_waiting += len(arrival.events)
            self._changed.notify_all()

    def _parts(self, packet: Arrival) -> list[Arrival]:
        """Return a packet as one arrival, or as several if the clock jumps between its events."""
        if not len(packet.events):  # before the first event, `until_us` closes no window, and may be of any clock
            return [packet if self._latest_us is not None else replace(packet, until_us=None)]
        jumps = clock_jumps(self._latest_us, packet.events.t)
        self._latest_us = int(packet.events.t[-1])
        if not jumps:
            return [packet]
        parts = []
        # The packet is cut where its clock jumps; only its last part knows what follows.
        for start, stop in pairwise(sorted({0, *jumps, len(packet.events)})):
            parts.append(Arrival(packet.events[start:stop], None, packet.arrived_s, start in jumps))
        return [*parts[:-1], replace(parts[-1], until_us=packet.until_us)]


_PAUSE_S = 0.005  # time between checks of the clock, as long as the packets of a fast camera
_BEHIND_US = 10_000  # a replay that is further behind reports a backlog
_MOST_AT_ONCE_US = 1_000_000  # limit after the whole computer was suspended


class Replay(LiveSource):
    """Use this where a `Camera` is expected. Speed, position and pauses can be changed during playback.

    Args:
        recording: The recording.
        name: Name in messages.
        clock: Returns the current time in seconds.
        sleep: Waits for a number of seconds.
    """

    is_ended = False

    def __init__(
        self,
        recording: Recording,
        name: str,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.name = name
        self.height, self.width = recording.height, recording.width
        self.num_events = 0
        self._clock = clock
        self._recording = recording
        self._sleep = sleep
        self._speed = 1.0
        self._is_paused = False
        self.first_us, self.last_us = recording.time_range_us
        self.seek(self.first_us)

    def clock(self) -> float:
        """Return the current time in seconds."""
        return self._clock()

    @property
    def now_us(self) -> int:
        """Time of the recording up to which events have been played."""
        return self._now_us

    @property
    def backlog(self) -> int:
        """1 if the replay is more than 10 ms behind, otherwise 0."""
        return int(not self.is_ended and self._due_us() > self._now_us + _BEHIND_US)

    def end(self) -> None:
        """Stop after the events read so far."""
        self.is_ended = True

    def begin(self) -> None:
        """Play from the present moment on."""
        self._set_pace()

    def drop_backlog(self) -> None:
        """Pause the recording's clock, because reading takes longer than playing."""
        self._set_pace()

    def pause(self, is_paused: bool) -> None:
        self._is_paused = is_paused
        self._set_pace()

    def set_speed(self, speed: float) -> None:
        """Play `speed` seconds of the recording per second from now on."""
        self._speed = speed
        self._set_pace()

    def seek(self, start_us: int) -> None:
        """Continue at a time of the recording. The next arrival announces a new stream."""
        self._now_us = min(max(start_us, self.first_us), self.last_us)
        self._blocks: Iterator[Events] = self._recording.iterate(start_us=self._now_us)
        self._block = NO_EVENTS
        self._done = 0
        self._is_restart = True
        self.is_ended = False
        self._set_pace()

    def between(self, start_us: int, end_us: int) -> Events:
        """Return the events of the recording with start_us <= t < end_us, independent of playback."""
        return self._recording.between(start_us, end_us)

    def arrivals(self) -> list[Arrival]:
        """Return the events that are due, or nothing after a short wait."""
        due_us = self._due_us()
        if due_us <= self._now_us or self.is_ended:
            self._sleep(_PAUSE_S)
            return []
        # The next block of the recording, when this one is played.
        while self._done == len(self._block):
            block = next(self._blocks, None)
            if block is None:
                self.is_ended = True
                return [Arrival(NO_EVENTS, self._now_us, self.clock())]
            self._block = block
            self._done = 0
        block = self._block
        stop = int(np.searchsorted(self._block.t, due_us))
        events = block[self._done : stop]
        self._done = stop
        # If the block ends earlier, the next block follows, perhaps with events at the time of its last event.
        until_us = due_us if stop < len(block) else int(block.t[-1])
        # A camera would have sent them at this moment.
        arrived_s = self._began_s + (until_us - self._began_us) / (1e6 * self._speed)
        self._now_us = until_us
        is_restart = self._is_restart
        self._is_restart = False
        self.num_events += len(events)
        return [Arrival(events, until_us, arrived_s, is_restart)]

    def _set_pace(self) -> None:
        """Count the recording's time from `_now_us` and the present moment on."""
        self._began_s = self.clock()
        self._began_us = self._now_us

    def _due_us(self) -> int:
        if self._is_paused:
            return self._now_us
        due_us = self._began_us + int((self.clock() - self._began_s) * 1e6 * self._speed)
        return min(due_us, self._now_us + _MOST_AT_ONCE_US)
