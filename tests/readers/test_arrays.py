"""Numpy files: every layout is read back, the unit of time is never guessed, damage names file and place."""

import warnings
import zipfile

import numpy as np
import pytest
from damage import read_or_refuse
from event_examples import HEIGHT, WIDTH, any_events, assert_same, random_events
from format_encoders import rows_of, structured
from hypothesis import given, settings
from hypothesis import strategies as st
from user_errors import raises

from rvtssm.detection.sources import EventsInMemory
from rvtssm.readers import ReadFaults, open_recording
from rvtssm.readers.arrays import NPY_SIGNATURE
from rvtssm.records import Events

SIZE = (HEIGHT, WIDTH)


LAYOUTS = {
    "pedro": lambda events: np.asfortranarray(rows_of(events)),
    "rows": rows_of,
    "signed": lambda events: np.where(np.arange(4) == 3, 2 * rows_of(events) - 1, rows_of(events)).astype(np.int32),
    "structured": structured,
    "big endian": lambda events: structured(events, names=("t_us", "x", "y", "p"), kinds=(">f8", ">u4", ">i8", "i1")),
    "renamed": lambda events: structured(events, ("timestamp", "X", "Y", "Polarity")),
}


@settings(max_examples=40)
@given(events=any_events(), layout=st.sampled_from(sorted(LAYOUTS)), is_packed=st.booleans())
def test_round_trip(scratch, events, layout, is_packed):
    np.save(scratch / "a.npy", LAYOUTS[layout](events))
    assert_same(open_recording(scratch / "a.npy", *SIZE).read(), events)
    (np.savez_compressed if is_packed else np.savez)(scratch / "a.npz", events=LAYOUTS[layout](events))
    recording = open_recording(scratch / "a.npz", *SIZE)
    assert_same(recording.read(), events)
    assert recording.faults == ReadFaults()


def test_one_array_per_column_with_the_size_and_more(tmp_path):
    events = random_events(500)
    columns = {"polarities": events.p, "ys": events.y, "xs": events.x.astype(np.float32), "ts": events.t}
    np.savez(tmp_path / "a.npz", image=np.zeros((4, 4)), height=[HEIGHT], width=WIDTH, **columns)
    recording = open_recording(tmp_path / "a.npz")
    assert (recording.format, recording.height, recording.width) == ("npz", *SIZE)
    assert_same(recording.read(), events)
    assert_same(recording.between(200_000, 400_000), events.between(200_000, 400_000))
    assert_same(recording.between(100_000, 200_000), events.between(100_000, 200_000))


def test_fields_that_are_not_needed_are_left_out(tmp_path):
    events = random_events(50)
    rows = np.zeros(50, [("note", "U4"), *structured(events).dtype.descr, ("place", "f4", 2)])
    rows[["t", "x", "y", "p"]] = structured(events)
    np.save(tmp_path / "a.npy", rows)
    assert_same(open_recording(tmp_path / "a.npy", *SIZE).read(), events)


@pytest.mark.parametrize(("name", "per_us"), [("t_s", 1e-6), ("t_ms", 1e-3), ("time [us]", 1), ("timestamps_ns", 1000)])
def test_a_name_may_carry_the_unit(tmp_path, name, per_us):
    events = random_events(300, start_us=1_600_000_000_000_000)
    rows = structured(events, (name, "x", "y", "p"), ("<i8" if per_us >= 1 else "<f8", "<u2", "<u2", "u1"))
    rows[name] = (events.t * int(per_us)) if per_us >= 1 else events.t * per_us
    np.save(tmp_path / "a.npy", rows)
    assert_same(open_recording(tmp_path / "a.npy", *SIZE).read(), events)


@pytest.mark.parametrize(("seconds", "coarse_us"), [(15.0, 0), (17.0, 2), (60.0, 4), (9000.0, 977)])
def test_times_of_few_bits_are_said_to_be_coarse(tmp_path, seconds, coarse_us):
    np.save(tmp_path / "a.npy", np.array([(seconds, 1, 2, 1)], [("t_s", "<f4"), *((name, "<i4") for name in "xyp")]))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        recording = open_recording(tmp_path / "a.npy", *SIZE)
        assert recording.read().t.tolist() == [round(seconds * 1e6)]
    assert recording.faults.coarse_us == coarse_us
    said = [f"times are only exact to {coarse_us} us" in str(warning.message) for warning in caught]
    assert said == [True] * bool(coarse_us)


def test_times_that_are_milliseconds_apart_are_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.array([(17000.0, 1, 2, 1)], [("t_s", "<f4"), *((name, "<i4") for name in "xyp")]))
    with raises("reader.coarse_times"):
        open_recording(tmp_path / "a.npy", *SIZE).read()


def test_unnamed_columns_in_another_order_are_told_from_their_values_or_by_the_caller(tmp_path):
    events = random_events(200)
    np.save(tmp_path / "a.npy", rows_of(events)[:, [1, 2, 0, 3]])
    assert_same(open_recording(tmp_path / "a.npy", *SIZE).read(), events)
    np.save(tmp_path / "b.npy", rows_of(events)[:, [1, 0, 2, 3]])
    with pytest.raises(ValueError, match="outside its 64x48"):
        open_recording(tmp_path / "b.npy", *SIZE).read()
    order = {"t": 1, "x": 0, "y": 2, "p": 3}
    assert_same(open_recording(tmp_path / "b.npy", *SIZE, columns=order).read(), events)


@pytest.mark.parametrize(
    ("num_events", "span_us", "is_told"),
    [
        (999, 10, False),
        (9_999, 9, False),  # an instant
        (12_288, 1_000, False),  # a flash: every pixel once, as fast as a sensor can read it
        (20_000, 19, True),
        (51_000, 1_000, True),
        (430_000, 40_000, False),
    ],
)
def test_whole_times_in_seconds_or_milliseconds_are_told_from_the_number_of_events(
    tmp_path, num_events, span_us, is_told
):
    """No sensor gives 1000 events per pixel and second on average over all its pixels."""
    size_hw = 96, 128
    t, ones = np.linspace(0, span_us, num_events).astype(np.int64), np.ones(num_events, np.uint8)
    np.savez(tmp_path / "a.npz", t=t, x=ones, y=ones, p=ones)
    for read in (
        lambda: open_recording(tmp_path / "a.npz", *size_hw).time_range_us,
        lambda: open_recording(tmp_path / "a.npz", *size_hw).read(),
        lambda: EventsInMemory(Events(t, ones, ones, ones), *size_hw),
    ):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("default")  # which tells most warnings once per place in the code
            read()
            read()
        assert len(told) == 2 * is_told
        message = f"{num_events} events in {span_us / 1000:g} ms on 128 x 96 pixels, that is "
        assert all(message in str(warning.message) for warning in told)
        assert all("time_unit=ms" in str(warning.message) for warning in told)


@pytest.mark.parametrize(
    ("array", "key"),
    [
        (np.zeros((5, 3)), "arrays.shape"),
        (np.zeros(5), "arrays.shape"),
        (np.zeros((5, 4), np.complex128), "columns.not_numbers"),
        (np.zeros(5, [("t", "i8"), ("x", "i8"), ("y", "i8")]), "columns.missing"),
        (np.zeros(5, [("t", "i8"), ("ts", "i8"), ("x", "i8"), ("y", "i8"), ("p", "i8")]), "columns.twice"),
        (np.zeros(5, [("t", "i8", 3), ("x", "i8"), ("y", "i8"), ("p", "i8")]), "columns.not_numbers"),
        (np.array([{"t": 1}], object), "arrays.not_numbers"),
    ],
)
def test_arrays_that_are_no_events(tmp_path, array, key):
    np.save(tmp_path / "a.npy", array, allow_pickle=True)
    with raises(key):
        open_recording(tmp_path / "a.npy", *SIZE)


def test_archives_that_are_no_events(tmp_path):
    columns = {name: np.zeros(3, np.int64) for name in "txy"}
    for more, key in (({}, "columns.missing"), ({"p": np.zeros(2, np.int64)}, "arrays.lengths")):
        np.savez(tmp_path / "a.npz", **columns, **more)
        with raises(key):
            open_recording(tmp_path / "a.npz", *SIZE)
    np.savez(tmp_path / "a.npz", events=np.zeros((3, 4), np.int64), boxes=np.zeros((2, 5)))
    with pytest.raises(ValueError, match=r"holds events of shape \(3, 4\), boxes of shape \(2, 5\); save t, x, y"):
        open_recording(tmp_path / "a.npz", *SIZE)
    with zipfile.ZipFile(tmp_path / "b.npz", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("t.npy", b"0" * 100)
    with raises("arrays.compression"):
        open_recording(tmp_path / "b.npz", *SIZE)


def test_a_size_is_needed_and_may_not_contradict(tmp_path):
    np.save(tmp_path / "a.npy", rows_of(random_events(3)))
    with raises("sensor.unknown"):
        open_recording(tmp_path / "a.npy")
    np.savez(tmp_path / "a.npz", rows_of(random_events(3)), height=HEIGHT, width=WIDTH)
    with raises("sensor.contradicts"):
        open_recording(tmp_path / "a.npz", 240, 304)


@pytest.mark.parametrize("shape", ["(-1, 4)", "(True, 4)", "(1e3, 4)", "(" * 500 + ")" * 500])
def test_sizes_that_are_only_announced(tmp_path, shape):
    header = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}, }}".encode()
    content = NPY_SIGNATURE + b"\x01\x00" + len(header).to_bytes(2, "little") + header
    assert read_or_refuse(tmp_path / "a.npy", content + bytes(64), *SIZE) is None


def test_an_archive_that_unpacks_to_much_more_is_not_unpacked(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("t.npy", NPY_SIGNATURE + b"\x02\x00" + (20 << 20).to_bytes(4, "little") + bytes(20 << 20))
    with raises("arrays.not_an_array"):
        open_recording(tmp_path / "a.npz", *SIZE)
