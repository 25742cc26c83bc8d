"""A live stream of windows equals counting each of them alone, whether its bins come from the ring or not."""

from itertools import pairwise

import numpy as np
import pytest
from event_examples import HEIGHT, WIDTH, any_events, random_events, to_events, traced_memory
from hypothesis import given
from hypothesis import settings as with_settings
from hypothesis import strategies as st
from user_errors import raises

from rvtssm.events.cells import frame_pixels
from rvtssm.events.frame_counter import FrameCounter, count_windows
from rvtssm.events.representations import num_shared_slices
from rvtssm.records import Events, Windows, WindowSettings
from rvtssm.records.settings import CHANNELS_PER_BIN

CHOICES = [("exact", name) for name in CHANNELS_PER_BIN] + [("rvt", "histogram")]


def windows_of(ends_us, length_us) -> Windows:
    ends_us = np.asarray(ends_us, np.int64)
    return Windows(np.stack([ends_us - length_us, ends_us], axis=1), np.diff(ends_us, prepend=0))


def slide(events, windows, settings, downsample=1, pushes=(0.0, 0.3, 1.0)):
    """Every window taken as soon as it can be; what arrives at a time is pushed in parts."""
    sliding = FrameCounter(settings, frame_pixels(HEIGHT, WIDTH, downsample))
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
        sliding.forget_before(start_us)
        frames.append(sliding.take(np.array([[start_us, end_us]])))
    return np.concatenate(frames), sliding


@pytest.mark.parametrize(("convention", "representation"), CHOICES)
@pytest.mark.parametrize("downsample", [1, 2])
@pytest.mark.parametrize(
    ("length_us", "stride_us"),
    [(50_000, 5_000), (50_000, 12_500), (33_333, 5_000), (5_000, 5_000), (700, 5_000)],
)
def test_every_taken_window_is_the_counted_one(length_us, stride_us, downsample, convention, representation):
    events = random_events(4000, span_us=300_000)
    events = to_events(events.t.copy(), events.x // 8, events.y // 8, events.p)  # hot pixels: counts saturate
    windows = windows_of(np.arange(20_000, 320_000, stride_us), length_us)
    settings = WindowSettings(stride_us, length_us, convention, representation=representation)
    copied = to_events(*(getattr(events, name).copy() for name in ("t", "x", "y", "p")))
    found, _ = slide(copied, windows, settings, downsample)
    np.testing.assert_array_equal(found, count_windows(events, windows, HEIGHT, WIDTH, settings, downsample))


@given(
    events=any_events(max_step_us=4000, max_start_us=20_000),
    strides=st.lists(st.integers(1, 9_000), min_size=1, max_size=12),
    length_us=st.integers(1, 40_000),
    num_bins=st.integers(1, 12),
)
def test_windows_at_any_times_are_counted_exactly(events, strides, length_us, num_bins):
    windows = windows_of(np.cumsum(strides), length_us)
    settings = WindowSettings(num_bins=num_bins)
    wanted = count_windows(events, windows, HEIGHT, WIDTH, settings)
    alone = [count_windows(events, windows_of([end], length_us), HEIGHT, WIDTH, settings)[0] for end in windows.ends_us]
    np.testing.assert_array_equal(wanted, alone)
    copied = to_events(*(getattr(events, name).copy() for name in ("t", "x", "y", "p")))
    found, _ = slide(copied, windows, settings)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("together", [1, 4])
def test_the_ring_saves_the_work_of_counting_again(together, monkeypatch):
    """Planes that are put into the ring are counted: after the first windows, one bin of each window."""
    windows, events = windows_of(5_000 * np.arange(10, 40), 50_000), random_events(20_000, span_us=200_000)
    sliding, new = FrameCounter(WindowSettings(), frame_pixels(HEIGHT, WIDTH)), []
    sliding.push(events)
    for i in range(0, len(windows), together):
        before = None if sliding.ring is None else sliding.ring.keys.copy()
        sliding.take(windows.bounds_us[i : i + together])
        if before is not None and len(before) == len(sliding.ring.keys):
            new.append(len(np.setdiff1d(sliding.ring.keys[:, 0], before[:, 0])))
    assert set(new[1:]) <= {together, len(windows) % together}


@pytest.mark.parametrize(
    ("length_us", "stride_us", "num_slices"),
    [(50_000, 5_000, 11), (50_000, 10_000, 11), (50_000, 2_500, 22), (50_000, 12_500, 22), (50_000, 50_000, 0),
     (50_000, 4_999, 0), (33_333, 5_000, 0)],
)  # fmt: skip
def test_the_ring_is_as_large_as_bins_coincide(length_us, stride_us, num_slices):
    assert num_shared_slices(length_us, stride_us, WindowSettings()) == num_slices


@pytest.mark.parametrize("downsample", [1, 2])
def test_memory_is_that_of_the_window_however_long_the_stream(downsample):
    sliding = FrameCounter(WindowSettings(), frame_pixels(HEIGHT, WIDTH, downsample))

    def step(i: int) -> None:
        sliding.push(random_events(1_000, seed=i, span_us=5_000, start_us=5_000 * i))
        sliding.forget_before(5_000 * (i - 9))
        sliding.take(np.array([[i - 9, i + 1]]) * 5_000)

    for i in range(100):
        step(i)
    with traced_memory() as num_bytes:
        for i in range(100, 400):
            step(i)
        assert len(sliding.times_us) == 10_000 and num_bytes() < 1 << 20  # all events since then are 3.6 MB


@pytest.mark.parametrize(("convention", "representation"), CHOICES)
@pytest.mark.parametrize("downsample", [1, 2])
def test_a_counter_goes_on_from_the_state_of_another(downsample, convention, representation):
    events, settings = random_events(4_000, span_us=100_000), WindowSettings(1, 1, convention, 4, 3, representation)
    head, tail = events.between(0, 50_000), events.between(50_000, 10**6)
    one, other = (FrameCounter(settings, frame_pixels(HEIGHT, WIDTH, downsample)) for _ in range(2))
    one.push(head)
    one.forget_before(20_000)
    other.push(tail)  # what another counted before does not matter
    other.load_state(one.state())
    bounds_us = np.array([[20_000, 60_000], [40_000, 80_000]])
    for counter in (one, other):
        counter.push(tail)
    np.testing.assert_array_equal(one.times_us, events.between(20_000, 10**6).t)
    np.testing.assert_array_equal(other.take(bounds_us), one.take(bounds_us))
    with raises("events.unsorted"):
        other.push(head)


@with_settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 2_000)), max_size=12), st.sampled_from([1, 2]))
def test_kept_events_are_a_queue(moves, downsample):
    """Whatever is pushed and forgotten, what is kept are the events pushed and not forgotten, each with its cells."""
    counter, now, kept = FrameCounter(WindowSettings(), frame_pixels(100, 100, downsample)), 0, np.empty(0, np.int64)
    for count, dropped in moves:
        t = np.arange(now, now + count)
        x = (t % 100).astype(np.uint16)
        counter.push(Events(t, x, x, (t % 2).astype(np.uint8)))
        now += count
        kept = np.concatenate([kept, t])[dropped:]
        counter.forget_before(int(kept[0]) if len(kept) else now)
        np.testing.assert_array_equal(counter.times_us, kept)
        place = kept % 100
        shown = place % downsample == downsample // 2
        pixels = place[shown] // downsample
        np.testing.assert_array_equal(counter.state()[1], 2 * pixels * (100 // downsample + 1) + kept[shown] % 2)


def test_what_comes_too_late_is_refused():
    sliding = FrameCounter(WindowSettings(), frame_pixels(HEIGHT, WIDTH))
    sliding.push(to_events([100, 120], [1, 2], [3, 4], [0, 1]))
    with raises("events.unsorted"):
        sliding.push(to_events([90], [1], [1], [1]))
    with raises("events.outside_frame"):
        sliding.push(to_events([130], [WIDTH], [1], [1]))
    assert sliding.take(np.array([[80, 130]])).sum() == 2
    sliding.forget_before(110)
    assert sliding.take(np.array([[110, 160]])).sum() == 1


def test_frames_can_be_written_into_an_array():
    events = random_events(500, span_us=1000)
    windows = windows_of([500, 1000], 500)
    counter = FrameCounter(WindowSettings(), frame_pixels(HEIGHT, WIDTH))
    out = np.full((2, 20, HEIGHT, WIDTH), 77, np.uint8)
    counter.push(events)
    assert counter.take(windows.bounds_us, out) is out
    np.testing.assert_array_equal(out, count_windows(events, windows, HEIGHT, WIDTH))
