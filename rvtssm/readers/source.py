"""What is asked of a source of events: a file, an array, a pipe, a socket, a camera, packets of a program."""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rvtssm.readers.faults import ReadFaults
from rvtssm.readers.gate import copy_events
from rvtssm.records import Events
from rvtssm.system.user_error import UserError

NO_EVENTS = Events(np.empty(0, np.int64), *(np.empty(0, dtype) for dtype in (np.uint16, np.uint16, np.uint8)))


@dataclass(frozen=True, slots=True)
class Arrival:
    """Events that have arrived together."""

    events: Events
    until_us: int | None = None  # no event before this time follows; None: unknown
    arrived_s: float = 0.0  # time of arrival, on the clock of the source
    is_restart: bool = False  # the clock has jumped before these events, so a new stream begins


class EventSource:
    """Events in order of time, on the sensor. Derive from it, set the attributes, and yield `blocks` or `packets`.

    A source is checked where it is read: `Gate` for files, `LiveGate` for everything that arrives. Nothing behind it
    checks order or pixels again.
    """

    name: str  # in messages
    height: int  # of the sensor, pixels
    width: int  # of the sensor, pixels
    format: str = "events"
    is_live = True  # its events come once, at their own pace; of other sources, `between` reads any time range
    broke_off = ""  # why the events ended early; empty if they did not
    num_lost = 0  # packets that were lost
    num_lost_events = 0  # events in them, as far as they are known
    is_interrupted = False  # `end` was called
    frame_id = ""  # coordinate frame of the camera, as messages name it
    stamp_offset_us = 0  # from the clock of the sensor to that of the messages which carried the events

    @property
    def time_range_us(self) -> tuple[int, int] | None:
        """Times of the first and the last event; None if they are not known before the source ends."""
        return None

    @property
    def faults(self) -> ReadFaults:
        """The events that were moved or left out so far."""
        return ReadFaults()

    def blocks(self) -> Iterator[Events]:
        """Yield all events. A block may overwrite the arrays of the block before it."""
        return (packet.events for packet in self.packets() if len(packet.events))

    def packets(self) -> Iterator[Arrival]:
        """Yield all events as they arrive, in arrays of their own, with what is known of the time after them."""
        for block in self.blocks():
            yield Arrival(copy_events(block), None, time.monotonic())

    def between(self, start_us: int, end_us: int) -> Events:
        """Return the events with start_us <= t < end_us of a source that is not live.

        Raises:
            UserError: The source is live, so its events come once.
        """
        found = "its events come once, in order, and no time range can be asked for"
        raise UserError("source.kind", name=self.name, found=found, advice="use blocks() or packets(), or record it")

    def end(self) -> None:
        """Stop after the events read so far."""
        self.is_interrupted = True


class LiveSource(EventSource, ABC):
    """A source that a program asks for what has arrived: a camera, a recording that is played, or a `Feed`."""

    says_time = True  # it says by `until_us` that time passes while nothing happens

    @property
    @abstractmethod
    def is_ended(self) -> bool:
        """Whether no more events come."""

    @property
    def backlog(self) -> int:
        """More than 0 if events have arrived that were not read yet."""
        return 0

    def clock(self) -> float:
        """Return the current time on the clock of `Arrival.arrived_s`, in seconds."""
        return time.monotonic()

    def begin(self) -> None:
        """Begin now: what arrived while the detector was prepared does not count."""

    def drop_backlog(self) -> None:
        """Drop what has arrived and was not read yet, because reading takes longer than the events do."""

    @abstractmethod
    def arrivals(self) -> list[Arrival]:
        """Return what has arrived, in arrays of their own, or nothing after a short wait."""
