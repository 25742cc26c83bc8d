"""Inputs of a prediction: event files, folders, DSEC sequences with images, pipes, sockets and cameras."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

from rvtssm.datasets.tree import find_event_files, options_above
from rvtssm.detection.event_camera import CAMERA, Arrival, open_camera
from rvtssm.detection.packets import SOCKET, connected_to, piped_events
from rvtssm.drawing.pictures import Images, dsec_images
from rvtssm.readers import ReadFaults, Recording, open_with, usual_sensor
from rvtssm.readers.event_checks import gated
from rvtssm.readers.faults import are_multiples, warn_of_unit
from rvtssm.readers.filters import FilterChain, Filters
from rvtssm.readers.gate import Gate
from rvtssm.readers.header import UnknownSensorSize
from rvtssm.readers.table import event_suffixes, index_of, split_part
from rvtssm.records import Events, ReadOptions
from rvtssm.system.files import did_you_mean
from rvtssm.system.remote import is_url, local_path
from rvtssm.system.user_error import UserError

STDIN = "-"
DSEC_EVENTS = "events/left/events.h5"


class EventSource(Protocol):
    """Events in order of time: a file, an array, a pipe, a camera."""

    @property
    def name(self) -> str:
        """The name in messages."""

    @property
    def height(self) -> int:
        """Height of the sensor, pixels."""

    @property
    def width(self) -> int:
        """Width of the sensor, pixels."""

    @property
    def time_range_us(self) -> tuple[int, int] | None:
        """Times of the first and the last event; None if they are not known before the source ends."""

    def blocks(self) -> Iterator[Events]:
        """Yield all events. A block may overwrite the arrays of the block before it."""


class SeekableSource(EventSource, Protocol):
    """A source whose events can be read in any order."""

    def between(self, start_us: int, end_us: int) -> Events:
        """Return the events with start_us <= t < end_us."""


class Interruption:
    """Use this with `ended_by_signals` for work that looks at `is_ended` from time to time, and stops where it can."""

    is_ended = False

    def end(self) -> None:
        self.is_ended = True


class _Endable(Protocol):
    def end(self) -> None: ...


Ends = TypeVar("Ends", bound=_Endable)
Source = TypeVar("Source")


class EventsInMemory:
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

    def __init__(self, events: Events, height: int, width: int, repair: bool = False) -> None:
        if not len(events):
            raise UserError("events.none", "there are no events to predict on; give at least one")
        gate = Gate(Path("the array"), height, width)
        self.height, self.width = height, width
        self.events, self.faults = gated((events.t, events.x, events.y, events.p), gate, repair)
        if not len(self.events):
            raise UserError(
                "events.all_outside_frame", f"all events lie outside {width}x{height} (width x height) pixels"
            )
        warn_of_unit("the array", len(self.events), self.time_range_us, (height, width), are_multiples(self.events.t))

    def blocks(self) -> Iterator[Events]:
        yield self.events

    def between(self, start_us: int, end_us: int) -> Events:
        return self.events.between(start_us, end_us)

    @property
    def time_range_us(self) -> tuple[int, int]:
        return int(self.events.t[0]), int(self.events.t[-1])


class FilteredSource:
    """A pipe, a socket, a camera, events in memory or packets, without the events that filters remove."""

    def __init__(self, source: EventSource, filters: Filters) -> None:
        self._source, self.filters = source, FilterChain(filters, source.height, source.width)
        if hasattr(source, "packets"):
            self.packets = self._packets
        if hasattr(source, "arrivals"):
            self.arrivals = self._arrivals
        if hasattr(source, "between"):
            self.between = self._between

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def blocks(self) -> Iterator[Events]:
        """Yield what is left of the blocks."""
        return self.filters.blocks(self._source.blocks())

    def _packets(self) -> Iterator[tuple[Events, int | None]]:
        for events, until_us in self._source.packets():  # type: ignore[attr-defined]
            yield self.filters(events), until_us

    def _arrivals(self) -> list[Arrival]:
        arrivals = self._source.arrivals()  # type: ignore[attr-defined]
        return [replace(arrival, events=self.filters(arrival.events)) for arrival in arrivals]

    def _between(self, start_us: int, end_us: int) -> Events:
        assert self._source.time_range_us is not None
        filters, begin_us = self.filters.before(start_us, self._source.time_range_us[0])
        events = self._source.between(begin_us, end_us)  # type: ignore[attr-defined]
        return filters(events).between(start_us, end_us)


@dataclass(frozen=True)
class OpenedSource:
    """An opened source with what belongs to it. A pipe, socket or camera is read once, and cannot be sought in."""

    name: str  # the path or address that was opened
    events: EventSource
    images: Images | None = None
    assumed_sensor: str = ""  # name of the common sensor whose size is assumed, if the source does not give one

    @property
    def seekable(self) -> SeekableSource | None:
        """The events if they can be read in any order, otherwise None."""
        return cast(SeekableSource, self.events) if hasattr(self.events, "between") else None

    @property
    def format(self) -> str:
        """The name of the format; `events` for a source of another program."""
        return getattr(self.events, "format", "events")

    @property
    def faults(self) -> ReadFaults:
        """The events that were repaired so far."""
        return getattr(self.events, "faults", ReadFaults())

    @property
    def removed(self) -> dict[str, float]:
        """The share of events that each filter removed so far, 0 to 1."""
        filters: FilterChain | None = getattr(self.events, "filters", None)
        if filters is None:
            return {}
        return filters.removed()

    @property
    def broke_off(self) -> str:
        """Why a pipe or a camera ended early; empty if it did not."""
        return getattr(self.events, "broke_off", "")

    def between(self, start_us: int, end_us: int) -> Events:
        """Return the events with start_us <= t < end_us of a seekable source, even after it was closed."""
        assert self.seekable is not None
        events = self.seekable.between(start_us, end_us)
        if isinstance(self.events, Recording):
            self.events.close()
        return events


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
    if is_url(where) and not _is_stream(where):
        where = str(local_path(where))
    path = Path(where)
    if not _is_stream(where) and not (file := split_part(where)[0]).exists():
        raise UserError(
            "files.missing",
            f"{file} does not exist{did_you_mean(file) or '; give an event recording or a folder of them'}",
        )
    if _is_stream(where) or not path.is_dir():
        return {_short_name(where): where}
    if (path / DSEC_EVENTS).is_file() or index_of(path) is not None:
        return {path.resolve().name: where}
    sequences = sorted(events.parents[2] for events in path.glob(f"*/{DSEC_EVENTS}"))
    bags = sorted(folder for folder in path.iterdir() if index_of(folder) is not None)
    by_name = {source.name: str(source) for source in (*sequences, *bags, *find_event_files(path))}
    if not by_name:
        suffixes = ", ".join(suffix for suffix in event_suffixes() if suffix.startswith("."))
        raise UserError(
            "predict.no_recording",
            f"{where} holds no recording ({suffixes}) and no DSEC sequence ({DSEC_EVENTS}); name a file or its folder",
        )
    return by_name


def filtered(source: Source, filters: Filters) -> Source:
    """Return a source without the events that filters remove; the source itself if there are none."""
    if not filters:
        return source
    return cast(Source, FilteredSource(cast(EventSource, source), filters))


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
            raise UserError(
                "pipes.stdin_closed", "recording=-: standard input is closed; pipe events into it, or name a file"
            )
        raw = getattr(sys.stdin.buffer, "raw", None)  # a thread may read it, which must not hold a lock at the end
        read = getattr(sys.stdin.buffer, "read1") if raw is None else raw.read  # noqa: B009
        with ended_by_signals(piped_events(read, "standard input", options)) as piped:
            yield OpenedSource("standard input", filtered(piped, options.filters))
    elif where.startswith(CAMERA):
        with open_camera(where.removeprefix(CAMERA), camera_settings) as camera, ended_by_signals(camera):
            yield OpenedSource(camera.name, filtered(camera, options.filters))
    elif where.startswith(SOCKET):
        with connected_to(where) as connection:
            try:
                with ended_by_signals(piped_events(connection.recv, where, options)) as piped:
                    yield OpenedSource(where, filtered(piped, options.filters))
            except ConnectionError as error:
                raise UserError(
                    "live.broke_off", f"{where} broke off ({error.strerror}); start the sender again"
                ) from None
    else:
        path, images = local_path(where), None
        if (path / DSEC_EVENTS).is_file():
            path, images = path / DSEC_EVENTS, dsec_images(path)
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
        raise UserError("predict.is_stream", f"{path} is a stream, but a recording is needed; name a file or a folder")
    options = options or ReadOptions()
    unsaid_hw = options.height or usual_hw[0], options.width or usual_hw[1]
    with opened_source(path, options, unsaid_hw=unsaid_hw) as opened:
        recording = opened.events
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
