"""The store: what is written is read back in any process, and a file is there whole or not at all."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import time

import h5py
import numpy as np
import pytest

from rvtssm.events.aside import remove_abandoned, written_aside
from rvtssm.events.store import open_sequence, read_meta, write_sequence
from rvtssm.records import Labels, Windows

NUM_WINDOWS, FRAME = 7, (20, 6, 8)


@pytest.fixture
def example():
    rng = np.random.default_rng(0)
    ends = np.arange(1, NUM_WINDOWS + 1) * 50_000
    windows = Windows(np.stack([ends - 50_000, ends], axis=1), np.full(NUM_WINDOWS, 50_000))
    index = np.array([2, 2, 6])
    boxes = rng.random((3, 4), np.float32)
    labels = Labels(boxes, np.array([0, 1, 0]), ends[index], index, np.array([-1, 5, 6]))
    return windows, labels, rng.integers(0, 11, (NUM_WINDOWS, *FRAME), np.uint8)


def write(path, example, blocks=None):
    windows, labels, counts = example
    write_sequence(path, windows, labels, blocks or [counts[:3], counts[3:]], FRAME, lambda: {"dataset": "tiny"})


def test_round_trip(tmp_path, example):
    windows, labels, counts = example
    write(tmp_path / "train" / "a.h5", example)
    sequence = open_sequence(tmp_path / "train" / "a.h5")
    assert sequence.name == "a" and sequence.meta == {"format_version": 1, "dataset": "tiny"}
    np.testing.assert_array_equal(sequence.windows.bounds_us, windows.bounds_us)
    np.testing.assert_array_equal(sequence.windows.dt_us, windows.dt_us)
    for name in ("boxes_ltwh", "class_id", "t_us", "window_index", "still_us"):
        np.testing.assert_array_equal(getattr(sequence.labels, name), getattr(labels, name))
    np.testing.assert_array_equal(sequence.histograms(0, NUM_WINDOWS), counts)
    np.testing.assert_array_equal(sequence.histograms(2, 5), counts[2:5])
    assert sequence.histograms(3, 3).shape == (0, *FRAME)
    with pytest.raises(ValueError, match=r"7 windows, asked for \[5, 8\)"):
        sequence.histograms(5, 8)


def test_histograms_are_packed_step_by_step(tmp_path, example):
    write(tmp_path / "a.h5", example)
    with h5py.File(tmp_path / "a.h5") as file:
        histograms = file["histograms"]
        assert histograms.chunks == (1, *FRAME)
        assert "32001" in histograms._filters  # blosc


def _sum_in_child(sequence, queue):
    queue.put(int(sequence.histograms(0, NUM_WINDOWS).sum()))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_other_processes_read_the_same(tmp_path, example, method):
    write(tmp_path / "a.h5", example)
    sequence = open_sequence(tmp_path / "a.h5")
    before = sequence.histograms(0, 2)
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    child = context.Process(target=_sum_in_child, args=(sequence, queue))
    child.start()
    assert queue.get(timeout=60) == example[2].sum()
    child.join()
    np.testing.assert_array_equal(sequence.histograms(0, 2), before)
    sequence.close()
    copy = pickle.loads(pickle.dumps(sequence))
    np.testing.assert_array_equal(copy.histograms(0, 2), before)


def test_a_failed_write_leaves_what_was_there(tmp_path, example):
    path = tmp_path / "a.h5"

    def failing():
        yield example[2][:3]
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write(path, example, failing())
    assert list(tmp_path.iterdir()) == []
    write(path, example)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="3 histograms for 7 windows"):
        write(path, example, [example[2][:3]])
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_foreign_and_newer_files_are_named(tmp_path, example):
    (tmp_path / "text.h5").write_text("not HDF5")
    with h5py.File(tmp_path / "foreign.h5", "w") as file:
        file["data"] = 1
    write(tmp_path / "newer.h5", example)
    with h5py.File(tmp_path / "newer.h5", "r+") as file:
        file.attrs["meta"] = file.attrs["meta"].replace('"format_version": 1', '"format_version": 9')
    for name, message in (
        ("text.h5", "cannot be opened"),
        ("missing.h5", "cannot be opened"),
        ("foreign.h5", "not written by"),
        ("newer.h5", "format version 9, this program reads 1"),
    ):
        with pytest.raises(ValueError, match=message):
            read_meta(tmp_path / name)


def test_leftovers_of_dead_writers_are_removed_and_work_in_progress_is_not(tmp_path):
    gone = subprocess.Popen(["true"])
    gone.wait()
    with written_aside(tmp_path / "mine.h5") as mine:
        mine.write_bytes(b"half")
        leftover = mine.with_name(mine.name.replace(f".{os.getpid()}.tmp", f".{gone.pid}.tmp"))
        elsewhere = tmp_path / f".b.h5.otherhost.{os.getpid()}.tmp"
        forgotten = tmp_path / f".c.h5.otherhost.{os.getpid()}.tmp"
        for path in (leftover, elsewhere, forgotten):
            path.write_bytes(b"half")
        os.utime(forgotten, (time.time() - 7200,) * 2)
        assert remove_abandoned(tmp_path) == 2
        assert mine.exists() and elsewhere.exists()
    assert (tmp_path / "mine.h5").read_bytes() == b"half"
    assert remove_abandoned(tmp_path / "missing") == 0
