"""A square of the sensor becomes one pixel of a frame: one of its pixels is kept (`nearest`), or all count (`sum`)."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from event_examples import HEIGHT, WIDTH, any_events, random_events
from hypothesis import given
from hypothesis import strategies as st
from user_errors import raises

from rvtssm.events.cells import frame_pixels
from rvtssm.events.frame_counter import FrameCounter, count_as_they_close, count_windows
from rvtssm.events.windows import free_grid
from rvtssm.records import Events, Windows, WindowSettings
from rvtssm.records.settings import CHANNELS_PER_BIN, REDUCTIONS

BOUNDS = np.array([[0, 300_000], [100_000, 400_000], [400_000, 1_000_000]])
WINDOWS = Windows(BOUNDS, np.full(3, 1))


def reduced_slowly(events: Events, downsample: int, reduce: str) -> Events:
    """The events on a sensor whose pixels are the squares, one after the other."""
    t, x, y, p = [], [], [], []
    middle = downsample // 2
    for time, column, row, polarity in zip(events.t, events.x, events.y, events.p, strict=True):
        is_on_frame = row // downsample < HEIGHT // downsample and column // downsample < WIDTH // downsample
        is_middle = (row % downsample, column % downsample) == (middle, middle)
        if is_on_frame and (reduce == "sum" or is_middle):
            t.append(time)
            x.append(column // downsample)
            y.append(row // downsample)
            p.append(polarity)
    return Events(np.array(t, np.int64), np.array(x, np.uint16), np.array(y, np.uint16), np.array(p, np.uint8))


@pytest.mark.parametrize("representation", CHANNELS_PER_BIN)
@pytest.mark.parametrize("reduce", REDUCTIONS)
@given(events=any_events(), downsample=st.integers(1, 7))
def test_frames_are_those_of_a_sensor_whose_pixels_are_the_squares(representation, reduce, events, downsample):
    settings = WindowSettings(representation=representation, num_bins=3, reduce=reduce)
    by_hand = reduced_slowly(events, downsample, reduce)
    expected = count_windows(by_hand, WINDOWS, HEIGHT // downsample, WIDTH // downsample, settings)
    actual = count_windows(events, WINDOWS, HEIGHT, WIDTH, settings, downsample)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("representation", CHANNELS_PER_BIN)
def test_sum_without_reduction_is_nearest(representation):
    events, nearest = random_events(3000), WindowSettings(representation=representation)
    summed = count_windows(events, WINDOWS, HEIGHT, WIDTH, replace(nearest, reduce="sum"))
    np.testing.assert_array_equal(summed, count_windows(events, WINDOWS, HEIGHT, WIDTH, nearest))


@pytest.mark.parametrize("representation", CHANNELS_PER_BIN)
@pytest.mark.parametrize("length_us", [20_000, 50_000])
@given(cuts=st.lists(st.integers(0, 3000), max_size=6))
def test_sums_of_a_recording_in_parts_are_those_of_the_whole(representation, length_us, cuts):
    events = random_events(3000, span_us=400_000)
    settings = WindowSettings(20_000, length_us, representation=representation, reduce="sum")
    windows = free_grid(0, 400_000, settings)
    edges = [0, *sorted(cuts), len(events)]
    blocks = [Events(*(getattr(events, name)[a:b] for name in "txyp")) for a, b in pairwise(edges)]
    counter = FrameCounter(settings, frame_pixels(HEIGHT, WIDTH, 3, reduce="sum"))
    parts = [frames for _, frames in count_as_they_close(blocks, windows, counter, 4)]
    np.testing.assert_array_equal(np.concatenate(parts), count_windows(events, windows, HEIGHT, WIDTH, settings, 3))


def test_sum_counts_every_event_of_whole_squares_and_saturates():
    events = random_events(3000)
    settings = WindowSettings(num_bins=1, count_cutoff=255, reduce="sum")
    whole = Windows(np.array([[0, 1_000_000]]), np.full(1, 1))
    assert count_windows(events, whole, HEIGHT, WIDTH, settings, 8).sum() == len(events)
    assert count_windows(events, whole, HEIGHT, WIDTH, replace(settings, count_cutoff=4), 8).max() == 4


def test_an_unknown_reduction_and_one_that_rvt_does_not_have_are_refused():
    with raises("settings.choice") as of_settings:
        WindowSettings(reduce="mean")
    with raises("settings.choice") as of_pixels:
        frame_pixels(HEIGHT, WIDTH, 2, reduce="mean")
    with raises("windows.rvt_convention") as of_rvt:
        WindowSettings(convention="rvt", reduce="sum")
    keys = [raised.value.key for raised in (of_settings, of_pixels, of_rvt)]
    assert keys == ["settings.choice", "settings.choice", "windows.rvt_convention"]
