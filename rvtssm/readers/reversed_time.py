"""A recording played backwards: the last event comes first, and brighter becomes darker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rvtssm.readers import Recording
from rvtssm.records import Events

_SPAN_US = 400_000  # length of the block of events that is decoded at once


@dataclass(frozen=True)
class ReversedRecording:
    """The events of a recording in reversed order, between the same first and last time.

    A window [s, e) of the recording becomes [`at(e)`, `at(s)`).
    """

    recording: Recording

    def at(self, time_us: int) -> int:
        """Return where the edge of a window lies in the reversed recording. Applied twice, it returns the same time."""
        first_us, last_us = self.recording.time_range_us
        return first_us + last_us + 1 - time_us

    @property
    def name(self) -> str:
        return self.recording.name

    @property
    def height(self) -> int:
        return self.recording.height

    @property
    def width(self) -> int:
        return self.recording.width

    @property
    def time_range_us(self) -> tuple[int, int]:
        return self.recording.time_range_us

    def blocks(self) -> Iterator[Events]:
        """Yield all events in blocks."""
        first_us, last_us = self.time_range_us
        for stop_us in range(last_us + 1, first_us, -_SPAN_US):
            block = self.recording.between(max(first_us, stop_us - _SPAN_US), stop_us)
            if len(block):
                yield Events(
                    first_us + last_us - block.t[::-1],
                    block.x[::-1].copy(),
                    block.y[::-1].copy(),
                    np.uint8(1) - block.p[::-1],
                )
