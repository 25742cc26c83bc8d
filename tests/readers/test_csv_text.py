"""Text: every way to write columns is read back, the unit of time is never guessed, damage names file and place."""

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from damage import read_or_refuse
from event_examples import HEIGHT, WIDTH, any_events, assert_same, random_events, to_events
from format_encoders import rows_of
from hypothesis import given, settings
from hypothesis import strategies as st
from user_errors import raises

from rvtssm.datasets.custom import SPEC
from rvtssm.datasets.tree import find_event_files, find_recordings
from rvtssm.readers import ReadFaults, open_recording, recording_format
from rvtssm.records import Events

SIZE = (HEIGHT, WIDTH)
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
def test_round_trip(scratch, events, order, mark, end, notes):
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
    with raises("reader.no_unit"):
        open_recording(path, *SIZE).read()
    # whole numbers first do not make the rest microseconds
    path.write_text("t,x,y,p\n1,1,2,1\n1.5,1,2,0\n")
    with raises("reader.no_unit"):
        open_recording(path, *SIZE).read()


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("t,x,y,p\n1,2,3\n", "reader.unknown_format"),
        ("t,x,y,p\n1,2,3,1\n4,5\n", "reader.refused"),
        ("t,x,y,p\n1,2,3,1\n4,5,a,1\n", "reader.refused"),
        ("t,x,y,p\n1,2,3,1\n4,5,6,9\n", "reader.polarity"),
        ("t,x,y,p\n1,2,3,1\n-4,5,6,1\n", "reader.refused"),
        ("1,2,3,1,5\n", "columns.order"),
        ("t_s;x;y;p\n0,5;1;2;1\n", "csv.decimal_comma"),
        ("a,b,c,d\n1,2,3,1\n", "columns.missing"),
        ("t_µs,x,y,p\n1,2,3,1\n", "columns.missing"),
        ("t,t,x,y,p\n1,1,2,3,1\n", "columns.twice"),
        ("x,y\n1,2\n", "reader.unknown_format"),
        ("hello world\n", "reader.unknown_format"),
        ("t,x,y,p\n1,2,3,1\n" + "9" * 5000 + ",1,1,1\n", "reader.refused"),
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


def test_a_file_of_names_only_holds_no_events(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("t,x,y,p\n")
    recording = open_recording(path, *SIZE)
    assert len(recording.read()) == 0
    with raises("events.none"):
        _ = recording.time_range_us


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
    with raises("columns.order") as error:
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
