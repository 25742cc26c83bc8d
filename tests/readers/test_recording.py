"""Laws of every reader: blocks, slices and pickled copies of a recording are the same events."""

import io
import multiprocessing
import os
import pickle

import h5py
import numpy as np
import pytest
from event_examples import HEIGHT, WIDTH, assert_same, random_events, to_events, write_hdf5
from format_encoders import WRITERS
from hypothesis import given, settings
from hypothesis import strategies as st
from user_errors import raises

from rvtssm.events.windows import LONGEST_SILENCE_US, first_jump
from rvtssm.readers import USUAL_SENSORS_HW, ReadFaults, index, open_recording, readers, usual_sensor
from rvtssm.readers.byte_recording import ByteRecording
from rvtssm.readers.dat import write_dat
from rvtssm.readers.ecf import EcfRecording
from rvtssm.readers.piped import PipedRecording
from rvtssm.readers.recording import Recording, join_events
from rvtssm.records import ReadOptions
from rvtssm.system.user_error import UserError

NUM_EVENTS = 70_000  # more than two entries of the index


@pytest.fixture(scope="module", params=readers())
def example(request, tmp_path_factory):
    """A recording of each format and the events in it."""
    events = random_events(NUM_EVENTS, span_us=2_000_000)
    path = WRITERS[request.param](tmp_path_factory.mktemp("recordings") / "a.bin", events)
    recording = open_recording(path, HEIGHT, WIDTH) if request.param == "npy" else open_recording(path)
    assert recording.format == request.param
    return recording, events


def test_all_at_once(example):
    recording, events = example
    assert_same(recording.read(), events)
    assert recording.time_range_us == (events.t[0], events.t[-1])


@pytest.mark.parametrize("max_events", [500, 1 << 18])
def test_blocks_are_the_whole(example, max_events):
    recording, events = example
    blocks = list(recording.iterate(max_events))
    assert all(0 < len(block) <= max_events for block in blocks)
    assert_same(join_events(blocks), events)


def test_a_block_keeps_its_events_unless_its_arrays_may_be_reused(example):
    recording, _ = example
    kept, overwritten = (list(recording.iterate(5_000, reuse=reuse)) for reuse in (False, True))
    starts = [block.t[0] for block in recording.iterate(5_000, reuse=True)]
    assert [block.t[0] for block in kept] == starts != [block.t[0] for block in overwritten]


def test_a_block_must_hold_the_events_of_a_word(example):
    with raises("setting.out_of_range"):
        next(example[0].iterate(35))


@settings(max_examples=30)
@given(start=st.integers(-1000, 2_001_000), length=st.integers(0, 300_000))
def test_a_slice_of_the_file_is_a_slice_of_the_events(example, start, length):
    recording, events = example
    assert_same(recording.between(start, start + length), events.between(start, start + length))


def test_a_pickled_recording_reads_the_same(example):
    recording, events = example
    recording.between(0, 10)
    assert_same(pickle.loads(pickle.dumps(recording)).between(500_000, 600_000), events.between(500_000, 600_000))


def test_a_forked_child_does_not_move_the_parents_place_in_the_file(example):
    recording, events = example
    blocks = recording.iterate(10_000)
    first = next(blocks)
    child = multiprocessing.get_context("fork").Process(target=recording.read)
    child.start()
    child.join()
    assert child.exitcode == 0
    rest = list(blocks)
    assert_same(join_events([first, *rest]), events)


def test_a_closed_recording_opens_again(example):
    recording, events = example
    recording.close()
    assert_same(recording.between(0, 50_000), events.between(0, 50_000))


def test_hdf5_is_repaired_like_the_rest(tmp_path):
    t, x, p = np.array([3, 2, 9, 5, 20], np.uint32), np.array([1, 2, 64, 4, 5], np.int32), np.array([-1, 1, 0, 0, 1])
    path = write_hdf5(
        tmp_path / "a.h5", to_events(t, [0] * 5, [7] * 5, [0] * 5), t=t, x=x, p=p, size=([HEIGHT], [WIDTH])
    )
    recording = open_recording(path, repair=True)
    assert_same(recording.read(), to_events([3, 3, 5, 20], [1, 2, 4, 5], [7] * 4, [0, 1, 0, 1]))
    assert (recording.faults.backward_steps, recording.faults.out_of_frame) == (1, 1)


@pytest.mark.parametrize("num_moved", [200, 201])
def test_a_recording_out_of_order_is_refused_unless_it_shall_be_repaired(tmp_path, num_moved):
    events = random_events(20_000, span_us=200_000)
    t = events.t.copy()
    t[10_000 : 10_000 + num_moved] = 5
    path = write_hdf5(tmp_path / "a.h5", events, t=t)
    reads = [
        lambda recording: recording.read(),
        lambda recording: list(recording.iterate()),
        lambda recording: recording.between(0, 1000),
        lambda recording: list(recording.iterate(start_us=0)),
        lambda recording: list(recording.iterate(end_us=1000)),
        lambda recording: recording.time_range_us,
    ]
    for read in reads:
        for _ in range(2):  # the second time with the index of the first
            recording = open_recording(path)
            if num_moved == 200:
                read(recording)
            else:
                with pytest.raises(UserError, match=r"a\.h5 has 201 of 20000 events that are earlier.*repair=true"):
                    read(recording)
        repaired = open_recording(path, repair=True)
        read(repaired)
        assert repaired.faults.backward_steps == num_moved
        assert_same(repaired.between(0, 1000), events.between(0, 1000))


def test_hdf5_of_another_layout_is_refused(tmp_path):
    with h5py.File(tmp_path / "ecf.hdf5", "w") as file:
        file["CD/events"] = np.zeros(3)
        file.attrs["geometry"] = "64x48"
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["events/x"] = np.zeros(3)
    (tmp_path / "cut.h5").write_bytes((tmp_path / "other.h5").read_bytes()[:100])
    uneven = write_hdf5(tmp_path / "uneven.h5", random_events(5), x=np.zeros(4, np.uint16))
    for path, key in (
        (tmp_path / "ecf.hdf5", "file.content"),
        (tmp_path / "other.h5", "file.content"),
        (tmp_path / "cut.h5", "file.damaged"),
        (uneven, "file.damaged"),
    ):
        with raises(key):
            open_recording(path)


HEADS = {
    "no reader knows": b"\x07\x08 nothing",
    "AEDAT 2": b"#!AER-DAT2.0\r\n",
    "AEDAT 3": b"#!AER-DAT3.1\r\n",
    "EVT4": b"% evt 4.0\n% end\n0000",
    "gzip": b"\x1f\x8b\x08\x00",
    "Zstandard": b"\x28\xb5\x2f\xfd",
    "Git LFS": b"version https://git-lfs.github.com/spec/v1\n",
    "web page": b"<!DOCTYPE html><html>",
}


@pytest.mark.parametrize(("what", "head"), HEADS.items(), ids=HEADS)
def test_a_file_that_no_reader_knows_is_called_what_it_is(tmp_path, what, head):
    (tmp_path / "a.raw").write_bytes(head + bytes(100))
    with raises("file.kind", about=what):
        open_recording(tmp_path / "a.raw")


def test_the_encoding_of_raw_files_is_told_by_the_camera_or_the_caller(tmp_path):
    events = random_events(50)
    path = WRITERS["evt2"](tmp_path / "a.raw", events)
    words = path.read_bytes().partition(b"% end\n")[2]
    path.write_bytes(b"% integrator_name Prophesee\n% system_ID 21\n% geometry 64x48\n% end\n" + words)
    assert_same(open_recording(path).read(), events)
    for head in (b"", b"% integrator_name Prophesee\n% end\n"):
        path.write_bytes(head + words)
        assert_same(open_recording(path, HEIGHT, WIDTH, format="evt2").read(), events)
    with raises("file.kind"):
        open_recording(path, HEIGHT, WIDTH)
    with raises("file.kind"):
        open_recording(WRITERS["evt3"](tmp_path / "b.raw", events), format="evt2")
    with raises("file.kind"):
        open_recording(tmp_path / "b.raw", time_unit="ns")


@pytest.mark.parametrize("name", WRITERS)
def test_a_choice_that_a_format_does_not_have_is_refused(tmp_path, name):
    path = WRITERS[name](tmp_path / "a.bin", random_events(50))
    used = open_recording(path, HEIGHT, WIDTH).options_used
    for option, value in (("columns", {"t": 0, "x": 1, "y": 2, "p": 3}), ("key", "events")):
        if option not in used:
            with raises("file.kind", f"{option}="):
                open_recording(path, HEIGHT, WIDTH, **{option: value})
    with raises("setting.form", "columns"):
        open_recording(path, columns={"t": 0, "x": 1, "y": 1, "p": 3})


@pytest.mark.parametrize("kind", ["dat", "csv"])
def test_a_recording_without_events_has_no_time_range(tmp_path, kind):
    recording = open_recording(WRITERS[kind](tmp_path / "a", random_events(0)), HEIGHT, WIDTH)
    assert len(recording.read()) == 0 and len(recording.between(0, 10)) == 0
    with raises("events.none"):
        _ = recording.time_range_us


def test_a_first_event_a_day_away_is_left_out(tmp_path):
    events = random_events(300)
    t = events.t + 86_400_000_000
    t[0] = events.t[0]
    recording = open_recording(write_hdf5(tmp_path / "a.h5", events, t=t))
    with pytest.warns(UserWarning, match="left out 1 of 300 events with the time of another clock"):
        assert recording.time_range_us == (t[1], t[-1]) and recording.num_events == len(events) - 1
    assert recording.faults == ReadFaults(other_clock=1)


def test_a_stream_whose_clock_stands_still_ends_with_a_message(monkeypatch):
    words = np.zeros((50_000, 2), "<u4")  # DAT: the time, then the place
    words[:20_000, 0] = np.arange(20_000) * 2
    words[20_000:, 0] = 40_000
    stream = io.BufferedReader(io.BytesIO(words.tobytes()))
    monkeypatch.setattr("rvtssm.readers.piped._MOST_EVENTS", 10_000)
    piped = PipedRecording(stream, "camera", ReadOptions(HEIGHT, WIDTH))
    num_events = sum(len(events) for events in piped.blocks())
    assert 20_000 < num_events < 50_000
    assert piped.broke_off is not None and "its clock stands still" in piped.broke_off


# jumps of the clock


GAPS = st.sampled_from([0, 1, 50_000, LONGEST_SILENCE_US // 3, LONGEST_SILENCE_US, LONGEST_SILENCE_US + 1])


@given(st.lists(GAPS, max_size=8), st.booleans())
def test_the_first_jump_is_the_first_gap_that_is_too_long(gaps, is_first):
    before_us = None if is_first else -5
    start_us = 7 - (gaps[0] if gaps and is_first else 0) if is_first else -5  # nothing comes before the first
    times_us = start_us + np.cumsum(np.array(gaps, np.int64))
    counted = gaps[1:] if is_first else gaps
    places = [place for place, gap in enumerate(counted, start=len(gaps) - len(counted)) if gap > LONGEST_SILENCE_US]
    assert first_jump(before_us, times_us) == (places[0] if places else None)


# sensors of no size


def write_csv(path, rows):
    path.write_text("t,x,y,p\n" + "".join(f"{t},{x},{y},{t % 2}\n" for t, x, y in rows))
    return path


@pytest.mark.parametrize(
    ("x", "y", "wanted"),
    [
        (10, 10, "DAVIS240"),
        (239, 179, "DAVIS240"),
        (240, 0, "the sensor of Gen1"),
        (0, 239, "the sensor of Gen1"),
        (304, 0, "DAVIS346"),
        (0, 260, "GenX320"),
        (400, 10, "VGA"),
        (1279, 719, "720p"),
    ],
)
def test_the_smallest_sensor_with_all_events_is_taken(tmp_path, x, y, wanted):
    path = write_csv(tmp_path / "a.csv", [(1, 0, 0), (5, x, y), (9, 3, 2)])
    name, hw = usual_sensor(path)
    assert name == wanted and hw == USUAL_SENSORS_HW[wanted]
    assert len(open_recording(path, *hw).read().t) == 3


def test_a_file_that_says_its_size_keeps_it(tmp_path):
    write_dat(tmp_path / "a_td.dat", to_events([7], [1], [2], [1]), 48, 64)
    assert usual_sensor(tmp_path / "a_td.dat") is None


@pytest.mark.parametrize("rows", [[], [(1, 1280, 0)], [(1, 0, 800)]])
def test_what_fits_no_sensor_is_the_error_of_before(tmp_path, rows):
    with raises("sensor.unknown"):
        usual_sensor(write_csv(tmp_path / "a.csv", rows))


# the index


EVENTS = random_events(30_000, span_us=3_000_000)


@pytest.fixture
def indexed(tmp_path, monkeypatch):
    """A recording of several blocks and the path of its index."""
    monkeypatch.setenv("RVTSSM_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "raw").mkdir()
    write_dat(tmp_path / "raw" / "a_td.dat", EVENTS, HEIGHT, WIDTH)
    path = tmp_path / "raw" / "a_td.dat"
    return path, index.index_path(path)


@pytest.fixture
def builds(monkeypatch):
    """Grows by one with every index that is built."""
    made = []
    build = Recording.build_index
    monkeypatch.setattr(Recording, "build_index", lambda self: made.append(self.path) or build(self))
    return made


def check(path, events=EVENTS):
    recording = open_recording(path)
    assert_same(recording.between(1_000_000, 1_400_000), events.between(1_000_000, 1_400_000))
    assert recording.num_events == len(events)
    assert recording.time_range_us == (events.t[0], events.t[-1])


def test_it_is_built_once_for_all_who_open_the_file(indexed, builds):
    path, kept = indexed
    check(path)
    assert kept.is_file() and len(builds) == 1
    check(path)
    assert len(builds) == 1
    assert list(path.parent.iterdir()) == [path] and list(kept.parent.iterdir()) == [kept]


def test_a_part_is_sent_without_the_rest_and_reads_the_same(indexed, builds):
    path, _ = indexed
    recording = open_recording(path)
    assert recording.num_events == len(EVENTS)
    sent = pickle.dumps(recording.part(1_000_000, 1_400_000))
    assert len(sent) < len(pickle.dumps(recording)) / 1.2
    part = pickle.loads(sent)
    expected = EVENTS.between(1_000_000, 1_400_000)
    assert_same(join_events(list(part.iterate(1000, 1_000_000, 1_400_000))), expected)
    assert_same(part.between(1_000_000, 1_400_000), expected)
    assert len(builds) == 1


def test_faults_come_with_it(indexed):
    path, _ = indexed
    t = np.arange(20_000)
    t[15_000] = 3
    write_dat(path, to_events(t, t % WIDTH, t % HEIGHT, t % 2), HEIGHT, WIDTH)
    for _ in range(2):
        recording = open_recording(path)
        recording.between(0, 5)
        assert recording.faults == ReadFaults(backward_steps=1)


@pytest.mark.parametrize("damage", ["empty", "cut", "other", *range(0, 200, 25)])
def test_a_damaged_one_is_built_again(indexed, builds, damage):
    path, kept = indexed
    check(path)
    content = kept.read_bytes()
    if isinstance(damage, int):
        changed = bytearray(content)
        changed[damage * len(content) // 200] ^= 0x10
        kept.write_bytes(changed)
    else:
        kept.write_bytes({"empty": b"", "cut": content[:-9], "other": b"something else"}[damage])
    check(path)
    assert len(builds) == 2 and kept.read_bytes() == content


def test_a_file_that_changed_gets_another(indexed, builds):
    path, _ = indexed
    check(path)
    age = path.stat()
    other = random_events(len(EVENTS), seed=1, span_us=3_000_000)
    write_dat(path, other, HEIGHT, WIDTH)
    os.utime(path, ns=(age.st_atime_ns, age.st_mtime_ns))  # same size, same age, other events
    check(path, other)
    assert len(builds) == 2
    path.write_bytes(path.read_bytes() + path.read_bytes()[-8:])
    assert open_recording(path).num_events == len(EVENTS) + 1
    os.utime(path, ns=(0, 0))
    assert open_recording(path).num_events == len(EVENTS) + 1
    assert len(builds) == 4


def test_another_size_of_the_sensor_gets_another(indexed, builds):
    path, _ = indexed
    path.write_bytes(path.read_bytes().replace(b"% Height 48\n% Width 64\n", b""))
    assert open_recording(path, HEIGHT, WIDTH).num_events == len(EVENTS)
    assert open_recording(path, HEIGHT // 2, WIDTH, repair=True).num_events == np.count_nonzero(EVENTS.y < HEIGHT // 2)
    assert len(builds) == 2


def test_a_file_that_grows_while_it_is_read_is_not_kept(indexed, monkeypatch):
    path, kept = indexed
    build = Recording.build_index

    def build_while_growing(recording):
        with open(path, "ab") as file:
            file.write(bytes(80))
        return build(recording)

    monkeypatch.setattr(Recording, "build_index", build_while_growing)
    assert open_recording(path).num_events == len(EVENTS)
    assert not kept.exists()


def test_where_nothing_can_be_written_it_lives_in_memory(indexed, builds, monkeypatch):
    path, kept = indexed
    monkeypatch.setenv("RVTSSM_CACHE_DIR", "/proc/nowhere")
    check(path)
    check(path)
    assert not kept.exists() and len(builds) == 2


def test_a_small_file_needs_none(indexed):
    path, kept = indexed
    write_dat(path, random_events(100), HEIGHT, WIDTH)
    assert open_recording(path).num_events == 100
    assert not kept.exists()


def test_processes_that_start_together_read_the_same(indexed):
    path, kept = indexed
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=check, args=(path,)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert list(path.parent.iterdir()) == [path] and list(kept.parent.iterdir()) == [kept]
    check(path)


@pytest.mark.parametrize("kind", ["dat", "evt2", "evt21", "evt3", "ecf"])
def test_slices_at_every_time(tmp_path, monkeypatch, kind):
    for reader in (ByteRecording, EcfRecording):
        monkeypatch.setattr(reader, "index_events", 50)
    events = random_events(200, span_us=900, start_us=(1 << 24) - 400)  # EVT3 wraps within
    recording = open_recording(WRITERS[kind](tmp_path / "a.dat", events))
    for t in [0, *np.unique(events.t).tolist(), events.t[-1] + 1]:
        for length in (0, 1, 30, 2000):
            assert_same(recording.between(t, t + length), events.between(t, t + length))


def test_a_stream_can_start_and_end_at_a_time(indexed):
    path, _ = indexed
    recording = open_recording(path)
    for start, end in ((None, 500_000), (500_000, None), (700_000, 1_900_000), (5, 5), (4_000_000, None), (None, -5)):
        blocks = list(recording.iterate(1000, start, end))
        wanted = EVENTS.between(start if start is not None else -9, end if end is not None else 1 << 40)
        assert_same(join_events(blocks), wanted)
        assert all(len(block) for block in blocks)
