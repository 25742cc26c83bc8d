"""The time grids: labels end windows, nothing is counted twice, strides do not drift."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from user_errors import raises

from rvtssm.events.windows import FreeGrid, WindowsConfig, free_grid, label_grid
from rvtssm.records import WindowSettings
from rvtssm.records.settings import exact_us

times = st.lists(st.integers(0, 20_000_000), min_size=1, max_size=20, unique=True)
strides = st.one_of(st.sampled_from([5000, 7812.5, 12_500, 50_000]), st.floats(1000, 300_000))
lengths = st.one_of(st.none(), st.integers(1000, 200_000))


@given(label_times=times, stride_us=strides, length_us=lengths, start_us=st.integers(0, 100_000))
def test_every_label_time_ends_a_window_and_steps_are_near_the_stride(label_times, stride_us, length_us, start_us):
    label_times, settings = np.sort(np.array(label_times)), WindowSettings(stride_us, length_us)
    windows, stride_us = label_grid(label_times, start_us, settings), settings.stride_us
    assert np.isin(label_times, windows.ends_us).all() and windows.ends_us[-1] == label_times[-1]
    np.testing.assert_array_equal(windows.dt_us[1:], np.diff(windows.ends_us))
    assert abs(windows.dt_us[0] - stride_us) <= 1
    for left, right in pairwise(label_times):
        steps = np.diff(windows.ends_us[(windows.ends_us >= left) & (windows.ends_us <= right)])
        assert steps.max() - steps.min() <= 2
        assert len(steps) == max(1, round((right - left) / stride_us))


@given(label_times=times, stride_us=strides, length_us=lengths, start_us=st.integers(0, 100_000))
def test_length_is_the_step_or_fixed_and_the_grid_starts_with_the_recording(
    label_times, stride_us, length_us, start_us
):
    settings = WindowSettings(stride_us, length_us)
    windows, stride_us = label_grid(np.array(label_times), start_us, settings), settings.stride_us
    span = windows.ends_us - windows.bounds_us[:, 0]
    np.testing.assert_array_equal(span, windows.dt_us if length_us is None else length_us)
    early = windows.bounds_us[windows.ends_us < min(label_times), 0]
    assert (early >= start_us).all()
    one_earlier = windows.ends_us[0] - stride_us - (stride_us if length_us is None else length_us)
    assert one_earlier < start_us + 1


@given(hz=st.integers(1, 500), first_us=st.integers(0, 10**9), start=st.integers(1, 40))
def test_labels_at_a_whole_rate_give_the_windows_of_that_rate(hz, first_us, start):
    """A stride that a configuration or a file has rounded is meant: both grids have the same windows from there on."""
    grid = FreeGrid(first_us, WindowSettings(round(1e6 / hz)))
    whole = grid.windows(0, start + 10)
    assert grid.settings.hz == pytest.approx(hz, rel=1e-12)
    windows = label_grid(whole.ends_us[start:], first_us, grid.settings)
    assert len(windows) >= len(whole) - 1
    np.testing.assert_array_equal(windows.bounds_us[-9:], whole.bounds_us[-9:])
    np.testing.assert_allclose(windows.bounds_us, whole.bounds_us[-len(windows) :], rtol=0, atol=1)


@given(first_us=st.integers(0, 10**9), span_us=st.integers(0, 10**7), stride_us=strides)
def test_the_free_grid_holds_every_time_once(first_us, span_us, stride_us):
    settings = WindowSettings(stride_us)
    windows, stride_us = free_grid(first_us, first_us + span_us, settings), settings.stride_us
    starts, ends = windows.bounds_us.T
    np.testing.assert_array_equal(starts[1:], ends[:-1])
    assert starts[0] == first_us < ends[0]
    assert starts[-1] <= first_us + span_us < ends[-1] or span_us == 0
    drift = ends - (first_us + stride_us * np.arange(1, len(ends) + 1))
    assert np.abs(drift).max() <= 0.51


def test_an_edge_that_is_rounded_down_does_not_lose_the_last_event():
    windows = free_grid(0, 33_333, WindowSettings(1e6 / 30))
    np.testing.assert_array_equal(windows.bounds_us, [[0, 33_333], [33_333, 66_667]])


@given(first_us=st.integers(0, 10**9), span_us=st.integers(0, 10**6), stride_us=strides, start=st.integers(0, 9))
def test_any_part_of_the_free_grid_is_that_of_the_whole(first_us, span_us, stride_us, start):
    grid, last_us = FreeGrid(first_us, WindowSettings(stride_us)), first_us + span_us
    whole = free_grid(first_us, last_us, grid.settings)
    assert grid.num_ended(last_us) == np.count_nonzero(whole.ends_us <= last_us) == len(whole) - 1
    part = grid.windows(start, start + 3)
    np.testing.assert_array_equal(part.bounds_us[: len(whole[start : start + 3])], whole[start : start + 3].bounds_us)
    np.testing.assert_array_equal(part.dt_us[: len(whole[start : start + 3])], whole[start : start + 3].dt_us)


@given(hz=st.integers(1, 500), first_us=st.integers(0, 10**6))
def test_rounded_steps_of_a_whole_rate_are_one_step(hz, first_us):
    ends_us = np.rint(first_us + 1e6 / hz * np.arange(1, 30))
    assert {*exact_us(np.diff(ends_us)).tolist()} == {1e6 / hz}


@given(step_us=st.integers(0, 3_000_000))
def test_a_step_moves_by_less_than_a_microsecond_or_not_at_all(step_us):
    found = float(exact_us(step_us))
    assert found == step_us or (abs(found - step_us) < 1 and 1e6 / round(1e6 / step_us) == found)
    if 1_000_000 % max(step_us, 1) == 0 or step_us < 2000:
        assert found == step_us


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, WindowSettings(reduce="sum")),
        ({"stride_ms": 100 / 3, "window_ms": 50}, WindowSettings(1e6 / 30, 50_000, reduce="sum")),
        ({"convention": "rvt", "stride_ms": 20}, WindowSettings(20_000, 20_000, "rvt")),
        (
            {"num_bins": 5, "representation": "surfaces", "reduce": "nearest"},
            WindowSettings(num_bins=5, representation="surfaces"),
        ),
        ({"time_constants_ms": [0.3, 40], "reduce": "nearest"}, WindowSettings(time_constants_us=(300, 40_000))),
    ],
)
def test_the_configuration_speaks_milliseconds(options, wanted):
    assert WindowsConfig(**options).settings == wanted


def test_windows_that_nobody_counts_are_refused():
    with raises("setting.conflict"):
        WindowsConfig(representation="surfaces", convention="rvt")


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"count_cutoff": 256}, "setting.out_of_range"),
        ({"num_bins": 0}, "setting.out_of_range"),
        ({"stride_us": math.nan}, "setting.out_of_range"),
        ({"length_us": 0}, "setting.out_of_range"),
        ({"time_constants_us": ()}, "setting.form"),
        ({"time_constants_us": (100,)}, "setting.out_of_range"),
    ],
)
def test_windows_of_a_file_keep_the_same_limits(values, key):
    with raises(key):
        WindowSettings(**values)


def test_windows_at_another_rate_are_as_long_as_the_stride_or_as_before():
    trained = WindowSettings(50_000, convention="rvt", num_bins=5)
    assert trained.at_rate(200, "shrink") == replace(trained, stride_us=5_000.0)
    assert trained.at_rate(200, "slide") == replace(trained, stride_us=5_000.0, length_us=50_000)
    assert replace(trained, length_us=80_000).at_rate(40, "slide").length_us == 80_000
    uneven = WindowSettings(33_333)
    assert uneven.at_rate(uneven.hz, "shrink") == uneven


def test_unusable_grids_are_refused():
    with raises("windows.no_label_time"):
        label_grid(np.array([], np.int64), 0, WindowSettings())
    with raises("setting.out_of_range"):
        WindowSettings(0)


def test_events_a_year_apart_are_not_planned_but_told():
    year_us = 365 * 24 * 3600 * 1_000_000
    grid = FreeGrid(0, WindowSettings())
    with raises("windows.too_many"):
        grid.num_until(year_us)
    with raises("windows.too_many"):
        grid.ends_us(0, grid.num_ended(year_us))
    assert len(grid.ends_us(10**9, 10**9 + 5)) == 5  # a stream may last long
