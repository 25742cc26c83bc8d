"""Bags of ROS 1 and 2 that the library rosbags wrote: its events, its topics, and what a damaged one gives."""

import sqlite3
import sys
from contextlib import closing
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from event_examples import HEIGHT, WIDTH, assert_same, random_events, to_events
from rosbags import rosbag1, rosbag2
from rosbags.highlevel import AnyReader
from rosbags.rosbag2.enums import CompressionFormat, CompressionMode
from user_errors import raises

from rvtssm.contrib.ros.event_messages import MessageDecoder
from rvtssm.detection.sources import find_sources, opened_source
from rvtssm.readers import open_recording
from rvtssm.readers.faults import ReadFaults
from rvtssm.readers.recording import join_events
from rvtssm.records import Events
from tests.contrib.ros.bag_writer import (
    CONTAINERS,
    DVS,
    EVENT_PACKET,
    OLD_PACKET,
    PROPHESEE,
    header_of,
    message_of,
    typestore_of,
    write_bag,
    write_events,
)
from tests.readers.damage import read_or_refuse
from tests.readers.evt2_encoder import encode_evt2

EVENTS = random_events(700, seed=1, span_us=300_000, start_us=1_650_000_000_000_000)
SHORT = random_events(700, seed=1, span_us=300_000)  # the clock of a camera, which words can represent
KINDS = [(DVS, ""), (PROPHESEE, ""), (EVENT_PACKET, "mono"), (EVENT_PACKET, "evt21"), (OLD_PACKET, "evt2")]


@pytest.mark.parametrize(
    ("container", "kind", "encoding"),
    [*((container, *kind) for container in ("ros1", "mcap") for kind in KINDS), ("db3", EVENT_PACKET, "evt3")],
)
def test_events_are_those_that_were_recorded(tmp_path, container, kind, encoding):
    events = SHORT if encoding.startswith("evt") else EVENTS
    path = write_events(tmp_path / "bag", events, container, kind, encoding, per_message=90)
    recording = open_recording(path)
    assert (recording.height, recording.width) == (HEIGHT, WIDTH)
    assert_same(recording.read(), events)
    middle_us = int(events.t[350])
    assert_same(recording.between(middle_us, middle_us + 9000), events.between(middle_us, middle_us + 9000))


@pytest.mark.parametrize(("container", "kind", "encoding"), [("ros1", DVS, ""), ("mcap", EVENT_PACKET, "mono")])
def test_events_of_another_clock_at_the_border_of_a_message_are_left_out(tmp_path, container, kind, encoding):
    events = random_events(900, span_us=100_000, start_us=500_000_000)
    events.t[460:500] += 150_000
    kept = join_events([events[:460], events[500:]])
    for per_message in (10, 500):
        path = write_events(tmp_path / f"{per_message}.bag", events, container, kind, encoding, per_message)
        for max_events in (64, 499, 1 << 16):
            recording = open_recording(path, repair=True)
            with pytest.warns(UserWarning, match="left out 40 of 900 events with the time of another clock"):
                assert_same(join_events(list(recording.iterate(max_events))), kept)


def test_a_time_word_of_another_clock_is_left_out_at_the_border_of_a_block_of_a_long_message():
    events = random_events(30_000, span_us=3_000_000, start_us=500_000_000)
    is_event = np.array(encode_evt2(events)) >> 28 <= 1
    at_border = int(np.count_nonzero(is_event[: 1 << 16]))  # the first event after the words decoded at once
    store = typestore_of("mcap")
    for place in range(at_border - 3, at_border + 3):
        times = events.t.copy()
        times[place] += 150_000
        message = message_of(store, EVENT_PACKET, replace(events, t=times), "evt2", (HEIGHT, WIDTH))
        decoder = MessageDecoder(EVENT_PACKET)
        found, _ = decoder.push(bytes(store.serialize_cdr(message, EVENT_PACKET)))
        assert_same(found, events[np.arange(len(events)) != place])
        assert decoder.faults == ReadFaults(other_clock=1)


@pytest.mark.parametrize("container", ["ros1", "mcap"])
def test_columns_are_those_of_another_decoder(tmp_path, container):
    path = write_events(tmp_path / "one.bag", EVENTS, container, DVS, per_message=1)  # of one event, and of several
    several = write_events(tmp_path / "several.bag", EVENTS, container, PROPHESEE, per_message=333)
    for file in (path, several):
        with AnyReader([file], default_typestore=typestore_of(container)) as reader:
            chosen = [each for each in reader.connections if each.topic == "/camera/events"]
            messages = [reader.deserialize(data, each.msgtype) for each, _, data in reader.messages(chosen)]
        rows = [(e.ts.sec * 10**6 + e.ts.nanosec // 1000, e.x, e.y, e.polarity) for m in messages for e in m.events]
        assert_same(open_recording(file).read(), to_events(*np.array(rows).T))


@pytest.mark.parametrize("container", CONTAINERS)
def test_compressed_bags_are_read(tmp_path, container):
    if container == "ros1":
        settings = [partial(rosbag1.Writer.set_compression, fmt=fmt) for fmt in rosbag1.Writer.CompressionFormat]
    else:
        modes = [CompressionMode.MESSAGE, *([CompressionMode.STORAGE] if container == "mcap" else [])]
        settings = [partial(rosbag2.Writer.set_compression, mode=mode, fmt=CompressionFormat.ZSTD) for mode in modes]
    store = typestore_of(container)
    for number, compress in enumerate(settings):
        message = message_of(store, EVENT_PACKET, SHORT, "mono", (HEIGHT, WIDTH))
        path = write_bag(tmp_path / f"bag{number}", {"/events": [(5, message)]}, store, container, compress)
        assert_same(open_recording(path if container == "ros1" else path.parent).read(), SHORT)


def two_cameras(path, container):
    store = typestore_of(container)
    left, right = (message_of(store, EVENT_PACKET, e, "mono", (HEIGHT, WIDTH)) for e in (SHORT, EVENTS))
    return write_bag(path, {"/left/events": [(5, left)], "/right/events": [(5, right)]}, store, container)


@pytest.mark.parametrize("container", ["ros1", "mcap"])
def test_a_bag_of_two_cameras_asks_for_the_topic(tmp_path, container):
    path = two_cameras(tmp_path / "bag", container)
    with raises("file.ambiguous") as error:
        open_recording(path)
    assert str(error.value).startswith(f"{path}: it has") and f"as in {path}:/left" in str(error.value)
    assert_same(open_recording(f"{path}:/left/events").read(), SHORT)
    assert_same(open_recording(f"{path}:/right/events").read(), EVENTS)
    with raises("file.content"):
        open_recording(f"{path}:/middle")
    if container != "ros1":
        with raises("file.content"):
            open_recording(f"{path.parent}:/middle")
    assert list(find_sources(f"{path}:/right/events")) == ["bag_right_events"]
    with opened_source(f"{path}:/right/events") as source:
        assert source.events.num_events == len(EVENTS)


def test_only_bags_have_topics(tmp_path):
    (tmp_path / "a.csv").write_text("1,2,3,1\n")
    with raises("file.kind"):
        open_recording(f"{tmp_path / 'a.csv'}:/x", HEIGHT, WIDTH)
    with raises("file.missing", "b.bag"):
        open_recording(tmp_path / "b.bag:/x")


def test_the_folder_of_a_ros2_bag_is_one_recording(tmp_path):
    for name, container in (("first", "mcap"), ("second", "db3")):
        file = write_events(tmp_path / "bags" / name, SHORT, container)
        recording = open_recording(file.parent)
        assert_same(recording.read(), SHORT)
        assert recording.name == name and recording.num_bytes > file.stat().st_size
        assert list(find_sources(str(file.parent))) == [name]
    found = find_sources(str(tmp_path / "bags"))
    assert list(found) == ["first", "second"]
    with opened_source(found["second"]) as source:
        assert source.events.num_events == len(SHORT) and source.images is None


def test_a_bag_without_events_says_what_it_holds(tmp_path):
    store = typestore_of("mcap")
    header = header_of(store, 5)
    path = write_bag(tmp_path / "bag", {"/a": [(1, header)]}, store, "mcap")
    with raises("events.none"):
        open_recording(path)


def packet(store, **changed):
    message = message_of(store, EVENT_PACKET, SHORT, "mono", (HEIGHT, WIDTH))
    for name, value in changed.items():
        setattr(message, name, value)
    return message


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({"encoding": "libcaer"}, "file.kind"),
        ({"is_bigendian": True}, "file.kind"),
        ({"events": np.zeros(7, np.uint8)}, "file.cut"),
        ({"time_base": 1 << 63}, "file.damaged"),
        ({"height": 40_000}, "file.damaged"),
        ({"height": 0, "width": 0}, "sensor.unknown"),
    ],
)
def test_packets_that_cannot_be_read_are_refused(tmp_path, changed, key):
    store = typestore_of("ros1")
    path = write_bag(tmp_path / "bag", {"/e": [(1, packet(store, **changed))]}, store, "ros1")
    with raises(key) as error:
        open_recording(path)
    assert str(path) in str(error.value)


def test_a_sensor_that_changes_is_refused(tmp_path):
    store = typestore_of("mcap")
    messages = [(1, packet(store)), (2, packet(store, width=32))]
    path = write_bag(tmp_path / "bag", {"/e": messages}, store, "mcap")
    with raises("file.ambiguous"):
        open_recording(path).read()


@pytest.mark.parametrize("change", [b"\2\0", b"\0\1"])
def test_arrays_that_end_early_or_hold_impossible_events_are_refused(tmp_path, change):
    path = write_events(tmp_path / "bag", EVENTS, "ros1", DVS)
    content = bytearray(path.read_bytes())
    event = int(EVENTS.x[5]).to_bytes(2, "little") + int(EVENTS.y[5]).to_bytes(2, "little")
    place = content.index(event + (int(EVENTS.t[5]) // 1_000_000).to_bytes(4, "little"))
    if change == b"\2\0":
        content[place + 12] = 2  # its polarity
        key = "events.polarity"
    else:
        start = place - 5 * 13 - 4
        assert int.from_bytes(content[start : start + 4], "little") == len(EVENTS)
        content[start] += 1  # the number of events
        key = "file.cut"
    path.write_bytes(content)
    with raises(key):
        open_recording(path).read()


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_bag_cut_anywhere_gives_a_beginning_or_an_error(tmp_path, container):
    content = write_events(tmp_path / "bag", SHORT, container, per_message=90).read_bytes()
    path = tmp_path / f"cut.{container}"
    for cut in np.linspace(1, len(content) - 1, 25).astype(int):
        found = read_or_refuse(path, content[:cut])
        if found is not None:
            n = len(found)
            assert_same(found, Events(SHORT.t[:n], SHORT.x[:n], SHORT.y[:n], SHORT.p[:n]))


def test_messages_that_are_announced_and_missing_are_an_error(tmp_path):
    path = write_events(tmp_path / "bag", SHORT, "db3", per_message=100)
    metadata = path.parent / "metadata.yaml"
    metadata.write_text(metadata.read_text().replace("message_count: 7\n", "message_count: 9\n"))
    with raises("file.cut"):
        open_recording(path.parent).read()


@pytest.mark.parametrize("change", ["timestamp = x'1797'", "data = 5000000000"])
def test_a_cell_of_another_type_is_an_error(tmp_path, change):
    path = write_events(tmp_path / "bag", SHORT, "db3", per_message=100)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"UPDATE messages SET {change} WHERE id = 3")
    with raises("file.damaged"):
        open_recording(path).read()


def test_without_the_library_a_line_names_the_extra(tmp_path, monkeypatch):
    path = write_events(tmp_path / "bag", SHORT, "mcap")
    monkeypatch.setitem(sys.modules, "rosbags", None)
    with raises("install.extra", "bags"):
        open_recording(path)
