"""Events reduced to what counting needs: the cell of the frame that each falls into, in the order of their times.

A cell is 2 * pixel + polarity. Halving, flips, crops and zooms are tables from sensor to frame, so that they cost
nothing besides the one pass that makes the cells. Events on pixels that the frame does not show are left out here.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rvtssm.events.jit import jit
from rvtssm.records import Events
from rvtssm.system.user_error import UserError

Ints = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
_DROPPED = -(1 << 30)  # stays negative whatever is added to it, also twice


@dataclass(frozen=True, slots=True)
class FramePixels:
    """Where each sensor coordinate is shown: `count` consecutive frame coordinates from `first` on.

    `row_place` and `column_place` add up to the pixel, or to a negative number where there is none or more than one.
    """

    sensor_height: int
    sensor_width: int
    height: int  # of the frame
    width: int
    row_first: Int32s  # (sensor_height,)
    row_count: Int32s
    column_first: Int32s  # (sensor_width,)
    column_count: Int32s
    row_place: Int32s
    column_place: Int32s

    most: int  # frame pixels that one sensor pixel is shown at
    shows_all: bool  # every sensor pixel is one pixel of the frame, and neighbours stay neighbours


def frame_pixels(
    height: int,
    width: int,
    downsample: int = 1,
    row_sources: Ints | None = None,
    column_sources: Ints | None = None,
) -> FramePixels:
    """Return the frame of a sensor: of downsample x downsample pixels the one right below the middle (nearest-exact).

    With `row_sources` (h,), row i shows what row row_sources[i] of that frame would have shown, or nothing if that is
    negative; `column_sources` (w,) likewise. Flips, crops and nearest zooms are such tables. Raise ValueError for a
    `downsample` below 1.
    """
    if downsample < 1:
        raise UserError(f"cannot keep one pixel in {downsample=}; use at least 1")
    row_first, row_count = _axis(height, downsample, row_sources)
    column_first, column_count = _axis(width, downsample, column_sources)
    frame_height = height // downsample if row_sources is None else len(row_sources)
    frame_width = width // downsample if column_sources is None else len(column_sources)
    return FramePixels(
        height,
        width,
        frame_height,
        frame_width,
        row_first,
        row_count,
        column_first,
        column_count,
        row_place=np.where(row_count == 1, row_first * frame_width, _DROPPED).astype(np.int32),
        column_place=np.where(column_count == 1, column_first, _DROPPED).astype(np.int32),
        most=int(row_count.max() * column_count.max()),
        shows_all=_is_straight(row_first, row_count) and _is_straight(column_first, column_count),
    )


def _axis(size: int, downsample: int, sources: Ints | None) -> tuple[Int32s, Int32s]:
    """Return the first frame coordinate and the number of them, for every sensor coordinate."""
    frame_size = size // downsample
    first, count = np.zeros(frame_size, np.int32), np.ones(frame_size, np.int32)
    if sources is None:
        first[:] = np.arange(frame_size)
    else:
        count[:] = np.bincount(sources[sources >= 0], minlength=frame_size)
        targets = np.flatnonzero(sources >= 0)[::-1]
        first[sources[targets]] = targets  # the last one written is the smallest
    sensor = np.arange(size)
    frame = sensor // downsample
    is_kept = (sensor % downsample == downsample // 2) & (frame < frame_size)
    frame = np.where(is_kept, frame, 0)
    return np.where(is_kept, first[frame], 0).astype(np.int32), np.where(is_kept, count[frame], 0).astype(np.int32)


def _is_straight(first: Int32s, count: Int32s) -> bool:
    """Return whether every coordinate is shown once, and all steps from one to the next are equal."""
    return bool((count == 1).all() and (np.diff(first) == first[1:2] - first[0:1]).all())


def pack(events: Events, pixels: FramePixels, cells: Int32s, before: Int32s) -> None:
    """Write the cells of N events, which must lie on the sensor, to `cells` from place before[0] on.

    before[i + 1] (N + 1,) becomes the place after the cells of event i; where every event has exactly one cell
    (`shows_all`), only before[0] is read. `cells` needs room for `pixels.most` per event and one more.
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
def all_below(x, width, y, height):  # type: ignore[no-untyped-def]
    """Return whether all of x are below the width and all of y below the height."""
    largest_x = largest_y = np.uint16(0)  # without an early end, so that the loop is vectorised
    for i in range(len(x)):
        largest_x = max(largest_x, x[i])
        largest_y = max(largest_y, y[i])
    return largest_x < width and largest_y < height


@jit
def _pack_all(x, y, p, rows, columns, cells):  # type: ignore[no-untyped-def]
    # Where all steps are equal, no table is needed, so that the loop is vectorised.
    row_step = rows[min(1, len(rows) - 1)] - rows[0]
    column_step = columns[min(1, len(columns) - 1)] - columns[0]
    first = rows[0] + columns[0]
    for i in range(np.uint64(len(x))):
        cells[i] = 2 * (first + row_step * y[i] + column_step * x[i]) + np.int32(p[i])


@jit
def _pack_some(x, y, p, rows, columns, cells, before):  # type: ignore[no-untyped-def]
    """Write every cell, and the next one over it if it does not count: the processor would mispredict a branch."""
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
