"""Files that want something: to show other files, to fill the memory, to run for ever. Each is refused in one line."""

import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import hdf5plugin
import numpy as np
import pytest
from event_examples import HEIGHT, WIDTH, random_events, write_hdf5
from user_errors import raises

from rvtssm.datasets.compress import FrameCompressor
from rvtssm.datasets.store import open_sequence
from rvtssm.datasets.store_writer import sequence_writer
from rvtssm.events.labels import read_boxes
from rvtssm.readers import open_recording
from rvtssm.readers.hdf5 import open_hdf5, read_rows
from rvtssm.records import Labels, Windows
from rvtssm.system.user_error import UserError
from tests.fuzz.test_fuzz import bounded, in_child

EVENTS = random_events(300)
FRAME = (2, 3, 4)
META = {"dataset": "tiny", "class_names": ["a" * 40]}


def write_prepared(path: Path) -> Path:
    """Write a prepared recording of two windows and one label."""
    ends = np.array([50_000, 100_000])
    windows = Windows(np.stack([ends - 50_000, ends], axis=1), np.full(2, 50_000))
    ones = np.ones(1, np.int64)
    labels = Labels(np.ones((1, 4), np.float32), 0 * ones, ends[1:], ones, 0 * ones)
    compressor = FrameCompressor(int(np.prod(FRAME)))
    with sequence_writer(path, windows, labels, FRAME) as writer:
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


@pytest.fixture
def secret(tmp_path) -> Path:
    path = tmp_path / "secret"
    path.write_bytes(bytes(range(256)) * 40)
    return path


SHOW = [show_external_storage, show_external_link, show_virtual]


@pytest.mark.parametrize("show", SHOW)
def test_events_of_another_file_are_not_shown(tmp_path, secret, show):
    path = write_hdf5(tmp_path / "a.h5", EVENTS)
    with h5py.File(path, "r+") as file:
        show(file, "events/x", secret)
    with raises("file.content"):
        open_recording(path, HEIGHT, WIDTH).read()


@pytest.mark.parametrize("show", SHOW)
@pytest.mark.parametrize("name", ["bounds_us", "labels/t_us", "offsets", "frames"])
def test_prepared_arrays_of_another_file_are_not_shown(tmp_path, secret, show, name):
    path = write_prepared(tmp_path / "a.h5")
    with h5py.File(path, "r+") as file:
        attributes = dict(file[name].attrs)
        show(file, name, secret)
        if name == "frames" and show is not show_external_link:
            file[name].attrs.update(attributes)
    with raises("file.content" if name == "frames" else "file.damaged"):
        open_sequence(path).histograms(0, 2)


def link_of_a_group(path: Path) -> None:
    write_hdf5(path.with_name("other.h5"), EVENTS)
    with h5py.File(path, "w") as file:
        file["events"] = h5py.ExternalLink(str(path.with_name("other.h5")), "events")


def half_of_the_events_a_day_away(path: Path) -> None:
    t = EVENTS.t.copy()
    t[len(t) // 2 :] += 86_400_000_000
    write_hdf5(path, EVENTS, t=t)


def block_of_the_driver(path: Path, version: int) -> None:
    """libhdf5 would read other files."""
    with h5py.File(path, "w"):
        pass
    content = bytearray(path.read_bytes())
    assert content[8] == 0 and content[48:56] == b"\xff" * 8
    content[8], place = version, 48 + 4 * version
    content[place : place + 8] = (128).to_bytes(8, "little")
    path.write_bytes(content)


def array_that_is_not_stored(path: Path) -> None:
    with h5py.File(write_prepared(path), "r+") as file:
        del file["dt_us"]
        file.create_dataset("dt_us", (1 << 40,), np.int64)


def described_frames(path: Path, name: str, value: object) -> None:
    with h5py.File(write_prepared(path), "r+") as file:
        file["frames"].attrs[name] = np.bytes_(value) if isinstance(value, str) else value


def archive_that_unpacks_to_much(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("t.npy", "w") as member:
        np.lib.format.write_array_header_1_0(member, {"descr": "<i8", "fortran_order": False, "shape": (8 << 20,)})
        for _ in range(64):
            member.write(bytes(1 << 20))


def read_events(path: Path) -> None:
    open_recording(path, HEIGHT, WIDTH).time_range_us  # noqa: B018


def read_prepared(path: Path) -> None:
    open_sequence(path).histograms(0, 2)


def frames_beyond_the_file(path: Path) -> None:
    with h5py.File(write_prepared(path), "r+") as file:
        file["frames"].resize(1 << 40, axis=0)


def read_beyond(path: Path) -> None:
    sequence = open_sequence(path)  # the digest of a file would tell
    replace(sequence, offsets=np.array([*sequence.offsets[:2], 1 << 40])).histograms(0, 2)


DESCRIPTIONS = [
    *(("dtype", "<i9"), ("dtype", "O"), ("dtype", 3), ("shape", [2**60, 3, 4])),
    *(("shape", [100_000, 10_000, 1_000]), ("shape", [-1, 3, 4]), ("shape", "wide")),
]
TOO_LARGE = DESCRIPTIONS[3:5]
# the name of the file, what writes it, what reads it, and the key of its refusal
HOSTILE: list[tuple[str, Callable[[Path], object], Callable[[Path], object], str]] = [
    ("a.h5", link_of_a_group, read_events, "file.content"),
    ("a.h5", half_of_the_events_a_day_away, read_events, "events.times"),
    ("a.h5", lambda path: block_of_the_driver(path, 0), read_events, "file.damaged"),
    ("a.h5", lambda path: block_of_the_driver(path, 1), read_events, "file.damaged"),
    ("a.h5", array_that_is_not_stored, open_sequence, "file.damaged"),
    ("a.h5", frames_beyond_the_file, read_beyond, "prepared.damaged"),
    *(
        ("a.h5", lambda path, pair=pair: described_frames(path, *pair), read_prepared, key)
        for pair in DESCRIPTIONS
        for key in ["memory.too_little" if pair in TOO_LARGE else "file.damaged"]
    ),
    ("a.npz", archive_that_unpacks_to_much, read_events, "file.content"),
    ("a.npz", archive_that_unpacks_to_much, read_boxes, "labels.form"),
]


@pytest.fixture(scope="module")
def _compiled(tmp_path_factory) -> None:
    """What reading loads for the first time takes memory, too, which is not that of a hostile file."""
    path = tmp_path_factory.mktemp("good") / "a.h5"
    write_hdf5(path, EVENTS)
    read_events(path)


@pytest.mark.usefixtures("_compiled")
@pytest.mark.parametrize(("name", "write", "read", "key"), HOSTILE)
def test_a_hostile_file_is_refused_in_bounded_memory(tmp_path, name, write, read, key):
    path = tmp_path / name
    write(path)

    def work() -> None:
        with bounded(most_bytes=48 << 20), raises(key) as refused:
            read(path)
        assert str(path) in refused.value.text

    code, told = in_child(tmp_path, work)
    assert code == 0, told


@pytest.mark.parametrize("changed", [{"num_bins": "x"}, {"stride_us": None}, {"num_bins": [1]}])
def test_wrong_settings_of_a_prepared_file_are_refused(tmp_path, changed):
    sequence = open_sequence(write_prepared(tmp_path / "a.h5"))
    sequence.meta.update(changed)
    with pytest.raises(UserError, match=r"a\.h5 is damaged"):
        sequence.settings  # noqa: B018


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
            with raises("file.damaged"):
                read_rows(file["data"], start, stop)
