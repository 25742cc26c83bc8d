"""The law of the gate: the same events and faults give the same arrays and the same counts in every format."""

import io
import struct
import warnings
from functools import partial
from itertools import pairwise

import h5py
import numpy as np
import pytest
from ecf_encoder import write_ecf
from event_examples import HEIGHT, WIDTH, assert_same, random_events
from format_encoders import WRITERS, rows_of, structured, write_aedat4
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from live_examples import packet_bytes, stream_head
from user_errors import raises

from rvtssm.contrib.ros.event_messages import MessageDecoder
from rvtssm.detection.feed import PythonSource
from rvtssm.detection.packets import PacketStream
from rvtssm.detection.sources import EventsInMemory
from rvtssm.readers import ReadFaults, open_recording
from rvtssm.readers.event_checks import LiveGate, columns_of, gated
from rvtssm.readers.event_checks import to_events as events_of_array
from rvtssm.readers.gate import JUMP_US, Gate
from rvtssm.readers.piped import PipedRecording
from rvtssm.readers.recording import copy_events, join_events
from rvtssm.records import Events
from rvtssm.system.user_error import UserError
from tests.contrib.ros.bag_writer import DVS, message_of, typestore_of, write_events
from tests.readers.evt3_encoder import encode, word, write_words

NUM_EVENTS = 600  # so that five may be left out
SIZE = (HEIGHT, WIDTH)
# Formats whose times do not fit, or do not go back, as far as those of another clock.
NEVER_BACK = ("evt3", "ros2", "ecf")  # whose test writers cannot write a step back
SHORT_CLOCKS = ("evt3", "ros1", "ros2", "evt2", "evt21", "dat", "ecf")


def by_the_rules(raw: Events, num_strays: int) -> tuple[Events, ReadFaults]:
    """The slow twin of the gate: what is read of raw events of which the first have the time of another clock."""
    kept, latest, backward, outside = [], None, 0, 0
    for t, x, y, p in list(zip(raw.t.tolist(), raw.x.tolist(), raw.y.tolist(), raw.p.tolist(), strict=True))[
        num_strays:
    ]:
        if x >= WIDTH or y >= HEIGHT:
            outside += 1
            continue
        if latest is not None and t < latest:
            backward += 1
            t = latest
        latest = t
        kept.append((t, x, y, p))
    columns = zip(*kept, strict=True)
    events = Events(*(np.array(column, kind) for column, kind in zip(columns, ("i8", "u2", "u2", "u1"), strict=True)))
    return events, ReadFaults(backward, outside, other_clock=num_strays)


def write_raw_dat(path, events):
    """A DAT file of events that `write_dat` refuses."""
    rows = rows_of(events).astype(np.uint32)
    words = np.stack([rows[:, 0], rows[:, 1] | rows[:, 2] << 14 | rows[:, 3] << 28], axis=1).astype("<u4")
    path.write_bytes(f"% Version 2\n% Height {HEIGHT}\n% Width {WIDTH}\n".encode() + b"\x00\x08" + words.tobytes())
    return path


@st.composite
def faulty_events(draw) -> tuple[Events, int]:
    """Events of which some lie outside the sensor, some are late, and the first may come from another clock."""
    events = random_events(NUM_EVENTS, draw(st.integers(0, 99)), span_us=100_000, start_us=1_000)
    places = st.lists(st.integers(50, NUM_EVENTS - 1), max_size=5, unique=True)
    for place in draw(places):
        side = draw(st.sampled_from("xy"))
        getattr(events, side)[place] = {"x": WIDTH, "y": HEIGHT}[side] + draw(st.integers(0, 200))
    for place in draw(places):
        events.t[place] -= draw(st.integers(0, 900))
    num_strays = draw(st.sampled_from((0, 0, 1, 20)))
    events.t[:num_strays] += draw(st.sampled_from((5_000_000_000, JUMP_US + 200_000)))
    return events, num_strays


@pytest.mark.parametrize("name", WRITERS)
@hypothesis_settings(max_examples=12)
@given(faulty=faulty_events(), max_events=st.sampled_from((100, 1 << 16)))
def test_the_same_events_give_the_same_arrays_and_faults_in_every_format(tmp_path_factory, name, faulty, max_events):
    raw, num_strays = faulty
    if name in SHORT_CLOCKS and num_strays:
        raw, num_strays = raw[num_strays:], 0
    if name in NEVER_BACK:
        np.maximum.accumulate(raw.t, out=raw.t)
    path = (WRITERS | {"dat": write_raw_dat})[name](tmp_path_factory.mktemp("gate") / "a.bin", raw)
    wanted, faults = by_the_rules(raw, num_strays)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        recording = open_recording(path, *SIZE)
        assert_same(recording.read(), wanted)
        assert recording.faults == faults
        again = open_recording(path, *SIZE)
        assert_same(again.between(0, 1 << 60), wanted)
        assert again.faults == faults
        assert sum(len(block) for block in again.iterate(max_events)) == len(wanted)


def arrays_of(path, write, rows, **options):
    write(path, rows)
    return open_recording(path, *SIZE, **options)


def save_npz(path, rows):
    with open(path, "wb") as file:
        np.savez(file, **{name: rows[name] for name in "txyp"})


def save_npy(path, rows):
    with open(path, "wb") as file:
        np.save(file, rows)


def save_csv(path, rows):
    lines = [",".join(map(str, row)) for row in rows.tolist()]
    path.write_text("\n".join(["t,x,y,p", *lines]) + "\n")


def save_hdf5(path, rows):
    import h5py

    with h5py.File(path, "w") as file:
        for name in "txyp":
            file[f"events/{name}"] = rows[name]


ARRAYS = {"npz": save_npz, "npy": save_npy, "csv": save_csv, "hdf5": save_hdf5}


@pytest.mark.parametrize("write", ARRAYS.values(), ids=ARRAYS)
@pytest.mark.parametrize(("kind", "darker"), [("u1", -1), ("u2", 0), ("u4", -1), ("i8", 0), ("i8", -1), ("f8", -1)])
def test_a_polarity_of_minus_one_without_a_sign_is_darker(tmp_path, write, kind, darker):
    minus = -1.0 if darker and kind == "f8" else np.array([darker]).astype(kind)[0]
    rows = structured(random_events(40), kinds=("i8", "u2", "u2", kind))
    wanted = rows["p"].astype(np.uint8)
    rows["p"][rows["p"] == 0] = minus
    assert arrays_of(tmp_path / "a", write, rows).read().p.tolist() == wanted.tolist()
    assert events_of_array(rows).p.tolist() == wanted.tolist()
    rows["p"][7] = 2
    with raises("events.polarity"):
        arrays_of(tmp_path / "b", write, rows).read()
    with raises("events.polarity"):
        events_of_array(rows)


@pytest.mark.parametrize("write", ARRAYS.values(), ids=ARRAYS)
@pytest.mark.parametrize(("column", "value"), [("t_s", np.nan), ("t_s", -1.0), ("x", 2.5)])
def test_a_few_unreadable_events_are_left_out_and_many_need_repair(tmp_path, write, column, value):
    events = random_events(NUM_EVENTS)
    rows = structured(events, kinds=("f8", "f8", "f8", "u1"))
    name = column[0]
    rows[name][[50, 90]] = value
    unit = {"time_unit": "us"} if write is save_csv else {}  # which writes floats
    with pytest.warns(UserWarning, match="left out 2 of 600 events without a valid time or pixel"):
        recording = arrays_of(tmp_path / "a", write, rows, **unit)
        found = recording.read()
    assert recording.faults == ReadFaults(unreadable=2)
    assert_same(found, events[np.isin(np.arange(NUM_EVENTS), [50, 90], invert=True)])
    rows[name][:100] = value
    with pytest.raises(UserError, match=r"100 of 600 events that cannot be read.* repair=true"):
        arrays_of(tmp_path / "b", write, rows, **unit).read()
    with pytest.warns(UserWarning, match="left out 100 of 600"):
        assert len(arrays_of(tmp_path / "b", write, rows, repair=True, **unit).read()) == NUM_EVENTS - 100


@pytest.mark.parametrize("num_outside", [10, 11])
def test_one_event_in_10000_may_lie_outside(tmp_path, num_outside):
    events = random_events(100_000)
    events.x[1000 : 1000 + num_outside] = WIDTH
    path = WRITERS["rvt_hdf5"](tmp_path / "a.h5", events)
    if num_outside > 10:
        with pytest.raises(UserError, match="11 of 100000 events outside its 64x48"):
            open_recording(path).read()
    with pytest.warns(UserWarning, match=f"left out {num_outside} of 100000 events outside"):
        assert len(open_recording(path, repair=True).read()) == 100_000 - num_outside


GLITCHES = ("npy", "npz", "csv", "rvt_hdf5", "aedat4", "dat", "evt2", "evt21")  # whose test writers write any time


@pytest.mark.parametrize("name", GLITCHES)
@pytest.mark.parametrize(("step_us", "place"), [(-900_000, 8_950), (150_000, 70), (3_700_000_000, 4_000)])
def test_one_event_of_another_clock_in_the_middle_is_left_out_alone(tmp_path, name, step_us, place):
    events = random_events(9_000, span_us=100_000, start_us=500_000_000)
    events.t[place] += step_us
    path = (WRITERS | {"dat": write_raw_dat})[name](tmp_path / "a.bin", events)
    kept = events[np.arange(9_000) != place]
    for max_events in (place, place + 1, place + 30, 1 << 16):  # also as the first and the last event of a block
        recording = open_recording(path, *SIZE)
        with pytest.warns(UserWarning, match="left out 1 of 9000 events with the time of another clock"):
            found = join_events(list(recording.iterate(max_events)))
        assert_same(found, kept)
        assert recording.faults == ReadFaults(other_clock=1)
    with pytest.warns(UserWarning, match="left out 1 of 9000"):
        recording = open_recording(path, *SIZE, repair=True)
        assert_same(recording.between(0, 1 << 60), kept)


def write_unpacked_ecf(path, events):
    with h5py.File(path, "w") as file:
        file.create_dataset("CD/events", data=structured(events, kinds=("<i8", "<u2", "<u2", "<i2")), chunks=(64,))
    return path


IN_PIECES = {  # ecf only goes back from chunk to chunk
    "ecf": lambda path, events: write_ecf(path, events, HEIGHT, WIDTH, chunk=64),
    "unpacked ecf": write_unpacked_ecf,
    "aedat4": lambda path, events: write_aedat4(path, events, packet_events=3),
}


@pytest.mark.parametrize("write", IN_PIECES.values(), ids=IN_PIECES)
def test_events_of_another_clock_at_the_border_of_a_piece_are_left_out(tmp_path, write):
    events = random_events(9_000, span_us=100_000, start_us=500_000_000)
    events.t[6_360:6_400] += 150_000
    path = write(tmp_path / "a.bin", events)
    kept = join_events([events[:6_360], events[6_400:]])
    for max_events in (64, 6_399, 1 << 16):
        recording = open_recording(path, *SIZE, repair=True)
        with pytest.warns(UserWarning, match="left out 40 of 9000 events with the time of another clock"):
            assert_same(join_events(list(recording.iterate(max_events))), kept)
        assert recording.faults == ReadFaults(other_clock=40)


@pytest.mark.parametrize("high", [50, 900, 3_000])
def test_one_time_word_of_another_clock_is_left_out_with_its_events(tmp_path, high):
    events = random_events(600, span_us=900_000, start_us=8_000_000)
    words = encode(events, use_noise=False)
    place = next(i for i in range(len(words) // 2, len(words)) if words[i] >> 12 == 8)
    words[place:place] = [word(8, high), word(0, 3), word(2, 5), word(2, 6)]
    with pytest.warns(UserWarning, match="left out 2 of 602 events with the time of another clock"):
        found = open_recording(write_words(tmp_path / "a.raw", words, *SIZE)).read()
    assert_same(found, events)


@pytest.mark.parametrize("num_words", [2, 5_000])
@pytest.mark.parametrize("name", ["dat", "evt2"])
def test_words_that_were_never_written_are_empty(tmp_path, name, num_words):
    events = random_events(NUM_EVENTS, span_us=100_000, start_us=6_400_000)
    path = WRITERS[name](tmp_path / "a.bin", events)
    unit_bytes = open_recording(path).unit_bytes
    path.write_bytes(path.read_bytes() + bytes(unit_bytes * num_words))
    recording = open_recording(path)
    with pytest.warns(
        UserWarning, match=f"left out {num_words} of {NUM_EVENTS + num_words} events that are empty rows"
    ):
        assert_same(recording.read(), events)


@pytest.mark.parametrize("name", ["dat", "evt2"])
def test_words_that_were_never_written_are_empty_wherever_they_are(tmp_path, name):
    events = random_events(NUM_EVENTS, span_us=100_000, start_us=6_400_000)
    path = WRITERS[name](tmp_path / "a.bin", events)
    unit_bytes = open_recording(path).unit_bytes
    content = path.read_bytes()
    path.write_bytes(content[: -300 * unit_bytes] + bytes(64 * unit_bytes) + content[-300 * unit_bytes :])
    for max_events in (36, 300, 320, 1 << 16):
        recording = open_recording(path)
        with pytest.warns(UserWarning, match=f"left out 64 of {NUM_EVENTS + 64} events that are empty rows"):
            assert_same(join_events(list(recording.iterate(max_events))), events)
        assert recording.faults == ReadFaults(empty_rows=64)


def test_repair_moves_no_event_to_the_time_of_another_clock(tmp_path):
    events = random_events(9_000, span_us=3_000_000)
    events.t[:4_000] += 5_000_000_000
    save_npy(tmp_path / "a.npy", structured(events, kinds=("i8", "u2", "u2", "u1")))
    with pytest.raises(UserError, match="its clock began again"):
        open_recording(tmp_path / "a.npy", *SIZE, repair=True).read()


@pytest.mark.parametrize("kind", ["f2", "f4", "f8", "i1", "u1", "i4", "u4", "i8", "u8"])
def test_coordinates_may_be_of_any_kind_of_number(tmp_path, kind):
    events = random_events(NUM_EVENTS)
    np.savez(tmp_path / "a.npz", t=events.t, x=events.x.astype(kind), y=events.y.astype(kind), p=events.p)
    assert_same(open_recording(tmp_path / "a.npz", *SIZE).read(), events)


@pytest.mark.parametrize(("unit", "per_us"), [("ns", 1000), ("us", 1), ("ms", 1e-3), ("s", 1e-6)])
@pytest.mark.parametrize("write", ARRAYS.values(), ids=ARRAYS)
def test_the_unit_of_time_is_what_the_caller_says(tmp_path, write, unit, per_us):
    events = random_events(50, span_us=3_000_000)
    kind = "i8" if per_us >= 1 else "f8"
    rows = structured(events, kinds=(kind, "u2", "u2", "u1"))
    rows["t"] = events.t * per_us
    assert_same(arrays_of(tmp_path / "a", write, rows, time_unit=unit).read(), events)


@pytest.mark.parametrize("max_events", [100, 1 << 16])
def test_a_line_that_is_no_event_moves_no_other_one(tmp_path, max_events):
    lines = [f"{1_000 * i + 700},{i % WIDTH},{i % HEIGHT},1\n" for i in range(3_000)]
    lines[2_500] = "nothing,1,2,1\n"
    (tmp_path / "a.csv").write_text("t,x,y,p\n" + "".join(lines))
    recording = open_recording(tmp_path / "a.csv", *SIZE, time_unit="ns")
    with pytest.warns(UserWarning, match="left out 1 of 3000 events"):
        times_us = np.concatenate([block.t for block in recording.iterate(max_events)])
    assert times_us.tolist() == [*range(2_500), *range(2_501, 3_000)]


def test_whole_numbers_of_nanoseconds_are_doubted(tmp_path):
    rows = structured(random_events(5_000, span_us=1_000_000), kinds=("i8", "u2", "u2", "u1"))
    rows["t"] *= 1000
    for write in ARRAYS.values():
        for read in (lambda found: found.read(), lambda found: found.num_events):
            with pytest.warns(UserWarning, match="time_unit=ns"):
                read(arrays_of(tmp_path / "a", write, rows))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            arrays_of(tmp_path / "a", write, rows, time_unit="ns").read()


def test_version_1_of_dat_has_fewer_bits(tmp_path):
    events = random_events(30)
    words = events.x.astype("u4") | events.y.astype("u4") << 9 | events.p.astype("u4") << 17
    rows = np.stack([events.t.astype("u4"), words], axis=1).astype("<u4")
    head = f"% Version 1\n% Height {HEIGHT}\n% Width {WIDTH}\n".encode() + struct.pack("BB", 0, 8)
    (tmp_path / "a.dat").write_bytes(head + rows.tobytes())
    assert_same(open_recording(tmp_path / "a.dat").read(), events)
    (tmp_path / "a.dat").write_bytes(head.replace(b"Version 1", b"Version 3") + rows.tobytes())
    with raises("file.kind"):
        open_recording(tmp_path / "a.dat")


@hypothesis_settings(max_examples=25)
@given(faulty=faulty_events())
def test_events_in_memory_pass_the_same_gate(faulty):
    raw, num_strays = faulty
    wanted, faults = by_the_rules(raw, num_strays)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = EventsInMemory(raw, *SIZE)
        assert_same(found.events, wanted)
        assert found.faults == faults
        of_array = EventsInMemory(events_of_array(structured(raw)), *SIZE).events
        if not faults.out_of_frame:  # an array does not know its sensor, so late events get the time of one outside
            assert_same(of_array, wanted)


def test_a_refusal_of_events_in_memory_leaves_out_pixels_that_are_no_numbers():
    for number in (np.nan, np.inf):
        raw = [np.arange(1_000), np.full(1_000, 500.0), np.full(1_000, number), np.ones(1_000, np.uint8)]
        raw[2][1:] = 7
        with raises("events.faulty", "x runs from 500 to 500 and y from 7 to 7"):
            gated(raw, Gate("array", *SIZE))


@pytest.mark.parametrize("num_early", [1, 40])
def test_a_few_events_from_before_the_clock_was_set_are_left_out(tmp_path, num_early):
    events = random_events(9_000, span_us=2_000_000, start_us=3_000_000_000)
    events.t[:num_early] = np.arange(num_early)
    path = tmp_path / "a.npy"
    save_npy(path, structured(events, kinds=("i8", "u2", "u2", "u1")))
    with pytest.warns(UserWarning, match=f"left out {num_early} of 9000 events with the time of another clock"):
        recording = open_recording(path, *SIZE)
        assert recording.time_range_us == (events.t[num_early], events.t[-1])
    assert_same(recording.read(), events[num_early:])


@pytest.mark.parametrize("name", ["dat", "evt2", "evt21", "evt3"])
@hypothesis_settings(max_examples=15)
@given(faulty=faulty_events())
def test_a_pipe_passes_the_same_gate(tmp_path_factory, name, faulty):
    raw, num_strays = faulty
    raw = raw[num_strays:]
    if name in NEVER_BACK:
        np.maximum.accumulate(raw.t, out=raw.t)
    path = (WRITERS | {"dat": write_raw_dat})[name](tmp_path_factory.mktemp("pipe") / "a.bin", raw)
    wanted, faults = by_the_rules(raw, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with open(path, "rb") as stream:
            piped = PipedRecording(stream, "pipe")
            assert_same(join_events(list(map(copy_events, piped.blocks()))), wanted)
        assert piped.faults == faults


def live(packets) -> tuple[Events, ReadFaults]:
    """What a stream of packets gives."""
    gate = LiveGate("packets", *SIZE)
    events = join_events([gate.push(*columns_of(packet)) for packet in packets])
    return events, gate.faults


def sent_as_python(parts):
    source = PythonSource([structured(part) for part in parts], *SIZE)
    return join_events([packet.events for packet in source.packets()]), source.faults


def sent_as_bytes(parts):
    content = stream_head(*SIZE) + b"".join(packet_bytes(part) for part in parts)
    stream = PacketStream(io.BytesIO(content), "packets")
    return join_events(list(stream.blocks())), stream.faults


def sent_as_messages(parts):
    store, decoder = typestore_of("mcap"), MessageDecoder(DVS)
    messages = [store.serialize_cdr(message_of(store, DVS, part, "", SIZE), DVS) for part in parts]
    return join_events([decoder.push(bytes(message))[0] for message in messages]), decoder.faults


LIVE = {"gate": live, "python": sent_as_python, "bytes": sent_as_bytes, "messages": sent_as_messages}


@pytest.mark.parametrize("send", LIVE.values(), ids=LIVE)
@hypothesis_settings(max_examples=12)
@given(faulty=faulty_events(), cuts=st.lists(st.integers(300, NUM_EVENTS), max_size=4))
def test_live_packets_pass_the_same_gate(send, faulty, cuts):
    raw, num_strays = faulty
    edges = [0, *sorted(cuts), NUM_EVENTS]
    wanted, faults = by_the_rules(raw, num_strays)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, counts = send([raw[start:stop] for start, stop in pairwise(edges)])
    assert_same(found, wanted)
    assert counts == faults


def test_live_packets_on_a_new_clock_keep_their_times():
    events = random_events(NUM_EVENTS, span_us=100_000, start_us=5_000_000)
    earlier = random_events(NUM_EVENTS, span_us=100_000, start_us=1_000)
    assert_same(live([events, earlier])[0], join_events([events, earlier]))


def test_a_time_that_is_no_number_begins_no_new_clock():
    gate = LiveGate("camera", *SIZE)
    for t in ([1.0, 1.1], [1.2, np.nan, 1.3], [np.nan]):
        columns = [np.array(t), *np.zeros((3, len(t)), np.uint8)]
        assert not gate.begins_new_clock(columns, "s")
        gate.push(columns, "s")
    assert gate.latest_us == 1_300_000 and gate.faults == ReadFaults(unreadable=2)


def test_what_is_left_out_of_live_packets_is_said():
    events = random_events(NUM_EVENTS)
    events.x[:3] = WIDTH
    with pytest.warns(UserWarning, match="packets: left out 3 of 600 events outside the 64x48"):
        sent_as_bytes([events])
    events.x[:300] = WIDTH
    with pytest.warns(UserWarning, match="packets has 300 of 600 events outside its 64x48"):
        sent_as_bytes([events])


@pytest.mark.parametrize("write", ARRAYS.values(), ids=ARRAYS)
@pytest.mark.parametrize(("empty", "start_us"), [(0, 3_000_000_000), (np.nan, 1_000)])
def test_empty_rows_at_the_end_are_left_out_in_any_number(tmp_path, write, empty, start_us):
    events = random_events(NUM_EVENTS, span_us=100_000, start_us=start_us)
    rows = structured(events, kinds=("f8", "f8", "f8", "f8"))
    rows[400:] = empty
    if write is save_csv:
        rows = rows[:500] if empty == 0 else rows[:400]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        recording = arrays_of(tmp_path / "a", write, rows, **({"time_unit": "us"} if write is save_csv else {}))
        assert_same(recording.read(), events[:400])
    assert recording.faults == ReadFaults(empty_rows=len(rows) - 400)
    if len(rows) > 400:
        note = f"left out {len(rows) - 400} of {len(rows)} events that are empty rows"
        assert [note in str(warning.message) for warning in caught] == [True]


PARTS = {name: WRITERS[name] for name in ("hdf5", "npy", "npz", "csv")} | {  # with few events in each part of a file
    "aedat4": partial(write_aedat4, packet_events=7),
    "ros1": partial(write_events, container="ros1", encoding="mono", per_message=7),
}


@pytest.mark.parametrize("name", PARTS)
def test_stray_times_are_left_out_wherever_parts_and_blocks_end(tmp_path, name):
    events = random_events(3000, span_us=90_000, start_us=1000)
    is_stray = np.isin(np.arange(3000), np.arange(1300, 1400))
    events.t[is_stray] += 700_000
    path = PARTS[name](tmp_path / "a.bin", events)
    for max_events in (36, 100, 200, 1 << 16):
        recording = open_recording(path, *SIZE, repair=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert_same(join_events(list(recording.iterate(max_events))), events[~is_stray])
        assert recording.faults == ReadFaults(other_clock=100)


@pytest.mark.parametrize("num_strays", [1, 40, 100])
@pytest.mark.parametrize("name", ["npy", "dat", "rvt_hdf5", "aedat4"])
def test_events_of_another_clock_at_the_end_are_left_out(tmp_path, name, num_strays):
    events = random_events(9_000, span_us=2_000_000, start_us=1_000)
    events.t[-num_strays:] = 3_000_000_000 + np.arange(num_strays)
    path = (WRITERS | {"dat": write_raw_dat})[name](tmp_path / "a.bin", events)
    with pytest.warns(UserWarning, match=f"left out {num_strays} of 9000 events with the time of another clock"):
        recording = open_recording(path, *SIZE)
        assert recording.time_range_us == (events.t[0], events.t[-num_strays - 1])
    kept = events[:-num_strays]
    assert_same(recording.read(), kept)
    assert_same(recording.between(0, 1 << 60), kept)
    for max_events in (100, 997):
        assert_same(join_events(list(open_recording(path, *SIZE).iterate(max_events))), kept)
    begin_us = int(events.t[8_000])
    assert_same(join_events(list(recording.iterate(start_us=begin_us))), kept.between(begin_us, 1 << 60))


def test_many_events_after_a_long_gap_are_kept(tmp_path):
    events = random_events(9_000, span_us=2_000_000)
    events.t[-101:] += 60_000_000
    save_npy(tmp_path / "a.npy", structured(events))
    assert_same(open_recording(tmp_path / "a.npy", *SIZE).read(), events)


@pytest.mark.parametrize("write", [save_npz, save_npy, save_hdf5, save_csv])
@pytest.mark.parametrize("kind", ["u4", "i4", "i8"])
def test_a_clock_of_32_bits_that_begins_again_goes_on(tmp_path, write, kind):
    """After 71.6 minutes, or as signed numbers from 2147483647 to -2147483648."""
    period_us = 1 << 32
    begin_us = (period_us if kind != "i4" else period_us // 2) - 500_000
    events = random_events(9_000, span_us=1_000_000, start_us=begin_us)
    events.t[3000:3005] -= 200
    rows = structured(events, kinds=("i8", "u2", "u2", "u1"))
    stored = events.t.astype("u4").astype(kind) if kind != "i4" else events.t.astype("u4").view("i4")
    rows = rows.astype([("t", kind), *((name, rows.dtype[name]) for name in "xyp")])
    rows["t"] = stored
    recording = arrays_of(tmp_path / "a", write, rows)
    found = recording.read()
    assert_same(found, by_the_rules(events, 0)[0])
    assert_same(recording.between(period_us, 1 << 60), found.between(period_us, 1 << 60))


HINTS = {
    "exchanged": (lambda events: (events.y, events.x), "x and y exchanged"),
    "from 1": (lambda events: (events.x + 1, events.y + 1), "counted from 1"),
    "larger": (lambda events: (events.x * 2, events.y * 2), "give the height and width that fit"),
}


@pytest.mark.parametrize("change", HINTS)
def test_a_refusal_says_how_the_pixels_are_wrong(tmp_path, change):
    events, (moved, hint) = random_events(5_000), HINTS[change]
    rows = structured(events)
    rows["x"], rows["y"] = moved(events)
    reach = f"x runs from {rows['x'].min()} to {rows['x'].max()} and y from {rows['y'].min()} to {rows['y'].max()}"
    for write in ARRAYS.values():
        with pytest.raises(UserError, match=f"{reach}: .*{hint}.*repair=true"):
            arrays_of(tmp_path / "a", write, rows).read()
    raw = [rows[name] for name in "txyp"]
    with pytest.raises(UserError, match=f"{reach}: .*{hint}"):
        gated(raw, Gate(tmp_path, *SIZE))


@pytest.mark.parametrize("write", ARRAYS.values(), ids=ARRAYS)
def test_coordinates_from_0_to_1_are_fractions_of_the_sensor(tmp_path, write):
    events = random_events(500)
    rows = structured(events, kinds=("i8", "f8", "f8", "u1"))
    rows["x"], rows["y"] = events.x / WIDTH, events.y / HEIGHT
    with pytest.raises(UserError, match="fractions of the sensor; multiply x by its width"):
        arrays_of(tmp_path / "a", write, rows).read()
