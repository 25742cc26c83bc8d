"""A camera of the package neuromorphic-drivers in software: it sends given events at their own pace, on its own clock.

`drivers` stands for the package, `FakeDevice` for an opened camera. Times are simulated: waiting takes none.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from rvtssm.records import Events

DTYPE = np.dtype([("t", "<u8"), ("x", "<u2"), ("y", "<u2"), ("on", "?")])
BEGAN_S = 1_700_000_000.0


class SimulatedClock:
    """Seconds that pass only if someone says so."""

    def __init__(self) -> None:
        self.now_s = BEGAN_S

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass
class Packet:
    """What arrives at one time: events as the package has them, and the time of the camera."""

    arrives_s: float
    current_t: int
    polarity_events: np.ndarray | None


def packets_of(events: Events, every_us: int = 5_000, began_s: float = BEGAN_S) -> list[Packet]:
    """Cut events into packets that arrive every few milliseconds, each as soon as its time has passed."""
    first_us = int(events.t[0])
    edges = np.arange(first_us + every_us, int(events.t[-1]) + every_us + 1, every_us)
    stops = np.searchsorted(events.t, edges)
    found, start = [], 0
    for edge, stop in zip(edges.tolist(), stops.tolist(), strict=True):
        part = np.empty(stop - start, DTYPE)
        for name, values in (("t", events.t), ("x", events.x), ("y", events.y), ("on", events.p)):
            part[name] = values[start:stop]
        found.append(Packet(began_s + (edge - first_us) / 1e6, edge, part if len(part) else None))
        start = stop
    return found


class FakeDevice:
    """The interface of an opened camera. `fails_with` is raised after the last packet, as if it were unplugged.

    `ring_length` is how many packets are kept while nobody reads; those that arrive later are dropped.
    """

    def __init__(
        self,
        packets: list[Packet],
        height: int,
        width: int,
        clock: SimulatedClock | None = None,
        fails_with: BaseException | None = None,
        timeout_s: float = 0.05,
        ring_length: int = 4096,
    ) -> None:
        self.clock = clock or SimulatedClock()
        self.is_open = False
        self._coming = deque(packets)
        self._ring: deque[Any] = deque()
        self._size, self._fails_with, self._timeout_s = (
            SimpleNamespace(height=height, width=width),
            fails_with,
            timeout_s,
        )
        self._ring_length, self.num_dropped = ring_length, 0
        self.longest_backlog = 0

    def __enter__(self) -> FakeDevice:
        self.is_open = True
        return self

    def __exit__(self, *error: object) -> None:
        self.is_open = False

    def name(self) -> SimpleNamespace:
        return SimpleNamespace(value="Fake EVK")

    def serial(self) -> str:
        return "00001"

    def properties(self) -> SimpleNamespace:
        return self._size

    def backlog(self) -> int:
        self._receive()
        return len(self._ring)

    def clear_backlog(self, until: int) -> None:
        while len(self._ring) > until:
            self._ring.popleft()

    def __iter__(self) -> FakeDevice:
        return self

    def __next__(self) -> tuple[SimpleNamespace, SimpleNamespace | None]:
        self._receive()
        if not self._ring and self._coming:
            wait_s = min(self._coming[0].arrives_s - self.clock(), self._timeout_s)
            self.clock.sleep(wait_s)
            self._receive()
        if self._ring:
            packet = self._ring.popleft()
            ring = SimpleNamespace(
                system_time=packet.arrives_s, current_t=packet.current_t, dropped_packets=self.num_dropped
            )
            return SimpleNamespace(ring=ring), SimpleNamespace(polarity_events=packet.polarity_events)
        if not self._coming:
            raise self._fails_with or StopIteration
        return SimpleNamespace(ring=None), None

    def _receive(self) -> None:
        while self._coming and self._coming[0].arrives_s <= self.clock():
            packet = self._coming.popleft()
            if len(self._ring) < self._ring_length:
                self._ring.append(packet)
            else:
                self.num_dropped += 1
        self.longest_backlog = max(self.longest_backlog, len(self._ring))
