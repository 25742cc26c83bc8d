"""Flips, crops and zooms in the counting pass equal the same moves of finished frames."""

import numpy as np
import pytest
from event_examples import HEIGHT, WIDTH, random_events
from hypothesis import given, settings
from hypothesis import strategies as st

from rvtssm.events.cells import frame_pixels
from rvtssm.events.frame_counter import FrameCounter, count_windows
from rvtssm.records import Windows, WindowSettings
from rvtssm.records.settings import CHANNELS_PER_BIN

BOUNDS = np.array([[0, 300_000], [100_000, 400_000], [400_000, 1_000_000]])
WINDOWS = Windows(BOUNDS, np.full(3, 1))


def monotone_sources(draw, size: int):
    """Rows of a flip, a zoom of any part to any part, or a shift: the sources of every place, -1 where it is empty."""
    source = draw(st.integers(0, size - 1))
    source_size = draw(st.integers(1, size - source))
    target = draw(st.integers(0, size - 1))
    target_size = draw(st.integers(1, size - target))
    places = np.full(size, -1, np.int64)
    places[target : target + target_size] = source + np.arange(target_size) * source_size // target_size
    return np.where(places >= 0, size - 1 - places, -1) if draw(st.booleans()) else places


@pytest.mark.parametrize("representation", CHANNELS_PER_BIN)
@pytest.mark.parametrize("downsample", [1, 2])
@settings(max_examples=20)
@given(data=st.data())
def test_moves_in_the_counting_pass_are_moves_of_the_frame(representation, downsample, data):
    events = random_events(3000)
    rows = monotone_sources(data.draw, HEIGHT // downsample)
    columns = monotone_sources(data.draw, WIDTH // downsample)
    counted = WindowSettings(representation=representation, num_bins=4)
    whole = count_windows(events, WINDOWS, HEIGHT, WIDTH, counted, downsample)
    wanted = np.where((rows[:, None] >= 0) & (columns >= 0), whole[..., rows[:, None], columns], 0)
    counter = FrameCounter(counted, frame_pixels(HEIGHT, WIDTH, downsample, rows, columns))
    counter.push(events)
    found = counter.take(BOUNDS)
    np.testing.assert_array_equal(found, wanted.astype(whole.dtype))


@pytest.mark.parametrize(
    "rows",
    [np.arange(HEIGHT), np.arange(HEIGHT)[::-1], np.arange(HEIGHT) ^ 1],
    ids=["as is", "flipped", "pairs swapped"],
)
def test_frames_that_show_every_pixel_once_are_the_frame_in_another_order(rows):
    events = random_events(3000)
    counter = FrameCounter(WindowSettings(), frame_pixels(HEIGHT, WIDTH, 1, rows, np.arange(WIDTH)[::-1]))
    counter.push(events)
    wanted = count_windows(events, WINDOWS, HEIGHT, WIDTH)[:, :, rows, ::-1]
    np.testing.assert_array_equal(counter.take(BOUNDS), wanted)
