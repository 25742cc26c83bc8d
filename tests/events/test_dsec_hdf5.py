"""DSEC: absolute times, slices found through `ms_to_idx` if it is right."""

import h5py
import numpy as np
import pytest
from event_examples import any_events, assert_same, random_events, to_events
from format_encoders import write_dsec
from hypothesis import given, settings
from hypothesis import strategies as st

from rvtssm.events.readers import open_recording
from rvtssm.events.readers.dsec_hdf5 import DsecRecording
from rvtssm.events.readers.recording import Recording

OFFSET_US = 49_599_300_523  # real sequences have such: more than 32 bits
SIZE_HW = (480, 640)


def shifted(events, by_us: int):
    return to_events(events.t + by_us, events.x, events.y, events.p)


@settings(max_examples=30)
@given(events=any_events(), offset_us=st.sampled_from((0, OFFSET_US)))
def test_round_trip_in_absolute_time(scratch, events, offset_us):
    events = shifted(events, offset_us)
    recording = open_recording(write_dsec(scratch / "events.h5", events, offset_us))
    assert isinstance(recording, DsecRecording)
    assert (recording.height, recording.width) == SIZE_HW
    assert_same(recording.read(), events)


EVENTS = shifted(random_events(5_000, span_us=200_000), OFFSET_US)
RIGHT = np.searchsorted(EVENTS.t - OFFSET_US, 1000 * np.arange(202)).astype(np.uint64)
TABLES = {
    "right": (RIGHT, True),
    "short": (RIGHT[:50], False),
    "missing": (None, False),
    "shifted": (RIGHT + np.uint64(3), False),
    "zeros": (RIGHT * np.uint64(0), False),
    "too large": (RIGHT + np.uint64(10**9), False),
    "not numbers": (np.array([b"a"] * 202), False),
    "two columns": (np.stack([RIGHT, RIGHT], 1), False),
}


@pytest.fixture(scope="module", params=TABLES)
def with_table(request, tmp_path_factory):
    table, is_right = TABLES[request.param]
    path = write_dsec(tmp_path_factory.mktemp("table") / "events.h5", EVENTS, OFFSET_US, ms_to_idx=table)
    return open_recording(path), is_right


@settings(max_examples=40)
@given(start=st.integers(-1000, 210_000), length=st.integers(0, 60_000))
def test_slices_are_exact_whatever_the_table_says(with_table, start, length):
    recording, _ = with_table
    bounds = (OFFSET_US + start, OFFSET_US + start + length)
    assert_same(recording.between(*bounds), EVENTS.between(*bounds))


@pytest.mark.parametrize("table", TABLES)
def test_the_table_saves_the_index(tmp_path, monkeypatch, table):
    ms_to_idx, is_right = TABLES[table]
    built, build = [], Recording.build_index
    monkeypatch.setattr(Recording, "build_index", lambda self: built.append(self.path) or build(self))
    path = write_dsec(tmp_path / "events.h5", EVENTS, OFFSET_US, ms_to_idx=ms_to_idx)
    open_recording(path).between(OFFSET_US + 70_000, OFFSET_US + 90_000)
    assert (not built) == is_right


def test_a_slice_with_time_running_backwards_is_repaired_from_the_start(tmp_path):
    t = np.array([0, 5_000, 1_000, 6_000], np.uint32)
    events = to_events(t, [1, 2, 3, 4], [1] * 4, [0, 1, 0, 1])
    recording = open_recording(write_dsec(tmp_path / "events.h5", events, ms_to_idx=np.array([0, 1, 1, 1, 1, 1, 3, 4])))
    assert_same(recording.between(4_000, 6_000), to_events([5_000, 5_000], [2, 3], [1, 1], [1, 0]))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"events/x": None}, "no events/t, x, y, p"),
        ({"events/p": np.zeros(4, np.uint8)}, "different lengths"),
        ({"events/t": np.zeros((5, 2), np.uint32)}, "no events/t, x, y, p"),
        ({"events/y": np.zeros(5)}, "no events/t, x, y, p"),
        ({"t_offset": np.int64(-7)}, "t_offset of -7"),
        ({"t_offset": np.zeros(3)}, "t_offset"),
        ({"t_offset": np.bytes_("now")}, "t_offset"),
    ],
)
def test_another_layout_is_refused(tmp_path, changed, message):
    path = write_dsec(tmp_path / "events.h5", random_events(5), **changed)
    with pytest.raises(ValueError, match=rf"events\.h5.*{message}"):
        open_recording(path)


def test_times_that_cannot_be_name_their_events(tmp_path):
    path = write_dsec(tmp_path / "events.h5", random_events(3), **{"events/t": np.array([1, 2, 1 << 63], np.uint64)})
    with pytest.raises(ValueError, match="events 0 to 3: impossible times"):
        open_recording(path).read()


def test_a_size_that_dsec_does_not_have_is_refused(tmp_path):
    path = write_dsec(tmp_path / "events.h5", random_events(3))
    with pytest.raises(ValueError, match="640x480"):
        open_recording(path, 240, 304)


@pytest.mark.parametrize(("length", "chunk"), [(1 << 50, 1 << 14), (1 << 30, 1 << 29)])
def test_a_size_that_is_only_announced_is_not_read(tmp_path, length, chunk):
    with h5py.File(tmp_path / "events.h5", "w") as file:
        for name in "txyp":
            file.create_dataset(f"events/{name}", (length,), np.uint16, chunks=(chunk,))
        file["t_offset"] = 0
    with pytest.raises(ValueError, match="claims"):
        open_recording(tmp_path / "events.h5")
