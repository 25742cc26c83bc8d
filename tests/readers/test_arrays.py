"""Numpy files and text: every layout is read, the unit of time is never guessed, damage names file and place."""

import warnings
import zipfile
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from damage import read_or_refuse
from event_examples import HEIGHT, WIDTH, any_events, assert_same, random_events, to_events
from format_encoders import rows_of, structured
from hypothesis import given, settings
from hypothesis import strategies as st
from user_errors import raises

from rvtssm.datasets.custom import SPEC
from rvtssm.datasets.tree import find_event_files, find_recordings
from rvtssm.detection.sources import EventsInMemory
from rvtssm.readers import ReadFaults, open_recording, recording_format
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
    with raises("events.times"):
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
        (np.zeros((5, 3)), "file.content"),
        (np.zeros(5), "file.content"),
        (np.zeros((5, 4), np.complex128), "file.content"),
        (np.zeros(5, [("t", "i8"), ("x", "i8"), ("y", "i8")]), "file.content"),
        (np.zeros(5, [("t", "i8"), ("ts", "i8"), ("x", "i8"), ("y", "i8"), ("p", "i8")]), "file.ambiguous"),
        (np.zeros(5, [("t", "i8", 3), ("x", "i8"), ("y", "i8"), ("p", "i8")]), "file.content"),
        (np.array([{"t": 1}], object), "file.content"),
    ],
)
def test_arrays_that_are_no_events(tmp_path, array, key):
    np.save(tmp_path / "a.npy", array, allow_pickle=True)
    with raises(key):
        open_recording(tmp_path / "a.npy", *SIZE)


def test_archives_that_are_no_events(tmp_path):
    columns = {name: np.zeros(3, np.int64) for name in "txy"}
    for more, key in (({}, "file.content"), ({"p": np.zeros(2, np.int64)}, "file.damaged")):
        np.savez(tmp_path / "a.npz", **columns, **more)
        with raises(key):
            open_recording(tmp_path / "a.npz", *SIZE)
    np.savez(tmp_path / "a.npz", events=np.zeros((3, 4), np.int64), boxes=np.zeros((2, 5)))
    with pytest.raises(ValueError, match=r"holds events of shape \(3, 4\), boxes of shape \(2, 5\); save t, x, y"):
        open_recording(tmp_path / "a.npz", *SIZE)
    with zipfile.ZipFile(tmp_path / "b.npz", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("t.npy", b"0" * 100)
    with raises("file.damaged"):
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
    with raises("file.content"):
        open_recording(tmp_path / "a.npz", *SIZE)


# text


ORDERS = ("txyp", "xytp", "pxyt", "ytxp")


def text_of(events, order="txyp", mark=",", end="\n", header=True) -> bytes:
    rows = rows_of(events)[:, ["txyp".index(name) for name in order]].tolist()
    lines = [mark.join(order)] if header else []
    return "".join(line + end for line in [*lines, *(mark.join(map(str, row)) for row in rows)]).encode()


@settings(max_examples=40)
@given(
    events=any_events(min_size=1),
    order=st.sampled_from(ORDERS),
    mark=st.sampled_from((",", ";", "\t", " ", " , ")),
    end=st.sampled_from(("\n", "\r\n", "\n\n")),
    notes=st.sampled_from((b"", b"\xef\xbb\xbf", "# für µs\n#\n".encode(), b"\n  \n")),
)
def test_text_round_trip(scratch, events, order, mark, end, notes):
    path = scratch / "a.csv"
    path.write_bytes(notes + text_of(events, order, mark, end))
    recording = open_recording(path, *SIZE)
    assert recording.format == "csv"
    assert_same(recording.read(), events)
    assert recording.faults == ReadFaults()
    path.write_bytes(notes + text_of(events, order, mark, end, header=False))
    columns = {name: order.index(name) for name in "txyp"}
    assert_same(open_recording(path, *SIZE, columns=columns).read(), events)


def test_the_size_may_stand_in_the_file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"# height=48\n# width: 64\n" + text_of(random_events(5), header=False))
    recording = open_recording(path)
    assert (recording.height, recording.width) == SIZE
    path.write_bytes(text_of(random_events(5)))
    with raises("sensor.unknown"):
        open_recording(path)


def test_columns_that_are_not_needed_are_left_out_and_names_are_free(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("id,Polarity,timestamp_ns,X,Y,note\n1,-1,5000,3,4,hello\n2,1,7999,5,6,\n")
    assert_same(open_recording(path, *SIZE).read(), to_events([5, 7], [3, 5], [4, 6], [0, 1]))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("t_s,x,y,p\n0.000001,1,2,1\n1.5,1,2,0\n", [1, 1_500_000]), ("t_us,x,y,p\n7.0,1,2,1\n8.4,1,2,0\n", [7, 8])],
)
def test_times_with_decimals_need_a_unit(tmp_path, text, wanted):
    path = tmp_path / "a.csv"
    path.write_text(text)
    assert open_recording(path, *SIZE).read().t.tolist() == wanted
    path.write_text(text.replace("t_s", "t").replace("t_us", "t"))
    with raises("file.content", "time_unit"):
        open_recording(path, *SIZE).read()
    # whole numbers first do not make the rest microseconds
    path.write_text("t,x,y,p\n1,1,2,1\n1.5,1,2,0\n")
    with raises("file.content", "time_unit"):
        open_recording(path, *SIZE).read()


def test_whole_numbers_that_are_written_as_floats_are_asked_for_their_unit(tmp_path):
    events = random_events(500, span_us=3_000_000, size_hw=SIZE)
    rows = np.stack([getattr(events, name).astype(np.int64) for name in "txyp"], axis=1)
    forms = {"default": {}, "decimal": {"fmt": "%.1f"}, "header": {"header": "t x y p"}, "comma": {"delimiter": ","}}
    for name, form in forms.items():
        np.savetxt(tmp_path / f"{name}.txt", rows, **form)
        with raises("file.content", "time_unit=us"):
            open_recording(tmp_path / f"{name}.txt", *SIZE)
        assert_same(open_recording(tmp_path / f"{name}.txt", *SIZE, time_unit="us").read(), events)
    np.savetxt(tmp_path / "pixels.txt", rows, fmt=["%d", "%.1f", "%.1f", "%d"])
    assert_same(open_recording(tmp_path / "pixels.txt", *SIZE).read(), events)


def test_unsorted_times_are_told_as_such(tmp_path):
    events = random_events(500, span_us=3_000_000, size_hw=SIZE)
    rows = np.stack([getattr(events, name).astype(np.int64) for name in "txyp"], axis=1)
    np.savetxt(tmp_path / "a.txt", rows[np.random.default_rng(0).permutation(500)], fmt="%d")
    with raises("events.faulty", "sort it by time"):
        open_recording(tmp_path / "a.txt", *SIZE).read()


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("t,x,y,p\n1,2,3\n", "file.kind"),
        ("t,x,y,p\n1,2,3,1\n4,5\n", "events.faulty"),
        ("t,x,y,p\n1,2,3,1\n4,5,a,1\n", "events.faulty"),
        ("t,x,y,p\n1,2,3,1\n4,5,6,9\n", "events.polarity"),
        ("t,x,y,p\n1,2,3,1\n-4,5,6,1\n", "events.faulty"),
        ("1,2,3,1,5\n", "file.ambiguous"),
        ("t_s;x;y;p\n0,5;1;2;1\n", "file.content"),
        ("a,b,c,d\n1,2,3,1\n", "file.content"),
        ("t_µs,x,y,p\n1,2,3,1\n", "file.content"),
        ("t,t,x,y,p\n1,1,2,3,1\n", "file.ambiguous"),
        ("x,y\n1,2\n", "file.kind"),
        ("hello world\n", "file.kind"),
        ("t,x,y,p\n1,2,3,1\n" + "9" * 5000 + ",1,1,1\n", "events.faulty"),
    ],
)
def test_text_that_is_no_recording_names_the_file(tmp_path, text, key):
    path = tmp_path / "a.csv"
    path.write_text(text)
    with raises(key) as error, closing(open_recording(path, *SIZE)) as recording:
        recording.read()
    assert str(path) in str(error.value)


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_a_first_time_of_plain_0_may_be_followed_by_decimals(tmp_path, unit):
    path = tmp_path / "a.csv"
    path.write_text(f"t_{unit},x,y,p\n0,1,2,1\n1.5,1,2,0\n2,1,2,0\n")
    factor = {"s": 1_000_000, "ms": 1000, "us": 1}[unit]
    assert open_recording(path, *SIZE).read().t.tolist() == [0, round(1.5 * factor), 2 * factor]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("# timestamp_ns,x,y,p\n5000,3,4,0\n7000,5,6,1\n", (5, 3, 4, 0)),
        ("# t y x p\n5 4 3 0\n7 6 5 1\n", (5, 3, 4, 0)),
        ("# t,y,x,p\nt,x,y,p\n5,3,4,0\n", (5, 3, 4, 0)),  # a line of names has the last word
    ],
)
def test_names_may_stand_behind_a_mark_of_comments(tmp_path, text, wanted):
    path = tmp_path / "a.csv"
    path.write_text(text)
    events = open_recording(path, *SIZE).read()
    assert (events.t[0], events.x[0], events.y[0], events.p[0]) == wanted


def test_text_is_text_whatever_its_suffix_unless_it_is_the_header_of_another_format(tmp_path):
    path = tmp_path / "a.dat"
    path.write_bytes(text_of(random_events(30)))
    assert recording_format(path) == "csv"
    path.write_bytes(b"% Data file containing Event2D events.\n\x00\x08")
    assert recording_format(path) == "dat"


@pytest.mark.parametrize(("order", "num_read"), [("txyp", 40), ("pxyt", 39)])
@pytest.mark.parametrize("block", [36, 39, 40, 100])
def test_a_last_line_without_a_newline_is_read_where_it_cannot_have_been_cut(tmp_path, order, num_read, block):
    events, path = random_events(40), tmp_path / "a.csv"
    path.write_bytes(text_of(events, order).removesuffix(b"\n"))
    recording = open_recording(path, *SIZE)
    blocks = [len(events) for events in recording.iterate(max_events=block)]
    assert sum(blocks) == num_read and max(blocks) <= block
    assert_same(recording.read(), Events(*(getattr(events, name)[:num_read] for name in "txyp")))
    assert (recording.faults.truncated_bytes == 0) == (num_read == 40)


def test_numbers_beyond_any_are_refused(tmp_path):
    for value in ("99999999999999999999", "nan", "inf", "1e400"):
        for column in range(4):
            row = ["5", "6", "7", "1"]
            row[column] = value
            found = read_or_refuse(tmp_path / "a.csv", f"t_s,x,y,p\n1,2,3,1\n{','.join(row)}\n".encode(), *SIZE)
            assert found is None or np.array_equal(found.t, [1_000_000])


@pytest.mark.parametrize(
    ("text", "size_hw", "wanted"),
    [
        ("%geometry:64,48\n0,0,0,1\n10,0,0,1\n1,0,0,1044480\n", (), [(1, 0, 0, 0), (1, 10, 0, 0), (1044480, 1, 0, 0)]),
        ("0.003811000 9 33 0\n0.003820001 7 13 1\n", SIZE, [(3811, 9, 33, 0), (3820, 7, 13, 1)]),
        ("t,x,y,p\n5,6,7,True\n6,6,7,False\n", SIZE, [(5, 6, 7, 1), (6, 6, 7, 0)]),
        ('"t","x","y","p"\n"5",6,7,1\n"6",6,7,0\n', SIZE, [(5, 6, 7, 1), (6, 6, 7, 0)]),
    ],
    ids=["OpenEB", "RPG", "pandas", "R"],
)
def test_text_of_common_tools(tmp_path, text, size_hw, wanted):
    path = tmp_path / "a.txt"
    path.write_text(text)
    recording = open_recording(path, *size_hw)
    assert (recording.height, recording.width) == SIZE
    assert rows_of(recording.read()).tolist() == [list(row) for row in wanted]


def test_an_order_that_is_not_certain_is_asked_for(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("0,1,0,1\n1,0,0,1\n")
    with raises("file.ambiguous") as error:
        open_recording(path, *SIZE)
    assert str(path) in str(error.value)
    columns = {"t": 3, "x": 1, "y": 2, "p": 0}
    assert rows_of(open_recording(path, *SIZE, columns=columns).read()).tolist() == [[1, 1, 0, 0], [1, 0, 0, 1]]


def test_text_files_of_a_folder_are_recordings_if_they_hold_events(tmp_path):
    texts = {
        "rpg.txt": "0.1 3 4 1\n0.2 3 4 0\n",
        "named.txt": "t x y p other\n1 2 3 1 0\n",
        "boxes.txt": "0 0.5 0.5 0.1 0.1\n",
        "classes.txt": "car\nperson\n",
        "empty.txt": "",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    assert [path.name for path in find_event_files(tmp_path)] == ["named.txt", "rpg.txt"]
    (tmp_path / "train").mkdir()
    (tmp_path / "train/rpg.txt").write_text(texts["rpg.txt"])
    spec = replace(SPEC, boxes_suffix="_bbox.npy")
    assert [recording.name for recording in find_recordings(tmp_path, "train", spec)] == ["rpg"]
    spec = replace(spec, boxes_suffix=".txt")
    assert find_recordings(tmp_path, "train", spec) == []
