"""A live stream of windows equals counting each of them alone, whether its bins come from the ring or not."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from event_examples import HEIGHT, WIDTH, any_events, random_events, to_events
from hypothesis import given
from hypothesis import strategies as st

from rvtssm.events.frame_counter import SlidingWindows, count_stream
from rvtssm.events.histogram import count_windows, shared_slices
from rvtssm.events.representations import REPRESENTATIONS, Counting
from rvtssm.records import Windows

CHOICES = [("exact", name) for name in REPRESENTATIONS] + [("rvt", "histogram")]


def windows_of(ends_us, length_us) -> Windows:
    ends_us = np.asarray(ends_us, np.int64)
    return Windows(np.stack([ends_us - length_us, ends_us], axis=1), np.diff(ends_us, prepend=0))


def slide(events, windows, length_us, stride_us, pushes=(0.0, 0.3, 1.0), **options):
    """Every window taken as soon as it can be; what arrives at a time is pushed in parts."""
    sliding = SlidingWindows.of(HEIGHT, WIDTH, length_us=length_us, stride_us=stride_us, **options)
    frames, seen = [], 0
    for start_us, end_us in windows.bounds_us.tolist():
        stop = int(np.searchsorted(events.t, end_us + 1))  # the end itself as well, which `rvt` includes
        cuts = [seen + round(part * (stop - seen)) for part in pushes]
        for first, last in pairwise(cuts):
            arrived = to_events(*(getattr(events, name)[first:last] for name in ("t", "x", "y", "p")))
            sliding.push(arrived)
            for name in ("t", "x", "y", "p"):
                getattr(arrived, name)[:] = 0  # its arrays may be used again
        seen = stop
        frames.append(sliding.take(start_us, end_us))
    return np.stack(frames), sliding


@pytest.mark.parametrize(("convention", "representation"), CHOICES)
@pytest.mark.parametrize("downsample", [1, 2])
@pytest.mark.parametrize(
    ("length_us", "stride_us"),
    [
        (50_000, 5_000),
        (50_000, 12_500),
        (50_000, 2_500),
        (50_000, 10_000),
        (33_333, 5_000),
        (5_000, 5_000),
        (700, 5_000),
    ],
)
def test_every_taken_window_is_the_counted_one(length_us, stride_us, downsample, convention, representation):
    events = random_events(4000, span_us=300_000)
    events = to_events(events.t.copy(), events.x // 8, events.y // 8, events.p)  # hot pixels: counts saturate
    windows = windows_of(np.arange(20_000, 320_000, stride_us), length_us)
    options = {"convention": convention, "representation": representation, "downsample": downsample}
    copied = to_events(*(getattr(events, name).copy() for name in ("t", "x", "y", "p")))
    found, _ = slide(copied, windows, length_us, stride_us, **options)
    np.testing.assert_array_equal(found, count_windows(events, windows, HEIGHT, WIDTH, **options))


@given(
    events=any_events(max_step_us=4000, max_start_us=20_000),
    strides=st.lists(st.integers(1, 9_000), min_size=1, max_size=12),
    length_us=st.integers(1, 40_000),
    num_bins=st.integers(1, 12),
)
def test_windows_at_any_times_are_counted_exactly(events, strides, length_us, num_bins):
    windows = windows_of(np.cumsum(strides), length_us)
    wanted = count_windows(events, windows, HEIGHT, WIDTH, num_bins=num_bins)
    alone = [
        count_windows(events, windows_of([end], length_us), HEIGHT, WIDTH, num_bins=num_bins)[0]
        for end in windows.ends_us
    ]
    np.testing.assert_array_equal(wanted, alone)
    copied = to_events(*(getattr(events, name).copy() for name in ("t", "x", "y", "p")))
    found, _ = slide(copied, windows, length_us, strides[0], num_bins=num_bins)
    np.testing.assert_array_equal(found, wanted)


def test_shared_bins_are_counted_once():
    windows = windows_of(5_000 * np.arange(10, 40), 50_000)
    _, sliding = slide(random_events(20_000, span_us=200_000), windows, 50_000, 5_000)
    num_new = (sliding._ring.keys[:, 0] >= 0).sum()
    assert num_new == sliding._ring.num_slices == 11
    lookups = sliding._ring.used[-1]
    assert lookups == 10 * len(windows)
    # the bins in the ring are the latest ones: none was counted again in between
    assert len(np.unique(sliding._ring.keys, axis=0)) == 11


@pytest.mark.parametrize(
    ("length_us", "stride_us", "num_slices"),
    [(50_000, 5_000, 11), (50_000, 10_000, 11), (50_000, 2_500, 22), (50_000, 12_500, 22), (50_000, 50_000, None),
     (50_000, 4_999, None), (33_333, 5_000, None)],
)  # fmt: skip
def test_the_ring_is_as_large_as_bins_coincide(length_us, stride_us, num_slices):
    ring = shared_slices(windows_of([0, stride_us], length_us).bounds_us, Counting(), 1)
    assert (ring and ring.num_slices) == num_slices


@pytest.mark.parametrize("stride_us", [5_000, 7_000, 60_000])
def test_a_stream_of_overlapping_windows_equals_the_whole(stride_us):
    events = random_events(5000, span_us=400_000)
    windows = windows_of(np.arange(30_000, 500_000, stride_us), 50_000)
    parts = [to_events(*(getattr(events, n)[i : i + 61] for n in ("t", "x", "y", "p"))) for i in range(0, 5000, 61)]
    found = np.concatenate(list(count_stream(parts, windows, HEIGHT, WIDTH, max_windows=3)))
    np.testing.assert_array_equal(found, count_windows(events, windows, HEIGHT, WIDTH))


def test_memory_is_that_of_the_window_however_long_the_stream():
    sliding = SlidingWindows.of(HEIGHT, WIDTH, length_us=50_000, stride_us=5_000)
    for i in range(400):
        sliding.push(random_events(1_000, seed=i, span_us=5_000, start_us=5_000 * i))
        sliding.take(5_000 * (i - 9), 5_000 * (i + 1))
    assert len(sliding._t) <= 1 << 16 and len(sliding._cells) <= 1 << 16


def test_what_comes_too_late_is_refused():
    sliding = SlidingWindows.of(HEIGHT, WIDTH, length_us=50, stride_us=5)
    sliding.push(to_events([100, 120], [1, 2], [3, 4], [0, 1]))
    with pytest.raises(ValueError, match="events at 90 us follow events at 120 us"):
        sliding.push(to_events([90], [1], [1], [1]))
    with pytest.raises(ValueError, match=f"outside {WIDTH}x{HEIGHT}"):
        sliding.push(to_events([130], [WIDTH], [1], [1]))
    assert sliding.take(80, 130).sum() == 2
    with pytest.raises(ValueError, match="from 70 us begins before the last one taken, at 80 us"):
        sliding.take(70, 140)
    assert sliding.take(110, 160).sum() == 1


def test_frames_can_be_written_into_an_array():
    events = random_events(500, span_us=1000)
    windows = windows_of([500, 1000], 500)
    out = np.full((2, 20, HEIGHT, WIDTH), 77, np.uint8)
    assert count_windows(events, windows, HEIGHT, WIDTH, out=out) is out
    np.testing.assert_array_equal(out, count_windows(events, windows, HEIGHT, WIDTH))
    with pytest.raises(ValueError, match="contiguous"):
        count_windows(events, windows, HEIGHT, WIDTH, out=out[:, ::2])
