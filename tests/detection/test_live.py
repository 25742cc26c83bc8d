"""Packets of events give what the whole recording gives, whatever their size, rate and number of cameras."""

import io
import math
import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rvtssm.detection.detect import detect, open_stream
from rvtssm.detection.live import StreamDetector
from rvtssm.detection.schedule import Adaptive, EventCount, FixedRate
from rvtssm.events import frame_counter
from rvtssm.events.frame_counter import count_windows
from rvtssm.events.windows import free_grid
from rvtssm.models.heads.yolox import YoloxHead
from rvtssm.models.model_config import PostprocessConfig
from rvtssm.models.postprocess import to_sensor
from rvtssm.readers.recording import join_events
from rvtssm.records import Events, Windows, WindowSettings
from rvtssm.ssm.temporal_layers import TEMPORAL_LAYERS

CONFIG = PostprocessConfig(max_detections=5)
HEIGHT, WIDTH = 48, 64
SCHEDULES = [FixedRate(20), FixedRate(70, 50_000), EventCount(400, 5_000, 90_000), Adaptive(300, 10, 100)]


def assert_same(found, wanted, tolerance=1e-5):
    """Windows and their detections, scores and boxes to a tolerance."""
    assert [(w.start_us, w.end_us) for w in found] == [(w.start_us, w.end_us) for w in wanted]
    for mine, theirs in zip(found, wanted, strict=True):
        for a, b in zip(mine.detections, theirs.detections, strict=True):
            assert len(a) == len(b)
            np.testing.assert_allclose(a.score, b.score, rtol=0, atol=tolerance)
            np.testing.assert_allclose(a.xyxy, b.xyxy, rtol=0, atol=1000 * tolerance)


def live(checkpoint, **options):
    return StreamDetector(checkpoint, HEIGHT, WIDTH, config=CONFIG, **options)


def push_in_pieces(detector, events, cuts):
    edges = [0, *sorted(cuts), len(events)]
    return [window for start, stop in pairwise(edges) for window in detector.push(events[start:stop])]


@pytest.mark.parametrize(
    ("name", "hz", "length_us"),
    [*((name, 50, 50_000) for name in TEMPORAL_LAYERS), ("s5", 20, None), ("s5", 80, None)],
)
def test_streaming_is_batch_evaluation(live_checkpoint, draw_events, name, hz, length_us):
    checkpoint, events = live_checkpoint(name), draw_events()
    config = PostprocessConfig(max_detections=20)  # some of the best may lie outside of the frame
    first, last = int(events.t[0]), int(events.t[-1])
    windows = free_grid(first, last, WindowSettings(1e6 / hz, length_us))
    hists = count_windows(events, windows, HEIGHT, WIDTH)
    whole = list(detect(open_stream(checkpoint, (HEIGHT, WIDTH)), [(windows, hists)], 1e6 / hz, config))
    streamed = StreamDetector(checkpoint, HEIGHT, WIDTH, config=config, schedule=FixedRate(hz, length_us))
    found = streamed.push(events) + streamed.push(events[:0], until_us=int(windows.ends_us[-1]))
    np.testing.assert_array_equal([(w.start_us, w.end_us) for w in found], windows.bounds_us)
    for window, (_, frame, *_) in zip(found, whole, strict=True):
        assert window.detections[0].t_us == frame.t_us
        assert len(window.detections[0]) == len(frame) > 0
        np.testing.assert_allclose(window.detections[0].score, frame.score, rtol=0, atol=1e-5)
        np.testing.assert_allclose(window.detections[0].xyxy, frame.xyxy, rtol=0, atol=1e-3)


@pytest.mark.parametrize("representation", ["surfaces"])
def test_streaming_counts_as_the_weights_were_trained(live_checkpoint, draw_events, representation):
    checkpoint, events = live_checkpoint(representation=representation), draw_events()
    how = WindowSettings(representation=representation)
    windows = free_grid(int(events.t[0]), int(events.t[-1]), how)
    counted = windows, count_windows(events, windows, HEIGHT, WIDTH, how)
    whole = list(detect(open_stream(checkpoint, (HEIGHT, WIDTH)), [counted], 50_000.0, CONFIG))
    for window, (_, frame, *_) in zip(live(checkpoint).push(events), whole[:-1], strict=True):
        np.testing.assert_allclose(window.detections[0].score, frame.score, rtol=0, atol=1e-5)


def test_boxes_are_in_pixels_of_the_sensor(live_checkpoint, draw_events):
    checkpoint, events = live_checkpoint(), draw_events()
    x, y = (2 * each + np.uint16(1) for each in (events.x, events.y))  # what counts of a sensor twice as large
    larger = StreamDetector(checkpoint, 2 * HEIGHT, 2 * WIDTH, downsample=2, config=CONFIG)
    frames, found = live(checkpoint).push(events), larger.push(Events(events.t, x, y, events.p))
    assert len(frames) > 3 and all(len(window.detections[0]) for window in frames)
    for window, wanted in zip(found, frames, strict=True):
        np.testing.assert_allclose(window.detections[0].xyxy, 2 * wanted.detections[0].xyxy, rtol=1e-5)


@pytest.fixture(scope="module", params=SCHEDULES, ids=lambda schedule: type(schedule).__name__)
def one_packet(request, live_checkpoint, draw_events):
    """A schedule, weights, events, and the windows that they give as one packet."""
    checkpoint, events = live_checkpoint(), draw_events(2_000)
    return request.param, checkpoint, events, live(checkpoint, schedule=request.param).push(events)


@settings(max_examples=5)
@given(cuts=st.lists(st.integers(0, 2_000), max_size=12))
def test_the_size_of_packets_changes_nothing(one_packet, cuts):
    schedule, checkpoint, events, whole = one_packet
    assert len(whole) >= 4
    assert_same(push_in_pieces(live(checkpoint, schedule=schedule), events, cuts), whole, tolerance=0)


@pytest.mark.parametrize(
    ("schedule", "convention"),
    [*((schedule, "rvt") for schedule in SCHEDULES), (SCHEDULES[0], "exact"), (SCHEDULES[2], "exact")],
)
def test_equal_times_on_both_sides_of_a_cut(live_checkpoint, schedule, convention):
    """Windows of the convention `rvt` hold the events at both ends, which may lie in different packets."""
    checkpoint = live_checkpoint()
    checkpoint = replace(checkpoint, windows=replace(checkpoint.windows, convention=convention))
    t = np.repeat(np.arange(0, 400_000, 10_000), 40)
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, [[WIDTH], [HEIGHT]], (2, len(t))).astype(np.uint16)
    events = Events(t, x, y, rng.integers(0, 2, len(t)).astype(np.uint8))
    whole = live(checkpoint, schedule=schedule).push(events)
    assert_same(push_in_pieces(live(checkpoint, schedule=schedule), events, range(7, len(t), 13)), whole, 0)
    if schedule == SCHEDULES[0]:
        windows = free_grid(0, int(t[-1]), WindowSettings())
        counted = windows, count_windows(events, windows, HEIGHT, WIDTH, WindowSettings(convention=convention))
        batch = list(detect(open_stream(checkpoint, (HEIGHT, WIDTH)), [counted], 50_000.0, CONFIG))
        for window, (_, frame, *_) in zip(whole, batch[:-1], strict=True):
            np.testing.assert_allclose(window.detections[0].score, frame.score, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("schedule", "convention"), [*((schedule, "exact") for schedule in SCHEDULES), (SCHEDULES[0], "rvt")]
)
def test_the_end_of_the_events_closes_the_window_that_is_open(live_checkpoint, draw_events, schedule, convention):
    checkpoint = live_checkpoint()
    checkpoint = replace(checkpoint, windows=replace(checkpoint.windows, convention=convention))
    # the last event is at the end of a window at 20 Hz
    packets = [draw_events(duration_us=400_001, seed=1), draw_events(3_000, duration_us=300_000, seed=2)]
    last_us = int(packets[0].t[-1])
    detector, longer = (live(checkpoint, schedule=schedule, num_cameras=2) for _ in range(2))
    assert detector.finish() == []
    found = [*detector.push(packets), *detector.finish()]
    assert found[-2].end_us <= last_us < found[-1].end_us and detector.finish() == []
    assert_same(found, longer.push(packets, last_us + 300_000)[: len(found)], 0)


def test_rate_and_length_of_windows_change_while_it_runs(live_checkpoint, draw_events):
    """The new grid begins where the last window ended, and the state goes on. A longer window begins with the events
    that the ones before kept; packets make no difference."""
    checkpoint, events = live_checkpoint(), draw_events()
    plans = [FixedRate(20), FixedRate(50, 60_000), FixedRate(100)]
    found = []
    for pieces in (1, 7):
        streamed = live(checkpoint)
        windows = []
        for schedule, (start, stop) in zip(plans, [(0, 2_000), (2_000, 4_000), (4_000, 6_000)], strict=True):
            streamed.schedule = schedule
            for at in range(start, stop, (stop - start) // pieces):
                windows += streamed.push(events[at : min(at + (stop - start) // pieces, stop)])
        found.append(windows)
    assert_same(*found, tolerance=0)
    lengths = [window.end_us - window.start_us for window in found[0]]
    assert set(lengths) == {50_000, 60_000, 10_000} and lengths == sorted(lengths, key=[50_000, 60_000, 10_000].index)
    kept_us = next(
        after.end_us for after, length in zip(found[0][::-1], lengths[::-1], strict=True) if length == 50_000
    )
    state, before_us = None, int(events.t[0])
    for window, length in zip(found[0], lengths, strict=True):
        seen = events if length == 50_000 else events.between(kept_us, int(events.t[-1]) + 1)
        bounds = Windows(np.array([[window.start_us, window.end_us]]), np.array([window.end_us - before_us]))
        hist = torch.from_numpy(count_windows(seen, bounds, HEIGHT, WIDTH))[:, None]
        with torch.no_grad():
            predictions, state = checkpoint.detector(hist, state, (window.end_us - before_us) / 50_000)
        (frame,) = YoloxHead.decode(predictions, [window.end_us], CONFIG)
        np.testing.assert_allclose(window.detections[0].score, to_sensor(frame, HEIGHT, WIDTH, 1).score, atol=1e-5)
        before_us = window.end_us


def note_counted(monkeypatch, counts):
    """Append to `counts` how many events are counted for each window."""
    ranges_of = frame_counter.bin_ranges

    def noted(*arguments):
        ranges = ranges_of(*arguments)
        counts.append(int(ranges.max() - ranges.min()))
        return ranges

    monkeypatch.setattr(frame_counter, "bin_ranges", noted)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: type(schedule).__name__)
def test_the_work_of_a_window_stays_the_same(live_checkpoint, schedule, monkeypatch):
    """One step of the detector, and no more events to count than windows reach back, however long it has run."""
    checkpoint, work = live_checkpoint(), []
    forward = type(checkpoint.detector).forward
    note_counted(monkeypatch, work)
    monkeypatch.setattr(
        type(checkpoint.detector),
        "forward",
        lambda self, hist, *a, **k: work.append(hist.shape) or forward(self, hist, *a, **k),
    )
    streamed, num_windows = live(checkpoint, schedule=schedule), 0
    zero = np.zeros(200, np.uint16)
    for i in range(100):
        packet = Events(np.arange(200) * 50 + i * 10_000, zero, zero, zero.astype(np.uint8))  # 20 events per ms
        num_windows += len(streamed.push(packet))
    counted, shapes = work[::2], work[1::2]
    assert len(counted) == len(shapes) == num_windows > 10
    assert set(shapes) == {(1, 1, 20, HEIGHT, WIDTH)}
    assert max(counted[num_windows // 2 :]) <= max(counted[: num_windows // 2]) <= 20 * 110


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: type(schedule).__name__)
@pytest.mark.parametrize("num_cameras", [1, 2])
def test_the_work_of_a_window_does_not_grow_with_its_packet(
    live_checkpoint, draw_events, schedule, num_cameras, monkeypatch
):
    """Many windows in one packet: each counts its own events, and those of the cameras are merged once,
    for a schedule that counts them."""
    events = [draw_events(seed=seed) for seed in range(num_cameras)]
    counted, merged = [], []
    sort = np.sort
    note_counted(monkeypatch, counted)
    monkeypatch.setattr("rvtssm.detection.live.np.sort", lambda t, **k: merged.append(len(t)) or sort(t, **k))
    streamed = live(live_checkpoint(), schedule=schedule, num_cameras=num_cameras)
    found = streamed.push(events)
    assert len(found) > 4 and max(counted) < 6_000 * 110 / 430
    assert len(merged) == (num_cameras - 1 if isinstance(schedule, EventCount) else 0)


def test_windows_end_with_the_wanted_number_of_events(live_checkpoint, draw_events):
    events = draw_events(4_000)
    found = live(live_checkpoint(), schedule=EventCount(500, 1, 10**6)).push(events)
    counts = [len(events.between(w.start_us, w.end_us)) for w in found]
    assert len(found) >= 7
    for window, count in zip(found, counts, strict=True):
        ties = int((events.t == window.end_us - 1).sum())
        assert 500 <= count < 500 + ties


def test_event_count_keeps_between_its_limits(live_checkpoint, draw_events):
    found = live(live_checkpoint(), schedule=EventCount(10, 20_000, 60_000)).push(draw_events())
    assert {w.end_us - w.start_us for w in found} == {20_000}
    found = live(live_checkpoint(), schedule=EventCount(10**6, 20_000, 60_000)).push(draw_events())
    assert {w.end_us - w.start_us for w in found} == {60_000}


def test_activity_decides_the_rate(live_checkpoint):
    quiet, busy = np.arange(0, 500_000, 1_000), np.arange(500_000, 1_000_000, 20)  # enough for 5 Hz, and for 250
    t = np.concatenate([quiet, busy])
    zero = np.zeros(len(t), np.uint16)
    events = Events(t, zero, zero, zero.astype(np.uint8))
    found = live(live_checkpoint(), schedule=Adaptive(200, 20, 100)).push(events)
    lengths = {w.end_us: w.end_us - w.start_us for w in found}
    assert {length for end, length in lengths.items() if end <= 500_000} == {50_000}
    assert {length for end, length in lengths.items() if end > 600_000} == {10_000}


def test_activity_is_that_of_new_events_where_windows_overlap(live_checkpoint):
    t = np.arange(0, 1_000_000, 100)
    zero = np.zeros(len(t), np.uint16)
    events = Events(t, zero, zero, zero.astype(np.uint8))
    found = live(live_checkpoint(), schedule=Adaptive(250, 20, 200, length_us=100_000)).push(events)
    ends = [window.end_us for window in found if window.end_us > 200_000]
    assert len(ends) > 20 and set(np.diff(ends)) == {25_000}  # 10,000 events per second, 250 for each window


def test_cameras_in_one_batch_are_cameras_alone(live_checkpoint, draw_events):
    checkpoint = live_checkpoint()
    cameras = [draw_events(seed=seed) for seed in (5, 6, 7)]
    start = 7_000_000
    together = live(checkpoint, num_cameras=3, start_us=start)
    found = together.push([c[:2_000] for c in cameras]) + together.push([c[2_000:] for c in cameras])
    for i, camera in enumerate(cameras):
        alone = live(checkpoint, start_us=start).push(camera)
        assert len(alone) == len(found)
        for window, single in zip(found, alone, strict=True):
            np.testing.assert_allclose(window.detections[i].score, single.detections[0].score, atol=1e-5)


def test_the_first_window_of_cameras_does_not_depend_on_who_is_heard_first(live_checkpoint, draw_events):
    checkpoint = live_checkpoint()
    one, other = draw_events(), draw_events(seed=6, start_us=6_980_000)
    nothing = one[:0]
    whole = live(checkpoint, num_cameras=2).push([one, other])
    assert whole[0].start_us == 6_980_000
    late = live(checkpoint, num_cameras=2)
    assert late.push([one, nothing]) == []
    assert_same(late.push([nothing, other]), whole, tolerance=0)


def test_no_window_closes_before_every_camera_is_past_it(live_checkpoint, draw_events):
    both = live(live_checkpoint(), num_cameras=2, start_us=7_000_000)
    events = draw_events()
    nothing = events[:0]
    assert both.push([events, nothing]) == []
    assert len(both.push([nothing, nothing], until_us=7_120_000)) == 2


def test_a_clock_that_jumps_is_refused_and_changes_nothing(live_checkpoint, draw_events):
    """Its empty windows would be work without end; who knows that nothing happened says so, step by step."""
    checkpoint, events = live_checkpoint(), draw_events(300)
    slow = FixedRate(0.02)
    streamed, clean = live(checkpoint, schedule=slow), live(checkpoint, schedule=slow)
    streamed.push(events), clean.push(events)
    hours_us = 8 * 3_600_000_000
    later = Events(events.t + hours_us, events.x, events.y, events.p)
    jump = join_events([Events(events.t + 1_000_000, events.x, events.y, events.p), later])
    for packet, until_us in ((later, None), (jump, None), (events[:0], 1 << 60)):
        with pytest.raises(ValueError, match=r"camera 0: no event for more than 600 s before \d+ us"):
            streamed.push(packet, until_us=until_us)
    with pytest.raises(ValueError, match="or start_us belongs to another clock"):
        live(checkpoint, start_us=0, schedule=slow).push(later)
    soon = Events(events.t + 700_000_000, events.x, events.y, events.p)
    found = []
    for each in (streamed, clean):
        windows = each.push(events[:0], until_us=507_000_000)
        found.append(windows + each.push(soon))
    assert_same(*found, tolerance=0)
    assert len(found[0]) == 14


@pytest.mark.parametrize(("before", "after"), [(FixedRate(200), FixedRate(20)), (FixedRate(20), FixedRate(200))])
def test_a_state_goes_on_with_another_schedule(live_checkpoint, draw_events, before, after):
    """As if the schedule had been changed where the state was saved."""
    checkpoint, events = live_checkpoint(), draw_events()
    changed, restored = live(checkpoint, schedule=before), live(checkpoint, schedule=after)
    changed.push(events[:3_000])
    restored.load_state_dict(changed.state_dict())
    changed.schedule = after
    found = restored.push(events[3_000:])
    assert {w.end_us - w.start_us for w in found} == {round(1e6 / after.hz)}
    assert_same(found, changed.push(events[3_000:]), tolerance=0)


@pytest.mark.parametrize("name", TEMPORAL_LAYERS)
def test_state_can_be_saved_and_restored(live_checkpoint, draw_events, name):
    """`torch.load` takes it without being told to trust it, whatever numbers went in."""
    checkpoint, events = live_checkpoint(name), draw_events()
    schedule = FixedRate(60, np.int64(40_000))
    whole = live(checkpoint, schedule=schedule).push(events)
    first = live(checkpoint, schedule=schedule, start_us=np.int64(7_000_000))
    head = first.push(events[:2_345], until_us=events.t[2_344] + np.int64(1))
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = live(checkpoint, schedule=schedule)
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
        len(a.detections[0]) != len(b.detections[0])
        or not np.allclose(a.detections[0].score, b.detections[0].score, atol=1e-6)
        for a, b in zip(forgetful, carried, strict=True)
    ]
    assert not any(differs[:2])
    assert all(differs[2:])


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        (lambda e: [e, e], "give one for each of 1"),
        (lambda e: Events(e.t[::-1].copy(), e.x, e.y, e.p), "in order of time; sort them"),
        (lambda e: Events(e.t, e.x + np.uint16(64), e.y, e.p), "outside 64x48"),
        (lambda e: Events(e.t, e.x, e.y, e.p - np.uint8(1)), "polarity is 255, but must be 0 or 1"),
        (lambda e: Events(e.t - 10_000_000, e.x, e.y, e.p), "at or after 7429999 us"),
    ],
)
def test_wrong_packets_are_refused_and_change_nothing(live_checkpoint, draw_events, change, answer):
    checkpoint, events = live_checkpoint(), draw_events()
    later = Events(events.t + 429_999, events.x, events.y, events.p)
    streamed, clean = live(checkpoint), live(checkpoint)
    streamed.push(events), clean.push(events)
    with pytest.raises(ValueError, match=answer):
        streamed.push(change(later))
    assert_same(streamed.push(later), clean.push(later), tolerance=0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: FixedRate(0),
        lambda: FixedRate(2e6),
        lambda: FixedRate(20, -1),
        lambda: EventCount(0),
        lambda: EventCount(10, 50, 40),
        lambda: Adaptive(10, 100, 20),
        lambda: FixedRate(20, 50e3),
        lambda: EventCount(10.5),
    ],
)
def test_schedules_that_go_nowhere_are_refused(make):
    with pytest.raises(ValueError, match=r"must be|swap them"):
        make()


def test_weights_that_see_later_windows_are_refused(live_checkpoint):
    checkpoint = live_checkpoint("s5", bidirectional=True)
    with pytest.raises(ValueError, match=r"temporal.bidirectional=true\) and cannot run step by step; score them with"):
        live(checkpoint)


def test_what_does_not_fit_is_refused(live_checkpoint, draw_events):
    checkpoint = live_checkpoint()
    two = live(checkpoint, num_cameras=2, start_us=0)
    with pytest.raises(ValueError, match="has 2 cameras, but this detector has 1"):
        live(checkpoint).load_state_dict(two.state_dict())
    other = live(live_checkpoint("lstm"))
    other.push(draw_events())
    with pytest.raises(ValueError, match="continue with the same weights"):
        live(checkpoint).load_state_dict(other.state_dict())
    larger = StreamDetector(checkpoint, 2 * HEIGHT, 2 * WIDTH, downsample=2)  # the states have the same shapes
    with pytest.raises(ValueError, match="of 128x96 pixels, but this detector has 64x48"):
        live(checkpoint).load_state_dict(larger.state_dict())
    with pytest.raises(ValueError, match="lacks streams, sensor_hw, pending"):
        live(checkpoint).load_state_dict(checkpoint.detector.state_dict())
    with pytest.raises(ValueError, match="num_cameras=0"):
        live(checkpoint, num_cameras=0)


def test_a_clock_that_stands_still_cannot_fill_the_memory(live_checkpoint, monkeypatch):
    monkeypatch.setattr("rvtssm.detection.live.MOST_PENDING", 1000)
    detector = StreamDetector(live_checkpoint(), 48, 64, downsample=1)
    zero = np.zeros(400, np.uint16)
    packet = Events(np.full(400, 7, np.int64), zero, zero, zero.astype(np.uint8))
    assert detector.push(packet) == detector.push(packet) == []
    with pytest.raises(ValueError, match=r"more than 1000 events wait .* at 7 us; its clock stands still"):
        detector.push(packet)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"height": "48"}, "height='48' must be a whole number, at least 1"),
        ({"width": 64.5}, "width=64.5 must be a whole number"),
        ({"height": 0}, "height=0 must be a whole number, at least 1"),
        ({"num_cameras": True}, "num_cameras=True must be a whole number"),
        ({"downsample": 0}, "downsample=0 must be a whole number, at least 1"),
        ({"start_us": math.inf}, "start_us=inf must be a number"),
        ({"start_us": "0"}, "start_us='0' must be a number"),
    ],
)
def test_a_detector_says_which_number_is_none(live_checkpoint, settings, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        StreamDetector(live_checkpoint(), **{"height": HEIGHT, "width": WIDTH, **settings})


def test_packets_and_times_that_are_none_are_told_and_change_nothing(live_checkpoint, draw_events):
    detector, events = live(live_checkpoint()), draw_events()
    for until_us in (math.inf, math.nan, "7", True):
        with pytest.raises(ValueError, match=f"^until_us={until_us!r} must be a number"):
            detector.push(events, until_us)
    for packet in (None, [None], events.t, [events.t], [1, 2]):
        with pytest.raises(ValueError, match=r" holds no events; give rvtssm\.Events, or a structured array"):
            detector.push(packet)
    with pytest.raises(ValueError, match=r"^Events\.t is a list; give a numpy array of int64$"):
        Events([1], [2], [3], [1])
    assert_same(detector.push(events, 8e6), live(live_checkpoint()).push(events, 8_000_000))


@pytest.mark.parametrize("hz", [0, math.nan, math.inf, "20", True])
def test_a_rate_that_is_none_is_told(live_checkpoint, hz):
    for use in (live_checkpoint().windows_at, FixedRate):
        with pytest.raises(ValueError, match=rf"^hz( of a schedule)?={re.escape(repr(hz))} must be a number, from "):
            use(hz)
    with pytest.raises(ValueError, match=r"window='open'; choose from slide \(.*\), shrink \(.*\), null;"):
        live_checkpoint().windows_at(20, "open")
