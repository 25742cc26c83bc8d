"""Event cameras connected to this machine, through the package neuromorphic-drivers.

The package keeps the data of a camera in a ring buffer of fixed size, in its own thread. The biases, the region of
interest and the other settings of a camera are those of its class `Configuration` in that package, given as a YAML
file.
"""

import contextlib
import dataclasses
import enum
import time
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml

from rvtssm.events.windows import LONGEST_SILENCE_US, clock_jumps
from rvtssm.readers import ReadFaults
from rvtssm.readers.event_checks import LiveGate
from rvtssm.readers.source import NO_EVENTS, Arrival, LiveSource
from rvtssm.records import Events
from rvtssm.system.extras import check_extra, is_installed
from rvtssm.system.files import CONTENT_ERRORS, file_errors
from rvtssm.system.limits import field_names
from rvtssm.system.user_error import UserError, in_one_line

CAMERA = "camera:"  # the value of `recording` that selects a camera; its serial number may follow
_SAYS_NOTHING = "Other error"  # of libusb, for instance if there is no USB
_WAIT_S = 0.05  # longest wait for events before control returns to the caller


class Camera(LiveSource):
    """A camera that sends events. Use `arrivals` for live detection, and `blocks` to read all events like a recording.

    An event up to 10 ms earlier than an event before it gets the latest time so far. A larger step back, or a silence
    longer than LONGEST_SILENCE_US, counts as a jump of the clock.

    Args:
        device: An opened device of neuromorphic-drivers.
        name: Name of the camera in messages.
    """

    format = "camera"
    is_ended = False

    def __init__(self, device: Any, name: str) -> None:
        self._device = device
        self.name = name
        properties = device.properties()
        self.height, self.width = int(properties.height), int(properties.width)
        self.num_events = 0
        self.num_lost = 0  # packets lost because the ring buffer was full or `drop_backlog` was called
        self._gate = LiveGate(name, self.height, self.width)
        self._latest_us: int | None = None  # time of the latest event
        self._known_us: int | None = None  # the later of that time and the camera's own time
        self._num_dropped_before: int | None = 0  # None: what was dropped so far does not count

    @property
    def faults(self) -> ReadFaults:
        """The events that were moved or left out so far."""
        return self._gate.faults

    def clock(self) -> float:
        """Return the current time on the clock of `arrived_s`, in seconds."""
        return time.time()

    @property
    def backlog(self) -> int:
        """Number of packets that have arrived and have not been read yet."""
        return 0 if self.is_ended else int(self._device.backlog())

    def begin(self) -> None:
        """Skip the packets that arrived while the detector was prepared. They do not count as lost."""
        self._device.clear_backlog(until=0)
        self._num_dropped_before = None

    def drop_backlog(self) -> None:
        """Drop the packets that have not been read yet, because they arrive faster than they can be read."""
        self.num_lost += self.backlog
        self._device.clear_backlog(until=0)

    def arrivals(self) -> list[Arrival]:
        """Return what has arrived, or nothing after a short wait. The camera is ended if it is lost."""
        if self.is_ended:
            return []
        try:
            status, packet = next(self._device)
        except StopIteration:
            self._end("")
            return []
        except Exception as error:  # the package raises RuntimeError, and errors of the operating system
            self._end(f"{self.name} broke off ({in_one_line(error)}); plug it in again and start again")
            return []
        if status.ring is None or packet is None:
            return []
        arrived_s = float(status.ring.system_time)
        dropped = int(status.ring.dropped_packets)
        # What was dropped while the detector was prepared does not count.
        if self._num_dropped_before is not None:
            self.num_lost += max(dropped - self._num_dropped_before, 0)
        self._num_dropped_before = dropped
        arrivals: list[Arrival] = []
        if packet.polarity_events is not None:
            arrivals = self._parts(packet.polarity_events, arrived_s)
        until_us = int(status.ring.current_t)
        # The camera's own time closes windows while nothing happens, unless its clock has jumped.
        if self._known_us is not None and self._known_us < until_us <= self._known_us + LONGEST_SILENCE_US:
            self._known_us = until_us
            if arrivals:
                arrivals[-1] = replace(arrivals[-1], until_us=until_us)
            else:
                arrivals = [Arrival(NO_EVENTS, until_us, arrived_s)]
        return arrivals

    def blocks(self) -> Iterator[Events]:
        """Yield all events until the camera is lost, `end` is called or the user interrupts (Ctrl-C)."""
        while not self.is_ended:
            try:
                arrivals = self.arrivals()
            except KeyboardInterrupt:
                return
            for arrival in arrivals:
                if arrival.is_restart:
                    self._end(f"the clock of {self.name} has jumped to {arrival.events.t[0]} us; start again")
                    return
                if len(arrival.events):
                    yield arrival.events

    def end(self) -> None:
        """Stop after the events read so far."""
        self.is_ended = True

    def _end(self, reason: str) -> None:
        self.is_ended = True
        self.broke_off = reason

    def _parts(self, packet: npt.NDArray[Any], arrived_s: float) -> list[Arrival]:
        """Return the events of a packet as one arrival, or as several if the clock jumps between them."""
        t = packet["t"].astype(np.int64)
        jumps = clock_jumps(self._latest_us, t)
        arrivals: list[Arrival] = []
        # A new stream begins at every jump of the clock.
        for start, stop in pairwise(sorted({0, *jumps, len(t)})):
            is_restart = start in jumps
            if is_restart:
                self._gate.restart()
            columns = [np.ascontiguousarray(packet[name][start:stop]) for name in ("t", "x", "y", "on")]
            part = self._gate.push(columns)
            if not len(part):
                continue
            # What the camera has said of the time holds for later events too.
            if not is_restart and self._known_us is not None:
                np.maximum(part.t, self._known_us, out=part.t)
            self._latest_us = self._known_us = int(part.t[-1])
            arrivals.append(Arrival(part, None, arrived_s, is_restart))
        self.num_events = self._gate.num_events
        return arrivals


def connected_cameras() -> list[str]:
    """Return name, serial number and error of every camera that the system reports, none without the package."""
    if not is_installed("neuromorphic_drivers"):
        return []
    import neuromorphic_drivers as drivers

    found = []
    with contextlib.suppress(RuntimeError):  # the package raises this if there is no USB
        for device in drivers.list_devices():
            parts = device.name.value, device.serial, device.error and f"({device.error})"
            found.append(" ".join(filter(None, parts)))
    return found


@contextmanager
def open_camera(serial: str = "", settings: Path | str | None = None) -> Iterator[Camera]:
    """Open a camera.

    Args:
        serial: Serial number of the camera; empty for the first one found.
        settings: YAML file with settings, see `read_camera_settings`.

    Raises:
        UserError: The package is not installed, there is no camera, or the settings do not fit the camera.
    """
    check_extra("a camera", "camera", "neuromorphic_drivers")
    import neuromorphic_drivers as drivers

    # Its name in messages, and its settings.
    configuration = None
    name = f"camera {serial}"
    if not serial:
        name = "the camera"
    if settings is not None:
        configuration = read_camera_settings(Path(settings), drivers)
        name += f" of the kind {configuration.type()}"
    try:
        # The first one if no serial number is given.
        device = drivers.open(configuration=configuration, iterator_timeout=_WAIT_S, serial=serial or None)
    except Exception as error:  # as in `arrivals`
        reason = f"found: {', '.join(connected_cameras()) or 'no camera'}"
        if in_one_line(error) != _SAYS_NOTHING:
            reason = f"{in_one_line(error)}; {reason}"
        raise UserError(
            "source.not_opened",
            name=name,
            found=f"it cannot be opened ({reason})",
            advice="plug it in, close other programs that use it, and on Linux run "
            "`neuromorphic-drivers-install-udev-rules` once",
        ) from None
    with device:
        yield Camera(device, f"{device.name().value} {device.serial()}")


def read_camera_settings(path: Path, drivers: Any) -> Any:
    """Return the configuration that a YAML file describes.

    The file names the `device`, such as prophesee_evk4, and its settings, which have the names of the class
    `Configuration` of this device in neuromorphic-drivers. A mask of columns or rows can be given as ranges of masked
    pixels, [[first, stop], ...].

    Args:
        path: The YAML file.
        drivers: The module neuromorphic_drivers.

    Raises:
        UserError: The device or a setting is unknown.
    """
    advice = "write `device: prophesee_evk4`, `biases: ...`"
    with file_errors(path, " cannot be read as camera settings", advice, CONTENT_ERRORS):
        try:
            given = yaml.safe_load(path.read_text())
        except yaml.YAMLError as error:
            raise UserError("file.content", found=in_one_line(error)) from None
        kinds = [name for name in dir(drivers) if hasattr(getattr(drivers, name), "Configuration")]
        if not isinstance(given, dict) or given.get("device") not in kinds:
            named = given.get("device") if isinstance(given, dict) else given
            raise UserError("setting.choice", name=f"{path}: device", found=named, needed=kinds)
        kind = getattr(drivers, given.pop("device"))
        return _filled(kind.Configuration, given, f"{path}", kind.Properties())


def _filled(settings: Any, given: Any, where: str, sensor: Any) -> Any:
    """Return an instance of a settings class with the given values. All other settings keep their defaults."""
    if not isinstance(given, dict):
        raise UserError("setting.form", name=where, found=repr(given), needed="give names with values")
    # Names that the class does not have are refused.
    names = field_names(settings)
    if unknown := [name for name in given if name not in names]:
        raise UserError("setting.unknown", name=f"{where}: {unknown[0]}", needed=names)
    kinds = typing.get_type_hints(settings)
    values = {}
    masks = {"x_mask": int(sensor.width), "y_mask": int(sensor.height)}
    for name, value in given.items():
        kind = kinds[name]
        place = f"{where}: {name}"
        # A setting may be a group of settings of its own, a name from a list, a mask or a number.
        if options := [*filter(dataclasses.is_dataclass, typing.get_args(kind))]:
            kind = options[0]  # the class inside an optional type
        if dataclasses.is_dataclass(kind):
            if value is not None:
                value = _filled(kind, value, place, sensor)
        elif isinstance(kind, type) and issubclass(kind, enum.Enum):
            if not isinstance(value, str) or value.upper() not in kind.__members__:
                choices = [*map(str.lower, kind.__members__)]
                raise UserError("setting.choice", name=place, found=repr(value), needed=choices)
            value = kind[value.upper()]
        elif name in masks and isinstance(value, list) and value and isinstance(value[0], list):
            value = _mask(value, masks[name], place)
        elif isinstance(value, list):
            value = tuple(value)
        values[name] = value
    return settings(**values)


def _mask(ranges: list[list[int]], size: int, place: str) -> tuple[int, ...]:
    """Return 64-bit words in which bit i masks the pixels of column or row i."""
    bits = np.zeros(-(-size // 64) * 64, bool)
    for limits in ranges:
        if len(limits) != 2 or not 0 <= limits[0] < limits[1] <= size:
            needed = f"give [first, stop] between 0 and {size}"
            raise UserError("setting.out_of_range", name=place, found=limits, needed=needed)
        bits[limits[0] : limits[1]] = True
    return tuple(np.packbits(bits, bitorder="little").view("<u8").tolist())
