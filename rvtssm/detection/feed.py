"""Any source of events as a live source: a thread reads it, and the detector takes what has arrived."""

import queue
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from rvtssm.detection.event_camera import NO_EVENTS, Arrival
from rvtssm.detection.sources import EventSource
from rvtssm.events.windows import LATE_US, LONGEST_SILENCE_US
from rvtssm.readers import ReadFaults
from rvtssm.readers.event_checks import columns_of
from rvtssm.readers.live_gate import LiveGate
from rvtssm.readers.recording import copy_events
from rvtssm.records import Events
from rvtssm.system.user_error import UserError

_MOST_PACKETS = 4096  # that wait to be taken; then reading waits, and so does the sender
_WAIT_S = 0.05  # longest wait for events before control returns to the caller

Packet = Events | np.ndarray | tuple[Events | np.ndarray, int | None]


@dataclass(frozen=True)
class PythonSource:
    """Packets from a Python iterator, such as a generator that reads the SDK of a camera.

    A packet is Events, a structured array with the fields t (integer microseconds), x, y and p, or a pair of one of
    these and a time before which no event follows. The latter closes windows while nothing happens.
    """

    given: Iterable[Packet]
    height: int  # of the sensor, pixels
    width: int  # of the sensor, pixels
    name: str = "packets"
    time_range_us = None  # not known before it ends
    _gate: LiveGate = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_gate", LiveGate(self.name, self.height, self.width))

    @property
    def faults(self) -> ReadFaults:
        """The events that were moved or left out so far."""
        return self._gate.faults

    def packets(self) -> Iterator[tuple[Events, int | None]]:
        """Yield the events of each packet, and the time before which no event follows (None: unknown)."""
        for packet in self.given:
            events, until_us = packet if isinstance(packet, tuple) else (packet, None)
            yield self._gate.push(*columns_of(events)), until_us
        self._gate.conclude()

    def blocks(self) -> Iterator[Events]:
        """Yield the events of each packet."""
        return (events for events, _ in self.packets() if len(events))


class Feed:
    """Reads a source in a thread of its own, for a `LiveRun`.

    No event is lost without a count: a sender waits while 4096 packets wait here, and packets that are dropped because
    they arrive faster than they can be counted are `num_lost`. A jump of the clock begins a new stream.

    Args:
        source: The source. If it has `packets`, as `PacketStream` and `PythonSource` do, these are read, otherwise
            `blocks`.
    """

    def __init__(self, source: EventSource) -> None:
        self.source = source
        self.name, self.height, self.width = source.name, source.height, source.width
        self.num_lost = 0
        self.is_ended, self._own_broke_off = False, ""
        self._latest_us: int | None = None
        self._arrived: queue.Queue[Arrival | Exception | None] = queue.Queue(_MOST_PACKETS)
        self._thread = threading.Thread(target=self._read, name="rvtssm feed", daemon=True)

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
        self.is_ended = True

    def _finish(self, error: Exception | None) -> None:
        """Note the end of the source. Raise what its own program raised."""
        self.is_ended = True
        if isinstance(error, UserError | OSError):
            self._own_broke_off = f"{self.name}: {error}"
        elif error is not None:
            raise error

    def _read(self) -> None:
        try:
            packets = getattr(self.source, "packets", None)
            for events, until_us in packets() if packets else ((block, None) for block in self.source.blocks()):
                if self.is_ended:
                    return
                self._arrived.put(self._arrival(copy_events(events), until_us))
            self._arrived.put(None)
        except Exception as error:  # of the source, raised again where its events are taken
            self._arrived.put(error)

    def _arrival(self, events: Events, until_us: int | None) -> Arrival:
        latest_us, is_restart = self._latest_us, False
        if len(events):
            first_us, self._latest_us = int(events.t[0]), int(events.t[-1])
            if latest_us is not None:
                is_restart = not -LATE_US <= first_us - latest_us <= LONGEST_SILENCE_US
        return Arrival(events if len(events) else NO_EVENTS, until_us, time.monotonic(), is_restart)
