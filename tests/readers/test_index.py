"""The index of a recording: kept on disk, used by the next who opens it, built again whenever it does not fit."""

import multiprocessing
import os
import pickle

import numpy as np
import pytest
from event_examples import HEIGHT, WIDTH, assert_same, random_events, to_events
from format_encoders import WRITERS

from rvtssm.readers import ReadFaults, index, open_recording
from rvtssm.readers.byte_recording import ByteRecording
from rvtssm.readers.dat import write_dat
from rvtssm.readers.ecf import EcfRecording
from rvtssm.readers.recording import Recording, join_events

EVENTS = random_events(30_000, span_us=3_000_000)


@pytest.fixture
def example(tmp_path, monkeypatch):
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


def test_it_is_built_once_for_all_who_open_the_file(example, builds):
    path, kept = example
    check(path)
    assert kept.is_file() and len(builds) == 1
    check(path)
    assert len(builds) == 1
    assert list(path.parent.iterdir()) == [path] and list(kept.parent.iterdir()) == [kept]


def test_a_part_is_sent_without_the_rest_and_reads_the_same(example, builds):
    path, _ = example
    recording = open_recording(path)
    assert recording.num_events == len(EVENTS)
    sent = pickle.dumps(recording.part(1_000_000, 1_400_000))
    assert len(sent) < len(pickle.dumps(recording)) / 1.2
    part = pickle.loads(sent)
    expected = EVENTS.between(1_000_000, 1_400_000)
    assert_same(join_events(list(part.iterate(1000, 1_000_000, 1_400_000))), expected)
    assert_same(part.between(1_000_000, 1_400_000), expected)
    assert len(builds) == 1


def test_faults_come_with_it(example):
    path, _ = example
    t = np.arange(20_000)
    t[15_000] = 3
    write_dat(path, to_events(t, t % WIDTH, t % HEIGHT, t % 2), HEIGHT, WIDTH)
    for _ in range(2):
        recording = open_recording(path)
        recording.between(0, 5)
        assert recording.faults == ReadFaults(backward_steps=1)


@pytest.mark.parametrize("damage", ["empty", "cut", "other", *range(0, 200, 25)])
def test_a_damaged_one_is_built_again(example, builds, damage):
    path, kept = example
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


def test_a_file_that_changed_gets_another(example, builds):
    path, _ = example
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


def test_another_size_of_the_sensor_gets_another(example, builds):
    path, _ = example
    path.write_bytes(path.read_bytes().replace(b"% Height 48\n% Width 64\n", b""))
    assert open_recording(path, HEIGHT, WIDTH).num_events == len(EVENTS)
    assert open_recording(path, HEIGHT // 2, WIDTH, repair=True).num_events == np.count_nonzero(EVENTS.y < HEIGHT // 2)
    assert len(builds) == 2


def test_a_file_that_grows_while_it_is_read_is_not_kept(example, monkeypatch):
    path, kept = example
    build = Recording.build_index

    def build_while_growing(recording):
        with open(path, "ab") as file:
            file.write(bytes(80))
        return build(recording)

    monkeypatch.setattr(Recording, "build_index", build_while_growing)
    assert open_recording(path).num_events == len(EVENTS)
    assert not kept.exists()


def test_where_nothing_can_be_written_it_lives_in_memory(example, builds, monkeypatch):
    path, kept = example
    monkeypatch.setenv("RVTSSM_CACHE_DIR", "/proc/nowhere")
    check(path)
    check(path)
    assert not kept.exists() and len(builds) == 2


def test_a_small_file_needs_none(example):
    path, kept = example
    write_dat(path, random_events(100), HEIGHT, WIDTH)
    assert open_recording(path).num_events == 100
    assert not kept.exists()


def test_processes_that_start_together_read_the_same(example):
    path, kept = example
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


def test_a_stream_can_start_and_end_at_a_time(example):
    path, _ = example
    recording = open_recording(path)
    for start, end in ((None, 500_000), (500_000, None), (700_000, 1_900_000), (5, 5), (4_000_000, None), (None, -5)):
        blocks = list(recording.iterate(1000, start, end))
        wanted = EVENTS.between(start if start is not None else -9, end if end is not None else 1 << 40)
        assert_same(join_events(blocks), wanted)
        assert all(len(block) for block in blocks)
