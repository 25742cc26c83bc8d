"""Recordings of robots: ROS 1 bags, and ROS 2 bags in SQLite and MCAP. One topic of events is read.

The optional library `rosbags` finds the messages, and `event_messages.py` parses them. A bag with
several event topics is opened as `FILE:/TOPIC`. Times are those of the events, not those of the recorder.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from rvtssm.contrib.ros.event_messages import (
    ARRAYS,
    DONE,
    PACKETS,
    WORDS,
    EventMessage,
    decode_words,
    read_message,
)
from rvtssm.readers import Reader
from rvtssm.readers.columns import GatedRecording
from rvtssm.readers.gate import POSITION, Column, EventBuffer, Gate, State
from rvtssm.readers.header import sensor_size
from rvtssm.records import ReadOptions
from rvtssm.system.extras import check_extra
from rvtssm.system.files import file_errors
from rvtssm.system.user_error import UserError, errors_about

ROS1_SIGNATURE = b"#ROSBAG V"
MCAP_SIGNATURE = b"\x89MCAP"
SQLITE_SIGNATURE = b"SQLite format 3\0"
BAG_METADATA = "metadata.yaml"  # in the folder of a ROS 2 bag
_METADATA_KEY = b"rosbag2_bagfile_information"

# Slots of the state after the slots of the messages: the log time of the last message (ns), and how many messages with
# this log time have been read.
_LOG_NS = DONE + 1
_NUM_AT_LOG = DONE + 2


class BagRecording(GatedRecording):
    """The events of one topic of a bag.

    Args:
        path: The bag; for a folder, its metadata file.
        height: Height of the sensor, pixels.
        width: Width of the sensor, pixels.
        bag: The opened bag.
        first: The first message of the topic.
    """

    def __init__(self, path: Path, height: int, width: int, bag: "_Bag", first: EventMessage) -> None:
        super().__init__(Gate(path, height, width), bag.num_messages)
        files = path.parent.iterdir() if path.name == BAG_METADATA else [path]
        self._files = sorted((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files)
        self.format = bag.format
        self.topic = bag.topic
        self._size_in_file = first.height, first.width
        self._encoding = first.encoding
        self.frame_id = first.frame_id
        self._first_stamp_us = None if first.number is None else first.stamp_us
        self._first_base_us = first.base_us
        self.smallest_block = first.smallest_block
        self.own_state = (*first.decoder_state, 0, 0)

    @property
    def stamp_offset_us(self) -> int:  # type: ignore[override]
        """The time of ROS minus that of the sensor, as the first message tells it; 0 if events have times of ROS."""
        if self._first_stamp_us is None:
            return 0
        base_us = self._first_base_us
        if base_us is None:  # the stamp is that of the first event
            base_us = self.time_range_us[0]
        return self._first_stamp_us - base_us

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name of the file, or of the folder of a ROS 2 bag."""
        return (self.path.parent.resolve() if self.path.name == BAG_METADATA else self.path).name

    @property
    def num_bytes(self) -> int:
        """The total size of all files of the bag."""
        return sum(size for _, size, _ in self._files)

    def _open(self) -> Any:
        return _Bag(self.path).choose(self.topic)

    def _decode_part(self, state: State, room: EventBuffer) -> int:
        if self._encoding not in WORDS:
            return super()._decode_part(state, room)
        with self._message(state) as message:
            num_kept = decode_words(message, state, (self.height, self.width), room)
        return num_kept

    def _next_columns(self, state: State, max_events: int) -> tuple[Sequence[Column], str]:
        done = int(state[DONE])
        with self._message(state) as message:
            columns = [column[done : done + max_events] for column in message.columns]
            state[DONE] += len(columns[0])
        return columns, f"in events {done} to {done + len(columns[0])} of a message"

    @contextmanager
    def _message(self, state: State) -> Iterator[EventMessage]:
        """Return the message at a state, whose DONE the block advances. After its last event, go to the next one."""
        place, message = self._file().message_after(int(state[_LOG_NS]), int(state[_NUM_AT_LOG]))
        if (message.height, message.width, message.encoding) != (*self._size_in_file, self._encoding):
            sizes = f"{self._size_in_file[1]}x{self._size_in_file[0]} and {message.width}x{message.height}"
            found = f"it has messages of {self.topic} with {sizes} (width x height) pixels, or in two encodings"
            raise UserError("file.ambiguous", name=self.path, found=found, advice="record them apart")
        yield message
        if state[DONE] >= len(message):
            state[_LOG_NS], state[_NUM_AT_LOG] = place
            state[DONE] = 0
            state[POSITION] += 1


def open_bag(path: Path, options: ReadOptions, topic: str | None = None) -> BagRecording:
    """Open one topic of a bag.

    Args:
        path: The bag; for a folder, its metadata file.
        options: What the caller says about the file.
        topic: The topic to read; needed if several topics hold events.

    Raises:
        UserError: The bag is damaged or has no events, the topic is missing, or the package `rosbags` is not installed.
    """
    check_extra(f"{path} is a bag, which", "bags", "rosbags")
    with closing(_Bag(path)) as bag:
        bag.choose(topic)
        if not bag.num_messages:
            found = f"it has no messages of {bag.topic}"
            raise UserError("events.none", name=path, found=found, advice="remove it or record it again")
        _, first = bag.message_after(0, 0)
        in_file = (first.height, first.width) if first.height or first.width else None
        size_hw = sensor_size(path, in_file, options)
        return BagRecording(path, *size_hw, bag, first)


def bag_topics(path: Path) -> list[str]:
    """Return the topics of a bag that hold events.

    Raises:
        UserError: No topic holds events, the bag is damaged, or the package `rosbags` is not installed.
    """
    check_extra(f"{path} is a bag, which", "bags", "rosbags")
    with closing(_Bag(path / BAG_METADATA if path.is_dir() else path)) as bag:
        return bag.topics()


def _check_size(path: Path) -> None:
    """Raise UserError if a database is shorter than its header says. SQLite would read zeros beyond the end."""
    with open(path, "rb") as file:
        head = file.read(32)
    if not head.startswith(SQLITE_SIGNATURE):
        return
    page_bytes = int.from_bytes(head[16:18], "big")
    num_pages = int.from_bytes(head[28:32], "big")
    announced = (page_bytes if page_bytes > 1 else 1 << 16) * num_pages  # 65536 is written as 1
    if (num_bytes := path.stat().st_size) < announced:
        raise UserError("file.cut", name=path, found=f"it has {num_bytes} of {announced} bytes")


class _Bag:
    """An opened bag. It reads the messages of a topic in the order of their log times, from any message on."""

    def __init__(self, path: Path) -> None:
        from rosbags import rosbag1, rosbag2  # an optional package

        self._path = path.parent if path.name == BAG_METADATA else path  # as it was given, for messages
        with open(path, "rb") as file:
            head = file.read(len(SQLITE_SIGNATURE))
        self.format = "ros1" if head.startswith(ROS1_SIGNATURE) else "ros2"
        self._advice = "copy it again"
        for signature, tool in ((ROS1_SIGNATURE, "rosbag reindex"), (MCAP_SIGNATURE, "mcap recover")):
            if head.startswith(signature):
                self._advice += f", or if its recorder was stopped early, use `{tool}`"
        for database in path.parent.glob("*.db3") if path.name == BAG_METADATA else [path]:
            _check_size(database)
        with self._errors():
            if self.format == "ros1":
                self._reader: Any = rosbag1.Reader(path)
            elif head.startswith((MCAP_SIGNATURE, SQLITE_SIGNATURE)):
                kind = ".mcap" if head.startswith(MCAP_SIGNATURE) else ".db3"  # no matter how the file is named
                self._reader = rosbag2.Reader.STORAGE_PLUGINS[kind](path)
            else:
                self._reader = rosbag2.Reader(path.parent)
            self._reader.open()
        self._messages: Iterator[Any] = iter(())
        self._place = self._next_place = (-1, -1)
        self._message: EventMessage | None = None

    def choose(self, asked: str | None) -> "_Bag":
        """Read this topic from now on; None chooses the only topic with events. Raise UserError if that is unclear."""
        topics = self.topics()
        if asked is not None and asked not in topics:
            raise UserError("file.content", name=self._path, found=f"it has no events on {asked}", needed=topics)
        # A bag of two cameras needs a choice.
        if asked is None and len(topics) > 1:
            found = f"it has the event topics {', '.join(topics)}"
            advice = f"name one, as in {self._path}:{topics[0]}"
            raise UserError("file.ambiguous", name=self._path, found=found, advice=advice)
        self.topic = asked or topics[0]
        self._connections = [connection for connection in self._reader.connections if connection.topic == self.topic]
        self.num_messages = sum(connection.msgcount for connection in self._connections)
        return self

    def _errors(self) -> Any:
        return file_errors(self._path, " cannot be read as a bag", self._advice, errors=(Exception,))

    def topics(self) -> list[str]:
        """Return the topics that hold events. Raise UserError if there are none."""
        kinds: dict[str, str] = {connection.topic: connection.msgtype for connection in self._reader.connections}
        topics = sorted(name for name, kind in kinds.items() if kind in (*ARRAYS, *PACKETS))
        if not topics:
            others = ", ".join(sorted(set(kinds.values()))[:8]) or "no messages at all"
            types = ", ".join(kind.replace("/msg", "") for kind in (*ARRAYS, *PACKETS))
            found = f"it has no topic with events, only {others}"
            needed = f"events are messages of the types {types}"
            raise UserError("events.none", name=self._path, found=found, needed=needed)
        return topics

    def message_after(self, log_ns: int, num_at_log: int) -> tuple[tuple[int, int], EventMessage]:
        """Return the content of the message after a place, and the place after it.

        Args:
            log_ns: Log time of a message.
            num_at_log: Number of messages with this log time that come before the place.
        """
        place = (log_ns, num_at_log)
        if self._message is None or place != self._place:
            self._message = None
            with self._errors():
                if place != self._next_place:
                    self._messages = self._reader.messages(self._connections, start=log_ns)
                    for _ in range(num_at_log):
                        next(self._messages, None)
                self._next_place = (-1, -1)  # in case the next message cannot be read
                message = next(self._messages, None)
                if message is None:
                    found = f"it claims {self.num_messages} messages of {self.topic} but holds fewer"
                    raise UserError("file.cut", name=self._path, found=found)
                connection, at_ns, data = message
                # A cell of a database can hold a value of any type, no matter what its column declares.
                if not (isinstance(at_ns, int) and isinstance(data, bytes | memoryview)):
                    types = f"{type(at_ns).__name__}, {type(data).__name__}"
                    found = f"the time or the content of a message of {self.topic} is of another type ({types})"
                    raise UserError("file.damaged", name=self._path, found=found, advice="record it again")
                with errors_about(f"{self._path}, message of {self.topic} at {at_ns} ns"):
                    self._message = read_message(connection.msgtype, bytes(data), is_cdr=self.format == "ros2")
            self._place = place
            self._next_place = (at_ns, num_at_log + 1 if at_ns == log_ns else 1)
        return self._next_place, self._message

    def close(self) -> None:
        self._messages = iter(())  # a database with a query that has not ended cannot be closed
        self._reader.close()


ROS1 = Reader(open_bag, (".bag",), (ROS1_SIGNATURE,), parts=bag_topics)
ROS2 = Reader(
    open_bag, (".mcap", ".db3"), (MCAP_SIGNATURE, SQLITE_SIGNATURE), (BAG_METADATA, _METADATA_KEY), bag_topics
)
