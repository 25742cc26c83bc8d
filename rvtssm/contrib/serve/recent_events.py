"""The most recent events as the pixels of a picture."""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from rvtssm.records import Events

SHOWN_US = 40_000  # a picture shows the events of this much time
_MOST_SHOWN = 1 << 21  # the most events kept for a picture
_WIDEST_PX = 700  # a wider sensor is shown at half its size


class RecentEvents:
    """Use this to show what a sensor has seen: `add` all events, then `pixels` returns the most recent ones.

    Args:
        height: Height of the sensor, pixels.
        width: Width of the sensor, pixels.
    """

    def __init__(self, height: int, width: int) -> None:
        self.pixel = 2 if width > _WIDEST_PX else 1  # side of a picture pixel, in sensor pixels
        self.height, self.width = height // self.pixel, width // self.pixel
        self._parts = deque[tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64]]]()  # last time, times, cells

    def add(self, events: Events) -> None:
        """Keep events. There must be at least one, and their arrays may be overwritten later."""
        x = np.minimum(events.x // self.pixel, self.width - 1)
        y = np.minimum(events.y // self.pixel, self.height - 1)
        cells = (events.p.astype(np.int64) * self.height + y) * self.width + x
        if self._parts and events.t[0] < self._parts[-1][0]:  # the clock has jumped back
            self.clear()
        self._parts.append((int(events.t[-1]), events.t[-_MOST_SHOWN:].copy(), cells[-_MOST_SHOWN:]))
        while self._parts[0][0] < events.t[-1] - SHOWN_US or sum(len(t) for _, t, _ in self._parts) > _MOST_SHOWN:
            self._parts.popleft()

    def clear(self) -> None:
        self._parts.clear()

    def pixels(self, now_us: int) -> npt.NDArray[np.uint8]:
        """Return the picture of the events before `now_us`.

        Returns:
            (height, width) uint8: the number of darker events, at most 15, in the upper four bits, and the number of
            brighter ones in the lower four.
        """
        recent = [cells[t > now_us - SHOWN_US] for _, t, cells in self._parts]
        cells = np.concatenate([np.empty(0, np.int64), *recent])
        counts = np.minimum(np.bincount(cells, minlength=2 * self.height * self.width), 15).astype(np.uint8)
        darker, brighter = counts.reshape(2, self.height, self.width)
        packed: npt.NDArray[np.uint8] = (darker << 4 | brighter).astype(np.uint8, copy=False)
        return packed
