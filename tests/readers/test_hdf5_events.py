"""DSEC: absolute times, repaired like in every format, and layouts that are refused."""

import fcntl

import h5py
import numpy as np
import pytest
from ecf_encoder import MASKED, MODES, PACKED, PACKED_COLUMNS, create_table, encode_chunk, to_rows, write_ecf
from event_examples import HEIGHT, WIDTH, any_events, assert_same, random_events, to_events
from format_encoders import structured, write_dsec
from hypothesis import given, settings
from hypothesis import strategies as st
from user_errors import raises

from rvtssm.readers import ReadFaults, open_recording
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
        ({"events/x": None}, "file.content"),
        ({"events/p": np.zeros(4, np.uint8)}, "file.damaged"),
        ({"events/t": np.zeros((5, 2), np.uint32)}, "file.content"),
        ({"t_offset": np.int64(-7)}, "file.damaged"),
        ({"t_offset": np.zeros(3)}, "file.damaged"),
        ({"t_offset": np.bytes_("now")}, "file.damaged"),
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
    with raises("file.ambiguous"):
        open_recording(path, 48, 64)
    columns = {name: f"right/{name}" for name in "txyp"}
    assert_same(open_recording(path, 48, 64, columns=columns).read(), other)


def test_a_file_that_another_program_has_locked_is_read(tmp_path):
    path = write_dsec(tmp_path / "events.h5", EVENTS)
    with open(path, "rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert_same(open_recording(path).read(), EVENTS)


# Metavision HDF5


@settings(max_examples=30)
@given(
    events=any_events(max_step_us=1 << 30, max_start_us=1 << 50), mode=st.sampled_from(MODES), chunk=st.integers(1, 9)
)
def test_round_trip(tmp_path_factory, events, mode, chunk):
    path = tmp_path_factory.mktemp("ecf") / "a.hdf5"
    recording = open_recording(write_ecf(path, events, HEIGHT, WIDTH, mode, chunk))
    assert (recording.format, recording.height, recording.width) == ("ecf", HEIGHT, WIDTH)
    assert_same(recording.read(), events)
    assert recording.faults == ReadFaults()


def rows_of_neighbours(num_events: int):
    """Long runs of equal times, rows and polarities, and columns side by side."""
    i = np.arange(num_events)
    return to_events(i // 700 * 1_000_003, i % WIDTH, i // 400 % HEIGHT, i // 900 % 2)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("chunk", [127, 16384])
def test_runs_of_every_length(tmp_path, mode, chunk):
    events = rows_of_neighbours(3001)
    assert_same(open_recording(write_ecf(tmp_path / "a.hdf5", events, HEIGHT, WIDTH, mode, chunk)).read(), events)
    for length in (1, *range(14, 18), *range(30, 34), *range(125, 129)):
        short = to_events(*(np.repeat(column[::700], length) for column in (events.t, events.x, events.y, events.p)))
        assert_same(open_recording(write_ecf(tmp_path / "a.hdf5", short, HEIGHT, WIDTH, mode, chunk)).read(), short)


def test_a_mask_at_the_end_of_a_chunk_may_go_beyond_it(tmp_path):
    """Prophesee's encoder looks at what its buffer held before."""
    events = to_events([5] * 4, [3, 4, 5, 6], [1] * 4, [1] * 4)
    data = bytearray(encode_chunk(events, MASKED))
    place = data.index((3 << 5 | 0b11100).to_bytes(2, "little"))
    data[place] |= 0b11
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        create_table(file, 4, 4).id.write_direct_chunk((0,), bytes(data))
    assert_same(open_recording(tmp_path / "a.hdf5", HEIGHT, WIDTH).read(), events)


def test_a_full_last_chunk_is_cut_to_the_table(tmp_path):
    """The filter packs whole chunks, filled up with zeros; OpenEB writes only the events there are."""
    events = random_events(100)
    ends = (events.t[-1], 0, 0, 0)
    columns = (events.t, events.x, events.y, events.p)
    rows = to_events(*(np.append(column, [end] * 28) for column, end in zip(columns, ends, strict=True)))
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        create_table(file, 100, 128).id.write_direct_chunk((0,), encode_chunk(rows, PACKED))
    assert_same(open_recording(tmp_path / "a.hdf5", HEIGHT, WIDTH).read(), events)


def test_chunks_that_were_not_packed(tmp_path):
    events = random_events(100)
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        table = create_table(file, 100, 64)
        table.id.write_direct_chunk((0,), to_rows(events)[:64].tobytes(), filter_mask=1)
        rest = events.between(int(events.t[64]), 1 << 40)
        table.id.write_direct_chunk((64,), encode_chunk(rest, PACKED_COLUMNS))
    assert_same(open_recording(tmp_path / "a.hdf5", HEIGHT, WIDTH).read(), events)


@pytest.mark.parametrize("packing", [{}, {"compression": "gzip", "chunks": (50,)}])
def test_tables_with_another_filter_or_none(tmp_path, packing):
    events = random_events(1000)
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file.create_dataset("CD/events", data=to_rows(events), **packing)
        file.attrs["geometry"] = np.bytes_(f"{WIDTH}x{HEIGHT}")
    recording = open_recording(tmp_path / "a.hdf5")
    assert_same(recording.read(), events)
    assert_same(recording.between(300_000, 400_000), events.between(300_000, 400_000))


@pytest.mark.parametrize(
    ("geometry", "key"),
    [(None, "sensor.unknown"), ("64", "file.damaged"), ("0x9", "file.damaged")],
)
def test_a_size_that_is_missing_or_wrong(tmp_path, geometry, key):
    write_ecf(tmp_path / "a.hdf5", random_events(10), HEIGHT, WIDTH)
    with h5py.File(tmp_path / "a.hdf5", "r+") as file:
        del file.attrs["geometry"]
        if geometry:
            file.attrs["geometry"] = geometry
    with raises(key):
        open_recording(tmp_path / "a.hdf5")
