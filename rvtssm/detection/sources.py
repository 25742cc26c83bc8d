"""Inputs of a prediction: event files, folders, DSEC sequences with images, pipes, sockets and cameras."""

import signal
import socket
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import cv2
import numpy as np

from rvtssm.datasets.tree import find_event_files
from rvtssm.detection.event_camera import CAMERA, Camera, open_camera
from rvtssm.detection.replay import Replay
from rvtssm.readers import ReadFaults, Recording, open_recording
from rvtssm.readers.bags import is_bag, split_topic
from rvtssm.readers.event_checks import check_events
from rvtssm.readers.header import UnknownSensorSize
from rvtssm.readers.piped import PipedRecording
from rvtssm.readers.recording import warn_of_density
from rvtssm.readers.remote import is_url, local_path
from rvtssm.readers.usual_sensors import usual_sensor
from rvtssm.records import EVENT_SUFFIXES, Events
from rvtssm.system.file_errors import did_you_mean
from rvtssm.system.user_error import UserError

STDIN, SOCKET = "-", "tcp://"
DSEC_EVENTS = "events/left/events.h5"
DSEC_TRACKS = "object_detections/left/tracks.npy"
_DSEC_TIMES = "images/timestamps.txt"
_DSEC_IMAGES = "images/left/distorted"  # in the view of the event camera, unlike the rectified images
_CONNECT_S = 10.0
_ENOUGH_EVENTS = 1000  # fewer say little about the unit of their times
_FEWEST_PER_PIXEL = 0.005  # events per second, on average over the sensor; noise alone gives more


class Interruption:
    """Use this with `ended_by_signals` for work that looks at `is_ended` from time to time, and stops where it can."""

    is_ended = False

    def end(self) -> None:
        self.is_ended = True


Ends = TypeVar("Ends", bound=PipedRecording | Camera | Replay | Interruption)


class Images:
    """Images of a frame camera, in the view of the event camera.

    Args:
        times_us: (N,) int64, times of the images.
        paths: The N files; empty if there are only times.
    """

    def __init__(self, times_us: np.ndarray, paths: list[Path]) -> None:
        self.times_us = times_us  # (N,) int64
        self._paths = paths
        self._shown: tuple[int, np.ndarray] | None = None

    def at(self, t_us: int) -> np.ndarray | None:
        """Return the latest image at or before a time, (h, w, 3) uint8 RGB; None if there is none."""
        i = int(np.searchsorted(self.times_us, t_us, side="right")) - 1
        if i < 0 or not self._paths:
            return None
        if self._shown is None or self._shown[0] != i:
            picture = cv2.imread(str(self._paths[i]), cv2.IMREAD_COLOR)
            if picture is None:
                raise UserError(f"{self._paths[i]} cannot be read as a picture; copy it again, or set overlay=false")
            self._shown = i, picture[..., ::-1]
        return self._shown[1]


@dataclass(frozen=True)
class EventsInMemory:
    """Events that do not come from a file, with the size of their sensor in pixels."""

    events: Events
    height: int
    width: int
    format = "memory"
    faults = ReadFaults()

    def __post_init__(self) -> None:
        if not len(self.events):
            raise UserError("there are no events to predict on; give at least one")
        check_events(self.events, self.height, self.width)
        warn_of_density("the array", len(self.events), self.time_range_us, self.height, self.width)
        first_us, last_us = self.time_range_us
        per_second = 1e6 * len(self.events) / max(last_us - first_us, 1)
        # some hundred times, spread over the array, tell whether all are multiples of 1000
        is_sparse = per_second < _FEWEST_PER_PIXEL * self.height * self.width
        if len(self.events) >= _ENOUGH_EVENTS and (
            is_sparse or not (self.events.t[:: len(self.events) // 500 or 1] % 1000).any()
        ):
            odd = "fewer than sensors give" if is_sparse else "and all times are multiples of 1000"
            warnings.warn(
                f"the array has {len(self.events)} events in {(last_us - first_us) / 1e6:.0f} s, {odd}; if the times "
                "are nanoseconds, divide them by 1000: t // 1000",
                stacklevel=2,
            )

    def iterate(self) -> Iterator[Events]:
        yield self.events

    def between(self, start_us: int, end_us: int) -> Events:
        return self.events.between(start_us, end_us)

    @property
    def time_range_us(self) -> tuple[int, int]:
        return int(self.events.t[0]), int(self.events.t[-1])


@dataclass(frozen=True)
class Source:
    """An opened recording and its images. A pipe, socket or camera is read once, and its end is unknown in advance."""

    name: str
    recording: Recording | PipedRecording | Camera | EventsInMemory
    images: Images | None = None
    assumed_sensor: str = ""  # name of the common sensor whose size is assumed, if the recording does not give one

    @property
    def guess(self) -> str:
        """A sentence on how the sensor size was chosen; empty if the recording gives it."""
        if not self.assumed_sensor:
            return ""
        return (
            f"{self.name} does not say the size of its sensor; assuming {self.recording.width} x "
            f"{self.recording.height} ({self.assumed_sensor}), the smallest common sensor that contains its events; "
            "set height= and width= to choose another"
        )

    @property
    def is_piped(self) -> bool:
        return isinstance(self.recording, PipedRecording | Camera)

    def blocks(self) -> Iterator[Events]:
        """Yield the events in blocks. Each block may overwrite the arrays of the previous one."""
        recording = self.recording
        return (
            recording.iterate(reuse=True) if isinstance(recording, Recording | PipedRecording) else recording.iterate()
        )

    @property
    def time_range_us(self) -> tuple[int, int]:
        """The times of the first and the last event. Not available for piped sources."""
        assert isinstance(self.recording, Recording | EventsInMemory)
        return self.recording.time_range_us

    def between(self, start_us: int, end_us: int) -> Events:
        """Return the events with start_us <= t < end_us, even after closing the source. Not for piped sources."""
        assert isinstance(self.recording, Recording | EventsInMemory)
        events = self.recording.between(start_us, end_us)
        if isinstance(self.recording, Recording):
            self.recording.close()
        return events

    @property
    def broke_off(self) -> str:
        """Why a piped source ended early; empty if it did not."""
        return self.recording.broke_off if isinstance(self.recording, PipedRecording | Camera) else ""


def find_sources(where: str) -> dict[str, str]:
    """Return the inputs that `where` names: the input itself, or all recordings and DSEC sequences in a folder.

    A folder that is a ROS 2 bag is one recording.

    Args:
        where: A file, folder, URL, `-` (standard input), tcp://HOST:PORT or camera:.

    Returns:
        Paths or addresses by name.

    Raises:
        UserError: The file does not exist, or the folder holds no recording.
    """
    where = str(local_path(where)) if is_url(where) and not _is_stream(where) else where
    path = Path(where)
    if not _is_stream(where) and not (file := split_topic(where)[0]).exists():
        raise UserError(f"{file} does not exist{did_you_mean(file) or '; give an event recording or a folder of them'}")
    if _is_stream(where) or not path.is_dir():
        return {_short_name(where): where}
    if (path / DSEC_EVENTS).is_file() or is_bag(path):
        return {path.resolve().name: where}
    sequences = sorted(found.parents[2] for found in path.glob(f"*/{DSEC_EVENTS}"))
    bags = sorted(folder for folder in path.iterdir() if is_bag(folder))
    found = {folder.name: str(folder) for folder in (*sequences, *bags)}
    found.update({file.name: str(file) for file in find_event_files(path)})
    if not found:
        suffixes = ", ".join(suffix for suffix in EVENT_SUFFIXES if suffix.startswith("."))
        raise UserError(
            f"{where} holds no recording ({suffixes}) and no DSEC sequence ({DSEC_EVENTS}); name a file or its folder"
        )
    return found


@contextmanager
def opened_source(
    where: str,
    height: int | None = None,
    width: int | None = None,
    camera_settings: str | None = None,
    unsaid_hw: tuple[int, int] | None = None,
    repair: bool = False,
) -> Iterator[Source]:
    """Open an input that `find_sources` returned.

    Args:
        where: The path or address.
        height: Height of the sensor in pixels, if the events do not give it.
        width: Width of the sensor in pixels, if the events do not give it.
        camera_settings: YAML file with settings of the camera, see `event_camera.read_camera_settings`.
        unsaid_hw: Height and width for a file that does not give its size, if the caller does not either. None uses the
            smallest common sensor that contains all its events; `Source.guess` then says so.
        repair: Read files even if many events are out of order, see `open_recording`.
    """
    if where == STDIN:
        if sys.stdin is None:
            raise UserError("recording=-: standard input is closed; pipe events into it, or name a file")
        with ended_by_signals(PipedRecording(sys.stdin.buffer, "standard input", height, width)) as piped:
            yield Source("standard input", piped)
    elif where.startswith(CAMERA):
        with open_camera(where.removeprefix(CAMERA), camera_settings) as camera, ended_by_signals(camera):
            yield Source(camera.name, camera)
    elif where.startswith(SOCKET):
        with connected_to(where) as connection, connection.makefile("rb") as stream:
            try:
                with ended_by_signals(PipedRecording(stream, where, height, width)) as piped:  # type: ignore[arg-type]
                    yield Source(where, piped)
            except ConnectionError as error:
                raise UserError(f"{where} broke off ({error.strerror}); start the sender again") from None
    else:
        path = local_path(where)
        is_sequence = (path / DSEC_EVENTS).is_file()
        recording, assumed = _open_sized(path / DSEC_EVENTS if is_sequence else path, height, width, unsaid_hw)
        recording.repair = repair
        try:
            yield Source(where, recording, _dsec_images(path) if is_sequence else None, assumed)
        finally:
            recording.close()


def first_events(
    path: str,
    seconds: float,
    usual_hw: tuple[int, int],
    height: int | None = None,
    width: int | None = None,
    repair: bool = False,
) -> tuple[Events, tuple[int, int], str]:
    """Return the events of the first seconds of a recording.

    Args:
        path: The recording.
        seconds: How many seconds to read.
        usual_hw: Height and width for a file that does not give its size, if the caller does not either.
        height: Height of the sensor in pixels, if the file does not give it.
        width: Width of the sensor in pixels, if the file does not give it.
        repair: Read the file even if many events are out of order, see `open_recording`.

    Returns:
        The events, height and width of the sensor in pixels, and the name of the recording.

    Raises:
        UserError: `path` is a stream.
    """
    if _is_stream(path):
        raise UserError(f"{path} is a stream, but a recording is needed; name a file or a folder")
    unsaid_hw = height or usual_hw[0], width or usual_hw[1]
    with opened_source(path, height, width, unsaid_hw=unsaid_hw, repair=repair) as opened:
        recording = opened.recording
        assert isinstance(recording, Recording)
        first_us, _ = recording.time_range_us
        events = recording.between(first_us, first_us + round(1e6 * seconds))
        return events, (recording.height, recording.width), opened.name


@contextmanager
def ended_by_signals(piped: Ends) -> Iterator[Ends]:
    """Let the first Ctrl-C or SIGTERM call `end` at any moment. A second one has its usual effect."""
    usual = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    usual = {n: does for n, does in usual.items() if does in (signal.default_int_handler, signal.SIG_DFL)}
    if threading.current_thread() is not threading.main_thread():
        usual = {}

    def restore() -> None:
        for number, does in usual.items():
            signal.signal(number, does)

    def end(number: int, frame: object) -> None:
        restore()
        piped.end()

    for number in usual:
        signal.signal(number, end)
    try:
        yield piped
    finally:
        restore()


def _is_stream(where: str) -> bool:
    return where == STDIN or where.startswith((SOCKET, CAMERA))


def _short_name(where: str) -> str:
    if where == STDIN:
        return "stdin"
    if where.startswith(CAMERA):
        return where.removesuffix(":").replace(":", "_")
    if where.startswith(SOCKET):
        return where.removeprefix(SOCKET).replace(":", "_")
    path, topic = split_topic(where)
    return path.stem if topic is None else path.stem + topic.replace("/", "_")  # each topic of a bag has its own folder


def connected_to(where: str) -> socket.socket:
    """Return a connection to tcp://HOST:PORT; raise UserError if there is none."""
    host, _, port = where.removeprefix(SOCKET).rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise UserError(f"{where} is not of the form {SOCKET}HOST:PORT; name the sender of the events")
    try:
        connection = socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S)
    except OSError as error:
        raise UserError(f"{where} cannot be reached ({error}); start the sender first, it must listen there") from None
    connection.settimeout(None)
    return connection


def _open_sized(
    path: Path, height: int | None, width: int | None, unsaid_hw: tuple[int, int] | None
) -> tuple[Recording, str]:
    """Return a recording as `opened_source` opens it, and the name of the sensor that is assumed, or nothing."""
    try:
        return open_recording(path, height, width), ""
    except UnknownSensorSize:
        if unsaid_hw is not None:
            return open_recording(path, *unsaid_hw), ""
        if height is not None or width is not None or (usual := usual_sensor(path)) is None:
            raise
    name, (height, width) = usual
    return open_recording(path, height, width), name


def _dsec_images(sequence: Path) -> Images | None:
    """Return the images with their times. Without images in the view of the events, only times; without times, None."""
    times_path = sequence / _DSEC_TIMES
    if not times_path.is_file():
        return None
    try:
        times_us = np.array(times_path.read_text().split(), np.int64)
    except (ValueError, OverflowError) as error:
        raise UserError(f"{times_path} is not one time in microseconds per line ({error}); copy it again") from None
    if np.any(np.diff(times_us) <= 0):
        raise UserError(f"{times_path} has times that do not increase; copy it again")
    paths = sorted((sequence / _DSEC_IMAGES).glob("*.png"))
    if paths and len(paths) != len(times_us):
        raise UserError(
            f"{sequence / _DSEC_IMAGES} holds {len(paths)} images, {times_path} {len(times_us)} times; copy both again"
        )
    return Images(times_us, paths)
