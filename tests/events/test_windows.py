"""The time grids: labels end windows, nothing is counted twice, strides do not drift."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rvtssm.events.windows import free_grid, label_grid

times = st.lists(st.integers(0, 20_000_000), min_size=1, max_size=20, unique=True)
strides = st.one_of(st.sampled_from([5000, 12_500, 50_000]), st.floats(1000, 300_000))
lengths = st.one_of(st.none(), st.integers(1000, 200_000))


@given(label_times=times, stride_us=strides, length_us=lengths, start_us=st.integers(0, 100_000))
def test_every_label_time_ends_a_window_and_steps_are_near_the_stride(label_times, stride_us, length_us, start_us):
    label_times = np.sort(np.array(label_times))
    windows = label_grid(label_times, stride_us, length_us, start_us)
    assert np.isin(label_times, windows.ends_us).all() and windows.ends_us[-1] == label_times[-1]
    np.testing.assert_array_equal(windows.dt_us[1:], np.diff(windows.ends_us))
    assert windows.dt_us[0] == round(stride_us)
    for left, right in pairwise(label_times):
        steps = np.diff(windows.ends_us[(windows.ends_us >= left) & (windows.ends_us <= right)])
        assert steps.max() - steps.min() <= 2
        assert len(steps) == max(1, round((right - left) / stride_us))


@given(label_times=times, stride_us=strides, length_us=lengths, start_us=st.integers(0, 100_000))
def test_length_is_the_step_or_fixed_and_the_grid_starts_with_the_recording(
    label_times, stride_us, length_us, start_us
):
    windows = label_grid(np.array(label_times), stride_us, length_us, start_us)
    span = windows.ends_us - windows.bounds_us[:, 0]
    np.testing.assert_array_equal(span, windows.dt_us if length_us is None else length_us)
    early = windows.bounds_us[windows.ends_us < min(label_times), 0]
    assert (early >= start_us - 1).all()
    one_earlier = windows.ends_us[0] - stride_us - (stride_us if length_us is None else length_us)
    assert one_earlier < start_us + 1


def test_gen1_labels_at_4_hz_have_50_ms_everywhere():
    windows = label_grid(np.array([250_000, 500_000, 1_000_000]), 50_000, None, 0)
    np.testing.assert_array_equal(windows.ends_us, np.arange(50_000, 1_000_001, 50_000))
    assert (windows.dt_us == 50_000).all()


def test_a_stride_that_does_not_divide_the_interval_is_spread_evenly():
    windows = label_grid(np.array([0, 125_000]), 1e6 / 30, None, 0)
    np.testing.assert_array_equal(windows.ends_us, [0, 31_250, 62_500, 93_750, 125_000])


@given(first_us=st.integers(0, 10**9), span_us=st.integers(0, 10**7), stride_us=strides)
def test_the_free_grid_holds_every_time_once(first_us, span_us, stride_us):
    windows = free_grid(first_us, first_us + span_us, stride_us, None)
    starts, ends = windows.bounds_us.T
    np.testing.assert_array_equal(starts[1:], ends[:-1])
    assert starts[0] <= first_us < ends[0]
    assert starts[-1] <= first_us + span_us < ends[-1] or span_us == 0
    drift = ends - (first_us + stride_us * np.arange(1, len(ends) + 1))
    assert np.abs(drift).max() <= 0.51


def test_an_edge_that_is_rounded_down_does_not_lose_the_last_event():
    windows = free_grid(0, 33_333, 1e6 / 30, None)
    np.testing.assert_array_equal(windows.bounds_us, [[0, 33_333], [33_333, 66_667]])


def test_sliding_windows_overlap():
    windows = free_grid(0, 99_999, 5000, 50_000)
    assert len(windows) == 20
    assert (np.diff(windows.bounds_us[:, 0]) == 5000).all() and windows.bounds_us[0].tolist() == [-45_000, 5000]


def test_unusable_grids_are_refused():
    with pytest.raises(ValueError, match="at least one label time"):
        label_grid(np.array([], np.int64), 50_000, None, 0)
    with pytest.raises(ValueError, match="at least 1 us"):
        free_grid(0, 10, 0, None)
