"""Events that a window may still need: packets are appended, the past is dropped, neither copies what is kept."""

from __future__ import annotations

import numpy as np

from rvtssm.records import Events

_DTYPES = {"t": np.int64, "x": np.uint16, "y": np.uint16, "p": np.uint8}


class PendingEvents:
    """A queue in arrays that grow as needed and stay as large as the most that was ever pending."""

    def __init__(self, events: Events | None = None) -> None:
        self._arrays = {name: np.empty(1024, dtype) for name, dtype in _DTYPES.items()}
        self._start = self._stop = 0
        if events is not None:
            self.append(events)

    @property
    def events(self) -> Events:
        """All of them, as views that hold until the next call."""
        return Events(**{name: array[self._start : self._stop] for name, array in self._arrays.items()})

    def append(self, events: Events) -> None:
        """Copies events in, which are not earlier than those there are."""
        wanted = self._stop + len(events)
        if wanted > len(self._arrays["t"]):
            self._make_room(len(events))
        for name, array in self._arrays.items():
            array[self._stop : self._stop + len(events)] = getattr(events, name)
        self._stop += len(events)

    def drop_before(self, time_us: int) -> None:
        """Forget the events before a time."""
        self._start += int(np.searchsorted(self.events.t, time_us, side="left"))

    def _make_room(self, count: int) -> None:
        """Move to the front; into larger arrays when more than half is needed, so that moving stays rare."""
        pending = self._stop - self._start
        size = len(self._arrays["t"])
        while size < 2 * (pending + count):
            size *= 2
        for name, old in self._arrays.items():
            new = np.empty(size, old.dtype)
            new[:pending] = old[self._start : self._stop]
            self._arrays[name] = new
        self._start, self._stop = 0, pending
