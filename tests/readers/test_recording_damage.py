"""Files of every format, damaged: a beginning of the events, or a ValueError that names the file; nothing else."""

import h5py
import numpy as np
import pytest
from damage import assert_every_cut_is_noticed, read_or_refuse
from ecf_encoder import MODES, encode_chunk, write_ecf
from event_examples import HEIGHT, WIDTH, assert_same, random_events, write_hdf5
from format_encoders import WRITERS, iohe, rows_of, stream_description, structured, write_aedat4
from hypothesis import given, settings
from hypothesis import strategies as st
from user_errors import raises

from rvtssm.readers import hdf5, open_recording
from rvtssm.readers.aedat4 import SIGNATURE as AEDAT4_SIGNATURE
from rvtssm.readers.arrays import NPY_SIGNATURE, NPZ_SIGNATURE
from rvtssm.readers.ecf import SLACK, decode_chunk
from rvtssm.readers.gate import EventBuffer
from rvtssm.records import Events

EVENTS = random_events(80, seed=3, span_us=20_000)
FEW = random_events(16, seed=3, span_us=20_000)  # in files that are cut at every byte
SIZE = (HEIGHT, WIDTH)
BYTES = ["dat", "evt2", "evt21", "evt3"]
NUMPY = ("npy", "columns.npy", "structured.npy")


def write_array(path, array):
    with open(path, "wb") as file:
        np.save(file, array)
    return path


def write_backwards(path, events):
    """Text whose last column is the time."""
    rows = rows_of(events)[:, [3, 1, 2, 0]].tolist()
    path.write_text("p,x,y,t\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))
    return path


FILES = {kind: write for kind, write in WRITERS.items() if not kind.startswith("ros")} | {
    "aedat4 plain": lambda path, events: write_aedat4(path, events, 0, 10),
    "aedat4 zstd": lambda path, events: write_aedat4(path, events, 3, 10),
    "aedat4 interrupted": lambda path, events: write_aedat4(path, events, 0, 10, is_closed=False),
    "columns.npy": lambda path, events: write_array(path, np.asfortranarray(rows_of(events))),
    "structured.npy": lambda path, events: write_array(path, structured(events)),
    "backwards.csv": write_backwards,
}


def size_of(kind):
    return SIZE if kind in (*NUMPY, "backwards.csv") else ()


@pytest.mark.parametrize("name", FILES)
def test_a_file_cut_at_any_byte_gives_a_beginning(tmp_path, name):
    path, size = FILES[name](tmp_path / "a.dat", FEW), size_of(name)
    content = path.read_bytes()
    if content.startswith(b"\x89HDF"):  # its library refuses every cut: every 211th byte, and all at both ends
        cuts = sorted({*range(0, len(content), 211), *range(100), *range(len(content) - 50, len(content))})
        assert all(read_or_refuse(path, content[:cut]) is None for cut in cuts)
    else:
        longest = assert_every_cut_is_noticed(path, content, FEW, *size)
        assert longest > 0 or name in ("npz", "columns.npy"), "what comes before a cut is read"
    if name in NUMPY:
        assert read_or_refuse(path, content + b"1", *size) is None


@pytest.mark.parametrize("name", BYTES)
@settings(max_examples=50)
@given(body=st.binary(max_size=400))
def test_any_bytes_after_the_header_give_valid_events_or_an_error(tmp_path_factory, name, body):
    path = tmp_path_factory.mktemp("bytes") / "a.dat"
    WRITERS[name](path, EVENTS)
    head = path.read_bytes()
    head = head[: head.index(b"\x00\x08") + 2] if name == "dat" else head[: head.index(b"% end\n") + 6]
    read_or_refuse(path, head + body)


HEADERS = (b"", b"% ", b"% evt 3.0\n", b"% Version 2\n% Height")
AEDAT4 = (AEDAT4_SIGNATURE, AEDAT4_SIGNATURE + iohe(0, -1, stream_description(SIZE)))
ARRAYS = (NPY_SIGNATURE, NPY_SIGNATURE + b"\x01\x00", NPZ_SIGNATURE)
TEXTS = (b"t,x,y,p\n", b"1,2,3,1\n")


@settings(max_examples=300)
@given(
    content=st.one_of(st.binary(max_size=300), st.text("0123456789,.-+e \n#tpxy\t;").map(str.encode)),
    header=st.sampled_from((*HEADERS, *AEDAT4, *ARRAYS, *TEXTS)),
)
def test_any_bytes_at_all_are_refused_or_read(scratch, content, header):
    read_or_refuse(scratch / "a.dat", header + content, *SIZE)


@pytest.mark.parametrize("name", BYTES)
def test_any_words_stay_within_the_block(tmp_path, name):
    """Blocks of the smallest size, written before a guard that nothing may touch."""
    rng = np.random.default_rng(0)
    path = tmp_path / "a.dat"
    WRITERS[name](path, EVENTS)
    content = path.read_bytes()
    head = content[: -(len(content) - 100) // 8 * 8]
    path.write_bytes(head + rng.integers(0, 256, 40_000, dtype=np.uint8).tobytes())
    recording = open_recording(path)
    state, whole = recording._start(), EventBuffer(96)
    for column in (whole.t, whole.x, whole.y, whole.p):
        column[:] = 99
    block = EventBuffer(0)
    block.t, block.x, block.y, block.p = whole.t[:40], whole.x[:40], whole.y[:40], whole.p[:40]
    while state[0] < recording._num_units:
        assert recording._decode(state, block) <= 40
    for column in (whole.t, whole.x, whole.y, whole.p):
        assert np.all(column[40:] == 99)


@pytest.mark.parametrize("changed", [{"t": ">u4", "x": ">u2"}, {"t": ">f8", "x": "<f4", "p": ">f4"}])
def test_columns_of_hdf5_may_be_of_any_numbers(tmp_path, changed):
    columns = {name: getattr(EVENTS, name).astype(kind) for name, kind in changed.items()}
    assert_same(open_recording(write_hdf5(tmp_path / "a.h5", EVENTS, **columns)).read(), EVENTS)


def test_a_column_that_lost_the_settings_of_its_filter_is_refused(tmp_path):
    """The filter itself would read memory that is not its own."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for name in ("t", "x", "y", "p"):
            values = getattr(EVENTS, name)
            packing = {"compression": 32001, "compression_opts": (0, 0, 0, 0, 5, 1, 0)}
            file.create_dataset(f"events/{name}", data=values, chunks=(80,), **packing)
        file["events/height"], file["events/width"] = HEIGHT, WIDTH
        number = file["events/y"].id.get_create_plist().get_filter(0)[2]
    content = bytearray(path.read_bytes())
    settings = np.array(number, "<u4").tobytes()
    place = content.rindex(settings, 0, content.rindex(settings) + 1)
    header = content.rindex(b"blosc", 0, place)
    count = content.rindex(np.uint16(len(number)).tobytes(), 0, header)
    content[count : count + 2] = b"\0\0"
    path.write_bytes(content)
    with raises("file.damaged"):
        open_recording(path)


@pytest.mark.parametrize("side", [0, -1, 20_000, "64", 64.0, True, [64]])
def test_a_size_that_no_sensor_has_is_refused_and_not_told_as_a_damaged_file(tmp_path, side):
    path = tmp_path / "a.csv"
    path.write_text("1,2,3,1\n")
    with raises("setting.out_of_range" if type(side) is int else "setting.form"):
        open_recording(path, 48, side)


@pytest.mark.parametrize("mode", MODES)
def test_a_chunk_cut_or_changed_anywhere_stays_within_its_arrays(mode):
    events = random_events(100, span_us=3000)
    chunk = encode_chunk(events, mode)
    rng = np.random.default_rng(mode)
    columns = EventBuffer(65535 + SLACK)

    def decode(data: bytes) -> tuple[int, Events]:
        found = decode_chunk(np.frombuffer(data, np.uint8), 100, columns.t, columns.x, columns.y, columns.p)
        return found, columns.events(100)

    used, found = decode(chunk)
    assert used == len(chunk)
    assert_same(found, events)
    for cut in range(len(chunk)):
        used, _ = decode(chunk[:cut])
        assert used < 0 and ~used <= cut
    for _ in range(500):
        damaged = bytearray(chunk)
        for place in rng.integers(0, len(chunk), 3):
            damaged[place] = rng.integers(0, 256)
        used, _ = decode(bytes(damaged))
        assert ~used <= len(chunk) and used <= len(chunk)


def test_a_damaged_chunk_is_named_with_its_place(tmp_path):
    path = write_ecf(tmp_path / "a.hdf5", EVENTS, HEIGHT, WIDTH, mode=0, chunk=32)
    content = path.read_bytes()
    second = encode_chunk(EVENTS.between(EVENTS.t[32], EVENTS.t[32] + 10**6), 0)[4:12]  # its first time
    place = content.index(second) - 4
    path.write_bytes(content[:place] + b"\xff\xff\xff\xff" + content[place + 4 :])
    recording = open_recording(path)
    with raises("file.damaged") as error:
        recording.read()
    assert str(path) in str(error.value)


def test_hdf5_that_announces_more_than_it_stores_is_refused(tmp_path):
    write_ecf(tmp_path / "a.hdf5", random_events(0), HEIGHT, WIDTH)
    assert len(open_recording(tmp_path / "a.hdf5").read()) == 0
    with h5py.File(tmp_path / "a.hdf5", "r+") as file:
        file["CD/events"].resize((1 << 50,))
    with h5py.File(tmp_path / "b.h5", "w") as file:
        for column in "txyp":
            file.create_dataset(f"events/{column}", (1 << 50,), np.uint32, chunks=(1024,))
    for name in ("a.hdf5", "b.h5"):
        with raises("file.damaged", about=name):
            open_recording(tmp_path / name, HEIGHT, WIDTH)


def test_hdf5_in_chunks_that_are_too_large_is_refused(tmp_path, monkeypatch):
    path = write_ecf(tmp_path / "a.hdf5", random_events(100), HEIGHT, WIDTH)
    assert len(open_recording(path).read()) == 100
    monkeypatch.setattr(hdf5, "_MAX_CHUNK_BYTES", 1)
    with raises("file.damaged"):
        open_recording(path)
