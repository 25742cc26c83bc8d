"""Counting: equal to the formula written out, whatever the windows, the blocks and the halving."""

import numpy as np
import pytest
from event_examples import HEIGHT, WIDTH, any_events, random_events, to_events
from hypothesis import given
from hypothesis import settings as with_settings
from hypothesis import strategies as st
from user_errors import raises

from rvtssm.events.cells import frame_pixels
from rvtssm.events.frame_counter import FrameCounter, count_as_they_close, count_windows
from rvtssm.events.windows import free_grid
from rvtssm.records import Events, Windows, WindowSettings
from rvtssm.records.settings import CONVENTIONS


def windows_of(*bounds) -> Windows:
    bounds_us = np.array(bounds, np.int64).reshape(-1, 2)
    return Windows(bounds_us, np.diff(bounds_us[:, 1], prepend=0))


def counted_slowly(events, start_us, end_us, convention, num_bins=10, cutoff=10):
    """One window by the definition, event by event."""
    counts = np.zeros((2, num_bins, HEIGHT, WIDTH), np.int64)
    is_closed = convention == "rvt"
    inside = (events.t >= start_us) & ((events.t <= end_us) if is_closed else (events.t < end_us))
    t = events.t[inside]
    for i, time in zip(np.flatnonzero(inside), t, strict=True):
        if convention == "rvt":
            part = np.float32(time - t[0]) / np.float32(max(t[-1] - t[0], 1))
            bin_index = min(int(np.floor(part * np.float32(num_bins))), num_bins - 1)
        else:
            bin_index = int(time - start_us) * num_bins // (end_us - start_us)
        counts[events.p[i], bin_index, events.y[i], events.x[i]] += 1
    if convention == "rvt":
        counts %= 256
    return np.minimum(counts, cutoff).astype(np.uint8).reshape(2 * num_bins, HEIGHT, WIDTH)


@pytest.mark.parametrize("convention", CONVENTIONS)
@with_settings(max_examples=50)
@given(
    events=any_events(max_step_us=3000, max_start_us=5000),
    windows=st.lists(st.tuples(st.integers(-100, 30_000), st.integers(1, 20_000)), min_size=1, max_size=4),
    num_bins=st.integers(1, 12),
)
def test_counts_are_those_of_the_formula(convention, events, windows, num_bins):
    bounds = sorted((start, start + length) for start, length in windows)
    settings = WindowSettings(convention=convention, num_bins=num_bins)
    found = count_windows(events, windows_of(*bounds), HEIGHT, WIDTH, settings)
    wanted = [counted_slowly(events, start, end, convention, num_bins) for start, end in bounds]
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize(("length", "max_windows"), [(20_000, 8), (20_000, 1), (90_000, 3), (5_000, 8)])
def test_a_stream_counts_like_the_whole(convention, length, max_windows):
    events = random_events(3000, span_us=400_000)
    ends = np.arange(30_000, 600_000, 20_000)
    windows = windows_of(*np.stack([ends - length, ends], axis=1))
    settings = WindowSettings(convention=convention)
    whole = count_windows(events, windows, HEIGHT, WIDTH, settings, 2)
    buffer = to_events(*(np.zeros(97) for _ in range(4)))

    def blocks():
        """As readers give them: the arrays of a block are overwritten by the next."""
        for start in range(0, len(events), 97):
            size = min(97, len(events) - start)
            for name in ("t", "x", "y", "p"):
                getattr(buffer, name)[:size] = getattr(events, name)[start : start + size]
            yield Events(*(getattr(buffer, name)[:size] for name in ("t", "x", "y", "p")))

    counter = FrameCounter(settings, frame_pixels(HEIGHT, WIDTH, 2))
    found = list(count_as_they_close(blocks(), windows, counter, max_windows))
    bounds, parts = [closed.bounds_us for closed, _ in found], [frames for _, frames in found]
    assert max(len(part) for part in parts) <= max_windows
    np.testing.assert_array_equal(np.concatenate(bounds), windows.bounds_us)
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert (counter.times_us >= events.t[-1] - length - 20_000).all()  # no more than the open windows need


def test_a_stream_without_events_is_empty_windows():
    counter = FrameCounter(WindowSettings(), frame_pixels(HEIGHT, WIDTH))
    ((_, counts),) = count_as_they_close(iter(()), windows_of((0, 10)), counter, 8)
    assert counts.shape == (1, 20, HEIGHT, WIDTH) and not counts.any()
    assert list(count_as_they_close(iter(()), None, counter, 8)) == []


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize(("stride_us", "length_us"), [(20_000, None), (1e6 / 30, 50_000), (7812.5, None)])
def test_windows_on_the_free_grid_come_as_soon_as_no_event_can_enter_them(convention, stride_us, length_us):
    events = random_events(3000, span_us=400_000, start_us=12_345)
    settings = WindowSettings(stride_us, length_us, convention)
    counter, seen_us, found = FrameCounter(settings, frame_pixels(HEIGHT, WIDTH)), [0], []

    def blocks():
        for start in range(0, len(events), 10):
            block = Events(*(getattr(events, name)[start : start + 10] for name in ("t", "x", "y", "p")))
            seen_us.append(int(block.t[-1]))
            yield block

    for windows, frames in count_as_they_close(blocks(), None, counter, 3):
        found.append((windows, frames))
        if seen_us[-1] < events.t[-1]:  # not only when the events have ended
            latest_us = windows.ends_us + settings.includes_end
            assert (latest_us <= seen_us[-1]).all() and (latest_us > seen_us[-2]).all()
    wanted = free_grid(int(events.t[0]), int(events.t[-1]), settings)
    np.testing.assert_array_equal(np.concatenate([windows.bounds_us for windows, _ in found]), wanted.bounds_us)
    frames = np.concatenate([frames for _, frames in found])
    np.testing.assert_array_equal(frames, count_windows(events, wanted, HEIGHT, WIDTH, settings))


@pytest.mark.parametrize(("num_events", "exact", "rvt"), [(9, 9, 9), (255, 10, 10), (258, 10, 2), (256, 10, 0)])
def test_hot_pixels_saturate_and_in_rvt_wrap_first(num_events, exact, rvt):
    events = to_events(*(np.full(num_events, value) for value in (5, 1, 2, 0)))
    for convention, wanted in (("exact", exact), ("rvt", rvt)):
        counts = count_windows(events, windows_of((0, 100)), HEIGHT, WIDTH, WindowSettings(convention=convention))
        assert counts[0, 0, 2, 1] == wanted == counts.sum()


def test_events_outside_the_sensor_and_frames_without_pixels_are_refused():
    events = to_events([1], [WIDTH], [0], [0])
    with raises("events.outside_frame"):
        count_windows(events, windows_of((0, 10)), HEIGHT, WIDTH)
    with raises("frames.downsample"):
        count_windows(events, windows_of((0, 10)), HEIGHT, WIDTH, downsample=0)
