"""Bags of events as robots record them, written by the library rosbags with its own types and serialisers."""

import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from event_examples import HEIGHT, WIDTH
from rosbags import rosbag1, rosbag2
from rosbags.rosbag2.enums import StoragePlugin
from rosbags.typesys import Stores, get_types_from_msg, get_typestore
from rosbags.typesys.store import Typestore

from rvtssm.records import Events
from tests.readers.evt2_encoder import encode_evt2, encode_evt21
from tests.readers.evt3_encoder import encode

EVENT = "uint16 x\nuint16 y\n{time} ts\nbool polarity\n"
ARRAY = "std_msgs/Header header\nuint32 height\nuint32 width\n{package}/Event[] events\n"
PACKET = (
    "std_msgs/Header header\nuint32 height\nuint32 width\nuint64 seq\nuint64 time_base\nstring encoding\n"
    "bool is_bigendian\nuint8[] events\n"
)
DVS, PROPHESEE = "dvs_msgs/msg/EventArray", "prophesee_event_msgs/msg/EventArray"
EVENT_PACKET, OLD_PACKET = "event_camera_msgs/msg/EventPacket", "event_array_msgs/msg/EventArray"
WORDS = {"evt2": (encode_evt2, "<u4"), "evt21": (encode_evt21, "<u8"), "evt3": (encode, "<u2")}
CONTAINERS = ("ros1", "mcap", "db3")


@functools.cache
def typestore_of(container: str) -> Typestore:
    """The types of ROS 1 or 2 with those of event cameras."""
    store = get_typestore(Stores.ROS1_NOETIC if container == "ros1" else Stores.ROS2_HUMBLE)
    types: dict[str, Any] = {}
    for kind in (DVS, PROPHESEE):
        package = kind.partition("/")[0]
        time = "time" if container == "ros1" else "builtin_interfaces/Time"
        types |= get_types_from_msg(EVENT.format(time=time), f"{package}/msg/Event")
        types |= get_types_from_msg(ARRAY.format(package=package), kind)
    for kind in (EVENT_PACKET, OLD_PACKET):
        types |= get_types_from_msg(PACKET, kind)
    store.register(types)
    return store


def header_of(store: Typestore, t_us: int) -> Any:
    types: Any = store.types
    stamp = types["builtin_interfaces/msg/Time"](t_us // 1_000_000, t_us % 1_000_000 * 1000)
    numbered = {"seq": 0} if "seq" in types["std_msgs/msg/Header"].__dataclass_fields__ else {}
    return types["std_msgs/msg/Header"](stamp=stamp, frame_id="camera", **numbered)


def message_of(
    store: Typestore,
    kind: str,
    events: Events,
    encoding: str,
    size_hw: tuple[int, int],
    number: int = 0,
    ros_offset_us: int = 0,
) -> Any:
    """A message whose stamp is the time of its first event on a clock of ROS that is ahead of the sensor's."""
    types: Any = store.types
    base_us = int(events.t[0]) if len(events) else 0
    header = header_of(store, base_us + ros_offset_us)
    if kind in (DVS, PROPHESEE):
        event, time = types[kind.replace("EventArray", "Event")], types["builtin_interfaces/msg/Time"]
        rows = zip(events.t.tolist(), events.x.tolist(), events.y.tolist(), events.p.tolist(), strict=True)
        listed = [event(x, y, time(t // 1_000_000, t % 1_000_000 * 1000 + 999), bool(p)) for t, x, y, p in rows]
        return types[kind](header, *size_hw, listed)
    if encoding == "mono":
        words = (events.t - base_us).astype("<u8") * 1000 | events.x.astype("<u8") << 32
        words |= events.y.astype("<u8") << 48 | events.p.astype("<u8") << 63
    else:
        encoder, code = WORDS[encoding]
        words = np.array(encoder(events), code)
    return types[kind](header, *size_hw, number, base_us * 1000, encoding, False, words.view(np.uint8))


def write_bag(
    path: Path,
    topics: dict[str, Iterable[tuple[int, Any]]],
    store: Typestore,
    container: str,
    compress: Callable[[object], None] | None = None,
) -> Path:
    """Write (log time in ns, message) by topic; a ROS 2 bag is a folder, of which the file of messages is returned."""
    if container == "ros1":
        writer: rosbag1.Writer | rosbag2.Writer = rosbag1.Writer(path)
        serialize = store.serialize_ros1
    else:
        plugin = StoragePlugin.MCAP if container == "mcap" else StoragePlugin.SQLITE3
        writer, serialize = rosbag2.Writer(path, version=9, storage_plugin=plugin), store.serialize_cdr
    if compress:
        compress(writer)
    with writer:
        for topic, messages in topics.items():
            connection = None
            for log_ns, message in messages:
                kind = message.__msgtype__
                connection = connection or writer.add_connection(topic, kind, typestore=store)
                writer.write(connection, log_ns, serialize(message, kind))
    return path if container == "ros1" else path / f"{path.name}.{container}"


def write_events(
    path: Path,
    events: Events,
    container: str = "mcap",
    kind: str = EVENT_PACKET,
    encoding: str = "evt3",
    per_message: int = 1000,
    size_hw: tuple[int, int] = (HEIGHT, WIDTH),
) -> Path:
    """Write events in messages of `per_message`, of which two in a row have the same log time."""
    store = typestore_of(container)
    messages = []
    for number, start in enumerate(range(0, len(events), per_message)):
        part = slice(start, start + per_message)
        part_events = Events(events.t[part], events.x[part], events.y[part], events.p[part])
        log_ns = 1_700_000_000_000_000_000 + number // 2 * 1_000_000
        messages.append((log_ns, message_of(store, kind, part_events, encoding, size_hw)))
    others = store.types["std_msgs/msg/Header"]
    noise = [(1_700_000_000_000_000_000, header_of(store, 5))] if others else []
    return write_bag(path, {"/camera/events": messages, "/other": noise}, store, container)
