"""Metavision HDF5: every mode of the codec, chunks that it did not pack, and a recording packed by Prophesee's."""

import h5py
import numpy as np
import pytest
from ecf_encoder import MASKED, MODES, PACKED, PACKED_COLUMNS, create_table, encode_chunk, to_rows, write_ecf
from event_examples import HEIGHT, WIDTH, any_events, assert_same, random_events, to_events
from hypothesis import given, settings
from hypothesis import strategies as st
from user_errors import raises

from rvtssm.readers import ReadFaults, open_recording


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
    [(None, "sensor.unknown"), ("64", "sensor.impossible_in_file"), ("0x9", "sensor.impossible_in_file")],
)
def test_a_size_that_is_missing_or_wrong(tmp_path, geometry, key):
    write_ecf(tmp_path / "a.hdf5", random_events(10), HEIGHT, WIDTH)
    with h5py.File(tmp_path / "a.hdf5", "r+") as file:
        del file.attrs["geometry"]
        if geometry:
            file.attrs["geometry"] = geometry
    with raises(key):
        open_recording(tmp_path / "a.hdf5")
