"""The gate for packets of events that arrive one after the other, with the rules and the counts of files."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from rvtssm.events.windows import LATE_US
from rvtssm.readers.faults import ReadFaults, say
from rvtssm.readers.gate import LATEST_US, NEVER_US, POSITION, WRAPPED_US, Column, EventBuffer, Gate, State, first_state
from rvtssm.readers.other_clock import after_other_clock
from rvtssm.records import Events


class LiveGate:
    """Converts the packets of one camera to events, and counts what was moved or left out.

    A packet whose events are all more than 10 ms earlier than one before it begins a new clock: its times stay as they
    are. Other late events are moved or left out as in files. The end of a stream is not known, so events of another
    clock there are kept.

    Args:
        name: The source, for messages.
        height: Height of the sensor, pixels.
        width: Width of the sensor, pixels.
    """

    def __init__(self, name: str, height: int, width: int) -> None:
        self._gate = Gate(Path(name), height, width)
        self._state = first_state()
        self._has_begun = False
        self.num_events = 0  # that were kept

    @property
    def faults(self) -> ReadFaults:
        """What was moved or left out so far."""
        return ReadFaults.of(self._state)

    @property
    def latest_us(self) -> int:
        """Time of the latest event; NEVER_US before the first one."""
        return int(self._state[LATEST_US])

    def begins_new_clock(self, raw: Sequence[Column], time_unit: str | None = None) -> bool:
        """Return whether all events of a packet are more than 10 ms earlier than an event before it.

        Args:
            raw: The columns t, x, y, p of the packet, each (N,).
            time_unit: Unit of the times; None: whole numbers are microseconds.
        """
        if self.latest_us == NEVER_US or not len(raw[0]):
            return False
        newest = np.array([raw[0].max()], raw[0].dtype)
        in_us, _ = replace(self._gate, time_unit=time_unit)._microseconds(newest, "in a packet", self._state)
        return bool(in_us[0] + self._state[WRAPPED_US] < self.latest_us - LATE_US)

    def push(self, raw: Sequence[Column], time_unit: str | None = None) -> Events:
        """Return the events of the next packet.

        Args:
            raw: The columns t, x, y, p of the packet, each (N,).
            time_unit: Unit of the times; None: whole numbers are microseconds.

        Raises:
            UserError: A polarity is outside its domain, or times with decimals have no unit.
        """
        gate, num_raw = replace(self._gate, time_unit=time_unit), len(raw[0])

        def decode(state: State, room: EventBuffer) -> int:
            start = int(state[POSITION])
            stop = min(start + len(room.t), num_raw)
            state[POSITION] = stop
            return gate.keep([column[start:stop] for column in raw], "in a packet", state, room)

        if self.begins_new_clock(raw, time_unit):
            self.restart()
        if not self._has_begun and num_raw:
            self._state, self._has_begun = after_other_clock(decode, self._state, num_raw, 1), True
        buffer = EventBuffer(num_raw)
        count = decode(self._state, buffer)
        self._state[POSITION] = 0
        self.num_events += count
        return buffer.events(count)

    def restart(self) -> None:
        """Take the next packet for the first one of a new clock. The counts go on."""
        self._state[LATEST_US], self._state[WRAPPED_US] = NEVER_US, 0

    def conclude(self) -> None:
        """Say what was left out, and whether so much was left out that a file would be refused."""
        say_faults(str(self._gate.path), self.faults, self.num_events, (self._gate.height, self._gate.width))


def say_faults(name: str, faults: ReadFaults, num_events: int, size_hw: tuple[int, int]) -> None:
    """Say what was left out of a stream that has ended, and why a file with as many faults would be refused.

    Args:
        name: The source.
        faults: What was moved or left out.
        num_events: Number of events that were kept.
        size_hw: Height and width of the sensor, pixels.
    """
    if note := faults.refusal(num_events, *size_hw, is_repaired=False):
        say(f"{name} {note}")
    elif note := faults.note(num_events, *size_hw):
        say(f"{name}: {note}")
