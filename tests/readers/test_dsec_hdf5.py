"""DSEC: absolute times, repaired like in every format, and layouts that are refused."""

import h5py
import numpy as np
import pytest
from event_examples import any_events, assert_same, random_events, to_events
from format_encoders import write_dsec
from hypothesis import given, settings
from hypothesis import strategies as st

from rvtssm.readers import open_recording
from rvtssm.readers.dsec_hdf5 import DsecRecording

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


def test_times_that_run_backwards_are_repaired_and_no_table_is_believed(tmp_path):
    t = np.array([0, 5_000, 1_000, 6_000], np.uint32)
    events = to_events(t, [1, 2, 3, 4], [1] * 4, [0, 1, 0, 1])
    recording = open_recording(write_dsec(tmp_path / "events.h5", events, ms_to_idx=np.zeros(8, np.uint64)))
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
