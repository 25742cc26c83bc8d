"""AEDAT4: every compression is read back, other streams are skipped, damage is an error that names file and place."""

import struct

import lz4.frame
import numpy as np
import pytest
import zstandard
from event_examples import HEIGHT, WIDTH, any_events, assert_same, random_events, to_events
from format_encoders import COMPRESSIONS, flatbuffer, iohe, stream_description, write_aedat4
from hypothesis import given, settings
from hypothesis import strategies as st
from user_errors import raises

from rvtssm.readers import ReadFaults, open_recording
from rvtssm.readers.aedat4 import SIGNATURE

FIRST_PACKET = len(SIGNATURE) + len(iohe(0, -1, stream_description((HEIGHT, WIDTH))))
EPOCH_US = 1_633_953_690_975_950  # real files count from 1970


@settings(max_examples=30)
@given(events=any_events(), compression=st.sampled_from(sorted(COMPRESSIONS)), packet_events=st.integers(1, 40))
def test_round_trip(scratch, events, compression, packet_events):
    events = to_events(events.t + EPOCH_US, events.x, events.y, events.p)
    path = write_aedat4(scratch / "a.aedat4", events, compression, packet_events)
    recording = open_recording(path)
    assert (recording.format, recording.height, recording.width) == ("aedat4", HEIGHT, WIDTH)
    assert_same(recording.read(), events)
    assert recording.faults == ReadFaults()


def test_a_recorder_that_was_interrupted_leaves_whole_packets(tmp_path):
    events = random_events(2_500)
    path = write_aedat4(tmp_path / "a.aedat4", events, is_closed=False)
    assert_same(open_recording(path).read(), events)
    content = small_file(tmp_path, is_closed=False)
    path.write_bytes(content[:-3])
    recording = open_recording(path)
    assert_same(recording.read(), small_events())  # the packet that is cut is of another stream
    assert recording.faults.truncated_bytes > 8


def small_events():
    return random_events(30, seed=3)


def small_file(folder, compression=0, is_closed=True) -> bytes:
    return write_aedat4(folder / "small.aedat4", small_events(), compression, 10, is_closed).read_bytes()


def packet_file(path, compression: int, content: bytes, stream: int = 0):
    """A file of one packet with this content, as it stands in the file."""
    info = stream_description((HEIGHT, WIDTH))
    head = SIGNATURE + iohe(compression, -1, info)
    path.write_bytes(head + struct.pack("<ii", stream, len(content)) + content)
    return path


@pytest.mark.parametrize(
    ("compression", "content", "message"),
    [
        (1, lz4.frame.compress(bytes(1 << 28)), "more bytes than a packet can have"),
        (1, lz4.frame.compress(bytes(1 << 28), store_size=False), "incomplete"),
        (1, lz4.frame.compress(bytes(100))[:-6], "incomplete"),
        (1, b"no frame at all, but long enough", "lz4 data cannot be unpacked"),
        (1, b"\x04", "lz4 data cannot be unpacked"),
        (3, zstandard.compress(bytes(1 << 28)), "more bytes than a packet can have"),
        (3, zstandard.compress(bytes(1000))[:-5], "zstd data cannot be unpacked"),
        (3, b"", "zstd data cannot be unpacked"),
        (0, b"", "should hold EVTS"),
        (0, flatbuffer(b"FRME", [bytes(4)]), "should hold EVTS"),
        (0, flatbuffer(b"EVTS", [struct.pack("<I", 1 << 28)]), "claims 268435456 events"),
    ],
)
def test_damaged_packets_name_file_and_byte(tmp_path, compression, content, message):
    path = packet_file(tmp_path / "a.aedat4", compression, content)
    with raises("file.damaged"):
        open_recording(path).read()


def test_a_packet_without_events_and_one_of_other_streams_are_skipped(tmp_path):
    assert len(open_recording(packet_file(tmp_path / "a.aedat4", 0, flatbuffer(b"EVTS", []))).read()) == 0
    assert len(open_recording(packet_file(tmp_path / "b.aedat4", 0, b"anything", stream=1)).read()) == 0


@pytest.mark.parametrize(
    ("types", "size_hw", "key"),
    [
        (("FRME",), (HEIGHT, WIDTH), "file.content"),
        (("EVTS", "EVTS"), (HEIGHT, WIDTH), "file.ambiguous"),
        (("EVTS",), (-4, 7), "file.damaged"),
        (("EVTS",), (0, 0), "sensor.unknown"),
    ],
)
def test_streams_that_cannot_be_read(tmp_path, types, size_hw, key):
    path = write_aedat4(tmp_path / "a.aedat4", small_events(), info=stream_description(size_hw, types))
    with raises(key):
        open_recording(path)


def test_of_two_cameras_one_is_chosen(tmp_path):
    info = stream_description((HEIGHT, WIDTH), ("EVTS", "EVTS"))
    path = write_aedat4(tmp_path / "a.aedat4", small_events(), info=info, stream=1)
    assert_same(open_recording(f"{path}:/1").read(), small_events())
    assert len(open_recording(f"{path}:/0").read()) == 0
    with raises("file.content"):
        open_recording(f"{path}:/7")


@pytest.mark.parametrize(
    ("header", "key"),
    [
        (iohe(0, -1, b"<dv><node"), "file.damaged"),
        (iohe(0, -1, b'<!DOCTYPE d [<!ENTITY a "aaaa">]><dv>&a;</dv>'), "file.damaged"),
        (iohe(0, -1, stream_description((HEIGHT, WIDTH)).replace(b"64", b"six")), "file.damaged"),
        (iohe(9, -1, stream_description((HEIGHT, WIDTH))), "file.damaged"),
        (struct.pack("<I", 1 << 31) + bytes(100), "file.damaged"),
    ],
)
def test_damaged_headers(tmp_path, header, key):
    (tmp_path / "a.aedat4").write_bytes(SIGNATURE + header)
    with raises(key):
        open_recording(tmp_path / "a.aedat4")


def test_packets_that_do_not_fit_name_their_byte(tmp_path):
    content = small_file(tmp_path)
    for size in (1 << 30, -1):
        damaged = content[: FIRST_PACKET + 4] + struct.pack("<i", size) + content[FIRST_PACKET + 8 :]
        (tmp_path / "a.aedat4").write_bytes(damaged)
        with raises("file.damaged"):
            open_recording(tmp_path / "a.aedat4").read()
    assert np.array_equal(open_recording(tmp_path / "small.aedat4").read().t, small_events().t)
