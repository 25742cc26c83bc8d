"""Flips, crops and zooms in the counting pass equal the same moves of finished frames."""

from __future__ import annotations

import numpy as np
import pytest
from event_examples import HEIGHT, WIDTH, random_events
from hypothesis import given
from hypothesis import strategies as st

from rvtssm.events.cells import frame_pixels, pack, times_of_cells
from rvtssm.events.histogram import count_windows
from rvtssm.events.representations import REPRESENTATIONS
from rvtssm.records import Windows

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


@pytest.mark.parametrize("representation", REPRESENTATIONS)
@pytest.mark.parametrize("downsample", [1, 2])
@given(data=st.data())
def test_moves_in_the_counting_pass_are_moves_of_the_frame(representation, downsample, data):
    events = random_events(3000)
    rows = monotone_sources(data.draw, HEIGHT // downsample)
    columns = monotone_sources(data.draw, WIDTH // downsample)
    options = {"representation": representation, "downsample": downsample, "num_bins": 4}
    whole = count_windows(events, WINDOWS, HEIGHT, WIDTH, **options)
    wanted = np.where((rows[:, None] >= 0) & (columns >= 0), whole[..., rows[:, None], columns], 0)
    pixels = frame_pixels(HEIGHT, WIDTH, downsample, rows, columns)
    found = count_windows(events, WINDOWS, HEIGHT, WIDTH, pixels=pixels, **options)
    np.testing.assert_array_equal(found, wanted.astype(whole.dtype))


def test_cells_say_pixel_and_polarity_and_keep_their_times():
    events = random_events(500)
    cells, before = pack(events, frame_pixels(HEIGHT, WIDTH))
    assert before is None and cells.dtype == np.int32
    np.testing.assert_array_equal(cells, 2 * (events.y.astype(int) * WIDTH + events.x) + events.p)
    cells, before = pack(events, frame_pixels(HEIGHT, WIDTH, 2))
    kept = (events.x % 2 == 1) & (events.y % 2 == 1)
    np.testing.assert_array_equal(
        cells, 2 * (events.y[kept].astype(int) // 2 * (WIDTH // 2) + events.x[kept] // 2) + events.p[kept]
    )
    np.testing.assert_array_equal(before, np.concatenate([[0], np.cumsum(kept)]))
    np.testing.assert_array_equal(times_of_cells(events.t, before), events.t[kept])
