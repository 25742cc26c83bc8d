"""Faults of recordings: how many a reader found, what it says about them, and from how many on it refuses to go on."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from rvtssm.readers.gate import (
    BACKWARD,
    COARSE_US,
    EMPTY,
    JUMP_US,
    MOST_STRAYS,
    OTHER_CLOCK,
    OUTSIDE,
    UNREADABLE,
    State,
)

_ALWAYS_STORED = ("backward_steps", "out_of_frame", "truncated_bytes")
_ONE_IN = 10_000  # so many events may include one that is left out
# in small files, a handful, but no more than this share
_HANDFUL = 5
_SMALL_SHARE = 0.1
_MOST_MOVED = 0.01  # share of events out of order that can be a glitch of the camera
_FEW_MOVED = 100  # this many events out of order are accepted in any case
# Events per pixel and second, averaged over all pixels and the whole recording. The fastest sensors read out about 1e9
# events per second from 1280 x 720 pixels, 1,100 per pixel, and only for moments; smaller ones reach 300 to 700. Real
# recordings average 0.1 to 40, so 40 to 40,000 if the times are milliseconds and 1000 times that if they are seconds.
_MOST_PER_PIXEL = 1000
_FEWEST_PER_PIXEL = 0.005  # noise alone gives more
_FEWEST_IN_LONG = 0.05  # in recordings of minutes, as which seconds in nanoseconds appear
_LONG_US = 60_000_000
_ENOUGH_EVENTS = 1000  # fewer say little about the average
_INSTANT_US = 10  # some sensors give the same time to all events of a row, or of a reading
_FITTING = "give the height and width that fit"
MANY_EVENTS = 10_000  # fewer can be a single instant, or a short piece on purpose


@dataclass(frozen=True, slots=True)
class Reach:
    """The smallest and the largest x and y of all events, wherever they lie."""

    x: tuple[int, int]
    y: tuple[int, int]

    def advice(self, height: int, width: int) -> str:
        """Return why events may lie outside a sensor of this size, and what to do."""
        extent = f"x runs from {self.x[0]} to {self.x[1]} and y from {self.y[0]} to {self.y[1]}"
        if self.x[1] < height and self.y[1] < width:
            return f"{extent}: give height and width, or columns=, with x and y exchanged"
        if self.x[0] >= 1 and self.y[0] >= 1 and self.x[1] <= width and self.y[1] <= height:
            return f"{extent}: the pixels are counted from 1, subtract 1 from both"
        return f"{extent}: {_FITTING}"


@dataclass(frozen=True, slots=True)
class ReadFaults:
    """How many repairs were made in the part of a file that was read so far."""

    backward_steps: int = 0  # events earlier than an event before them; they get the latest time so far
    out_of_frame: int = 0  # events outside the sensor; they are left out
    truncated_bytes: int = 0  # bytes after the last complete event; they are ignored
    unreadable: int = 0  # events without a valid time or pixel; they are left out
    other_clock: int = 0  # events whose time comes from another clock; they are left out
    empty_rows: int = 0  # rows of zeros or NaN, as in arrays that were not filled to their end; they are left out
    coarse_us: int = 0  # the distance between two times that the type of a column can tell apart; 0 if all are exact

    @classmethod
    def of(cls, state: State, truncated_bytes: int = 0) -> ReadFaults:
        """Return the faults that a decoder has counted in its state."""
        counts = state.tolist()
        return cls(
            backward_steps=counts[BACKWARD],
            out_of_frame=counts[OUTSIDE],
            truncated_bytes=truncated_bytes,
            unreadable=counts[UNREADABLE],
            other_clock=counts[OTHER_CLOCK],
            empty_rows=counts[EMPTY],
            coarse_us=counts[COARSE_US],
        )

    def to_json(self) -> dict[str, int]:
        """Return the counts as prepared files store them: kinds that few recordings have are there if there are any."""
        counts = asdict(self)
        return {name: count for name, count in counts.items() if count or name in _ALWAYS_STORED}

    def note(self, num_events: int, height: int, width: int) -> str:
        """Return what was left out, in one line; empty if nothing was.

        Args:
            num_events: Number of events that were kept.
            height: Height of the sensor, pixels.
            width: Width of the sensor, pixels.
        """
        total = num_events + self.out_of_frame + self.unreadable + self.other_clock + self.empty_rows
        kinds = (
            (self.out_of_frame, f"outside the {width}x{height} (width x height) pixels"),
            (self.unreadable, "without a valid time or pixel"),
            (self.other_clock, "with the time of another clock"),
            (self.empty_rows, "that are empty rows"),
        )
        left_out = [f"{count} of {total} events {kind}" for count, kind in kinds if count]
        if self.truncated_bytes:
            last = "the last byte" if self.truncated_bytes == 1 else f"the last {self.truncated_bytes} bytes"
            left_out.append(f"{last} of the file, after its last whole event")
        notes = [f"left out {' and '.join(left_out)}"] if left_out else []
        if self.coarse_us:
            notes.append(f"times are only exact to {self.coarse_us} us, because their column has few bits")
        return "; ".join(notes)

    def refusal(
        self, num_events: int, height: int, width: int, is_repaired: bool, reach: Callable[[], Reach] | None = None
    ) -> str:
        """Return why a recording with these faults is not read, and what to do; empty if it is read.

        Args:
            num_events: Number of events that were kept.
            height: Height of the sensor, pixels.
            width: Width of the sensor, pixels.
            is_repaired: Whether the user asked for `repair=true`.
            reach: Returns the pixels of all events. It is called if many lie outside the sensor.
        """
        total = num_events + self.out_of_frame + self.unreadable + self.other_clock
        # How many faulty events are an accident and not a wrong size or order.
        few = max(total // _ONE_IN, min(_HANDFUL, int(_SMALL_SHARE * total)))
        if self.other_clock > max(few, MOST_STRAYS):
            return (
                f"has {self.other_clock} of {total} events that are earlier than an event before them by more than "
                f"{JUMP_US // 1000} ms, or far ahead of their neighbours: its clock began again, two recordings follow "
                "each other, or it is in another order; cut the file there, or sort it by time"
            )
        # The user has said that faulty events are to be left out or moved.
        if is_repaired:
            return ""
        if self.out_of_frame > few:
            return (
                f"has {self.out_of_frame} of {total} events outside its {width}x{height} (width x height) pixels; "
                f"{reach().advice(height, width) if reach else _FITTING}, or repair=true to leave these events out"
            )
        if self.unreadable > few:
            return (
                f"has {self.unreadable} of {total} events that cannot be read: x or y has a fraction (as of rectified "
                "events), or the time is negative or no number; convert them, or give repair=true to leave them out"
            )
        if self.backward_steps > max(_MOST_MOVED * total, _FEW_MOVED):
            return (
                f"has {self.backward_steps} of {total} events that are earlier than an event before them; sort it by "
                "time, or give repair=true (dataset.repair=true, in Python repair=True) to move them "
                "to the time of that event"
            )
        return ""


@contextmanager
def noted() -> Iterator[list[str]]:
    """Yield a list that collects what would be warned of in the block, for a process that has no terminal."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield texts
    texts += dict.fromkeys(str(warning.message) for warning in caught)


def say(text: str) -> None:
    """Warn without a registry, which would keep a second recording quiet."""
    warnings.warn_explicit(text, UserWarning, __file__, 0)


def are_multiples(t: npt.NDArray[np.int64]) -> bool:
    """Return whether some tens of times are multiples of 1000, as times in nanoseconds often are."""
    # neighbours too: evenly spaced times can be multiples of 1000 at every n-th event
    return not ((t[:64] % 1000).any() or (t[:: len(t) // 50 or 1] % 1000).any())


def warn_of_unit(
    name: str, num_events: int, range_us: tuple[int, int], size_hw: tuple[int, int], is_multiple: bool | None = None
) -> bool:
    """Warn if the times of a recording cannot be microseconds: no sensor gives so many events, or so few.

    Args:
        name: The recording, for the message.
        num_events: Number of events.
        range_us: Times of the first and the last event, as they were read.
        size_hw: Height and width of the sensor, pixels.
        is_multiple: Whether all times are multiples of 1000; None: the unit of longer times is certain.

    Returns:
        Whether it warned.
    """
    height, width = size_hw
    span_us = range_us[1] - range_us[0]
    per_pixel = num_events / (height * width) / max(span_us, 1) * 1e6
    count = f"{name} has {num_events} events in "
    if num_events >= (_ENOUGH_EVENTS if span_us >= _INSTANT_US else MANY_EVENTS) and per_pixel > _MOST_PER_PIXEL:
        say(
            f"{count}{span_us / 1000:g} ms on {width} x {height} pixels, that is {per_pixel:.0f} per pixel and second, "
            "more than any sensor gives; if the times are milliseconds or seconds, give time_unit=ms or time_unit=s "
            "(of an array, multiply them by 1000 or by 1000000)"
        )
        return True
    # Too few events for any sensor, or times that are all whole milliseconds: nanoseconds.
    is_multiple = is_multiple and span_us > 0  # a single time may be 0
    fewest = _FEWEST_IN_LONG if span_us > _LONG_US else _FEWEST_PER_PIXEL
    if is_multiple is None or num_events < _ENOUGH_EVENTS or not (is_multiple or per_pixel < fewest):
        return False
    odd = "and all times are multiples of 1000" if is_multiple else "fewer than sensors give"
    say(
        f"{count}{span_us / 1e6:.0f} s, {odd}; if the times are nanoseconds, give time_unit=ns (of an array, divide "
        "them by 1000: t // 1000)"
    )
    return True
