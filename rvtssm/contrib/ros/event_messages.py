"""ROS messages that hold events: their layout in ROS 1 and ROS 2, and the encodings of their events.

`dvs_msgs/EventArray` and `prophesee_event_msgs/EventArray` list events one by one. `event_camera_msgs/EventPacket`
(formerly `event_array_msgs/EventArray`) carries bytes: the words of a Prophesee camera, or `mono`, 64 bits per event.
The library `rosbags` could decode lists of events too, but it makes one object per event and is 200 to 400 times
slower. Sources: the definitions of these messages; OMG DDSI-RTPS 2.3, chapter 10 (CDR); event_camera_codecs (mono).
"""

import struct
from dataclasses import dataclass

import numpy as np

from rvtssm.events.windows import LATE_US
from rvtssm.readers.byte_recording import RawRecording
from rvtssm.readers.event_checks import LiveGate
from rvtssm.readers.evt2 import Evt2Recording, Evt21Recording
from rvtssm.readers.evt3 import Evt3Recording
from rvtssm.readers.faults import ReadFaults
from rvtssm.readers.gate import (
    BACKWARD,
    LATEST_POSSIBLE_US,
    LATEST_US,
    NEVER_US,
    NUM_COMMON,
    POSITION,
    Column,
    EventBuffer,
    State,
    first_state,
)
from rvtssm.readers.recording import Bytes, copy_events, join_events
from rvtssm.records import Events
from rvtssm.system.user_error import UserError

ARRAYS = ("dvs_msgs/msg/EventArray", "prophesee_event_msgs/msg/EventArray")
PACKETS = ("event_camera_msgs/msg/EventPacket", "event_array_msgs/msg/EventArray")
# by the names of the encodings
WORDS: dict[str, type[RawRecording]] = {"evt2": Evt2Recording, "evt21": Evt21Recording, "evt3": Evt3Recording}
_MONO = "mono"
_PLAIN_CDR = b"\0\1"  # little-endian, without parameter lists
_MOST_PADDING = 7  # bytes after the last event
_MIN_WORDS = 1 << 14  # the fewest words decoded at once, because sparse recordings have several words per event
_LIVE_EVENTS = 1 << 16  # events of a live message that are decoded at once
_WORD_SLOTS = 7  # the most that a decoder of words needs
DONE = NUM_COMMON + _WORD_SLOTS  # slot of the state: how many words or events of a message have been read
_PACKED = np.dtype([("x", "<u2"), ("y", "<u2"), ("s", "<u4"), ("ns", "<u4"), ("p", "u1")])  # an event in ROS 1
# An event in ROS 2, where every number is aligned to its size.
_ALIGNED = np.dtype([("x", "<u2"), ("y", "<u2"), ("_", "V2"), ("s", "<u4"), ("ns", "<u4"), ("p", "u1"), ("end", "V1")])
_AGAIN = "copy the file again"


class MessageError(UserError):
    """A message cannot be read. The caller adds the file and the topic."""


@dataclass(frozen=True, slots=True)
class EventMessage:
    """One message: the size of the sensor in pixels, and the events either as columns or as words of a camera."""

    height: int
    width: int
    encoding: str  # a key of WORDS; otherwise the events are `columns`
    words: Bytes
    columns: tuple[Column, Column, Column, Column]  # t (us), x, y, p
    frame_id: str  # coordinate frame of the camera
    stamp_us: int = 0  # time of the message on the clock of ROS
    base_us: int | None = None  # `stamp_us` on the clock of the sensor; None: that of the first event
    number: int | None = None  # counts the messages of the camera; None: this type of messages has none

    def __len__(self) -> int:
        """Return the number of words, or of events if there are no words."""
        if self.encoding in WORDS:
            return len(self.words) // WORDS[self.encoding].unit_bytes
        return len(self.columns[0])

    @property
    def smallest_block(self) -> int:
        """The least room for events that decoding needs."""
        return WORDS.get(self.encoding, RawRecording).smallest_block

    @property
    def decoder_state(self) -> tuple[int, ...]:
        """The initial values of the slots that `decode_words` adds to a decoder state; DONE is the last one."""
        own_state = WORDS.get(self.encoding, RawRecording).own_state
        return (*own_state, *[0] * (_WORD_SLOTS - len(own_state)), 0)


class MessageDecoder:
    """Decodes the messages of one camera as they arrive. To read a bag, use `open_recording`.

    Args:
        kind: Type of the messages, such as "event_camera_msgs/msg/EventPacket"; they are serialised as CDR (ROS 2).

    Raises:
        UserError: Messages of this type hold no events.
    """

    def __init__(self, kind: str) -> None:
        if kind not in (*ARRAYS, *PACKETS):
            raise UserError("setting.choice", name="type", found=kind, needed=(*ARRAYS, *PACKETS))
        self._kind = kind
        # of words, of columns
        self._state = first_state()
        self._gate = LiveGate(kind, 1, 1)
        self._shape: tuple[int, int, str] | None = None  # height, width and encoding of the messages
        self.frame_id = ""  # coordinate frame of the camera, as the last message names it
        self.number: int | None = None  # of the last message, see `EventMessage`
        self.ros_offset_us = 0  # from the clock of the sensor to that of ROS, as the last message with events tells it

    def push(self, data: bytes) -> tuple[Events, tuple[int, int]]:
        """Decode one serialised message.

        Args:
            data: The message.

        Returns:
            The events, repaired as in a recording, and height and width of the sensor.

        Raises:
            MessageError: The message cannot be read, the clock has jumped back, or the size or the encoding has
                changed. A new stream begins with the next message if the clock, the size or the encoding was the
                reason.
        """
        message = read_message(self._kind, data, is_cdr=True)
        self.frame_id = message.frame_id
        self.number = message.number
        size_hw = (message.height, message.width)
        shape = (message.height, message.width, message.encoding)
        if self._shape is None:
            self._shape = shape
            self._gate = LiveGate(self._kind, *size_hw)
            self._state = first_state(*message.decoder_state)
        if shape != self._shape:
            former = self._shape
            self._shape = None
            found = f"its height, width and encoding are {shape}, but were {former}"
            raise MessageError("file.ambiguous", found=found, advice="begin a new stream")
        if message.encoding in WORDS:
            events = self._of_words(message)
        elif self._gate.begins_new_clock(message.columns):
            raise self._jumped_back(self._gate.latest_us, message.columns[0][0])
        else:
            events = self._gate.push(message.columns)
        if len(events) and self._kind in PACKETS:  # the events of ARRAYS have times of ROS
            base_us = message.base_us
            if base_us is None:
                base_us = int(events.t[0])
            self.ros_offset_us = message.stamp_us - base_us
        return events, size_hw

    @property
    def faults(self) -> ReadFaults:
        """What was moved or left out of the stream so far."""
        if self._shape and self._shape[2] in WORDS:
            return ReadFaults.of(self._state)
        return self._gate.faults

    def _of_words(self, message: EventMessage) -> Events:
        """Return the events of a message of words, whose times are only known once they are decoded."""
        state = self._state
        before_us = int(self._state[LATEST_US])
        state[DONE], state[LATEST_US] = 0, NEVER_US  # so that a jump of the clock shows
        parts = []
        buffer = EventBuffer(_LIVE_EVENTS)
        size_hw = (message.height, message.width)
        while state[DONE] < len(message):
            count = decode_words(message, state, size_hw, buffer)
            parts.append(copy_events(buffer.events(count)))
        events = join_events(parts)
        if len(events) and events.t[0] < before_us - LATE_US:
            raise self._jumped_back(before_us, int(events.t[0]))
        state[BACKWARD] += np.count_nonzero(events.t < before_us)
        np.maximum(events.t, before_us, out=events.t)
        state[LATEST_US] = max(before_us, int(state[LATEST_US]))
        return events

    def _jumped_back(self, before_us: int, now_us: int) -> MessageError:
        """Forget the stream, and return the error that says why."""
        self._shape = None
        found = f"its clock has jumped back from {before_us} to {now_us} us"
        return MessageError("stream.order", found=found, advice="begin a new stream")


def read_message(kind: str, data: bytes, is_cdr: bool) -> EventMessage:
    """Parse a message without decoding its events.

    Args:
        kind: A type in ARRAYS or PACKETS.
        data: The serialised message.
        is_cdr: Whether it is CDR (ROS 2).

    Raises:
        MessageError: The message is damaged, or its encoding is not supported.
    """
    fields = _Fields(data, is_cdr)
    if not is_cdr:
        fields.number("I")  # sequence number of the message
    stamp_us = 1_000_000 * fields.number("I") + fields.number("I") // 1000
    frame_id = fields.text()
    height, width = fields.number("I"), fields.number("I")
    if kind in ARRAYS:
        return EventMessage(height, width, "", np.empty(0, np.uint8), _array_columns(fields), frame_id)
    number = fields.number("Q")
    base_ns = fields.number("Q")
    given = fields.text()
    is_bigendian = fields.number("B")
    payload = fields.rest(fields.number("I"))
    encoding = given.lower().replace(".", "")
    if encoding not in (*WORDS, _MONO):
        found = f"its events are encoded as {given!r}"
        raise MessageError("file.kind", found=found, advice=f"record {', '.join((*WORDS, _MONO))}")
    if is_bigendian:
        found = "its events were written by a big-endian machine"
        raise MessageError("file.kind", found=found, advice="record little-endian ones")
    unit_bytes = 8
    if encoding in WORDS:
        unit_bytes = WORDS[encoding].unit_bytes
    if len(payload) % unit_bytes:
        found = f"its {len(payload)} bytes are not whole words of {unit_bytes} bytes"
        raise MessageError("file.cut", found=found, advice=_AGAIN)
    if encoding in WORDS:
        return EventMessage(height, width, encoding, payload, _NO_COLUMNS, frame_id, stamp_us, None, number)
    columns = _mono_columns(payload.view("<u8"), base_ns)
    no_words = np.empty(0, np.uint8)
    return EventMessage(height, width, encoding, no_words, columns, frame_id, stamp_us, base_ns // 1000, number)


def decode_words(message: EventMessage, state: State, size_hw: tuple[int, int], buffer: EventBuffer) -> int:
    """Write the next events of a message of words into the buffer.

    Args:
        message: The message.
        state: Decoder state, advanced in place; state[DONE] counts the words of this message that were read.
        size_hw: Height and width of the sensor, pixels.
        buffer: Output.

    Returns:
        The number of events kept.
    """
    done = int(state[DONE])
    words = WORDS[message.encoding]
    position = state[POSITION]
    most = max(_MIN_WORDS, len(buffer.t))
    state[POSITION] = done  # decoders count their words in this slot
    num_units = min(most, len(message) - done)
    rest = message.words[words.unit_bytes * done :]  # those after `num_units` show whether a jump of the clock lasts
    num_kept = words.decode_units(rest, num_units, state, size_hw, buffer)
    state[DONE], state[POSITION] = state[POSITION], position
    return num_kept


_NO_COLUMNS = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.bool_))


def _array_columns(fields: "_Fields") -> tuple[Column, Column, Column, Column]:
    """Return the columns of a list of events {u16 x, u16 y, time {u32 s, u32 ns}, bool p}.

    In CDR, x and y of the first event come two bytes closer to its time than those of all others, since they are
    aligned already, and the last byte of the last event is missing.
    """
    count = fields.number("I")
    if not count:
        fields.rest(0)
        return _NO_COLUMNS
    if fields.is_cdr:
        content = np.pad(fields.rest(_ALIGNED.itemsize * count - 3), (2, 1))
        content[:4] = content[2:6].copy()
        events = content.view(_ALIGNED)
    else:
        events = fields.rest(_PACKED.itemsize * count).view(_PACKED)
    t = events["s"].astype(np.int64) * 1_000_000 + events["ns"] // 1000
    t[events["ns"] >= 1_000_000_000] = LATEST_POSSIBLE_US  # no valid time, so the gate leaves the event out
    return t, events["x"].astype(np.int64), events["y"].astype(np.int64), events["p"].copy()


def _mono_columns(words: Column, base_ns: int) -> tuple[Column, Column, Column, Column]:
    """Return the columns of 64-bit words: nanoseconds after the base in bits 0-31, x in 32-47, y in 48-62, p in 63."""
    if base_ns >= 1 << 63:
        found = f"its events are {base_ns} ns after 1970, which is impossible"
        raise MessageError("file.damaged", found=found, advice=_AGAIN)
    t = (np.uint64(base_ns) + (words & 0xFFFFFFFF)) // 1000
    x, y = (words >> 32) & 0xFFFF, (words >> 48) & 0x7FFF
    return t.astype(np.int64), x.astype(np.int64), y.astype(np.int64), words >> 63 > 0


class _Fields:
    """Reads the fields of a message one after the other. In CDR, a number is aligned to its size."""

    def __init__(self, data: bytes, is_cdr: bool) -> None:
        self.is_cdr = is_cdr
        self._start = self._position = 4 if is_cdr else 0  # CDR begins with four bytes that name its variant
        self._data = data
        if is_cdr and data[:2] != _PLAIN_CDR:
            found = f"it begins with {data[:2].hex()}"
            raise MessageError("file.kind", found=found, advice=f"record plain CDR, {_PLAIN_CDR.hex()}")

    def number(self, code: str) -> int:
        size = struct.calcsize(code)
        if self.is_cdr:
            self._position += -(self._position - self._start) % size
        return int.from_bytes(self._take(size), "little")

    def text(self) -> str:
        return self._take(self.number("I")).decode("utf-8", "replace").rstrip("\0")

    def rest(self, num_bytes: int) -> Bytes:
        """Return an aligned copy of the last `num_bytes` bytes. A few bytes of padding may follow."""
        content = np.frombuffer(self._take(num_bytes), np.uint8).copy()
        if (num_left := len(self._data) - self._position) > _MOST_PADDING:
            raise MessageError("file.damaged", found=f"{num_left} bytes follow its last event", advice=_AGAIN)
        return content

    def _take(self, size: int) -> bytes:
        start = self._position
        self._position += size
        if self._position > len(self._data):
            found = f"it ends at byte {len(self._data)}, before a field that ends at {self._position}"
            raise MessageError("file.cut", found=found, advice=_AGAIN)
        return self._data[start : self._position]
