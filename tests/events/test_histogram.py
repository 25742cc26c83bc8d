"""Frames of events: counted as the formula says, of a file or live, reduced, as surfaces, moved while being counted."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from event_examples import HEIGHT, WIDTH, any_events, random_events, to_events, traced_memory
from hypothesis import given
from hypothesis import settings as with_settings
from hypothesis import strategies as st
from user_errors import raises

from rvtssm.events.cells import frame_pixels
from rvtssm.events.frame_counter import FrameCounter, count_as_they_close, count_windows
from rvtssm.events.representations import num_shared_slices, to_sums
from rvtssm.events.windows import free_grid
from rvtssm.records import Events, Windows, WindowSettings
from rvtssm.records.settings import CHANNELS_PER_BIN, CONVENTIONS, REDUCTIONS


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


def test_frames_without_pixels_are_refused():
    events = to_events([1], [WIDTH - 1], [0], [0])
    with raises("setting.out_of_range"):
        count_windows(events, windows_of((0, 10)), HEIGHT, WIDTH, downsample=0)


# live windows


CHOICES = [("exact", name) for name in CHANNELS_PER_BIN] + [("rvt", "histogram")]


def ending_at(ends_us, length_us=10_000) -> Windows:
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
    windows = ending_at(np.arange(20_000, 320_000, stride_us), length_us)
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
    windows = ending_at(np.cumsum(strides), length_us)
    settings = WindowSettings(num_bins=num_bins)
    wanted = count_windows(events, windows, HEIGHT, WIDTH, settings)
    alone = [count_windows(events, ending_at([end], length_us), HEIGHT, WIDTH, settings)[0] for end in windows.ends_us]
    np.testing.assert_array_equal(wanted, alone)
    copied = to_events(*(getattr(events, name).copy() for name in ("t", "x", "y", "p")))
    found, _ = slide(copied, windows, settings)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("together", [1, 4])
def test_the_ring_saves_the_work_of_counting_again(together, monkeypatch):
    """Planes that are put into the ring are counted: after the first windows, one bin of each window."""
    windows, events = ending_at(5_000 * np.arange(10, 40), 50_000), random_events(20_000, span_us=200_000)
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


def test_what_a_program_counts_is_checked():
    windows = ending_at([100], 100)
    with raises("events.unsorted"):
        count_windows(to_events([100, 90], [1, 2], [3, 4], [0, 1]), windows, HEIGHT, WIDTH)
    with raises("events.outside_frame"):
        count_windows(to_events([130], [WIDTH], [1], [1]), windows, HEIGHT, WIDTH)


def test_frames_can_be_written_into_an_array():
    events = random_events(500, span_us=1000)
    windows = ending_at([500, 1000], 500)
    counter = FrameCounter(WindowSettings(), frame_pixels(HEIGHT, WIDTH))
    out = np.full((2, 20, HEIGHT, WIDTH), 77, np.uint8)
    counter.push(events)
    assert counter.take(windows.bounds_us, out) is out
    np.testing.assert_array_equal(out, count_windows(events, windows, HEIGHT, WIDTH))


# squares of the sensor as pixels


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
    with raises("setting.choice") as of_settings:
        WindowSettings(reduce="mean")
    with raises("setting.choice") as of_pixels:
        frame_pixels(HEIGHT, WIDTH, 2, reduce="mean")
    with raises("setting.conflict") as of_rvt:
        WindowSettings(convention="rvt", reduce="sum")
    keys = [raised.value.key for raised in (of_settings, of_pixels, of_rvt)]
    assert keys == ["setting.choice", "setting.choice", "setting.conflict"]


# moves in the counting pass


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
@with_settings(max_examples=20)
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


# surfaces


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
    found = count_windows(events, ending_at(ends_us), HEIGHT, WIDTH, settings)
    assert found.shape == (len(ends_us), 2 * len(constants_us), HEIGHT, WIDTH) and found.dtype == np.uint8
    for frame, end_us in zip(found, ends_us, strict=True):
        sums = sums_by_definition(events, end_us, constants_us)
        assert np.abs(frame - levels_of(sums)).max() <= 0.501  # rounded once
        assert np.abs(np.log2(1 + to_sums(frame)) - np.log2(1 + sums)).max() < 0.05


@given(cuts=st.lists(st.integers(0, 3_000), max_size=8), forgets=st.lists(st.booleans(), min_size=9, max_size=9))
def test_packets_and_forgetting_change_nothing(cuts, forgets):
    events, windows = random_events(3_000, span_us=400_000), ending_at(np.arange(30_000, 420_000, 30_000), 45_000)
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
    found = count_windows(events, ending_at([4_000_000, 60_000_000]), HEIGHT, WIDTH, settings)
    np.testing.assert_array_equal(found[0, :, 0, 0], [0, 0, np.rint(levels_of(250.5)), 255])
    assert not found[1].any()
