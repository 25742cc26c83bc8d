"""Histograms of a recording, window by window: along a grid known from the start, or while events arrive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from rvtssm.events.frame_counter import count_stream
from rvtssm.events.histogram import count_windows
from rvtssm.inference.pending import PendingEvents
from rvtssm.records import Events, Windows, WindowSettings


@dataclass(frozen=True, slots=True)
class RecordingWindows:
    """How the events of a recording are counted for a detector."""

    settings: WindowSettings  # of its training, but for the two below
    stride_us: float
    length_us: int | None  # None: since the end of the window before
    sensor_hw: tuple[int, int]
    downsample: int
    max_windows: int  # that go through the detector together


@dataclass(frozen=True, slots=True)
class Step:
    """n consecutive windows that are ready."""

    hist: np.ndarray  # (n, C, h, w)
    ends_us: np.ndarray  # (n,) int64
    step_us: np.ndarray  # (n,) float64, the time the detector steps by, which on a fixed grid is not rounded


def steps_of_file(
    blocks: Iterable[Events], windows: Windows, is_fixed: bool, counting: RecordingWindows
) -> Iterator[Step]:
    """The windows of a recording in order; on a fixed grid the stride is one number, otherwise what windows say."""
    done = 0
    height, width = counting.sensor_hw
    for hist in count_stream(blocks, windows, height, width, max_windows=counting.max_windows, **_options(counting)):
        part = slice(done, done + len(hist))
        step_us = np.full(len(hist), counting.stride_us) if is_fixed else windows.dt_us[part].astype(np.float64)
        yield Step(hist, windows.ends_us[part], step_us)
        done += len(hist)


def steps_as_they_come(blocks: Iterable[Events], counting: RecordingWindows) -> Iterator[Step]:
    """The same windows at a fixed stride from the first event on, each as soon as an event after it has arrived.

    The window of the last event closes when the blocks end. Memory holds the events of one window and one block.
    """
    pending = PendingEvents()
    first_us: int | None = None
    last_us = done = 0
    for block in blocks:
        pending.append(block)
        first_us, last_us = int(block.t[0]) if first_us is None else first_us, int(block.t[-1])
        ready = int((last_us - first_us) // counting.stride_us)
        while ready and not _is_past(_ends(first_us, ready - 1, ready, counting)[0], last_us, counting):
            ready -= 1  # rounding moved its end
        yield from _counted(pending, first_us, done, ready, counting)
        done = max(done, ready)
    if first_us is not None:
        stop = done + 1
        while _ends(first_us, stop - 1, stop, counting)[0] <= last_us:
            stop += 1
        yield from _counted(pending, first_us, done, stop, counting)


def _counted(
    pending: PendingEvents, first_us: int, start: int, stop: int, counting: RecordingWindows
) -> Iterator[Step]:
    for i in range(start, stop, counting.max_windows):
        j = min(i + counting.max_windows, stop)
        ends_us = _ends(first_us, i, j, counting)
        before_us = _ends(first_us, i - 1, j - 1, counting)
        starts_us = before_us if counting.length_us is None else ends_us - counting.length_us
        windows = Windows(np.stack([starts_us, ends_us], axis=1), ends_us - before_us)
        hist = count_windows(pending.events, windows, *counting.sensor_hw, **_options(counting))
        yield Step(hist, ends_us, np.full(j - i, counting.stride_us))
        pending.drop_before(int(ends_us[-1]) - (counting.length_us or 0))


def _is_past(end_us: int, last_us: int, counting: RecordingWindows) -> bool:
    """Whether no event from `last_us` on can be in a window; those of RVT are closed."""
    return last_us > end_us if counting.settings.convention == "rvt" else last_us >= end_us


def _ends(first_us: int, start: int, stop: int, counting: RecordingWindows) -> np.ndarray:
    """Ends of the windows [start, stop), counted from 0, as in `free_grid`."""
    return np.rint(first_us + counting.stride_us * np.arange(start + 1, stop + 1)).astype(np.int64)


def _options(counting: RecordingWindows) -> dict:
    settings = counting.settings
    return {
        "num_bins": settings.num_bins,
        "count_cutoff": settings.count_cutoff,
        "representation": settings.representation,
        "downsample": counting.downsample,
        "convention": settings.convention,
    }
