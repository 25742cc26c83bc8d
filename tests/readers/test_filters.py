"""Filters of events: each equals a slow twin, cuts change nothing, and a time range equals that part of the whole."""

from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from event_examples import HEIGHT, WIDTH, assert_same, random_events

import rvtssm
from rvtssm.readers.filters import FILTERS, FilterChain
from rvtssm.readers.recording import join_events
from rvtssm.records import Events
from tests.noise_examples import lamps, noise, ordered
from tests.readers.format_encoders import write_dat_file
from tests.user_errors import raises

SIZE_HW = 12, 16
CASES: dict[str, dict[str, dict[str, float]]] = {
    "background": {"background": {"within_ms": 4.0, "neighbours": 1}},
    "background_of_three": {"background": {"within_ms": 9.0, "neighbours": 3}},
    "hot_pixels": {"hot_pixels": {"period_ms": 100.0, "rate_hz": 40.0, "factor": 3.0}},
    "flicker": {"flicker": {"lowest_hz": 20.0, "cycles": 2}},
    "trailing_edge": {"trailing_edge": {"within_ms": 30.0}},
    "refractory": {"refractory": {"within_ms": 30.0}},
    "region": {"region": {"left": 3, "right": 11, "top": 2, "bottom": 9}},
}


def busy_events(seed: int = 0, span_us: int = 600_000) -> Events:
    """Noise, a hot pixel and twelve pixels that flicker at 40 Hz for most of the time."""
    rng = np.random.default_rng(seed)
    hot = np.sort(rng.integers(0, span_us, 80)), np.full(80, 5), np.full(80, 6), rng.integers(0, 2, 80)
    half_cycles = np.arange(50_000, span_us - 100_000, 12_500).repeat(12)
    pixels = np.tile(np.arange(12), len(half_cycles) // 12)
    lamp = half_cycles + rng.integers(0, 3000, len(pixels)), pixels % 4 + 8, pixels // 4 + 2, half_cycles // 12_500 % 2
    return ordered(noise(rng, SIZE_HW, 8.0, span_us), hot, lamp)


def background_twin(events, within_ms, neighbours):
    for i in range(len(events)):
        recent = events[:i].between(int(events.t[i] - 1000 * within_ms), int(events.t[i]) + 1)
        dx, dy = np.int64(recent.x) - events.x[i], np.int64(recent.y) - events.y[i]
        near = (abs(dx) <= 1) & (abs(dy) <= 1) & ((dx != 0) | (dy != 0))
        yield len({(x, y) for x, y in zip(dx[near], dy[near], strict=True)}) >= neighbours


def hot_pixels_twin(events, period_ms, rate_hz, factor):
    period_us = int(1000 * period_ms)
    for i in range(len(events)):
        begin_us = int(events.t[i]) // period_us * period_us
        before = events.between(begin_us - period_us, begin_us)
        dx, dy = abs(np.int64(before.x) - events.x[i]), abs(np.int64(before.y) - events.y[i])
        own = np.count_nonzero((dx == 0) & (dy == 0))
        around = np.count_nonzero((dx <= 1) & (dy <= 1)) - own
        yield not (own > rate_hz * period_ms / 1000 and own > factor * around / 8)


def flicker_twin(events, lowest_hz, cycles):
    longest_us = round(1e6 * (cycles + 1) / lowest_hz)
    pasts = defaultdict(list)
    for t, x, y, p in zip(events.t.tolist(), events.x.tolist(), events.y.tolist(), events.p.tolist(), strict=True):
        past = pasts[x, y]
        past.append((t, p))
        begins = [now for (then, p0), (now, p1) in pairwise(past) if p0 == 0 and p1 == 1 and now - then <= longest_us]
        is_flicker = sum(begin >= t - longest_us for begin in begins) > cycles
        yield not is_flicker and t >= events.t[0] + longest_us


def trailing_edge_twin(events, within_ms):
    last: dict[tuple[int, int], tuple[int, int]] = {}
    for t, x, y, p in zip(events.t.tolist(), events.x.tolist(), events.y.tolist(), events.p.tolist(), strict=True):
        before_us, before_p = last.get((x, y), (-(1 << 60), p))
        yield before_p != p or before_us < t - 1000 * within_ms
        last[x, y] = t, p


def refractory_twin(events, within_ms):
    last_us: dict[tuple[int, int], int] = {}
    for t, x, y in zip(events.t.tolist(), events.x.tolist(), events.y.tolist(), strict=True):
        yield t - last_us.get((x, y), -(1 << 60)) > 1000 * within_ms
        last_us[x, y] = t


def region_twin(events, left, right, top, bottom):
    for x, y in zip(events.x.tolist(), events.y.tolist(), strict=True):
        yield x in range(left, right) and y in range(top, bottom)


TWINS = {
    "background": background_twin,
    "hot_pixels": hot_pixels_twin,
    "flicker": flicker_twin,
    "trailing_edge": trailing_edge_twin,
    "refractory": refractory_twin,
    "region": region_twin,
}


def test_every_filter_has_a_twin_and_a_case():
    assert TWINS.keys() == FILTERS.keys() == {name for case in CASES.values() for name in case}


@pytest.mark.parametrize("case", CASES)
def test_a_filter_equals_its_slow_twin(case):
    events = busy_events()
    ((name, parameters),) = CASES[case].items()
    chain = FilterChain([CASES[case]], *SIZE_HW)
    kept = chain(events)
    expected = events[np.fromiter(TWINS[name](events, **parameters), bool, len(events))]
    assert_same(kept, expected)
    assert 0.02 * len(events) < len(kept) < 0.98 * len(events)  # the example asks for both answers
    assert chain.removed() == {name: (len(events) - len(kept)) / len(events)}


@pytest.mark.parametrize("cut", [1, 7, 100])
@pytest.mark.parametrize("case", [*CASES, "all"])
def test_cutting_the_events_changes_nothing(case, cut):
    events = busy_events(1)
    given = [CASES[case]] if case in CASES else [CASES[one] for one in CASES if one != "background_of_three"]
    whole, pieces = FilterChain(given, *SIZE_HW), FilterChain(given, *SIZE_HW)
    parts = [pieces(events[i : i + cut]) for i in range(0, len(events), cut)]
    joined = Events(*(np.concatenate([getattr(part, name) for part in parts]) for name in "txyp"))
    assert_same(joined, whole(events))
    assert pieces.num_removed == whole.num_removed


@pytest.mark.parametrize("case", CASES)
def test_a_time_range_is_that_part_of_the_whole_recording(case, tmp_path):
    events = busy_events(2)
    path = write_dat_file(tmp_path / "busy.dat", events)
    recording, chain = rvtssm.open(path), FilterChain([CASES[case]], *SIZE_HW)
    whole = chain(recording.read())
    assert_same(whole, join_events(list(FilterChain([CASES[case]], *SIZE_HW).blocks(recording.iterate(1000)))))
    first_us, removed = int(events.t[0]), chain.removed()
    for start_us, end_us in ((first_us, first_us + 90_000), (210_017, 390_000), (450_000, 10**6)):
        assert_same(chain.between(recording, start_us, end_us), whole.between(start_us, end_us))
    assert chain.removed() == removed


def test_a_new_stream_begins_again():
    events = busy_events(3)
    chain = FilterChain([CASES["background"]], *SIZE_HW)
    first = chain(events)
    chain.restart()
    assert_same(chain(events), first)


def test_lamps_at_the_mains_are_removed_and_moving_edges_stay():
    rng, size_hw = np.random.default_rng(0), (240, 304)
    for flicker_hz in (50.0, 60.0, 100.0, 120.0):
        flicker = FilterChain(["flicker"], *size_hw)
        kept = flicker(ordered(lamps(rng, size_hw, flicker_hz, 600_000)))
        assert flicker.removed()["flicker"] > 0.96, (flicker_hz, len(kept))
    column = np.arange(304).repeat(240)  # an edge that moves by a pixel per ms, each pixel fires once
    row = np.tile(np.arange(240), 304)
    edge = ordered((1000 * column, column, row, np.ones(len(column))))
    late = edge.between(100_000, 10**6)
    chain = FilterChain(["flicker", "hot_pixels", "background", "trailing_edge"], *size_hw)
    assert len(chain(edge).between(100_000, 10**6)) > 0.98 * len(late)


@pytest.mark.parametrize(
    ("given", "key"),
    [
        (["blur"], "setting.choice"),
        ([{}], "setting.choice"),
        ([{"background": {"radius": 3}}], "setting.choice"),
        ([{"background": {"within_ms": -1}}], "setting.out_of_range"),
        ([{"background": {"neighbours": 1.5}}], "setting.out_of_range"),
        ([{"region": {"left": 9, "right": 9}}], "setting.form"),
        (["flicker", "flicker"], "setting.form"),
        ([{"flicker": {}, "region": {}}], "setting.form"),
        ("background", "setting.form"),
    ],
)
def test_wrong_filters_are_refused(given, key):
    with raises(key):
        FilterChain(given, HEIGHT, WIDTH)


def test_without_filters_nothing_changes():
    events, chain = random_events(2000), FilterChain([], HEIGHT, WIDTH)
    assert chain(events) is events and chain.removed() == {}
