"""Reduce events to cells: the place in the frame where each event is counted, in the order of time.

A cell is 2 * pixel + polarity. Downsampling, flips, crops and zooms are lookup tables from sensor coordinates to frame
coordinates, so they add no cost to the single pass that makes the cells. Events on pixels that the frame does not show
are dropped here.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rvtssm.records import Events
from rvtssm.records.settings import REDUCTIONS
from rvtssm.system.jit import jit
from rvtssm.system.limits import check_choice
from rvtssm.system.user_error import UserError

Ints = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
_DROPPED = -(1 << 30)  # so small that a sum with a place, or of two of these, stays negative


@dataclass(frozen=True, slots=True)
class FramePixels:
    """Where each sensor coordinate appears in the frame: at `count` consecutive frame coordinates, starting at `first`.

    `row_place[y] + column_place[x]` is the frame pixel of an event. The sum is negative if the sensor pixel appears
    nowhere in the frame or more than once.
    """

    sensor_height: int
    sensor_width: int
    height: int  # of the frame, pixels
    width: int  # of the frame, pixels
    row_first: Int32s  # (sensor_height,)
    row_count: Int32s  # (sensor_height,)
    column_first: Int32s  # (sensor_width,)
    column_count: Int32s  # (sensor_width,)
    row_place: Int32s  # (sensor_height,)
    column_place: Int32s  # (sensor_width,)

    most: int  # largest number of frame pixels that show the same sensor pixel
    shows_all: bool  # every sensor pixel appears exactly once, and steps from one pixel to the next are equal


def frame_pixels(
    height: int,
    width: int,
    downsample: int = 1,
    row_sources: Ints | None = None,
    column_sources: Ints | None = None,
    reduce: str = "nearest",
) -> FramePixels:
    """Map sensor coordinates to frame coordinates.

    Downsampling by `nearest` keeps one pixel of each downsample x downsample square, the one at index downsample // 2
    in both directions (nearest-exact, as RVT does). By `sum`, all pixels of the square share one frame pixel, so that
    their events are counted together. Flips, crops and nearest-neighbour zooms are given as source tables.

    Args:
        height: Height of the sensor, pixels.
        width: Width of the sensor, pixels.
        downsample: Side of the square of sensor pixels that becomes one frame pixel.
        row_sources: (h,), row i of the frame shows row `row_sources[i]` of the downsampled sensor; a negative value
            leaves the row empty. None shows all rows in their order.
        column_sources: (w,), the same for columns.
        reduce: One of `rvtssm.records.settings.REDUCTIONS`.

    Raises:
        UserError: `downsample` is below 1, or `reduce` is unknown.
    """
    check_choice("reduce", reduce, REDUCTIONS)
    if downsample < 1:
        raise UserError("setting.out_of_range", name="downsample", found=downsample, needed="at least 1")
    # Where each row and column of the sensor goes, and to how many places.
    row_first, row_count = _axis(height, downsample, row_sources, reduce)
    column_first, column_count = _axis(width, downsample, column_sources, reduce)
    frame_height = height // downsample if row_sources is None else len(row_sources)
    frame_width = width // downsample if column_sources is None else len(column_sources)
    sizes = (height, width, frame_height, frame_width)
    axes = (row_first, row_count, column_first, column_count)
    return FramePixels(
        *sizes,
        *axes,
        row_place=np.where(row_count == 1, row_first * frame_width, _DROPPED).astype(np.int32),
        column_place=np.where(column_count == 1, column_first, _DROPPED).astype(np.int32),
        most=int(row_count.max() * column_count.max()),
        shows_all=_is_straight(row_first, row_count) and _is_straight(column_first, column_count),
    )


def _axis(size: int, downsample: int, sources: Ints | None, reduce: str) -> tuple[Int32s, Int32s]:
    """Return, for every sensor coordinate, the first frame coordinate that shows it and how many show it."""
    frame_size = size // downsample
    first = np.zeros(frame_size, np.int32)
    count = np.ones(frame_size, np.int32)
    if sources is None:
        first[:] = np.arange(frame_size)
    else:
        count[:] = np.bincount(sources[sources >= 0], minlength=frame_size)
        targets = np.flatnonzero(sources >= 0)[::-1]
        first[sources[targets]] = targets  # the last one written is the smallest
    # From sensor to frame; what lies beyond the last whole square is left out.
    sensor = np.arange(size)
    frame = sensor // downsample
    is_kept = frame < frame_size
    if reduce == "nearest":
        is_kept &= sensor % downsample == downsample // 2
    frame = np.where(is_kept, frame, 0)
    return np.where(is_kept, first[frame], 0).astype(np.int32), np.where(is_kept, count[frame], 0).astype(np.int32)


def _is_straight(first: Int32s, count: Int32s) -> bool:
    """Return whether every coordinate is shown once and all steps from one coordinate to the next are equal."""
    return bool((count == 1).all() and (np.diff(first) == first[1:2] - first[0:1]).all())


def pack(events: Events, pixels: FramePixels, cells: Int32s, before: Int32s) -> None:
    """Write the cells of N events to `cells`, from index `before[0]` on.

    Args:
        events: Events that all lie on the sensor; the caller has checked this.
        pixels: The map from sensor to frame.
        cells: Output with room for `pixels.most` cells per event and one more.
        before: (N + 1,). before[i + 1] is set to the index after the cells of event i. If every event has exactly one
            cell (`pixels.shows_all`), only before[0] is read and nothing is written.
    """
    where = events.x, events.y, events.p
    if pixels.shows_all:
        _pack_all(*where, pixels.row_place, pixels.column_place, cells[before[0] :])
    elif pixels.most <= 1:
        _pack_some(*where, pixels.row_place, pixels.column_place, cells, before)
    else:
        tables = (pixels.row_first, pixels.row_count, pixels.column_first, pixels.column_count)
        _pack_enlarged(*where, *tables, pixels.width, cells, before)


@jit
def _pack_all(x, y, p, rows, columns, cells):  # type: ignore[no-untyped-def]
    # All steps are equal, so the loop needs no tables and is vectorised.
    row_step = rows[min(1, len(rows) - 1)] - rows[0]
    column_step = columns[min(1, len(columns) - 1)] - columns[0]
    first = rows[0] + columns[0]
    for i in range(np.uint64(len(x))):
        cells[i] = 2 * (first + row_step * y[i] + column_step * x[i]) + np.int32(p[i])


@jit
def _pack_some(x, y, p, rows, columns, cells, before):  # type: ignore[no-untyped-def]
    """Write every cell, and advance only if it counts, so that the next cell overwrites it otherwise.

    A branch would often be mispredicted.
    """
    n = np.uint64(before[0])
    for i in range(np.uint64(len(x))):
        pixel = rows[y[i]] + columns[x[i]]
        cells[n] = 2 * pixel + np.int32(p[i])
        n += np.uint64(pixel >= 0)
        before[i + np.uint64(1)] = n


@jit
def _pack_enlarged(x, y, p, row_first, row_count, column_first, column_count, width, cells, before):  # type: ignore[no-untyped-def]
    n = np.uint64(before[0])
    for i in range(np.uint64(len(x))):
        for row in range(row_first[y[i]], row_first[y[i]] + row_count[y[i]]):
            for column in range(column_first[x[i]], column_first[x[i]] + column_count[x[i]]):
                cells[n] = 2 * (row * width + column) + np.int32(p[i])
                n += np.uint64(1)
        before[i + np.uint64(1)] = n
