"""When a window of live events ends: at a fixed rate, after a number of events, or sooner where more is happening."""

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
    """What is known when a window is planned."""

    anchor_us: int  # where the schedule began
    count: int  # windows that it has planned
    end_us: int  # of the last window; the anchor, if there was none
    last_rate_hz: float  # events per second and camera in the last window, NaN if there was none
    # of all known events at or after `end_us`, ascending; work for several cameras, so only where it is asked for
    times_us: Callable[[], npt.NDArray[np.int64]]
    num_cameras: int


class Schedule(Protocol):
    """Decides from the events since the last window, and from nothing else, so that packets make no difference."""

    @property
    def length_us(self) -> int | None:
        """How long windows are; None: since the end of the one before."""

    def next_end(self, known: KnownSoFar) -> tuple[int, float]:
        """End of the next window and the step of the model, both in microseconds.

        Asked again as events arrive. The window closes once everything before the answer is known.
        """


@dataclass(frozen=True)
class FixedRate:
    """Windows end `hz` times a second, edges rounded to the microsecond: the grid of `rvtssm predict`."""

    hz: float
    length_us: int | None = None  # None: as long as the stride

    def __post_init__(self) -> None:
        _check(self.length_us, hz=self.hz)

    def next_end(self, known: KnownSoFar) -> tuple[int, float]:
        settings = WindowSettings(1e6 / self.hz, self.length_us)
        (end_us,) = FreeGrid(known.anchor_us, settings).ends_us(known.count, known.count + 1)
        return int(end_us), settings.stride_us


@dataclass(frozen=True)
class EventCount:
    """A window ends right after its `num_events`-th event per camera, neither before `min_us` nor after `max_us`."""

    num_events: int
    min_us: int = 1_000
    max_us: int = 200_000
    length_us: int | None = None  # None: since the window before

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
    """A rate between `min_hz` and `max_hz` at which a window would have held `num_events` events per camera.

    The activity is that of the window before; the first window has the lowest rate.
    """

    num_events: int
    min_hz: float = 20.0
    max_hz: float = 200.0
    length_us: int | None = None  # None: as long as the stride

    def __post_init__(self) -> None:
        _check(self.length_us, num_events=self.num_events, min_hz=self.min_hz, max_hz=self.max_hz)
        if self.min_hz > self.max_hz:
            raise UserError(f"min_hz={self.min_hz:g} is above max_hz={self.max_hz:g}; exchange them")

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
