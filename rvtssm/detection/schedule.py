"""When a window of live events ends: at a fixed rate, after a number of events, or faster when more is happening."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rvtssm.events.windows import FreeGrid
from rvtssm.records import WindowSettings
from rvtssm.system.limits import check_number
from rvtssm.system.user_error import UserError


@dataclass(frozen=True, slots=True)
class KnownSoFar:
    """What is known when the next window is planned."""

    anchor_us: int  # start of the schedule
    count: int  # number of windows planned since then
    end_us: int  # end of the last window; the anchor if there was none
    last_rate_hz: float  # events per second and camera in the last window; NaN if there was none
    # Returns the times of all known events at or after `end_us`, ascending. With several cameras this takes some work.
    times_us: Callable[[], npt.NDArray[np.int64]]
    num_cameras: int


class Schedule(Protocol):
    """Decides when windows end. It depends only on the events since the last window, so packets make no difference."""

    @property
    def length_us(self) -> int | None:
        """Length of windows. None: each begins at the end of the previous one."""

    def next_end(self, known: KnownSoFar) -> tuple[int, float]:
        """Return the end of the next window and the step of the model, both in microseconds.

        This is called again as events arrive. The window closes once all events before the returned end are known.
        """


@dataclass(frozen=True)
class FixedRate:
    """Windows end `hz` times per second, rounded to the microsecond, on the grid of `rvtssm predict`."""

    hz: float
    length_us: int | None = None  # None: as long as the stride

    def __post_init__(self) -> None:
        _check(self.length_us, hz=self.hz)

    def __str__(self) -> str:
        return f"{self.hz:g} Hz with windows of {(self.length_us or 1e6 / self.hz) / 1000:g} ms"

    def next_end(self, known: KnownSoFar) -> tuple[int, float]:
        settings = WindowSettings(1e6 / float(self.hz), self.length_us)
        (end_us,) = FreeGrid(known.anchor_us, settings).ends_us(known.count, known.count + 1)
        return int(end_us), settings.stride_us


@dataclass(frozen=True)
class EventCount:
    """A window ends right after its `num_events`-th event per camera, but not before `min_us` or after `max_us`."""

    num_events: int
    min_us: int = 1_000
    max_us: int = 200_000
    length_us: int | None = None  # None: from the end of the previous window

    def __post_init__(self) -> None:
        _check(self.length_us, num_events=self.num_events, min_us=self.min_us, max_us=self.max_us - self.min_us + 1)

    def next_end(self, known: KnownSoFar) -> tuple[int, float]:
        latest = known.end_us + self.max_us
        wanted = self.num_events * known.num_cameras
        times_us = known.times_us()
        if len(times_us) < wanted:
            end_us = latest
        else:
            end_us = min(max(int(times_us[wanted - 1]) + 1, known.end_us + self.min_us), latest)
        return end_us, float(end_us - known.end_us)


@dataclass(frozen=True)
class Adaptive:
    """The rate, between `min_hz` and `max_hz`, at which a window would have held `num_events` events per camera.

    The event rate is taken from the previous window. The first window has the lowest rate.
    """

    num_events: int
    min_hz: float = 20.0
    max_hz: float = 200.0
    length_us: int | None = None  # None: as long as the stride

    def __post_init__(self) -> None:
        _check(self.length_us, num_events=self.num_events, min_hz=self.min_hz, max_hz=self.max_hz)
        if self.min_hz > self.max_hz:
            raise UserError(f"min_hz={self.min_hz:g} is above max_hz={self.max_hz:g}; swap them")

    def next_end(self, known: KnownSoFar) -> tuple[int, float]:
        wanted_hz = 0.0 if math.isnan(known.last_rate_hz) else known.last_rate_hz / self.num_events
        stride_us = round(1e6 / min(max(wanted_hz, self.min_hz), self.max_hz))
        return known.end_us + stride_us, float(stride_us)


def _check(length_us: int | None, **positive: float) -> None:
    for name, value in {**positive, **({} if length_us is None else {"length_us": length_us})}.items():
        if name.endswith("hz"):
            check_number(f"{name} of a schedule", value, 1e-6, 1e6)
        else:
            check_number(f"{name} of a schedule", value, 1, is_whole=True)
