"""Filters that remove noise and lamps from events before they are counted. All are off by default.

A filter decides about every event from the events before it, within a time that it states (`memory_us`). So it does not
matter how events are cut into blocks, and the events of a time range can be filtered without reading from the start.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from rvtssm.readers.source import EventSource
from rvtssm.records import Events
from rvtssm.system.jit import jit
from rvtssm.system.limits import check_choice, check_number, field_names
from rvtssm.system.user_error import UserError

Keep = npt.NDArray[np.bool_]
State = tuple[np.ndarray, ...]
Filters = Sequence[str | Mapping[str, Mapping[str, Any]]]
_NEVER_US = -(1 << 62)


class Filter(ABC):
    """One filter. Its fields are its parameters."""

    def __post_init__(self) -> None:
        for parameter in fields(self):  # type: ignore[arg-type]
            value = getattr(self, parameter.name)
            is_whole = isinstance(parameter.default, int)
            check_number(f"filters: {parameter.name}", value, parameter.metadata["least"], is_whole=is_whole)

    @property
    @abstractmethod
    def memory_us(self) -> int:
        """How long an event can influence the decision about later ones, microseconds."""

    @abstractmethod
    def start(self, height: int, width: int, begin_us: int) -> State:
        """Return the state at the begin of a stream, before its first event."""

    @abstractmethod
    def keep(self, events: Events, state: State) -> Keep:
        """Return which events to keep, (N,) bool, and advance the state in place."""


def _parameter(default: float, least: float) -> Any:
    return field(default=default, metadata={"least": least})


@dataclass(frozen=True)
class Background(Filter):
    """Remove events without events nearby, which is how noise of single pixels looks.

    An event stays if at least `neighbours` of its 8 neighbouring pixels had an event within the last `within_ms`.
    Events that were removed count as well.

    Source: Delbruck, "Frame-free dynamic digital vision" (2008), with one neighbour; Guo and Delbruck, "Low Cost and
    Latency Event Camera Background Activity Denoising" (2022), with several.
    """

    within_ms: float = _parameter(5.0, 0.001)
    neighbours: int = _parameter(2, 1)

    @property
    def memory_us(self) -> int:
        return round(1000 * self.within_ms)

    def start(self, height: int, width: int, begin_us: int) -> State:
        return (np.full((height + 2, width + 2), _NEVER_US, np.int64),)  # time of the last event, with a border

    def keep(self, events: Events, state: State) -> Keep:
        return _keep_background(events.t, events.x, events.y, *state, self.memory_us, int(self.neighbours))


@dataclass(frozen=True)
class HotPixels(Filter):
    """Remove the events of pixels that fire much more often than the pixels around them.

    A pixel is hot during a period of `period_ms` if it had more than `rate_hz` events per second in the period before,
    and more than `factor` times the mean of its 8 neighbours. Periods begin at multiples of their length; the first one
    of a stream has no hot pixels. `rvtssm inspect` counts hot pixels of a whole recording by the same comparison.
    """

    period_ms: float = _parameter(1000.0, 1.0)
    rate_hz: float = _parameter(30.0, 0.0)
    factor: float = _parameter(10.0, 1.0)

    @property
    def memory_us(self) -> int:
        return 2 * self._period_us

    @property
    def _period_us(self) -> int:
        return round(1000 * self.period_ms)

    def start(self, height: int, width: int, begin_us: int) -> State:
        counts = np.zeros((height + 2, width + 2), np.int32)  # of this period, with a border
        return np.full(1, _NEVER_US, np.int64), counts, np.zeros((height, width), np.bool_)

    def keep(self, events: Events, state: State) -> Keep:
        least = self.rate_hz * self.period_ms / 1000
        return _keep_not_hot(events.t, events.x, events.y, *state, self._period_us, least, self.factor)


@dataclass(frozen=True)
class Flicker(Filter):
    """Remove the events of pixels that flicker like lamps at the frequency of the mains (50 or 60 Hz) or twice as fast.

    A cycle of a pixel begins with an event that is brighter after one that is darker. Events are removed while the last
    `cycles` cycles and the one that is under way together took at most as long as at `lowest_hz`. When a stream begins,
    all events of that time are removed, because it is not known yet which pixels flicker.

    Source: own. Metavision's filter against flicker looks for the period of each pixel as well.
    """

    lowest_hz: float = _parameter(45.0, 0.1)
    cycles: int = _parameter(3, 1)

    @property
    def memory_us(self) -> int:
        return 2 * self._longest_us

    @property
    def _longest_us(self) -> int:
        return round(1e6 * (self.cycles + 1) / self.lowest_hz)

    def start(self, height: int, width: int, begin_us: int) -> State:
        begins_us = np.full((height, width, int(self.cycles) + 1), _NEVER_US, np.int64)  # of the last cycles, a ring
        places, darker_us = np.zeros((height, width), np.uint16), np.full((height, width), _NEVER_US, np.int64)
        return begins_us, places, darker_us, np.full(1, begin_us + self._longest_us, np.int64)

    def keep(self, events: Events, state: State) -> Keep:
        *state_of_pixels, known_us = state
        is_kept: Keep = _keep_steady(events.t, events.x, events.y, events.p, *state_of_pixels, self._longest_us)
        return is_kept & (events.t >= known_us[0])


@dataclass(frozen=True)
class TrailingEdge(Filter):
    """Keep the first event of every burst: an edge that passes a pixel causes several events of the same polarity.

    An event is removed if the event before it at the same pixel has the same polarity and is at most `within_ms` old.

    Source: Prophesee's trail filter.
    """

    within_ms: float = _parameter(10.0, 0.001)

    @property
    def memory_us(self) -> int:
        return round(1000 * self.within_ms)

    def start(self, height: int, width: int, begin_us: int) -> State:
        return np.full((height, width), _NEVER_US, np.int64), np.zeros((height, width), np.uint8)

    def keep(self, events: Events, state: State) -> Keep:
        return _keep_first(events.t, events.x, events.y, events.p, *state, self.memory_us)


@dataclass(frozen=True)
class Refractory(Filter):
    """Remove events that follow another one of their pixel within `within_ms`, of either polarity.

    Some recordings repeat most of their events, often with the other polarity; `within_ms=0.005` removes only these.
    Events that were removed count as well.

    Source: `RefractoryPeriodFilter` of dv-processing.
    """

    within_ms: float = _parameter(10.0, 0.001)

    @property
    def memory_us(self) -> int:
        return round(1000 * self.within_ms)

    def start(self, height: int, width: int, begin_us: int) -> State:
        return (np.full((height, width), _NEVER_US, np.int64),)

    def keep(self, events: Events, state: State) -> Keep:
        return _keep_recovered(events.t, events.x, events.y, *state, self.memory_us)


@dataclass(frozen=True)
class Region(Filter):
    """Keep the events with left <= x < right and top <= y < bottom, in pixels. Frames keep their size."""

    left: int = _parameter(0, 0)
    top: int = _parameter(0, 0)
    right: int = _parameter(1 << 16, 1)
    bottom: int = _parameter(1 << 16, 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.left >= self.right or self.top >= self.bottom:
            advice = "give left < right and top < bottom"
            raise UserError("setting.form", name=self, found="holds no pixel", advice=advice)

    @property
    def memory_us(self) -> int:
        return 0

    def start(self, height: int, width: int, begin_us: int) -> State:
        return ()

    def keep(self, events: Events, state: State) -> Keep:
        x, y = events.x, events.y
        is_inside: Keep = (x >= self.left) & (x < self.right) & (y >= self.top) & (y < self.bottom)
        return is_inside


FILTERS: dict[str, type[Filter]] = {
    "background": Background,
    "hot_pixels": HotPixels,
    "flicker": Flicker,
    "refractory": Refractory,
    "region": Region,
    "trailing_edge": TrailingEdge,
}


class FilterChain:
    """The filters of one stream, in order. Call it with consecutive events.

    Args:
        given: Names of FILTERS, or mappings from one name to the parameters that differ from the defaults, such as
            {"region": {"top": 100}}.
        height: Height of the sensor, pixels.
        width: Width of the sensor, pixels.

    Raises:
        UserError: A filter or a parameter is unknown, or a value is out of range.
    """

    def __init__(self, given: Filters, height: int, width: int) -> None:
        self.given, self.height, self.width = given, height, width
        self.filters = checked_filters(given)
        self._states: list[State] | None = None  # None: before the first event
        self.num_events = 0  # before the first filter
        self.num_removed = dict.fromkeys(self.filters, 0)

    @property
    def memory_us(self) -> int:
        """How much earlier than a time range filtering has to begin, microseconds."""
        return sum(one.memory_us for one in self.filters.values())

    def __call__(self, events: Events) -> Events:
        """Return the events that all filters keep."""
        if not len(events):
            return events
        if self._states is None:
            self.begin(int(events.t[0]))
        assert self._states is not None
        self.num_events += len(events)
        for (name, one), state in zip(self.filters.items(), self._states, strict=True):
            if not len(events):
                break
            # Each filter sees what those before it have kept.
            is_kept = one.keep(events, state)
            before = len(events)
            events = events[is_kept]
            self.num_removed[name] += before - len(events)
        return events

    def begin(self, begin_us: int) -> None:
        """Begin a stream at a time; without this call, it begins with the first event. The counts stay."""
        self._states = [one.start(self.height, self.width, begin_us) for one in self.filters.values()]

    def restart(self) -> None:
        """Forget the stream: the next events begin another one. The counts stay."""
        self._states = None

    def blocks(self, blocks: Iterable[Events]) -> Iterator[Events]:
        """Yield what is left of consecutive blocks, without empty ones."""
        for block in blocks:
            filtered = self(block)
            if len(filtered):
                yield filtered

    def between(self, source: EventSource, start_us: int, end_us: int) -> Events:
        """Return the events of a time range that these filters keep, from a source that can be sought in.

        Nothing is counted. Filtering begins only as early as the filters remember.
        """
        if not self.filters:
            return source.between(start_us, end_us)
        assert source.time_range_us is not None
        chain = FilterChain(self.given, self.height, self.width)
        begin_us = max(start_us - self.memory_us, source.time_range_us[0])
        chain.begin(begin_us)
        return chain(source.between(begin_us, end_us)).between(start_us, end_us)

    def removed(self) -> dict[str, float]:
        """Return the share of all events that each filter removed, 0 to 1."""
        return {name: count / max(self.num_events, 1) for name, count in self.num_removed.items()}


def checked_filters(given: Filters) -> dict[str, Filter]:
    """Return filters by their names, see `FilterChain`. Raise UserError for wrong ones."""
    if isinstance(given, str | Mapping):
        raise UserError("setting.form", found=f"filters={given!r} is not a list", advice=f"write filters=[{given}]")
    filters: dict[str, Filter] = {}
    for entry in given:
        # A name, or a mapping of one name to parameters.
        named = entry if isinstance(entry, Mapping) else {str(entry): {}}
        (name, parameters), *others = [*named.items()] or [("", {})]
        check_choice("filters", name, FILTERS)
        known = field_names(FILTERS[name])
        if others or name in filters or not isinstance(parameters, Mapping):
            advice = "name each once, as in [background,{region:{top:100}}]"
            raise UserError("setting.form", found=f"filters names {entry!r}", advice=advice)
        for parameter in parameters:
            check_choice(f"filters: parameter of {name}", parameter, known)
        filters[name] = FILTERS[name](**parameters)
    return filters


@jit
def _keep_background(t, x, y, last_us, within_us, neighbours):
    """See `Background`; last_us (h + 2, w + 2) is the time of the last event of each pixel."""
    is_kept = np.empty(len(t), np.bool_)
    for i in range(len(t)):
        row, column, since_us = int(y[i]), int(x[i]), t[i] - within_us
        count = 0
        for dy in range(3):
            for dx in range(3):
                if (dy != 1 or dx != 1) and last_us[row + dy, column + dx] >= since_us:
                    count += 1
        is_kept[i] = count >= neighbours
        last_us[row + 1, column + 1] = t[i]
    return is_kept


@jit
def _keep_not_hot(t, x, y, period_begin_us, counts, is_hot, period_us, least, factor):
    """See `HotPixels`; counts (h + 2, w + 2) of the period that begins at period_begin_us[0], is_hot (h, w)."""
    is_kept = np.empty(len(t), np.bool_)
    height, width = is_hot.shape
    for i in range(len(t)):
        # When a period ends, its counts decide which pixels are hot in the next one.
        begin_us = t[i] // period_us * period_us
        if begin_us != period_begin_us[0]:
            is_next = begin_us == period_begin_us[0] + period_us
            for row in range(height):
                for column in range(width):
                    count = counts[row + 1, column + 1]
                    is_hot[row, column] = False
                    if is_next and count > least:
                        around = counts[row : row + 3, column : column + 3].sum() - count
                        is_hot[row, column] = count > factor * around / 8
            counts[:] = 0
            period_begin_us[0] = begin_us
        counts[int(y[i]) + 1, int(x[i]) + 1] += 1
        is_kept[i] = not is_hot[y[i], x[i]]
    return is_kept


@jit
def _keep_steady(t, x, y, p, begins_us, places, darker_us, longest_us):
    """See `Flicker`; begins_us (h, w, cycles + 1) is a ring per pixel whose oldest entry is at places (h, w).

    darker_us (h, w) is the time of the pixel's last event if that was darker.
    """
    is_kept = np.empty(len(t), np.bool_)
    num_places = begins_us.shape[2]
    for i in range(len(t)):
        # A cycle begins with an event that is brighter after one that is darker.
        row, column, since_us = y[i], x[i], t[i] - longest_us
        if p[i] == 0:
            darker_us[row, column] = t[i]
        else:
            if darker_us[row, column] >= since_us:  # a cycle begins
                begins_us[row, column, places[row, column]] = t[i]
                places[row, column] = (places[row, column] + 1) % num_places
            darker_us[row, column] = _NEVER_US
        is_kept[i] = begins_us[row, column, places[row, column]] < since_us
    return is_kept


@jit
def _keep_first(t, x, y, p, last_us, last_p, within_us):
    """See `TrailingEdge`; last_us and last_p (h, w) are time and polarity of the last event of each pixel."""
    is_kept = np.empty(len(t), np.bool_)
    for i in range(len(t)):
        row, column = y[i], x[i]
        is_kept[i] = last_p[row, column] != p[i] or last_us[row, column] < t[i] - within_us
        last_us[row, column], last_p[row, column] = t[i], p[i]
    return is_kept


@jit
def _keep_recovered(t, x, y, last_us, within_us):
    """See `Refractory`; last_us (h, w) is the time of the last event of each pixel."""
    is_kept = np.empty(len(t), np.bool_)
    for i in range(len(t)):
        is_kept[i] = last_us[y[i], x[i]] < t[i] - within_us
        last_us[y[i], x[i]] = t[i]
    return is_kept
