"""Every representation by its laws."""

import numpy as np
import pytest
from event_examples import HEIGHT, WIDTH, random_events, to_events

from rvtssm.events.cells import frame_pixels
from rvtssm.events.frame_counter import FrameCounter, count_as_they_close, count_windows
from rvtssm.records import Windows, WindowSettings
from rvtssm.records.settings import CHANNELS_PER_BIN


@pytest.mark.parametrize("name", CHANNELS_PER_BIN)
def test_a_smaller_frame_is_every_nth_pixel_and_a_stream_is_the_whole(name):
    events = random_events(20_000)
    ends = np.arange(100_000, 1_100_000, 70_000)
    windows = Windows(np.stack([ends - 100_000, ends], axis=1), np.diff(ends, prepend=0))
    settings = WindowSettings(representation=name)
    full = count_windows(events, windows, HEIGHT, WIDTH, settings)
    for n in (2, 3, 4, 5):
        small = count_windows(events, windows, HEIGHT, WIDTH, settings, n)
        wanted = full[..., n // 2 :: n, n // 2 :: n][..., : HEIGHT // n, : WIDTH // n]
        np.testing.assert_array_equal(small, wanted)
    parts = [to_events(*(getattr(events, n)[i : i + 997] for n in ("t", "x", "y", "p"))) for i in range(0, 20_000, 997)]
    streamed = count_as_they_close(parts, windows, FrameCounter(settings, frame_pixels(HEIGHT, WIDTH)), 8)
    np.testing.assert_array_equal(np.concatenate([frames for _, frames in streamed]), full)
