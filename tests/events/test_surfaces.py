"""Surfaces: sums that depend on the events before a time, and not on windows, strides or the cuts between packets."""

import numpy as np
from event_examples import HEIGHT, WIDTH, any_events, random_events, to_events, traced_memory
from hypothesis import given
from hypothesis import strategies as st

from rvtssm.events.cells import frame_pixels
from rvtssm.events.frame_counter import FrameCounter, count_as_they_close, count_windows
from rvtssm.events.surfaces import to_sums
from rvtssm.records import Windows, WindowSettings

SETTINGS = WindowSettings(representation="surfaces")


def sums_by_definition(events, time_us, constants_us):
    """The sums (2K, HEIGHT, WIDTH) at a time, from the formula."""
    sums = np.zeros((2, len(constants_us), HEIGHT, WIDTH))
    before = events.between(-(1 << 62), time_us)
    for k, tau in enumerate(constants_us):
        np.add.at(sums[:, k], (before.p, before.y, before.x), np.exp(-(time_us - before.t) / tau))
    return sums.reshape(-1, HEIGHT, WIDTH)


def levels_of(sums):
    """The levels of sums, not rounded: 16 per octave of 1 + s, straight between powers of two."""
    octaves = np.arange(17)
    return np.interp(sums, 2.0**octaves - 1, 16 * octaves)


def windows_at(ends_us, length_us=10_000) -> Windows:
    ends_us = np.asarray(ends_us, np.int64)
    return Windows(np.stack([ends_us - length_us, ends_us], axis=1), np.diff(ends_us, prepend=0))


def counter_of(settings=SETTINGS) -> FrameCounter:
    return FrameCounter(settings, frame_pixels(HEIGHT, WIDTH))


@given(
    events=any_events(max_step_us=9_000, max_start_us=5_000),
    ends_us=st.lists(st.integers(-3_000_000, 3_000_000), min_size=1, max_size=4, unique=True).map(sorted),
    constants_us=st.lists(st.integers(200, 10_000_000), min_size=1, max_size=5),
    shift_us=st.integers(-2_000_000, 2_000_000),
)
def test_frames_are_those_of_the_definition(events, ends_us, constants_us, shift_us):
    events = to_events(events.t + shift_us, events.x // 16, events.y // 16, events.p)
    settings = WindowSettings(representation="surfaces", time_constants_us=constants_us)
    found = count_windows(events, windows_at(ends_us), HEIGHT, WIDTH, settings)
    assert found.shape == (len(ends_us), 2 * len(constants_us), HEIGHT, WIDTH) and found.dtype == np.uint8
    for frame, end_us in zip(found, ends_us, strict=True):
        sums = sums_by_definition(events, end_us, constants_us)
        assert np.abs(frame - levels_of(sums)).max() <= 0.501  # rounded once
        assert np.abs(np.log2(1 + to_sums(frame)) - np.log2(1 + sums)).max() < 0.05


@given(cuts=st.lists(st.integers(0, 3_000), max_size=8), forgets=st.lists(st.booleans(), min_size=9, max_size=9))
def test_packets_and_forgetting_change_nothing(cuts, forgets):
    events, windows = random_events(3_000, span_us=400_000), windows_at(np.arange(30_000, 420_000, 30_000), 45_000)
    counter, found, done = counter_of(), [], 0
    for start, stop, forget in zip([0, *sorted(cuts)], [*sorted(cuts), 3_000], forgets, strict=False):
        packet = to_events(*(getattr(events, name)[start:stop] for name in ("t", "x", "y", "p")))
        counter.push(packet)
        closed = int(np.searchsorted(windows.ends_us, packet.t[-1], "right")) if len(packet) else done
        found += list(counter.take(windows.bounds_us[done:closed]))
        done = closed
        if forget and done < len(windows):
            counter.forget_before(int(windows.bounds_us[done, 0]))
    found += list(counter.take(windows.bounds_us[done:]))
    np.testing.assert_array_equal(found, count_windows(events, windows, HEIGHT, WIDTH, SETTINGS))


def test_memory_is_that_of_the_open_window():
    counter = counter_of()
    blocks = (random_events(2_000, seed=i, span_us=10_000, start_us=10_000 * i) for i in range(200))
    closed = count_as_they_close(blocks, None, counter, 4)
    next(closed)
    with traced_memory() as num_bytes:
        for _, _ in closed:
            assert len(counter.times_us) <= 5 * 2_000 + 2_000
        assert num_bytes() < 1 << 21  # all events are 4.8 MB


def test_events_before_the_warm_up_count_less_than_one_percent():
    assert np.exp(-SETTINGS.warmup_us / np.array(SETTINGS.time_constants_us)).max() < 0.01


def test_a_hot_pixel_saturates_and_silence_forgets_it():
    t = np.arange(0, 4_000_000, 2)
    events = to_events(t, np.zeros_like(t), np.zeros_like(t), np.ones_like(t))
    settings = WindowSettings(representation="surfaces", time_constants_us=(500, 2_000_000))
    found = count_windows(events, windows_at([4_000_000, 60_000_000]), HEIGHT, WIDTH, settings)
    np.testing.assert_array_equal(found[0, :, 0, 0], [0, 0, np.rint(levels_of(250.5)), 255])
    assert not found[1].any()
