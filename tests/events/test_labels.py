"""Boxes: fields by name, rules of cleaning, and the windows they belong to."""

from dataclasses import replace

import numpy as np
import pytest
from event_examples import SPEC, boxes_of
from hypothesis import given, settings
from hypothesis import strategies as st
from user_errors import raises

from rvtssm.events.label_rules import clean_boxes, unusable_boxes
from rvtssm.events.labels import interpolated_boxes, read_boxes, to_labels, write_boxes
from rvtssm.events.windows import free_grid, label_grid
from rvtssm.records import WindowSettings
from rvtssm.records.settings import CONVENTIONS


def test_boxes_are_read_back_ordered_by_time(tmp_path):
    boxes = boxes_of((300, 1, 2, 3, 4), (100, 5, 6, 7, 8), class_id=[1, 0], track_id=[7, 8], still_us=[-1, 20])
    write_boxes(tmp_path / "a_bbox.npy", boxes)
    np.testing.assert_array_equal(read_boxes(tmp_path / "a_bbox.npy"), boxes[[1, 0]])
    assert [path.name for path in tmp_path.iterdir()] == ["a_bbox.npy"]


def test_old_files_are_read_by_field_name(tmp_path):
    old = np.zeros(1, [("ts", "<u8"), ("h", "<f8"), ("w", "<f4"), ("x", "<f4"), ("y", "<f4"), ("class_id", "u1")])
    old[0] = (1 << 40, 4, 3, 1, 2, 1)
    np.save(tmp_path / "a.npy", old)
    (box,) = read_boxes(tmp_path / "a.npy")
    assert tuple(box) == (1 << 40, 1, 2, 3, 4, 1, 0, 1, 0, -1)


def test_files_that_hold_no_boxes_are_refused(tmp_path):
    np.save(tmp_path / "plain.npy", np.zeros(3))
    (tmp_path / "empty.npy").write_bytes(b"")
    for name, key in (("plain.npy", "labels.form"), ("empty.npy", "file.damaged")):
        with raises(key):
            read_boxes(tmp_path / name)
    with raises("array.form"):
        write_boxes(tmp_path / "a.npy", np.zeros(3))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("t", np.nan, "whole number of microseconds"),
        ("t", 0.05, "whole number of microseconds; if it is in seconds"),
        ("class_id", 0.9, "is 0.9; it must be a whole number from 0 to 4294967295"),
        ("class_id", 2.0**32 + 1, "is 4294967297.0; it must be a whole number"),
        ("class_id", -1, "whole number"),
        ("track_id", 0.5, "is 0.5; it must be a whole number"),
        ("track_id", np.inf, "whole number"),
        ("still_us", np.nan, "whole number of microseconds"),
    ],
)
def test_a_number_is_never_cast_to_another_one(tmp_path, field, value, message):
    names = ("t", "x", "y", "w", "h", "class_id", "track_id", "still_us")
    found = np.zeros(2, [(name, "<f8") for name in names])
    np.save(tmp_path / "a.npy", found)
    assert len(read_boxes(tmp_path / "a.npy")) == 2
    found[field][1] = value
    np.save(tmp_path / "a.npy", found)
    with raises("labels.form") as error:
        read_boxes(tmp_path / "a.npy")
    assert message in str(error.value)


coordinates = st.tuples(*[st.floats(-100, 100, width=32)] * 2, *[st.floats(0, 200, width=32)] * 2)


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("is_train", [True, False])
@settings(max_examples=40)
@given(rows=st.lists(coordinates, min_size=1, max_size=20), seed=st.integers(0, 9))
def test_kept_boxes_lie_on_the_sensor_are_large_enough_and_stay_when_cleaned_again(convention, is_train, rows, seed):
    class_id = np.random.default_rng(seed).integers(0, 4, len(rows))
    boxes = boxes_of(*((250_000, *row) for row in rows), class_id=class_id)
    kept = clean_boxes(boxes, SPEC, convention, is_train)
    for start, size, limit in (("x", "w", 63), ("y", "h", 47)):
        assert (kept[start] >= 0).all() and (kept[start] + kept[size] <= limit + 1e-4).all()
        assert (kept[size] >= 4).all()
    assert (np.hypot(kept["w"], kept["h"]) >= 8 - 1e-4).all() and (kept["class_id"] < 2).all()
    if is_train:
        assert (kept["w"] <= 57).all()
    np.testing.assert_array_equal(clean_boxes(kept, SPEC, convention, is_train), kept)


def test_ids_on_disk_become_indices_of_class_names():
    spec = replace(SPEC, class_ids=(5, 2))
    boxes = boxes_of(*[(250_000, 8 * i, 0, 10, 10) for i in range(4)], class_id=[2, 3, 5, 0])
    assert clean_boxes(boxes, spec, "exact", False)["class_id"].tolist() == [1, 0]


def test_repeated_boxes_are_kept_by_rvt_alone():
    boxes = boxes_of(*[(250_000, 1, 1, 20, 20)] * 3, track_id=[1, 2, 3])
    assert clean_boxes(boxes, SPEC, "exact", False)["track_id"].tolist() == [1]
    assert len(clean_boxes(boxes, SPEC, "rvt", False)) == 3
    boxes["class_id"] = [0, 1, 0]
    assert clean_boxes(boxes, SPEC, "exact", False)["track_id"].tolist() == [1, 2], "two classes in one place"


def times_kept(times, convention, spec=SPEC):
    return np.unique(clean_boxes(boxes_of(*[(t, 1, 1, 20, 20) for t in times]), spec, convention, False)["t"]).tolist()


def test_rvt_keeps_label_times_at_multiples_of_the_interval_and_exact_keeps_all():
    times = [90_000, 110_000, 358_100, 400_000, 610_500, 1_110_000, 1_362_100]
    assert times_kept(times, "rvt") == [110_000, 358_100, 1_110_000]
    assert times_kept(times, "exact") == times


@pytest.mark.parametrize(("hz", "step"), [(30, 3), (60, 6)])
def test_labels_of_fast_cameras_are_thinned_to_about_10_hz(hz, step):
    spec = replace(SPEC, label_interval_us=100_000)
    times = [round((i + 1) * 1e6 / hz) for i in range(2 * hz)]
    assert times_kept(times, "exact", spec) == times[::step]
    first = next(i for i, time in enumerate(times) if time >= 100_000)
    assert times_kept(times, "rvt", spec) == times[first::step]
    after_pause = [10_040_000 + time for time in times]
    assert times_kept(times + after_pause, "exact", spec) == times[::step] + after_pause[::step]


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("step_us", [20_000, 50_000, 70_000])
def test_labels_of_a_detector_never_push_annotated_ones_out(convention, step_us):
    own = [200_000, 450_000, 700_000]
    made = [time for time in range(160_000, 1_200_000, step_us) if time not in own]
    boxes = boxes_of(*[(t, 1, 1, 20, 20) for t in sorted(own + made)])
    boxes["pseudo_score"] = np.where(np.isin(boxes["t"], own), 0, 0.5)
    kept = clean_boxes(boxes, SPEC, convention, True)
    assert kept["t"][kept["pseudo_score"] == 0].tolist() == times_kept(own, convention) == own
    others = kept["t"][kept["pseudo_score"] > 0]
    assert len(others) and np.abs(others[:, None] - own).min() >= 45_000 and np.diff(others, prepend=0).min() >= 45_000


def test_labels_belong_to_the_window_that_ends_at_their_time():
    boxes = boxes_of((100_000, 1, 2, 3, 4), (100_000, 2, 3, 4, 5), (350_000, 3, 4, 5, 6), still_us=[-1, 0, 400])
    windows = label_grid(boxes["t"], 0, WindowSettings())
    labels = to_labels(boxes, windows)
    np.testing.assert_array_equal(windows.ends_us[labels.window_index], labels.t_us)
    np.testing.assert_array_equal(labels.boxes_ltwh[2], [3, 4, 5, 6])
    assert labels.still_us.tolist() == [-1, 0, 400]
    assert len(to_labels(boxes[:0], windows)) == 0
    boxes["t"][0] += 1
    with raises("labels.between_windows"):
        to_labels(boxes, windows)
    loose = to_labels(boxes, windows, is_exact=False)
    assert loose.t_us[0] == 100_001 and windows.ends_us[loose.window_index[0]] == 150_000  # the next end
    assert loose.window_index[1:].tolist() == labels.window_index[1:].tolist()
    late = free_grid(100_001, 400_000, WindowSettings())
    assert to_labels(boxes, late, is_exact=False).window_index.tolist() == [0, -1, 4], "the second is before any event"


def test_boxes_that_are_faults_are_counted_by_reason():
    rows = ((5, 5, 10, 10), (5, 5, -3, 10), (np.nan, 5, 3, 10), (70, 5, 9, 9), (-20, 5, 9, 9), (0, 0, 64, 9))
    boxes = boxes_of(*((0, *row) for row in rows))
    assert [*unusable_boxes(boxes, SPEC, is_train=False).values()] == [2, 2]  # no box, and outside
    assert [*unusable_boxes(boxes, SPEC, is_train=True).values()] == [2, 2, 1]  # too wide
    assert not unusable_boxes(boxes[:1], SPEC, is_train=True)
    boxes["class_id"] = 77  # of no class that is asked for
    assert not unusable_boxes(boxes, SPEC, is_train=True)


def test_boxes_are_interpolated_along_tracks_and_nowhere_else():
    boxes = boxes_of(
        *((100_000, 0, 0, 10, 10), (200_000, 20, 10, 30, 10)),  # one track
        *((100_000, 50, 50, 10, 10), (1_300_000, 80, 50, 10, 10)),  # another, seen again after too long a gap
        still_us=[0, 100, 0, 0],
    )
    boxes["track_id"] = [1, 1, 2, 2]
    boxes = boxes[np.argsort(boxes["t"], kind="stable")]
    found = interpolated_boxes(boxes, 40, "drive")
    one = found[found["track_id"] == 1]
    assert one["t"].tolist() == [100_000, 125_000, 150_000, 175_000, 200_000]
    assert one["x"].tolist() == [0, 5, 10, 15, 20] and one["w"].tolist() == [10, 15, 20, 25, 30]
    assert one["still_us"].tolist() == [0, -1, -1, -1, 100]
    assert found[found["track_id"] == 2]["t"].tolist() == [100_000, 1_300_000]
    assert (np.diff(found["t"]) >= 0).all()
    boxes["track_id"][boxes["track_id"] == 1] = 0  # a track like any other
    assert interpolated_boxes(boxes, 40, "drive")["x"].tolist() == found["x"].tolist()
    untracked = boxes[boxes["track_id"] == 2].copy()
    untracked["track_id"], untracked["t"] = 0, 100_000
    more = np.concatenate([untracked, boxes])
    more = interpolated_boxes(more[np.argsort(more["t"], kind="stable")], 40, "drive")
    assert set(more["track_id"]) == {2}  # several boxes of the track 0 at one time
    boxes["track_id"] = 0
    with raises("labels.no_tracks"):
        interpolated_boxes(boxes, 40, "drive")
