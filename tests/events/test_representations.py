"""Every representation by its laws and by its definition in a few lines of numpy."""

import numpy as np
import pytest
from event_examples import HEIGHT, WIDTH, any_events, random_events, to_events
from hypothesis import given
from hypothesis import strategies as st

from rvtssm.events.cells import frame_pixels
from rvtssm.events.frame_counter import FrameCounter, count_as_they_close, count_windows
from rvtssm.records import CHANNELS_PER_BIN, Windows, WindowSettings


def one_window(start_us, end_us) -> Windows:
    return Windows(np.array([[start_us, end_us]]), np.array([end_us - start_us]))


def voxel_grid_by_definition(t, x, y, sign, share, num_bins):
    """V(b) = sum of p_i * max(0, 1 - |b - t_i*|) with t* = (B - 1) * share (Zhu et al., 2019, eq. 2 and 3)."""
    frame = np.zeros((num_bins, HEIGHT, WIDTH))
    for b in range(num_bins):
        np.add.at(frame[b], (y, x), sign * np.maximum(0, 1 - np.abs(b - (num_bins - 1) * share)))
    return frame


def event_stack_by_definition(t, x, y, sign, share, num_bins):
    frame = np.zeros((num_bins, HEIGHT, WIDTH))
    for b in range(num_bins):
        for i in range(len(t) - len(t) // 2**b, len(t)):
            frame[b, y[i], x[i]] = sign[i]
    return frame


DEFINITIONS = {  # that of the histogram is in test_histogram
    "voxel_grid": voxel_grid_by_definition,
    "event_stack": event_stack_by_definition,
}


@pytest.mark.parametrize("name", DEFINITIONS)
@given(
    events=any_events(max_step_us=3000, max_start_us=5000),
    start_us=st.integers(-100, 30_000),
    length_us=st.integers(1, 40_000),
    num_bins=st.integers(1, 7),
)
def test_frames_are_those_of_the_definition(name, events, start_us, length_us, num_bins):
    events = to_events(events.t, events.x // 16, events.y // 16, events.p)
    settings = WindowSettings(representation=name, num_bins=num_bins)
    (found,) = count_windows(events, one_window(start_us, start_us + length_us), HEIGHT, WIDTH, settings)
    inside = events.between(start_us, start_us + length_us)
    share = (inside.t - start_us) / length_us
    wanted = DEFINITIONS[name](inside.t, inside.x, inside.y, 2.0 * inside.p - 1, share, num_bins)
    assert found.dtype == settings.dtype
    assert len(found) == settings.num_channels == len(wanted)
    # float16 has 11 bits, and rounds once
    np.testing.assert_allclose(found, wanted, rtol=2**-11 if found.dtype == np.float16 else 0, atol=1e-4)


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
