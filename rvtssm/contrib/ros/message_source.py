"""The messages of an event camera on a topic of ROS 2, as a source of events for live detection."""

import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator

from rvtssm.contrib.ros.event_messages import MessageDecoder, MessageError
from rvtssm.readers.source import Arrival, EventSource
from rvtssm.records import Events

_REMEMBERED = 1 << 12  # messages whose time on the clock of ROS is kept, 16 s of packets of 4 ms


class MessageSource(EventSource):
    """Takes in serialised messages in one thread, and yields their events in another.

    `put` never waits and does no work, so that the callback of a subscription returns at once. Messages that are lost
    are counted: those that the number in the messages (`seq`) skips, and the oldest of those that wait if there are too
    many. What counts is their size, so that small messages are not lost sooner than large ones.

    Args:
        kind: Type of the messages, such as "event_camera_msgs/msg/EventPacket".
        most_bytes: Size of the messages that may wait to be decoded.
        warn: Receives a sentence about every message that cannot be used.

    Raises:
        UserError: Messages of this type hold no events.
    """

    format = "messages"

    def __init__(self, kind: str, most_bytes: int, warn: Callable[[str], object]) -> None:
        self.name = kind
        self._warn = warn
        self.height = self.width = 0  # of the sensor, pixels; known after `wait_for_camera`
        self.frame_id = ""  # coordinate frame of the camera
        self.num_received = self.num_unusable = 0
        self._num_refused = self._num_skipped = 0  # messages: the queue was full, `seq` skipped them
        self._waiting = deque[bytes]()
        self.num_waiting_bytes = 0
        self._most_bytes = most_bytes
        self._changed = threading.Condition()  # of what waits
        self._decoder = MessageDecoder(kind)
        self._first = deque[Events]()  # the events with which the camera was found
        self._latest_number: int | None = None
        # of the latest messages: time of the first event, and the time of ROS minus that of the sensor
        self._clocks_us = deque[tuple[int, int]](maxlen=_REMEMBERED)
        self._lock = threading.Lock()  # of the two below
        self._stamp_us = 0  # the latest that `ros_time_us` returned

    @property
    def num_lost(self) -> int:  # type: ignore[override]
        """Number of messages that were sent and never decoded. Types without `seq` only count what was refused here."""
        return max(self._num_skipped, self._num_refused)

    def put(self, message: bytes) -> None:
        """Take in a serialised message. If too much waits, drop and count the oldest."""
        with self._changed:
            self.num_received += 1
            self._waiting.append(message)
            self.num_waiting_bytes += len(message)
            while self.num_waiting_bytes > self._most_bytes:
                self.num_waiting_bytes -= len(self._waiting.popleft())
                self._num_refused += 1
            self._changed.notify()

    def end(self) -> None:
        """End the events. Waiting messages are dropped."""
        self.is_interrupted = True
        with self._changed:
            self._changed.notify()  # wakes the thread that waits

    def wait_for_camera(self) -> bool:
        """Wait for a message that can be decoded, which gives the size of the sensor. Return False after `end`."""
        while not self._first:
            message = self._next()
            if message is None:
                return False
            events = self._decoded(message)
            if events is not None:
                self._first.append(events)
        return True

    def packets(self) -> Iterator[Arrival]:
        """Yield the events of each message, until the size of the sensor changes or `end` is called."""
        size_hw = self.height, self.width
        while self._first:
            yield Arrival(self._first.popleft(), None, time.monotonic())
        while (message := self._next()) is not None:
            events = self._decoded(message)
            if (self.height, self.width) != size_hw:
                if events is not None:
                    self._first.append(events)
                return
            if events is not None:
                yield Arrival(events, None, time.monotonic())

    def ros_time_us(self, t_us: int) -> int:
        """Return the time of ROS at a time of the sensor, as the message tells it that holds the event before it.

        Messages of event_camera_msgs have a stamp of ROS, which belongs to their time base (mono) or to their first
        event (other encodings). The two clocks drift, but within a stream the result never goes back.
        """
        with self._lock:
            clocks_us = list(self._clocks_us)
            if not clocks_us:
                return t_us
            place = bisect_left(clocks_us, t_us, key=lambda clock_us: clock_us[0])
            self._stamp_us = max(self._stamp_us, t_us + clocks_us[max(place - 1, 0)][1])
            return self._stamp_us

    def _next(self) -> bytes | None:
        """Wait for the next message. Return None after `end`."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self.is_interrupted)
            if self.is_interrupted:
                return None
            message = self._waiting.popleft()
            self.num_waiting_bytes -= len(message)
            return message

    def _decoded(self, message: bytes) -> Events | None:
        """Return the events of a message, and note its number and its time; None if it cannot be used."""
        try:
            events, (self.height, self.width) = self._decoder.push(message)
        except MessageError as error:
            self.num_unusable += 1
            self._warn(str(error))
            return None
        finally:
            self._count_gap(self._decoder.number)
        self.frame_id = self._decoder.frame_id
        if len(events):
            self._note_clock(int(events.t[0]))
        return events

    def _note_clock(self, start_us: int) -> None:
        with self._lock:
            if self._clocks_us and start_us < self._clocks_us[-1][0]:  # the clock was set back
                self._clocks_us.clear()
                self._stamp_us = 0
            self._clocks_us.append((start_us, self._decoder.ros_offset_us))

    def _count_gap(self, number: int | None) -> None:
        if number is None:
            return
        if self._latest_number is not None and number > self._latest_number:  # otherwise the driver was started again
            self._num_skipped += number - self._latest_number - 1
        self._latest_number = number
