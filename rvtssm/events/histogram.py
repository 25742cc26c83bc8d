"""Events to frames, many windows in one pass; `stream` does the same while a recording is read.

Convention `exact`: windows are half-open, bins are equal parts of the window, counts saturate.
Convention `rvt` equals the files of RVT byte for byte: windows are closed, bins are equal parts of the time between
the first and the last event of a window in float32, and counts wrap at 256 before they are cut off.
Source: RVT data/utils/representations.py (StackedHistogram, fast mode). Other frames: see `representations`.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt

from rvtssm.events.cells import FramePixels, check_inside, frame_pixels, pack, times_of_cells
from rvtssm.events.representations import Binned, Counting, Frames, SliceRing, fill
from rvtssm.records import Events, Windows

Ints = npt.NDArray[np.int64]


def count_windows(
    events: Events,
    windows: Windows,
    height: int,
    width: int,
    *,
    num_bins: int = 10,
    count_cutoff: int = 10,
    downsample: int = 1,
    convention: str = "exact",
    representation: str = "histogram",
    pixels: FramePixels | None = None,
    out: Frames | None = None,
) -> Frames:
    """Count the events of T windows into (T, C, height // downsample, width // downsample), by default uint8.

    Sizes are sensor pixels; in histograms channel = polarity * num_bins + bin; of downsample x downsample pixels one
    is kept, the one right below the middle (nearest-exact). `pixels` places the frame otherwise, flipped or cropped,
    say. Events outside all windows are ignored. `out` is written instead of a new array. ValueError for events
    outside the sensor and for unknown settings.
    """
    counting = Counting(num_bins, count_cutoff, convention, representation)
    pixels = pixels or checked_pixels(height, width, downsample)
    shape = (len(windows), counting.num_channels, pixels.height, pixels.width)
    if out is None:
        out = np.empty(shape, counting.dtype)
    elif out.shape != shape or out.dtype != counting.dtype or not out.flags.c_contiguous:
        raise ValueError(f"out is {out.shape} {out.dtype}, these frames are {shape} {counting.dtype}, contiguous")
    binned = bin_events(events, windows.bounds_us, pixels, counting)
    ring = shared_slices(windows.bounds_us, counting, pixels.num_pixels)
    fill_frames(binned, counting, out, np.arange(len(windows)), ring)
    return out


def bin_events(events: Events, bounds_us: Ints, pixels: FramePixels, counting: Counting) -> Binned:
    """The events of windows (T, 2) as cells of a frame, read once however the windows overlap; halves `count_windows`.

    ValueError for events outside the sensor.
    """
    check_inside(events, pixels.sensor_height, pixels.sensor_width)
    ranges = counting.ranges(events.t, bounds_us)
    part, flat = events, ranges.reshape(-1)
    low, high = (int(flat[flat.argmin()]), int(flat[flat.argmax()])) if flat.size else (0, 0)
    if high - low < len(events):
        part = Events(events.t[low:high], events.x[low:high], events.y[low:high], events.p[low:high])
        ranges -= low
    cells, before = pack(part, pixels)
    if before is not None:
        ranges = before[ranges].astype(np.int64)
    times = times_of_cells(part.t, before) if counting.needs_time else np.empty(0, np.int64)
    return Binned(cells, times, ranges, bounds_us)


def fill_frames(
    binned: Binned, counting: Counting, frames: Frames, places: Ints, ring: SliceRing | None = None
) -> None:
    """Count window w of `binned` into frames[places[w]]; frames (F, C, h, w), contiguous, the others stay as they are.

    The other half of `count_windows`.
    """
    num_frames, num_channels, height, width = frames.shape
    fill(binned, counting, frames.reshape(num_frames, num_channels, height * width), places, ring)


def shared_slices(bounds_us: Ints, counting: Counting, num_pixels: int) -> SliceRing | None:
    """Room for the bins that later windows (T, 2) will need again, None where no bins coincide."""
    if counting.representation != "histogram" or counting.convention != "exact" or len(bounds_us) < 2:
        return None
    length_us = int(np.median(bounds_us[:, 1] - bounds_us[:, 0]))
    stride_us = int(np.median(np.diff(bounds_us[:, 1])))
    if not 0 < stride_us < length_us or length_us % counting.num_bins:
        return None
    bin_us = length_us // counting.num_bins
    # after that many strides bins lie on bins again
    num_strides = bin_us // math.gcd(bin_us, stride_us)
    if num_strides * stride_us >= length_us:
        return None
    return SliceRing(num_strides * (counting.num_bins + 1), num_pixels)


@functools.lru_cache
def checked_pixels(height: int, width: int, downsample: int) -> FramePixels:
    """The frame of a sensor, of which one in downsample x downsample pixels is kept; ValueError below 1."""
    if downsample < 1:
        raise ValueError(f"cannot keep one pixel in {downsample=}; use at least 1")
    return frame_pixels(height, width, downsample)
