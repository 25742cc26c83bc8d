"""Inputs of a prediction: event files, folders, DSEC sequences with images, pipes, sockets and cameras."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rvtssm.datasets.custom import options_above
from rvtssm.datasets.tree import find_event_files
from rvtssm.detection.event_camera import CAMERA, open_camera
from rvtssm.detection.packets import SOCKET, connected_to, piped_events
from rvtssm.drawing.pictures import Images, dsec_images
from rvtssm.readers import ReadFaults, Recording, event_suffixes, index_of, open_with, split_part, usual_sensor
from rvtssm.readers.event_checks import gated
from rvtssm.readers.faults import are_multiples, warn_of_unit
from rvtssm.readers.gate import Gate
from rvtssm.readers.header import UnknownSensorSize
from rvtssm.readers.source import EventSource
from rvtssm.records import Events, ReadOptions
from rvtssm.system.files import did_you_mean
from rvtssm.system.remote import is_url, local_path
from rvtssm.system.user_error import UserError

STDIN = "-"
DSEC_EVENTS = "events/left/events.h5"


class Interruption:
    """Use this with `ended_by_signals` for work that looks at `is_ended` from time to time, and stops where it can."""

    is_ended = False

    def end(self) -> None:
        self.is_ended = True


class EventsInMemory(EventSource):
    """Events that do not come from a file.

    Args:
        events: The events.
        height: Height of the sensor, pixels.
        width: Width of the sensor, pixels.
        repair: Take them even if many are out of order or outside the sensor.

    Raises:
        UserError: No event can be used.
    """

    name = "events in memory"
    format = "memory"
    is_live = False
    faults = ReadFaults()

    def __init__(self, events: Events, height: int, width: int, repair: bool = False) -> None:
        if not len(events):
            raise UserError("events.none", found="there are no events to predict on", advice="give at least one")
        gate = Gate(Path("the array"), height, width)
        self.height, self.width = height, width
        self.events, self.faults = gated((events.t, events.x, events.y, events.p), gate, repair)
        if not len(self.events):
            found = f"all events lie outside {width}x{height} (width x height) pixels"
            raise UserError("events.outside_frame", found=found)
        warn_of_unit("the array", len(self.events), self.time_range_us, (height, width), are_multiples(self.events.t))

    def blocks(self) -> Iterator[Events]:
        yield self.events

    def between(self, start_us: int, end_us: int) -> Events:
        return self.events.between(start_us, end_us)

    @property
    def time_range_us(self) -> tuple[int, int]:
        return int(self.events.t[0]), int(self.events.t[-1])


@dataclass(frozen=True)
class OpenedSource:
    """An opened source with what belongs to it."""

    name: str  # the path or address that was opened
    events: EventSource
    images: Images | None = None
    assumed_sensor: str = ""  # name of the common sensor whose size is assumed, if the source does not give one


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
    # A file of the network is copied here first.
    if is_url(where) and not _is_stream(where):
        where = str(local_path(where))
    path = Path(where)
    if not _is_stream(where) and not (file := split_part(where)[0]).exists():
        advice = "give an event recording or a folder of them"
        raise UserError("file.missing", name=file, found=f"it does not exist{did_you_mean(file)}", advice=advice)
    if _is_stream(where) or not path.is_dir():
        return {_short_name(where): where}
    # A DSEC sequence and a bag are folders, but one recording each.
    if (path / DSEC_EVENTS).is_file() or index_of(path) is not None:
        return {path.resolve().name: where}
    sequences = sorted(events.parents[2] for events in path.glob(f"*/{DSEC_EVENTS}"))
    bags = sorted(folder for folder in path.iterdir() if index_of(folder) is not None)
    by_name = {source.name: str(source) for source in (*sequences, *bags, *find_event_files(path))}
    if not by_name:
        suffixes = ", ".join(suffix for suffix in event_suffixes() if suffix.startswith("."))
        found = f"it holds no recording ({suffixes}) and no DSEC sequence ({DSEC_EVENTS})"
        raise UserError("events.none", name=where, found=found, advice="name a file or its folder")
    return by_name


@contextmanager
def opened_source(
    where: str,
    options: ReadOptions | None = None,
    camera_settings: str | None = None,
    unsaid_hw: tuple[int, int] | None = None,
) -> Iterator[OpenedSource]:
    """Open an input that `find_sources` returned.

    Args:
        where: The path or address.
        options: What the caller says about the events. A `dataset.yaml` above a recording says the rest.
        camera_settings: YAML file with settings of the camera, see `event_camera.read_camera_settings`.
        unsaid_hw: Height and width for a file that does not give its size, if the caller does not either. None uses the
            smallest common sensor that contains all its events; `OpenedSource.assumed_sensor` then names it.
    """
    options = options or ReadOptions()
    if where == STDIN:
        if sys.stdin is None:
            advice = "pipe events into it, or name a file"
            raise UserError("source.not_opened", name="recording=-", found="standard input is closed", advice=advice)
        raw = getattr(sys.stdin.buffer, "raw", None)  # a thread may read it, which must not hold a lock at the end
        read = getattr(sys.stdin.buffer, "read1") if raw is None else raw.read  # noqa: B009
        # The first bytes say in which format the events come.
        piped = piped_events(read, "standard input", options)
        with ended_by_signals(piped.end):
            yield OpenedSource("standard input", piped)
    elif where.startswith(CAMERA):
        with open_camera(where.removeprefix(CAMERA), camera_settings) as camera, ended_by_signals(camera.end):
            yield OpenedSource(camera.name, camera)
    elif where.startswith(SOCKET):
        with connected_to(where) as connection:
            try:
                piped = piped_events(connection.recv, where, options)
                with ended_by_signals(piped.end):
                    yield OpenedSource(where, piped)
            except ConnectionError as error:
                found = f"{where} broke off ({error.strerror})"
                raise UserError("source.broke_off", found=found, advice="start the sender again") from None
    else:
        path = local_path(where)
        images = None
        if (path / DSEC_EVENTS).is_file():
            path, images = path / DSEC_EVENTS, dsec_images(path)
        # What nobody says of the recording, a `dataset.yaml` above it may say.
        recording, assumed = _open_sized(path, options_above(path, options), unsaid_hw)
        try:
            yield OpenedSource(where, recording, images, assumed)
        finally:
            recording.close()


def first_events(
    path: str,
    seconds: float,
    usual_hw: tuple[int, int],
    options: ReadOptions | None = None,
) -> tuple[Events, tuple[int, int], str]:
    """Return the events of the first seconds of a recording.

    Args:
        path: The recording.
        seconds: How many seconds to read.
        usual_hw: Height and width for a file that does not give its size, if the caller does not either.
        options: What the caller says about the recording.

    Returns:
        The events, height and width of the sensor in pixels, and the name of the recording.

    Raises:
        UserError: `path` is a stream.
    """
    if _is_stream(path):
        found = "it is a stream, but a recording is needed"
        raise UserError("source.kind", name=path, found=found, advice="name a file or a folder")
    options = options or ReadOptions()
    unsaid_hw = options.height or usual_hw[0], options.width or usual_hw[1]
    with opened_source(path, options, unsaid_hw=unsaid_hw) as opened:
        recording = opened.events
        assert isinstance(recording, Recording)
        first_us, _ = recording.time_range_us
        events = recording.between(first_us, first_us + round(1e6 * seconds))
        return events, (recording.height, recording.width), opened.name


@contextmanager
def ended_by_signals(end: Callable[[], object]) -> Iterator[None]:
    """Let the first Ctrl-C, SIGTERM or SIGHUP call `end` at any moment. A second one has its usual effect."""
    usual = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        does = signal.getsignal(number)
        if does in (signal.default_int_handler, signal.SIG_DFL):
            usual[number] = does
    # Only the main thread may handle signals.
    if threading.current_thread() is not threading.main_thread():
        usual = {}

    def restore() -> None:
        for number, does in usual.items():
            signal.signal(number, does)

    def handle(number: int, frame: object) -> None:
        restore()
        end()

    for number in usual:
        signal.signal(number, handle)
    try:
        yield
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
    path, topic = split_part(where)
    return path.stem + (topic or "").replace("/", "_")  # each topic of a bag has its own folder


def _open_sized(path: Path, options: ReadOptions, unsaid_hw: tuple[int, int] | None) -> tuple[Recording, str]:
    """Return a recording as `opened_source` opens it, and the name of the sensor that is assumed, or nothing."""
    try:
        return open_with(path, options), ""
    except UnknownSensorSize:
        if unsaid_hw is not None:
            return open_with(path, _sized(options, unsaid_hw)), ""
        is_sized = options.height is not None or options.width is not None
        if is_sized or (usual := usual_sensor(path, options)) is None:
            raise
    name, size_hw = usual
    return open_with(path, _sized(options, size_hw)), name


def _sized(options: ReadOptions, size_hw: tuple[int, int]) -> ReadOptions:
    return replace(options, height=size_hw[0], width=size_hw[1])
