"""The store: what is written is read back in any process, and a file is there whole or not at all."""

import itertools
import json
import multiprocessing
import pickle
import resource
import shutil
import signal

import h5py
import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from user_errors import raises

from rvtssm.datasets.compress import FrameCompressor, decompress_into
from rvtssm.datasets.store import open_sequence, read_meta
from rvtssm.datasets.store_writer import UnfailingFile, sequence_writer
from rvtssm.records import Labels, Windows

NUM_WINDOWS, FRAME = 7, (20, 6, 8)


def example_content():
    rng = np.random.default_rng(0)
    ends = np.arange(1, NUM_WINDOWS + 1) * 50_000
    windows = Windows(np.stack([ends - 50_000, ends], axis=1), np.full(NUM_WINDOWS, 50_000))
    index = np.array([2, 2, 6])
    boxes = rng.random((3, 4), np.float32)
    labels = Labels(boxes, np.array([0, 1, 0]), ends[index], index, np.array([-1, 5, 6]))
    return windows, labels, rng.integers(0, 11, (NUM_WINDOWS, *FRAME), np.uint8)


@pytest.fixture
def example():
    return example_content()


def write(path, example, blocks=None, meta=None):
    windows, labels, counts = example
    compressor = FrameCompressor(counts[0].nbytes)
    with sequence_writer(path, windows, labels, counts.shape[1:]) as writer:
        for block in blocks or [counts[:3], counts[3:]]:
            writer.append([compressor.compress(frame) for frame in block])
        writer.meta = meta or {"dataset": "tiny"}


def test_round_trip(tmp_path, example):
    windows, labels, counts = example
    write(tmp_path / "train" / "a.h5", example)
    sequence = open_sequence(tmp_path / "train" / "a.h5")
    assert sequence.name == "a" and sequence.meta == {"format_version": 2, "dataset": "tiny"}
    np.testing.assert_array_equal(sequence.windows.bounds_us, windows.bounds_us)
    np.testing.assert_array_equal(sequence.windows.dt_us, windows.dt_us)
    for name in ("boxes_ltwh", "class_id", "t_us", "window_index", "still_us"):
        np.testing.assert_array_equal(getattr(sequence.labels, name), getattr(labels, name))
    np.testing.assert_array_equal(sequence.histograms(0, NUM_WINDOWS), counts)
    np.testing.assert_array_equal(sequence.histograms(2, 5), counts[2:5])
    assert sequence.histograms(3, 3).shape == (0, *FRAME)
    with raises("setting.out_of_range"):
        sequence.histograms(5, 8)


def write_beyond_limits(path, example, num_bytes):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # then writing beyond the limit is an error
    for limit in (*range(0, num_bytes, 900), num_bytes - 1):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        with pytest.raises(OSError, match="File too large") as caught:
            write(path, example)
        assert caught.value.filename == str(path) and not list(path.parent.iterdir())
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, resource.RLIM_INFINITY))
    write(path, example)


def write_and_interrupt(path, example, num_bytes):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background of a shell ignores it
    write_data = UnfailingFile.write

    def write_interrupted(self, data):
        signal.raise_signal(signal.SIGINT)
        return write_data(self, data)

    UnfailingFile.write = write_interrupted
    with pytest.raises(KeyboardInterrupt):
        write(path, example)
    assert not list(path.parent.iterdir())
    UnfailingFile.write = write_data
    write(path, example)


@pytest.mark.parametrize("act", [write_beyond_limits, write_and_interrupt])
def test_a_write_that_fails_or_is_interrupted_does_not_crash_the_process(tmp_path, example, act):
    write(tmp_path / "whole" / "a.h5", example)
    whole = (tmp_path / "whole" / "a.h5").read_bytes()
    path = tmp_path / "limited" / "a.h5"
    process = multiprocessing.get_context("fork").Process(target=act, args=(path, example, len(whole)))
    process.start()
    process.join(300)
    assert process.exitcode == 0 and path.read_bytes() == whole


def test_the_same_content_gives_the_same_bytes(tmp_path, example):
    counts = example[2]
    write(tmp_path / "a.h5", example, [counts])
    write(tmp_path / "b" / "a.h5", example, [counts[i : i + 1] for i in range(NUM_WINDOWS)])
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b" / "a.h5").read_bytes()


def test_a_damaged_frame_is_named_and_the_others_are_read(tmp_path, example):
    write(tmp_path / "a.h5", example)
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        middle = int(file["offsets"][3:5].mean())
        file["frames"][middle] ^= 0xFF
    sequence = open_sequence(tmp_path / "a.h5")
    with raises("prepared.damaged"):
        sequence.histograms(0, NUM_WINDOWS)
    np.testing.assert_array_equal(sequence.histograms(4, 7), example[2][4:7])


def rewrite(name: str, function):
    def change(file: h5py.File) -> None:
        changed = function(file[name][()])
        del file[name]
        file[name] = changed

    return change


def set_digest(value: object):
    def change(file: h5py.File) -> None:
        file.attrs["meta"] = np.bytes_(json.dumps({**json.loads(file.attrs["meta"]), "digest": value}))

    return change


def swap_frames(file: h5py.File) -> None:
    """Exchange two frames that have checksums of their own, and the offsets that tell where they begin."""
    offsets, data = file["offsets"][()], file["frames"][()]
    pieces = [data[start:stop] for start, stop in itertools.pairwise(offsets)]
    pieces[1], pieces[2] = pieces[2], pieces[1]
    file["frames"][...] = np.concatenate(pieces)
    file["offsets"][...] = np.cumsum([0, *map(len, pieces)])


CHANGES = {
    **{
        name: rewrite(name, lambda values: values[::-1].copy())
        for name in ("dt_us", "bounds_us", "offsets", "labels/t_us")
    },
    "labels/class_id": rewrite("labels/class_id", lambda values: 1 - values),
    "labels/still_us": rewrite("labels/still_us", lambda values: values + 1),
    "type": rewrite("labels/class_id", lambda values: values.astype(np.int32)),
    "settings": lambda file: file.attrs.modify("meta", file.attrs["meta"].replace(b"tiny", b"huge")),
    "frames": swap_frames,
    **{f"digest {value}": set_digest(value) for value in ([1, 2], [1], "nothing")},
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_change_of_anything_is_found_when_a_file_is_opened(tmp_path, example, kind):
    windows, labels, counts = example
    windows = Windows(windows.bounds_us, windows.dt_us + np.arange(NUM_WINDOWS))
    write(tmp_path / "a.h5", (windows, labels, counts))
    open_sequence(tmp_path / "a.h5").check_frames()
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        CHANGES[kind](file)
    with pytest.raises(ValueError, match=r"a\.h5.*prepare it again"):
        open_sequence(tmp_path / "a.h5")


def test_frames_are_checked_completely_when_asked(tmp_path, example):
    write(tmp_path / "a.h5", example)
    open_sequence(tmp_path / "a.h5").check_frames(100)
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        file["frames"][-1] ^= 1
    with raises("prepared.damaged"):
        open_sequence(tmp_path / "a.h5").check_frames(100)


def test_a_file_that_was_renamed_is_whole_if_it_says_its_recording(tmp_path, example):
    write(tmp_path / "a.h5", example)
    (tmp_path / "elsewhere").mkdir()
    shutil.copy(tmp_path / "a.h5", tmp_path / "elsewhere" / "a.h5")
    open_sequence(tmp_path / "elsewhere" / "a.h5")
    (tmp_path / "link.h5").symlink_to(tmp_path / "a.h5")
    open_sequence(tmp_path / "link.h5")
    (tmp_path / "a.h5").rename(tmp_path / "b.h5")
    with raises("prepared.damaged"):
        open_sequence(tmp_path / "b.h5")
    write(tmp_path / "c.h5", example, meta={"dataset": "tiny", "source": {"name": "c_td.dat"}})
    (tmp_path / "c.h5").rename(tmp_path / "d.h5")
    assert open_sequence(tmp_path / "d.h5").name == "d"


def _sum_in_child(sequence, queue):
    queue.put(int(sequence.histograms(0, NUM_WINDOWS).sum()))


def test_other_processes_read_the_same(tmp_path, example):
    write(tmp_path / "a.h5", example)
    sequence = open_sequence(tmp_path / "a.h5")
    before = sequence.histograms(0, 2)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_sum_in_child, args=(sequence, queue))
    child.start()
    assert queue.get(timeout=600) == example[2].sum()
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
    with raises("prepared.damaged"):
        write(path, example, [example[2][:3]])
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_foreign_and_newer_files_are_named(tmp_path, example):
    (tmp_path / "text.h5").write_text("not HDF5")
    with h5py.File(tmp_path / "foreign.h5", "w") as file:
        file["data"] = 1
    write(tmp_path / "newer.h5", example)
    with h5py.File(tmp_path / "newer.h5", "r+") as file:
        file.attrs.modify("meta", file.attrs["meta"].replace(b'"format_version": 2', b'"format_version": 9'))
    for name, key in (
        ("text.h5", "file.damaged"),
        ("missing.h5", "file.damaged"),
        ("foreign.h5", "file.kind"),
        ("newer.h5", "prepared.other"),
    ):
        with raises(key):
            read_meta(tmp_path / name)


def test_a_text_that_could_claim_any_length_is_not_read(tmp_path, example):
    """libhdf5 would allocate that many bytes."""
    path = tmp_path / "a.h5"
    write(path, example)
    with h5py.File(path, "r+") as file:
        file.attrs["meta"] = file.attrs["meta"].decode()
    with raises("prepared.damaged"):
        open_sequence(path)


# compressed frames


def tokens_of(cells) -> bytes:
    """The rule of the module's docstring, read aloud."""
    tokens, zeros = bytearray(), 0
    for value in cells.tolist():
        if value == 0:
            zeros += 1
            continue
        tokens.append(min(zeros, 15) << 4 | min(value - 1, 15))
        if zeros >= 15:
            rest = zeros - 15
            tokens += b"\xff" * (rest // 255) + bytes([rest % 255])
        if value > 15:
            tokens.append(value)
        zeros = 0
    return bytes(tokens)


@st.composite
def frames(draw):
    """Bytes with runs of zeros around the lengths where the tokens change."""
    parts = draw(
        st.lists(
            st.tuples(
                st.sampled_from([0, 1, 14, 15, 16, 63, 64, 65, 269, 270, 271, 524, 525, 526]),
                st.sampled_from([1, 2, 10, 15, 16, 17, 255]),
            ),
            max_size=12,
        )
    )
    cells = [value for zeros, last in parts for value in (*[0] * zeros, last)] + [0] * draw(st.integers(0, 70))
    return np.array(cells, np.uint8)


def compressed(frame) -> bytes:
    return FrameCompressor(frame.nbytes).compress(frame)


@given(frames())
def test_tokens_are_those_of_the_slow_twin_and_come_back(cells):
    data = compressed(cells)
    assert zstandard.ZstdDecompressor().decompress(data) == tokens_of(cells)
    found = np.zeros_like(cells)
    decompress_into(data, found)
    np.testing.assert_array_equal(found, cells)


def test_one_compressor_serves_many_frames():
    rng = np.random.default_rng(0)
    compressor = FrameCompressor(20 * 7 * 9)
    for share in (0.9, 0.0, 0.1, 0.01):
        frame = (rng.random((20, 7, 9)) < share) * rng.integers(1, 11, (20, 7, 9), np.uint8)
        assert compressor.compress(frame) == compressed(frame)


@given(frames(), st.data())
def test_damage_is_an_error(cells, draws):
    data = bytearray(compressed(cells))
    place = draws.draw(st.integers(0, len(data) - 1))
    data[place] ^= draws.draw(st.integers(1, 255))
    found = np.zeros_like(cells)
    try:
        decompress_into(bytes(data), found)
    except ValueError:
        return
    np.testing.assert_array_equal(found, cells)  # a bit that zstd does not use


@pytest.mark.parametrize("tokens", [b"\xf0", b"\xf0\xff", b"\x0f", b"\xf0\x00\x00", b"\x00" * 17, b"\x00" * 200])
def test_tokens_that_do_not_fit_are_an_error(tokens):
    with pytest.raises(ValueError, match=r"tokens|cells"):
        decompress_into(zstandard.ZstdCompressor().compress(tokens), np.zeros(16, np.uint8))
