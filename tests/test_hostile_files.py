"""Files that want something: to show other files, to fill the memory, to run for ever. Each is refused in one line."""

import io
import re
import struct
import subprocess
import sys
import time
import tracemalloc
import zipfile
from dataclasses import replace
from pathlib import Path

import h5py
import hdf5plugin
import numpy as np
import pytest
from event_examples import HEIGHT, WIDTH, random_events, write_hdf5

from rvtssm.datasets.compress import FrameCompressor
from rvtssm.datasets.store import open_sequence, sequence_writer
from rvtssm.events.labels import read_boxes
from rvtssm.readers import open_recording
from rvtssm.readers.faults import ReadFaults
from rvtssm.readers.hdf5 import open_hdf5, read_rows
from rvtssm.readers.piped import PipedRecording
from rvtssm.records import Labels, ReadOptions, Windows
from tests.readers.ecf_encoder import write_ecf

EVENTS = random_events(300)
FRAME = (2, 3, 4)
_BOUND_S = 300  # of a process that starts, far above what it takes
META = {"dataset": "tiny", "class_names": ["a" * 40]}


def write_prepared(path: Path) -> Path:
    """Write a prepared recording of two windows and one label."""
    ends = np.array([50_000, 100_000])
    windows = Windows(np.stack([ends - 50_000, ends], axis=1), np.full(2, 50_000))
    ones = np.ones(1, np.int64)
    labels = Labels(np.ones((1, 4), np.float32), 0 * ones, ends[1:], ones, 0 * ones)
    compressor = FrameCompressor(int(np.prod(FRAME)))
    with sequence_writer(path, windows, labels, FRAME, np.uint8) as writer:
        writer.append([compressor.compress(np.ones(FRAME, np.uint8)) for _ in ends])
        writer.meta = META
    return path


def show_external_storage(file: h5py.File, name: str, secret: Path) -> None:
    shape = file[name].shape
    del file[name]
    file.create_dataset(name, shape, "u1", external=[(str(secret), 0, h5py.h5f.UNLIMITED)])


def show_external_link(file: h5py.File, name: str, secret: Path) -> None:
    with h5py.File(secret.with_suffix(".h5"), "w") as other:
        other["x"] = file[name][()]
    del file[name]
    file[name] = h5py.ExternalLink(str(secret.with_suffix(".h5")), "x")


def show_virtual(file: h5py.File, name: str, secret: Path) -> None:
    shape = file[name].shape
    with h5py.File(secret.with_suffix(".h5"), "w") as other:
        other["x"] = np.ones(shape, "u1")
    del file[name]
    layout = h5py.VirtualLayout(shape, "u1")
    layout[:] = h5py.VirtualSource(str(secret.with_suffix(".h5")), "x", shape)
    file.create_virtual_dataset(name, layout)


@pytest.mark.parametrize("show", [show_external_storage, show_external_link, show_virtual])
def test_no_hdf5_file_shows_another_file(tmp_path, show):
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(range(256)) * 40)
    path = write_hdf5(tmp_path / "a.h5", EVENTS)
    with h5py.File(path, "r+") as file:
        show(file, "events/x", secret)
    reason = "holds no events" if show is show_external_link else "takes events/x from another file"
    with pytest.raises(ValueError, match=rf"a\.h5 {reason}"):
        open_recording(path, HEIGHT, WIDTH).read()
    for number, name in enumerate(("bounds_us", "labels/t_us", "offsets", "frames")):
        path = write_prepared(tmp_path / f"{number}.h5")
        with h5py.File(path, "r+") as file:
            attributes = dict(file[name].attrs)
            show(file, name, secret)
            if name == "frames" and show is not show_external_link:
                file[name].attrs.update(attributes)
        with pytest.raises(ValueError, match=rf"{number}\.h5 (takes|does not hold) {name} (from another|in one piece)"):
            open_sequence(path).histograms(0, 2)


def test_a_link_of_a_group_to_another_file_is_refused(tmp_path):
    write_hdf5(tmp_path / "other.h5", EVENTS)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["events"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "events")
    with pytest.raises(ValueError, match=r"a\.h5 holds no events that can be told"):
        open_recording(tmp_path / "a.h5")


def change_attribute(path: Path, name: str, value: object) -> Path:
    with h5py.File(path, "r+") as file:
        file["frames"].attrs[name] = np.bytes_(value) if isinstance(value, str) else value
    return path


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dtype", "<i9"),
        ("dtype", "O"),
        ("dtype", 3),
        ("shape", [2**60, 3, 4]),
        ("shape", [100_000, 10_000, 1_000]),
        ("shape", [-1, 3, 4]),
        ("shape", "wide"),
    ],
)
def test_a_wrong_description_of_frames_is_one_line(tmp_path, name, value):
    sequence = open_sequence(change_attribute(write_prepared(tmp_path / "a.h5"), name, value))
    with pytest.raises(ValueError, match=r"a\.h5 is damaged \(.*; delete it and prepare it again"):
        sequence.histograms(0, 2)


def test_announced_sizes_are_not_allocated(tmp_path):
    path = write_prepared(tmp_path / "a.h5")
    with h5py.File(path, "r+") as file:
        del file["dt_us"]
        file.create_dataset("dt_us", (1 << 40,), np.int64)  # nothing is stored
    with pytest.raises(ValueError, match=r"a\.h5 does not hold dt_us in one piece"):
        open_sequence(path)
    path = write_prepared(tmp_path / "b.h5")
    with h5py.File(path, "r+") as file:
        file["frames"].resize(1 << 40, axis=0)
    sequence = open_sequence(path)
    sequence = replace(sequence, offsets=np.array([*sequence.offsets[:2], 1 << 40]))  # the digest of a file would tell
    with pytest.raises(ValueError, match=r"b\.h5 is damaged \(it claims \d+ bytes of frames"):
        sequence.histograms(0, 2)


@pytest.mark.parametrize("changed", [{"num_bins": "x"}, {"stride_us": None}, {"num_bins": [1]}])
def test_wrong_settings_of_a_prepared_file_are_one_line(tmp_path, changed):
    path = write_prepared(tmp_path / "a.h5")
    sequence = open_sequence(path)
    sequence.meta.update(changed)
    with pytest.raises(ValueError, match=r"a\.h5 is damaged"):
        sequence.settings  # noqa: B018


@pytest.fixture
def endless(tmp_path) -> Path:
    """A recording whose size, a text, lies in a heap with an object of no size, over which libhdf5 never gets."""
    path = write_ecf(tmp_path / "endless.hdf5", EVENTS, HEIGHT, WIDTH)
    data = bytearray(path.read_bytes())
    place = data.index(b"GCOL") + 16
    while struct.unpack_from("<H", data, place)[0]:  # the free space has the number 0
        place += 16 + (struct.unpack_from("<Q", data, place + 8)[0] + 7) // 8 * 8
    struct.pack_into("<Q", data, place + 8, 0)
    path.write_bytes(data)
    return path


LOAD = """
import os, sys
from torch.utils.data import DataLoader
from rvtssm.cli import main as cli
cli._run = lambda *arguments: list(DataLoader([0], num_workers=1, collate_fn=lambda batch: os.kill(os.getpid(), 9)))
sys.exit(cli.main(["train"]))
"""


def test_a_loading_process_that_is_killed_ends_a_verb_with_one_line():
    done = subprocess.run(
        [sys.executable, "-c", LOAD], stderr=subprocess.PIPE, text=True, timeout=_BOUND_S, check=False
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("rvtssm train: ") and "killed by signal: Killed" in line


PARENT = """
import sys
from rvtssm.system.workers import Processes
workers = Processes(1)
workers.submit(exec, "import os, sys; print(os.getpid(), file=sys.stderr, flush=True)").result()
workers.submit(exec, f"from rvtssm.readers import open_recording; open_recording({sys.argv[1]!r})", {}).result()
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes by /proc")
def test_a_worker_that_holds_the_interpreter_lock_ends_with_its_parent(endless):
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(endless)], stderr=subprocess.PIPE, text=True)
    pid = int(parent.stderr.readline())
    time.sleep(2)  # the worker is reading by now
    parent.kill()
    parent.wait()
    parent.stderr.close()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not Path(f"/proc/{pid}").exists()


def test_a_last_event_a_day_away_is_one_line(tmp_path):
    t = EVENTS.t.copy()
    t[-1] += 86_400_000_000
    with pytest.raises(ValueError, match=r"a\.h5 has an event at \d+ us, 24 hours after others; its time is damaged"):
        open_recording(write_hdf5(tmp_path / "a.h5", EVENTS, t=t)).time_range_us  # noqa: B018


def test_a_first_event_a_day_away_is_left_out(tmp_path):
    t = EVENTS.t + 86_400_000_000
    t[0] = EVENTS.t[0]
    recording = open_recording(write_hdf5(tmp_path / "a.h5", EVENTS, t=t))
    with pytest.warns(UserWarning, match="left out 1 of 300 events with the time of another clock"):
        assert recording.time_range_us == (t[1], t[-1]) and recording.num_events == len(EVENTS) - 1
    assert recording.faults == ReadFaults(other_clock=1)


def test_a_stream_whose_clock_stands_still_ends_with_a_message(monkeypatch):
    monkeypatch.setattr("rvtssm.readers.piped.MOST_EVENTS", 10_000)
    words = np.zeros((50_000, 2), "<u4")  # DAT: the time, then the place
    words[:20_000, 0] = np.arange(20_000) * 2
    words[20_000:, 0] = 40_000
    stream = io.BufferedReader(io.BytesIO(words.tobytes()))
    piped = PipedRecording(stream, "camera", ReadOptions(HEIGHT, WIDTH))
    num_events = sum(len(events) for events in piped.iterate())
    assert 20_000 < num_events < 50_000
    assert re.fullmatch(r"camera sent more than 10000 events within 10 ms, .*its clock stands still.*", piped.broke_off)


def test_a_packed_archive_costs_no_more_than_what_is_read(tmp_path):
    """Of an archive that unpacks to 256 MB only the header is unpacked before its columns are refused."""
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("t.npy", "w") as member:
        np.lib.format.write_array_header_1_0(member, {"descr": "<i8", "fortran_order": False, "shape": (1 << 25,)})
        for _ in range(256):
            member.write(bytes(1 << 20))
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"bomb\.npz"):
        open_recording(path, HEIGHT, WIDTH)
    with pytest.raises(ValueError, match=r"bomb\.npz"):
        read_boxes(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 32 << 20


@pytest.mark.parametrize("version", [0, 1])
def test_an_hdf5_file_that_names_a_block_of_its_driver_is_refused_before_libhdf5_reads_it(tmp_path, version):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w"):
        pass
    content = bytearray(path.read_bytes())
    assert content[8] == 0 and content[48:56] == b"\xff" * 8
    open_hdf5(path).close()
    content[8], where = version, 48 + 4 * version
    content[where : where + 8] = (128).to_bytes(8, "little")
    path.write_bytes(content)
    with pytest.raises(ValueError, match="one of several parts of a file, or is damaged"):
        open_hdf5(path)


@pytest.mark.parametrize("userblock_size", [0, 512])
def test_a_packed_chunk_that_says_it_is_longer_than_it_is_never_reaches_its_filter(tmp_path, userblock_size):
    path, values = tmp_path / "a.h5", np.arange(5_000).reshape(50, 100)
    with h5py.File(path, "w", userblock_size=userblock_size) as file:
        file.create_dataset("data", data=values, chunks=(8, 60), **hdf5plugin.Blosc())
        file.create_dataset("events", data=values[0], chunks=(30,), **hdf5plugin.Blosc())
        place = file["data"].id.get_chunk_info_by_coord((16, 60)).byte_offset
    with open_hdf5(path) as file:
        np.testing.assert_array_equal(read_rows(file["data"], 3, 29), values[3:29])
        np.testing.assert_array_equal(read_rows(file["events"], 31, 97), values[0, 31:97])
    content = bytearray(path.read_bytes())
    content[place + 14] = 10  # of the four bytes of its length
    path.write_bytes(content)
    with open_hdf5(path) as file:
        np.testing.assert_array_equal(read_rows(file["data"], 24, 50), values[24:])
        for start, stop in ((0, 17), (23, 24)):
            with pytest.raises(ValueError, match=r"a chunk of /data claims to have 65\d{4} bytes but has \d+"):
                read_rows(file["data"], start, stop)
