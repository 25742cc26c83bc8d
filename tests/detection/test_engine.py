"""Packets of events give what the whole recording gives, whatever their size and rate; gaps and jumps are handled."""

import io
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from user_errors import raises

from rvtssm.detection import configured_detector, engine
from rvtssm.detection.configured_detector import sustained_hz
from rvtssm.detection.engine import StreamDetector, detect
from rvtssm.detection.predictor import Predictor
from rvtssm.detection.sources import EventsInMemory
from rvtssm.detection.window_detector import gap_steps
from rvtssm.events.frame_counter import count_windows
from rvtssm.events.windows import FreeGrid, free_grid, label_grid
from rvtssm.models import PostprocessConfig
from rvtssm.models.detector import set_precision
from rvtssm.models.postprocess import to_sensor
from rvtssm.models.streams import Streams
from rvtssm.readers.recording import join_events
from rvtssm.records import Events, WindowSettings
from rvtssm.ssm import TemporalConfig
from rvtssm.ssm.temporal_layers import TEMPORAL_LAYERS, build_temporal_layer
from rvtssm.system.user_error import UserError

CONFIG = PostprocessConfig(max_detections=5)
HEIGHT, WIDTH = 48, 64
RATES = [WindowSettings(50_000), WindowSettings(1e6 / 70, 50_000)]


def bounds(results):
    return [(result.start_us, result.t_us) for result in results]


def assert_same(found, wanted, tolerance=1e-5):
    """Windows and their detections, scores and boxes to a tolerance."""
    assert bounds(found) == bounds(wanted)
    for mine, theirs in zip(found, wanted, strict=True):
        assert len(mine) == len(theirs)
        np.testing.assert_allclose(mine.score, theirs.score, rtol=0, atol=tolerance)
        np.testing.assert_allclose(mine.xyxy, theirs.xyxy, rtol=0, atol=1000 * tolerance)


def live(checkpoint, **options):
    return StreamDetector(checkpoint, HEIGHT, WIDTH, config=CONFIG, **options)


def push_in_pieces(detector, events, cuts):
    edges = [0, *sorted(cuts), len(events)]
    return [window for start, stop in pairwise(edges) for window in detector.push(events[start:stop])]


def in_one_call(checkpoint, windows, hists, dt_us, config=CONFIG):
    """The detections of all windows, from one call of the detector."""
    streams = Streams(checkpoint.detector.eval(), checkpoint.windows.stride_us, checkpoint.model_config.memory_chunk)
    steps = torch.arange(len(windows))
    index = torch.stack([steps, torch.zeros_like(steps)], dim=1)
    dt = torch.full((len(windows), 1), float(dt_us), dtype=torch.float64)
    ends_us = windows.ends_us.tolist()
    predictions = streams.push(torch.from_numpy(hists)[:, None], dt, index, [0], [True])
    return [to_sensor(frame, HEIGHT, WIDTH, 1) for frame in streams.decoded(predictions, ends_us, config)]


@pytest.mark.parametrize(
    ("name", "hz", "length_us"),
    [*((name, 25, 50_000) for name in TEMPORAL_LAYERS), ("s5", 20, None), ("s5", 80, None)],
)
def test_streaming_is_batch_evaluation(live_checkpoint, draw_events, name, hz, length_us):
    checkpoint, events = live_checkpoint(name), draw_events()
    config = PostprocessConfig(max_detections=20)  # some of the best may lie outside of the frame
    settings = WindowSettings(1e6 / hz, length_us)
    windows = free_grid(int(events.t[0]), int(events.t[-1]), settings)
    whole = in_one_call(checkpoint, windows, count_windows(events, windows, HEIGHT, WIDTH), 1e6 / hz, config)
    streamed = StreamDetector(checkpoint, HEIGHT, WIDTH, config=config, windows=settings)
    found = streamed.push(events) + streamed.push(events[:0], until_us=int(windows.ends_us[-1]))
    np.testing.assert_array_equal(bounds(found), windows.bounds_us)
    for window, frame in zip(found, whole, strict=True):
        assert window.t_us == frame.t_us and len(window) == len(frame) > 0
        np.testing.assert_allclose(window.score, frame.score, rtol=0, atol=1e-5)
        np.testing.assert_allclose(window.xyxy, frame.xyxy, rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("windows_per_call", "has_grid", "length_us"),
    [(1, False, None), (1, True, 50_000), (8, False, 50_000), (8, True, None)],
)
def test_a_source_is_one_packet(live_checkpoint, draw_events, windows_per_call, has_grid, length_us):
    """Events that are counted ahead, several windows per call, and windows that end at labels."""
    checkpoint, events = live_checkpoint(), draw_events(3_000)
    settings = WindowSettings(12_500, length_us)
    ends_us = np.array([7_133_000, 7_290_500])
    grid = label_grid(ends_us, int(events.t[0]), settings) if has_grid else None
    options = {"windows": settings, "grid": grid, "skip": "never", "windows_per_call": windows_per_call}
    blocks = EventsInMemory(events, HEIGHT, WIDTH)
    object.__setattr__(blocks, "blocks", lambda: (events[i : i + 700] for i in range(0, len(events), 700)))
    found = list(detect(blocks, live(checkpoint, **options)))
    whole = live(checkpoint, **options)
    assert_same(found, whole.push(events) + whole.finish())
    assert len(found) == (len(grid) if has_grid else FreeGrid(7_000_000, settings).num_until(int(events.t[-1])))


def test_streaming_counts_as_the_weights_were_trained(live_checkpoint, draw_events):
    checkpoint, events = live_checkpoint(representation="surfaces"), draw_events()
    how = WindowSettings(representation="surfaces")
    windows = free_grid(int(events.t[0]), int(events.t[-1]), how)
    whole = in_one_call(checkpoint, windows, count_windows(events, windows, HEIGHT, WIDTH, how), 50_000)
    for window, frame in zip(live(checkpoint).push(events), whole[:-1], strict=True):
        np.testing.assert_allclose(window.score, frame.score, rtol=0, atol=1e-5)


def test_boxes_are_in_pixels_of_the_sensor(live_checkpoint, draw_events):
    checkpoint, events = live_checkpoint(), draw_events()
    x, y = (2 * each + np.uint16(1) for each in (events.x, events.y))  # what counts of a sensor twice as large
    larger = StreamDetector(checkpoint, 2 * HEIGHT, 2 * WIDTH, downsample=2, config=CONFIG)
    frames, found = live(checkpoint).push(events), larger.push(Events(events.t, x, y, events.p))
    assert len(frames) > 3 and all(map(len, frames))
    for window, wanted in zip(found, frames, strict=True):
        np.testing.assert_allclose(window.xyxy, 2 * wanted.xyxy, rtol=1e-5)


@pytest.fixture(scope="module", params=RATES, ids=lambda windows: f"{windows.hz:.0f}Hz")
def one_packet(request, live_checkpoint, draw_events):
    """A rate, weights, events, and the windows that they give as one packet."""
    checkpoint, events = live_checkpoint(), draw_events(2_000, duration_us=230_000)
    return request.param, checkpoint, events, live(checkpoint, windows=request.param).push(events)


@settings(max_examples=5)
@given(cuts=st.lists(st.integers(0, 2_000), max_size=12))
def test_the_size_of_packets_changes_nothing(one_packet, cuts):
    windows, checkpoint, events, whole = one_packet
    assert len(whole) >= 4
    assert_same(push_in_pieces(live(checkpoint, windows=windows), events, cuts), whole, tolerance=0)


@pytest.mark.parametrize("convention", ["rvt", "exact"])
@pytest.mark.parametrize("windows", RATES)
def test_equal_times_on_both_sides_of_a_cut(live_checkpoint, windows, convention):
    """Windows of the convention `rvt` hold the events at both ends, which may lie in different packets."""
    checkpoint = live_checkpoint()
    checkpoint = replace(checkpoint, windows=replace(checkpoint.windows, convention=convention))
    windows = replace(windows, convention=convention)
    t = np.repeat(np.arange(0, 200_000, 10_000), 40)
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, [[WIDTH], [HEIGHT]], (2, len(t))).astype(np.uint16)
    events = Events(t, x, y, rng.integers(0, 2, len(t)).astype(np.uint8))
    whole = live(checkpoint, windows=windows).push(events)
    assert_same(push_in_pieces(live(checkpoint, windows=windows), events, range(7, len(t), 13)), whole, 0)


@pytest.mark.parametrize("convention", ["rvt", "exact"])
def test_the_end_of_the_events_closes_the_window_that_is_open(live_checkpoint, draw_events, convention):
    checkpoint = live_checkpoint()
    checkpoint = replace(checkpoint, windows=replace(checkpoint.windows, convention=convention))
    events = draw_events(duration_us=400_001, seed=1)  # the last event is at the end of a window
    detector, longer = live(checkpoint), live(checkpoint)
    assert detector.finish() == []
    found = [*detector.push(events), *detector.finish()]
    assert found[-2].t_us <= int(events.t[-1]) < found[-1].t_us and detector.finish() == []
    assert_same(found, longer.push(events, int(events.t[-1]) + 60_000)[: len(found)], 0)


def test_rate_and_length_of_windows_change_while_it_runs(live_checkpoint, draw_events):
    """The new grid begins where the last window ended, and the state goes on; packets make no difference."""
    checkpoint, events = live_checkpoint(), draw_events()
    rates = [WindowSettings(50_000), WindowSettings(20_000, 60_000), WindowSettings(10_000)]
    found = []
    for pieces in (1, 7):
        streamed = live(checkpoint)
        results = []
        for windows, (start, stop) in zip(rates, [(0, 2_000), (2_000, 4_000), (4_000, 6_000)], strict=True):
            streamed.windows = windows
            for at in range(start, stop, (stop - start) // pieces):
                results += streamed.push(events[at : min(at + (stop - start) // pieces, stop)])
        found.append(results)
    assert_same(*found, tolerance=0)
    lengths = [end_us - start_us for start_us, end_us in bounds(found[0])]
    assert sorted(set(lengths), key=lengths.index) == [50_000, 60_000, 10_000]
    steps = np.diff([end_us for _, end_us in bounds(found[0])])
    assert set(steps.tolist()) == {50_000, 20_000, 10_000}


# gaps, jumps and late events


@pytest.mark.parametrize("num_windows", [4, 5, 9, 1_200])
def test_the_steps_over_a_gap_cover_it(num_windows):
    steps = gap_steps(num_windows)
    assert steps.sum() == num_windows and len(steps) < 4 + math.log2(num_windows) and (steps > 0).all()


LAYERS = [(name, rule) for name in ("s4", "s4d", "s5", "selective_s5") for rule in ("zoh", "dirac", "async")]


@pytest.mark.parametrize(("name", "rule"), [*LAYERS, ("s7", None)])
def test_a_layer_steps_over_a_gap_as_it_steps_through_it(name, rule):
    """Not so with the bilinear rule, which gives modes that are fast another phase and size in long steps."""
    torch.manual_seed(0)
    layer = build_temporal_layer(TemporalConfig(name=name, discretization=rule, dt_min=0.05, dt_max=0.5), 16)
    with torch.inference_mode():
        _, state = layer(torch.randn(30, 3, 16))
        silence = torch.zeros(200, 3, 16)
        _, through = layer(silence, state)
        steps = torch.from_numpy(gap_steps(200)).float()
        _, over = layer(silence[: len(steps)], state, steps[:, None])
    assert torch.linalg.vector_norm(over - through) < 1e-4 * torch.linalg.vector_norm(state)


def of_silence(events, silence_us):
    """Events, a silence, and the same events again."""
    return join_events([events, replace(events, t=events.t + int(events.t[-1] - events.t[0]) + silence_us)])


@pytest.mark.parametrize("name", TEMPORAL_LAYERS)
def test_a_gap_is_one_result_and_little_work(live_checkpoint, draw_events, monkeypatch, name):
    checkpoint, events = live_checkpoint(name), of_silence(draw_events(duration_us=180_000), 1_200_000)
    steps = []
    push = Streams.push
    monkeypatch.setattr(Streams, "push", lambda self, hist, *given: steps.append(len(hist)) or push(self, hist, *given))
    found = live(checkpoint).push(events)
    num_windows = FreeGrid(int(events.t[0]), checkpoint.windows).num_ended(int(events.t[-1]))
    (gap,) = (result for result in found if result.num_passed)
    assert len(found) + gap.num_passed == num_windows and gap.num_passed > 20
    assert (gap.t_us - gap.start_us, gap.step_us) == (50_000, (gap.num_passed + 1) * 50_000)
    num_steps = gap.num_passed + 1
    tolerance = 1e-5
    if checkpoint.detector.has_step_to_rescale:
        num_steps = len(gap_steps(num_steps))
        tolerance = 0.1  # the bilinear rule, and the stages behind the first see more than their own silence
    assert sum(steps) == len(found) - 1 + num_steps
    every = live(checkpoint, skip="never").push(events)
    assert len(every) == num_windows
    wanted = [result for result in every if result.t_us in {result.t_us for result in found}]
    assert any(len(result.score) for result in wanted)
    for mine, theirs in zip(found, wanted, strict=True):
        assert abs(mine.score.max(initial=0) - theirs.score.max(initial=0)) < tolerance


def test_a_gap_is_stepped_over_as_well_if_only_the_newest_window_is_computed(live_checkpoint, draw_events):
    events = of_silence(draw_events(), 3_000_000)
    every, newest = live(live_checkpoint()), live(live_checkpoint(), skip="late")
    for start_us in range(7_000_000, 10_500_000, 50_000):
        packet = events.between(start_us, start_us + 50_000)
        if len(packet):  # each closes one window, and the first after the gap the whole gap
            wanted, found = every.push(packet), newest.push(packet)
            assert sum(1 + result.num_passed for result in wanted) == sum(1 + result.num_passed for result in found)
            assert_same(found, wanted[-1:], 0)


def test_few_empty_windows_are_computed(live_checkpoint, draw_events):
    events = of_silence(draw_events(), 150_000)
    assert_same(live(live_checkpoint()).push(events), live(live_checkpoint(), skip="never").push(events), 0)


def test_only_the_newest_window_is_computed_if_it_is_asked_for(live_checkpoint, draw_events):
    checkpoint, events = live_checkpoint(), draw_events()
    detector = live(checkpoint, skip="late")
    (first,) = detector.push(events.between(0, 7_070_000))
    (found,) = detector.push(events.between(7_070_000, 7_270_000))
    assert (first.num_passed, found.num_passed) == (0, 3)
    assert bounds([found]) == [(7_050_000, 7_250_000)] and found.step_us == 200_000
    assert detector.push(events[:0]) == []
    slower = live(checkpoint)
    slower.push(events.between(0, 7_070_000))
    slower.windows = WindowSettings(200_000)
    (wanted,) = slower.push(events.between(7_070_000, 7_270_000))
    assert_same([found], [wanted], 0)


def test_a_clock_that_is_a_little_back_is_tolerated(live_checkpoint, draw_events):
    checkpoint, events = live_checkpoint(), draw_events(1_000)
    detector, wanted = live(checkpoint), live(checkpoint)
    late, rest = events[:500], events[500:]
    before = replace(rest, t=np.maximum(rest.t, int(late.t[-1])))
    moved = replace(rest, t=np.where(np.arange(len(rest)) < 3, late.t[-1] - 5_000, rest.t))
    moved_back = replace(rest, t=np.where(np.arange(len(rest)) < 3, late.t[-1], before.t))
    found = detector.push(late) + detector.push(moved)
    assert_same(found, wanted.push(late) + wanted.push(moved_back), 0)
    assert detector.num_late == 3


def test_a_clock_that_jumps_is_refused_and_changes_nothing(live_checkpoint, draw_events):
    """Its empty windows would be work without end; who knows that nothing happened says so, step by step."""
    checkpoint, events = live_checkpoint(), draw_events(300)
    slow = WindowSettings(50e6)
    streamed, clean = live(checkpoint, windows=slow), live(checkpoint, windows=slow)
    streamed.push(events), clean.push(events)
    later = replace(events, t=events.t + 8 * 3_600_000_000)
    jump = join_events([replace(events, t=events.t + 1_000_000), later])
    for packet, until_us in ((later, None), (jump, None), (events[:0], 1 << 60)):
        with raises("stream.silence"):
            streamed.push(packet, until_us=until_us)
    found = [each.push(events[:0], until_us=507_000_000) for each in (streamed, clean)]
    assert_same(*found, tolerance=0)


def test_after_a_jump_of_the_clock_a_restart_is_a_new_stream(live_checkpoint, draw_events):
    checkpoint, events = live_checkpoint(), draw_events(2_000)
    detector = live(checkpoint)
    detector.push(events)
    earlier = replace(events, t=events.t - 5_000_000)
    with raises("stream.order"):
        detector.push(earlier)
    detector.restart()
    assert_same(detector.push(earlier), live(checkpoint).push(earlier), 0)


def test_warming_up_changes_no_box(live_checkpoint, draw_events):
    for windows in (WindowSettings(10_000), WindowSettings(10_000, 50_000)):
        warm, cold = (live(live_checkpoint(), windows=windows) for _ in range(2))
        warm.warm_up()
        events = draw_events(duration_us=80_000)
        assert_same(warm.push(events), cold.push(events), 0)


# state


def test_a_state_goes_on_at_another_rate(live_checkpoint, draw_events):
    """As if the rate had been changed where the state was saved."""
    checkpoint, events = live_checkpoint(), draw_events(duration_us=300_000)
    before, after = WindowSettings(10_000), WindowSettings(50_000)
    changed, restored = live(checkpoint, windows=before), live(checkpoint, windows=after)
    changed.push(events[:3_000])
    restored.load_state_dict(changed.state_dict())
    changed.windows = after
    found = restored.push(events[3_000:])
    assert {end_us - start_us for start_us, end_us in bounds(found)} == {50_000}
    assert_same(found, changed.push(events[3_000:]), tolerance=0)


@pytest.mark.parametrize("name", TEMPORAL_LAYERS)
def test_state_can_be_saved_and_restored(live_checkpoint, draw_events, name):
    """`torch.load` takes it without being told to trust it, whatever numbers went in."""
    checkpoint, events = live_checkpoint(name), draw_events()
    windows = WindowSettings(1e6 / 30, 40_000)
    whole = live(checkpoint, windows=windows).push(events)
    first = live(checkpoint, windows=windows, start_us=np.int64(7_000_000))
    head = first.push(events[:2_345], until_us=events.t[2_344] + np.int64(1))
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = live(checkpoint, windows=windows)
    second.load_state_dict(torch.load(file))
    first.push(events[2_345:])  # what is stored does not move on with the one it came from
    assert_same(head + second.push(events[2_345:]), whole, tolerance=0)


def test_a_state_before_the_first_event(live_checkpoint, draw_events):
    checkpoint, events = live_checkpoint(), draw_events()
    second = live(checkpoint)
    second.load_state_dict(live(checkpoint).state_dict())
    assert_same(second.push(events), live(checkpoint).push(events), tolerance=0)


def test_memory_of_a_chunk_is_kept_to(live_checkpoint, draw_events):
    events = draw_events()
    forgetful = live(live_checkpoint(memory="chunk", memory_chunk=2)).push(events)
    carried = live(live_checkpoint()).push(events)
    differs = [
        len(a) != len(b) or not np.allclose(a.score, b.score, atol=1e-6)
        for a, b in zip(forgetful, carried, strict=True)
    ]
    assert not any(differs[:2]) and all(differs[2:])


def test_a_stream_goes_on_in_another_precision(live_checkpoint, draw_events):
    rounded = live_checkpoint()
    set_precision(rounded.detector, "bf16")
    before, after = live(live_checkpoint()), live(rounded)
    before.push(draw_events())
    after.load_state_dict(before.state_dict())
    assert not after._network.is_first
    before.load_state_dict(after.state_dict())


# what is refused


def test_wrong_packets_are_refused_and_change_nothing(live_checkpoint, draw_events):
    checkpoint, events = live_checkpoint(), draw_events(duration_us=180_000)
    later = replace(events, t=events.t + 179_999)
    streamed, clean = live(checkpoint), live(checkpoint)
    streamed.push(events), clean.push(events)
    for key, changed in {
        "events.unsorted": {"t": later.t[::-1].copy()},
        "events.outside_frame": {"x": later.x + np.uint16(64)},
        "events.polarity": {"p": later.p + np.uint8(2)},
        "stream.order": {"t": later.t - 10_000_000},
    }.items():
        with raises(key):
            streamed.push(replace(later, **changed))
    assert_same(streamed.push(later), clean.push(later), tolerance=0)


def test_weights_that_see_later_windows_are_refused(live_checkpoint):
    with raises("layer.lacks"):
        live(live_checkpoint("s5", bidirectional=True))


def test_what_does_not_fit_is_refused(live_checkpoint, draw_events):
    checkpoint = live_checkpoint()
    other = live(live_checkpoint("lstm"))
    other.push(draw_events())
    with raises("memory.other_state"):
        live(checkpoint).load_state_dict(other.state_dict())
    larger = StreamDetector(checkpoint, 2 * HEIGHT, 2 * WIDTH, downsample=2)  # the states have the same shapes
    with raises("memory.other_state"):
        live(checkpoint).load_state_dict(larger.state_dict())
    with raises("memory.other_state"):
        live(checkpoint).load_state_dict(checkpoint.detector.state_dict())
    square = [StreamDetector(checkpoint, 96, 96, downsample=1, tiles=tiles) for tiles in ("2x1", "1x2")]
    square[0].push(draw_events())  # the states have the same shapes
    with raises("memory.other_state", "tiles"):
        square[1].load_state_dict(square[0].state_dict())
    for how in ({"skip": "never"}, {"filters": ["background"]}):
        with raises("setting.conflict", "use neither"):
            live(checkpoint, **how).load_state_dict(live(checkpoint).state_dict())
    with raises("setting.out_of_range"):
        live(checkpoint, windows=WindowSettings(61e6))


def test_a_clock_that_stands_still_cannot_fill_the_memory(live_checkpoint, monkeypatch):
    monkeypatch.setattr(engine, "MOST_PENDING", 1000)
    detector = StreamDetector(live_checkpoint(), 48, 64, downsample=1)
    zero = np.zeros(400, np.uint16)
    packet = Events(np.full(400, 7, np.int64), zero, zero, zero.astype(np.uint8))
    assert detector.push(packet) == detector.push(packet) == []
    with raises("stream.full"):
        detector.push(packet)


@pytest.mark.parametrize(
    ("given_settings", "key"),
    [
        ({"height": "48"}, "setting.form"),
        ({"width": 64.5}, "setting.out_of_range"),
        ({"downsample": 0}, "setting.out_of_range"),
        ({"start_us": math.inf}, "setting.out_of_range"),
        ({"skip": "some"}, "setting.choice"),
    ],
)
def test_a_detector_says_which_argument_is_wrong(live_checkpoint, given_settings, key):
    with raises(key):
        StreamDetector(live_checkpoint(), **{"height": HEIGHT, "width": WIDTH, **given_settings})


def test_packets_and_times_that_are_none_are_told_and_change_nothing(live_checkpoint, draw_events):
    detector, events = live(live_checkpoint()), draw_events()
    for until_us in (math.inf, math.nan, True):
        with raises("setting.out_of_range", "until_us"):
            detector.push(events, until_us)
    with raises("setting.form", "until_us='7'"):
        detector.push(events, "7")
    for packet in (None, events.t, [1, 2]):
        with pytest.raises(UserError, match=r" holds no events; give rvtssm\.Events, or a structured array"):
            detector.push(packet)
    assert_same(detector.push(events, 8e6), live(live_checkpoint()).push(events, 8_000_000))


@pytest.mark.parametrize(
    ("seconds", "hz"),
    [([0.05] * 10, 16), ([0.01] * 9 + [0.5], 2), ([0.001] * 10, 200), ([0.79] * 10, 1), ([3.0] * 10, 0.26)],
)
def test_the_rate_that_a_machine_sustains_leaves_it_a_fifth(seconds, hz):
    """95 % of the windows count, and no rate is above ten times that of the training, here 20 Hz."""
    assert sustained_hz(seconds, 20) == hz


def test_a_stream_takes_the_rate_that_was_measured(live_checkpoint, draw_events, monkeypatch):
    """Its boxes are those of a stream at this rate, however long the measured windows took."""
    predictor, timed = Predictor(live_checkpoint()), []
    monkeypatch.setattr(
        configured_detector, "sustained_hz", lambda seconds, trained_hz: timed.append((seconds, trained_hz)) or 40.0
    )
    events = draw_events(duration_us=200_000)
    streams = [predictor.stream(48, 64, hz=hz, min_score=0.001) for hz in ("auto", 40)]
    ((seconds, trained_hz),) = timed
    assert len(seconds) == configured_detector.NUM_TIMED and min(seconds) > 0 and trained_hz == 20
    found, wanted = ([window.xyxy.tolist() for window in stream.push(events)] for stream in streams)
    assert found == wanted and len(found) > 5
