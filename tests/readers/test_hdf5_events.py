"""DSEC: absolute times, repaired like in every format, and layouts that are refused."""

import fcntl

import h5py
import numpy as np
import pytest
from event_examples import any_events, assert_same, random_events, to_events
from format_encoders import structured, write_dsec
from hypothesis import given, settings
from hypothesis import strategies as st
from user_errors import raises

from rvtssm.readers import open_recording
from rvtssm.readers.hdf5_events import Hdf5Recording

OFFSET_US = 49_599_300_523  # real sequences have such: more than 32 bits
SIZE_HW = (480, 640)


def shifted(events, by_us: int):
    return to_events(events.t + by_us, events.x, events.y, events.p)


@settings(max_examples=30)
@given(events=any_events(), offset_us=st.sampled_from((0, OFFSET_US)))
def test_round_trip_in_absolute_time(scratch, events, offset_us):
    events = shifted(events, offset_us)
    recording = open_recording(write_dsec(scratch / "events.h5", events, offset_us))
    assert isinstance(recording, Hdf5Recording)
    assert (recording.height, recording.width) == SIZE_HW
    assert_same(recording.read(), events)


def test_times_that_run_backwards_are_repaired_and_no_table_is_believed(tmp_path):
    t = np.array([0, 5_000, 1_000, 6_000], np.uint32)
    events = to_events(t, [1, 2, 3, 4], [1] * 4, [0, 1, 0, 1])
    recording = open_recording(write_dsec(tmp_path / "events.h5", events, ms_to_idx=np.zeros(8, np.uint64)))
    assert_same(recording.between(4_000, 6_000), to_events([5_000, 5_000], [2, 3], [1, 1], [1, 0]))


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({"events/x": None}, "hdf5.no_events"),
        ({"events/p": np.zeros(4, np.uint8)}, "hdf5.lengths"),
        ({"events/t": np.zeros((5, 2), np.uint32)}, "hdf5.no_events"),
        ({"t_offset": np.int64(-7)}, "hdf5.t_offset"),
        ({"t_offset": np.zeros(3)}, "hdf5.t_offset_kind"),
        ({"t_offset": np.bytes_("now")}, "hdf5.t_offset_kind"),
    ],
)
def test_another_layout_is_refused(tmp_path, changed, key):
    path = write_dsec(tmp_path / "events.h5", random_events(5), **changed)
    with raises(key):
        open_recording(path)


@pytest.mark.parametrize("size_hw", [(240, 320), (480, 640), (720, 1280)])
def test_the_layout_of_dsec_is_not_the_sensor_of_dsec(tmp_path, size_hw):
    events = random_events(9_000, size_hw=size_hw)
    recording = open_recording(write_dsec(tmp_path / "events.h5", events))
    assert (recording.height, recording.width) == size_hw
    assert_same(recording.read(), events)
    recording = open_recording(tmp_path / "events.h5", 800, 1300)
    assert (recording.height, recording.width) == (800, 1300)


def write_layout(path, **datasets):
    with h5py.File(path, "w") as file:
        for name, values in datasets.items():
            file[name.replace("__", "/")] = values
    return path


EVENTS = random_events(50, size_hw=(48, 64))
ROWS = np.stack([EVENTS.t, EVENTS.x, EVENTS.y, EVENTS.p.astype(np.int64)], axis=1)
LAYOUTS = {
    "at the root": {"x": EVENTS.x, "y": EVENTS.y, "t": EVENTS.t, "p": EVENTS.p},
    "plural names": {"events__ts": EVENTS.t, "events__xs": EVENTS.x, "events__ys": EVENTS.y, "events__ps": EVENTS.p},
    "M3ED": {f"prophesee__left__{name}": getattr(EVENTS, name) for name in "txyp"},
    "nanoseconds": {"a__t_ns": 1000 * EVENTS.t, "a__x": EVENTS.x, "a__y": EVENTS.y, "a__polarity": EVENTS.p},
    "v2e": {"events": ROWS.astype(np.uint32)},
    "MVSEC": {"davis__left__events": (ROWS / [1e6, 1, 1, 1])[:, [1, 2, 0, 3]]},
    "x, y, p, t": {"table": ROWS[:, [1, 2, 3, 0]]},
    "fields": {"table": structured(EVENTS, ("timestamp", "x", "y", "pol"))},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_that_others_write(tmp_path, layout):
    path = write_layout(tmp_path / "a.h5", **LAYOUTS[layout])
    assert_same(open_recording(path, 48, 64).read(), EVENTS)


def test_of_several_places_the_caller_chooses(tmp_path):
    other = random_events(50, seed=9, size_hw=(48, 64))
    sides = {"left": EVENTS, "right": other}
    datasets = {f"{side}__{name}": getattr(events, name) for side, events in sides.items() for name in "txyp"}
    path = write_layout(tmp_path / "a.h5", **datasets)
    with raises("hdf5.no_events"):
        open_recording(path, 48, 64)
    columns = {name: f"right/{name}" for name in "txyp"}
    assert_same(open_recording(path, 48, 64, columns=columns).read(), other)


def test_a_file_that_another_program_has_locked_is_read(tmp_path):
    path = write_dsec(tmp_path / "events.h5", EVENTS)
    with open(path, "rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert_same(open_recording(path).read(), EVENTS)


@pytest.mark.parametrize(("length", "chunk"), [(1 << 50, 1 << 14), (1 << 30, 1 << 29)])
def test_a_size_that_is_only_announced_is_not_read(tmp_path, length, chunk):
    with h5py.File(tmp_path / "events.h5", "w") as file:
        for name in "txyp":
            file.create_dataset(f"events/{name}", (length,), np.uint16, chunks=(chunk,))
        file["t_offset"] = 0
    with raises("hdf5.claimed_size"):
        open_recording(tmp_path / "events.h5")
