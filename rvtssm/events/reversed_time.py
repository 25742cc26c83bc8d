"""A recording that runs backwards: what was last comes first, and brighter becomes darker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rvtssm.events.readers import Recording
from rvtssm.records import Events

_SPAN_US = 400_000  # of the events that are decoded at once


@dataclass(frozen=True)
class ReversedRecording:
    """The events of a recording in reversed order, between the same two times. A window [s, e) becomes
    [`at(e)`, `at(s)`)."""

    recording: Recording

    def at(self, time_us: int) -> int:
        """Return the place of an edge of windows in the reversed recording; applied twice, it changes nothing."""
        first_us, last_us = self.recording.time_range_us
        return first_us + last_us + 1 - time_us

    def iterate(self) -> Iterator[Events]:
        """Yield all events in blocks."""
        first_us, last_us = self.recording.time_range_us
        for stop_us in range(last_us + 1, first_us, -_SPAN_US):
            block = self.recording.between(max(first_us, stop_us - _SPAN_US), stop_us)
            if len(block):
                yield Events(
                    first_us + last_us - block.t[::-1],
                    block.x[::-1].copy(),
                    block.y[::-1].copy(),
                    np.uint8(1) - block.p[::-1],
                )
