"""A recording played at its own pace, as if a camera were sending it now."""

import time
from collections.abc import Callable, Iterator

import numpy as np

from rvtssm.readers import Recording
from rvtssm.readers.source import NO_EVENTS, Arrival, LiveSource
from rvtssm.records import Events

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
