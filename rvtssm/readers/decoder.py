"""A file that is decoded block by block from any state, as the formats implement it.

A format provides the state of its decoder at the start of the file, and a function that decodes one block of events and
advances the state. States are small vectors of integers. A copy of a state is enough to resume decoding.
"""

from __future__ import annotations

import copy
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rvtssm.readers.faults import Reach
from rvtssm.readers.gate import LATEST_US, POSITION, EventBuffer, State, first_state
from rvtssm.readers.header import LARGEST_SIDE
from rvtssm.readers.other_clock import after_other_clock, may_end_earlier, may_start_later, num_before_other_clock

_ENOUGH_EVENTS = 1 << 22  # that tell which pixels a recording has


class Decoder(ABC):
    """The events of a file in order, without what is said of their faults. `Recording` adds that, and access by time.

    Args:
        path: The file.
        height: Height of the sensor, pixels.
        width: Width of the sensor, pixels.
        num_units: Number of units in the file, as POSITION counts them.
    """

    own_state: tuple[int, ...] = ()
    smallest_block = 1  # the least room for events that `_decode` needs

    def __init__(self, path: Path, height: int, width: int, num_units: int) -> None:
        self.path = path
        self.height = height
        self.width = width
        self._num_units = num_units
        self._begin: State | None = None  # the state before the first event of the recording's clock
        self._handle: Any = None
        self._handle_owner = 0

    @abstractmethod
    def _decode(self, state: State, buffer: EventBuffer) -> int:
        """Write the next events into the buffer, advance the state and return the number of events written.

        The buffer has room for at least `smallest_block` events. The result is 0 if the units held no events.
        """

    @abstractmethod
    def _open(self) -> Any:
        """Open the file for reading and return an object with a `close` method."""

    def _file(self) -> Any:
        # A handle inherited through a fork shares its read position with the parent, so every process opens its own.
        if self._handle is None or self._handle_owner != os.getpid():
            self._handle, self._handle_owner = self._open(), os.getpid()
        return self._handle

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:  # __init__ may have failed
            self.close()

    def close(self) -> None:
        """Close the file. Reading opens it again."""
        if self._handle is not None:
            self._handle.close()
            self._handle = None

    def _first_state(self) -> State:
        """Return the decoder state at the first event, as far as it is known."""
        return first_state(*self.own_state) if self._begin is None else self._begin.copy()

    def _start(self) -> State:
        """Return the decoder state at the first event, after a few events of another clock if there are any."""
        if self._begin is None:
            first = first_state(*self.own_state)
            self._begin = after_other_clock(self._decode, first, self._num_units, self.smallest_block)
        return self._begin.copy()

    def _block_sizes(self, state: State, buffer: EventBuffer, num_left: int | None = None) -> Iterator[int]:
        """Decode block after block into the buffer, advance the state, and yield the number of events of each block.

        A few events of another clock at the start and at the end of the file are left out. Blocks without events are
        passed over.

        Args:
            state: The state to start from.
            buffer: Room for events, which each block overwrites.
            num_left: Number of events from this state to the end; None: unknown, since the state is at the start.
        """
        num_events = 0
        while state[POSITION] < self._num_units and num_left != 0:
            before_us = int(state[LATEST_US])
            count = self._decode(state, buffer)
            if not count:
                continue
            if num_left is not None:
                count = min(count, num_left)
                num_left -= count
            elif self._begin is None and may_start_later(buffer.t[:count], state):
                state[:] = self._start()
                continue
            elif may_end_earlier(buffer.t[:count], before_us):
                count = num_before_other_clock(
                    self._decode, state, self._num_units, self.smallest_block, buffer.t[:count], (num_events, before_us)
                )
            if self._begin is None:
                self._begin = self._first_state()
            num_events += count
            if count:
                yield count

    def _reach(self) -> Reach:
        """Return the pixels of the first millions of events, wherever they lie."""
        limits, num_read = np.array([[LARGEST_SIDE, 0], [LARGEST_SIDE, 0]]), 0
        wide = copy.copy(self)
        wide._handle, wide.height, wide.width = None, LARGEST_SIDE, LARGEST_SIDE
        if gate := getattr(self, "_gate", None):
            wide._gate = replace(gate, height=LARGEST_SIDE, width=LARGEST_SIDE)  # type: ignore[attr-defined]
        state, buffer = wide._first_state(), EventBuffer(1 << 16)
        for count in wide._block_sizes(state, buffer):
            for limit, pixels in zip(limits, (buffer.x[:count], buffer.y[:count]), strict=True):
                limit[:] = min(limit[0], pixels.min()), max(limit[1], pixels.max())
            num_read += count
            if num_read > _ENOUGH_EVENTS:
                break
        wide.close()
        return Reach(tuple(limits[0].tolist()), tuple(limits[1].tolist()))
