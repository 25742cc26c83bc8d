"""A detector for live events, which arrive in packets. It returns detections when a window closes, at any rate."""

import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rvtssm.detection.event_camera import NO_EVENTS
from rvtssm.detection.schedule import FixedRate, KnownSoFar, Schedule
from rvtssm.detection.stream import check_causal
from rvtssm.events.cells import frame_pixels
from rvtssm.events.frame_counter import FrameCounter
from rvtssm.events.windows import LONGEST_SILENCE_US, first_jump
from rvtssm.models.checkpoint_meta import LoadedCheckpoint
from rvtssm.models.frame_size import detector_for_frame, downsample_by_size, reduced_hw
from rvtssm.models.model_config import PostprocessConfig
from rvtssm.models.streams import Streams
from rvtssm.readers.event_checks import check_events, to_events
from rvtssm.records import Detections, Events
from rvtssm.system.limits import check_counts, check_number
from rvtssm.system.user_error import UserError

_NEVER_US = -(1 << 62)  # earlier than any event
MOST_PENDING = 1 << 26  # events of a camera, 0.8 GB; a thousand times a window of a megapixel sensor
_LATEST_US = 1 << 61  # latest time that a caller may give
_LONGEST_US = 60_000_000  # longest window, since a live detector keeps the events of a window in memory


@dataclass(frozen=True, slots=True)
class LiveWindow:
    """The result of a closed window."""

    start_us: int
    end_us: int
    detections: list[Detections]  # one per camera, in sensor pixels
    seconds: float  # computing time: counting, detector, post-processing
    num_passed: int = 0  # number of earlier windows that `newest` skipped


class StreamDetector:
    """Use this for live events: packets of events go in, detections come out, with bounded work and memory per window.

    All cameras share the windows and are computed as one batch. A window [start, end) closes when every camera is known
    to be past its end: through an event at or after the end (convention `rvt`: after it), or through `until_us`.
    Detections depend only on the events, not on how they are split into packets. The schedule decides the step of the
    detector. It can be replaced at any time, and the new one applies from the end of the last window on. If its windows
    are longer, the first of them may lack events that were already dropped. `state_dict` contains the whole state,
    including pending events.

    Args:
        checkpoint: The weights.
        height: Height of the sensors, pixels.
        width: Width of the sensors, pixels.
        num_cameras: Number of cameras.
        schedule: When windows end; by default at the rate and with the window length of training.
        start_us: Start of the first window; by default the first event of any camera.
        downsample: Frames keep one pixel of each downsample x downsample square; by default the largest value that
            leaves frames as large as in training.
        config: Post-processing.

    Raises:
        UserError: The weights need later windows (bidirectional), or an argument is out of range.
    """

    def __init__(
        self,
        checkpoint: LoadedCheckpoint,
        height: int,
        width: int,
        *,
        num_cameras: int = 1,
        schedule: Schedule | None = None,
        start_us: int | None = None,
        downsample: int | None = None,
        config: PostprocessConfig | None = None,
    ) -> None:
        check_causal(checkpoint.detector)
        check_counts(height=height, width=width, num_cameras=num_cameras, downsample=downsample)
        height, width, start_us = int(height), int(width), _whole_us("start_us", start_us)
        self.windows = checkpoint.windows
        self.downsample = int(downsample or downsample_by_size(checkpoint, height, width))
        self.sensor_hw = (height, width)
        self.frame_hw = reduced_hw(height, width, self.downsample)
        self.config = config
        self._streams = Streams(
            detector_for_frame(checkpoint, *self.frame_hw),
            checkpoint.windows.stride_us,
            checkpoint.model_config.memory_chunk,
        )
        pixels = frame_pixels(height, width, self.downsample)
        self._counters = [FrameCounter(self.windows, pixels) for _ in range(num_cameras)]
        self._known_us = [_NEVER_US if start_us is None else start_us] * num_cameras
        self._start_us = start_us
        self._schedule = schedule or FixedRate(self.windows.hz, self.windows.length_us)
        self._anchor_us = self._end_us = 0 if start_us is None else start_us
        self._count = 0  # number of windows since the anchor
        self._is_first = True
        self._last_rate_hz = math.nan

    @property
    def schedule(self) -> Schedule:
        return self._schedule

    @schedule.setter
    def schedule(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._anchor_us, self._count = self._end_us, 0

    def push(self, events: Events | Sequence[Events], until_us: int | None = None) -> list[LiveWindow]:
        """Take in events, and return the windows that they close.

        While one camera sends nothing, the events of the others are kept, unless `until_us` is given.

        Args:
            events: A packet of events, or a list with one packet per camera.
            until_us: No event before this time is missing. This closes windows without events.

        Raises:
            UserError: Events lie outside the sensor, are earlier than an earlier packet or `until_us`, or follow a gap
                of more than LONGEST_SILENCE_US, such as a jump of the clock, whose windows would fill the memory.
        """
        self.feed(events, until_us)
        return [self._compute(*window) for window in self._closed_windows()]

    def feed(self, events: Events | Sequence[Events], until_us: int | None = None) -> None:
        """Take in events like `push`, but compute nothing. Call `newest` afterwards.

        Args:
            events: A packet of events, or a list with one packet per camera.
            until_us: No event before this time is missing.
        """
        packets = [to_events(packet) for packet in (events if isinstance(events, list | tuple) else [events])]
        until_us = _whole_us("until_us", until_us)
        self._check(packets, until_us)
        for camera, packet in enumerate(packets):
            if len(packet):
                counter = self._counters[camera]
                if len(counter.times_us) + len(packet) > MOST_PENDING:
                    raise UserError(
                        f"camera {camera}: more than {MOST_PENDING} events wait for a window to close at "
                        f"{packet.t[-1]} us; its clock stands still, or another camera sends nothing; start again"
                    )
                counter.push(packet)
                self._known_us[camera] = int(packet.t[-1])
            if until_us is not None:
                self._known_us[camera] = max(self._known_us[camera], int(until_us))

    def warm_up(self) -> None:
        """Compute two windows and forget them, so that the first window of the stream takes no longer than the others.

        The first computations compile code and allocate memory, and the second window shares events with the first.
        Call this before the first events.
        """
        before, corner = self.state_dict(), np.zeros(1, np.uint16)
        for _ in range(2):
            event = Events(np.array([self._end_us]), corner, corner, np.zeros(1, np.uint8))
            self.feed([event] * len(self._counters))
            self.finish()
        self.load_state_dict(before)

    def finish(self) -> list[LiveWindow]:
        """Return the windows up to the last event, as if no event followed. Events that are pushed later must be later.

        `rvtssm predict` ends a recording in the same way.
        """
        pending = [int(counter.times_us[-1]) for counter in self._counters if len(counter.times_us)]
        if not pending:
            return []
        nothing, last_us = [NO_EVENTS] * len(self._counters), max(pending)
        found = self.push(nothing, last_us + self.windows.includes_end)
        if last_us >= self._end_us and (window := self._next_window(_LATEST_US, lambda: self._times_until(_LATEST_US))):
            found += self.push(nothing, window[1] + self.windows.includes_end)
        return found

    def newest(self) -> LiveWindow | None:
        """Compute the newest closed window and skip those before it. Return None if no window has closed.

        Use this if the detector may be slower than the events, so that they do not wait longer and longer. The step of
        the model is the whole time since the last computed window, so the state is carried correctly. Without a fixed
        window length, the window begins where the last computed one ended, so its frame includes the events of the
        skipped windows. With a fixed length, the frame has the events of that length, as at a lower rate.
        """
        windows = list(self._closed_windows())
        if not windows:
            return None
        start_us, end_us, _ = windows[-1]
        if self._schedule.length_us is None:
            start_us = windows[0][0]
        return self._compute(start_us, end_us, sum(step_us for *_, step_us in windows), len(windows) - 1)

    def __str__(self) -> str:
        size, frame = _pixels(self.sensor_hw), _pixels(self.frame_hw)
        return f"{size} pixels in frames of {frame}, {self._schedule}, now at {self._end_us / 1e6:.3f} s"

    def __repr__(self) -> str:
        return f"StreamDetector({self})"

    @property
    def num_pending(self) -> int:
        """Number of events kept for windows that have not been computed."""
        return sum(len(counter.times_us) for counter in self._counters)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that is needed to continue elsewhere, as plain data and tensors for `torch.load`.

        The schedule is not included. If the other detector has another schedule, it applies from the end of the last
        window on.
        """
        return {
            "streams": self._streams.state_dict(),
            "sensor_hw": list(self.sensor_hw),
            "pending": [[torch.from_numpy(array) for array in counter.state()] for counter in self._counters],
            "known_us": list(self._known_us),
            "schedule": repr(self._schedule),
            **{name: getattr(self, f"_{name}") for name in _TIMES},
        }

    def load_state_dict(self, stored: dict[str, Any]) -> None:
        """Continue from a `state_dict`.

        Raises:
            UserError: The number of cameras, the sensor or the detector differs.
        """
        if missing := [name for name in _STORED if name not in stored]:
            raise UserError(f"the stored state lacks {', '.join(missing)}; give the result of `state_dict`")
        if len(stored["pending"]) != len(self._counters):
            raise UserError(
                f"the stored state has {len(stored['pending'])} cameras, but this detector has {len(self._counters)}; "
                "use the same num_cameras"
            )
        if list(stored["sensor_hw"]) != list(self.sensor_hw):
            raise UserError(
                f"the stored state is for a sensor of {_pixels(stored['sensor_hw'])} pixels, but this detector has "
                f"{_pixels(self.sensor_hw)}; use the same height and width"
            )
        self._streams.load_state_dict(stored["streams"])
        for counter, arrays in zip(self._counters, stored["pending"], strict=True):
            counter.load_state(tuple(array.numpy() for array in arrays))
        self._known_us = list(stored["known_us"])
        for name in _TIMES:
            setattr(self, f"_{name}", stored[name])
        if stored["schedule"] != repr(self._schedule):
            self.schedule = self._schedule

    def _check(self, packets: list[Events], until_us: int | None) -> None:
        """Check all packets before any of them is counted."""
        if len(packets) != len(self._counters):
            raise UserError(f"got packets of {len(packets)} cameras; give one for each of {len(self._counters)}")
        height, width = self.sensor_hw
        for camera, (packet, known_us) in enumerate(zip(packets, self._known_us, strict=True)):
            if not len(packet):
                continue
            if packet.t[0] < known_us:
                raise UserError(
                    f"camera {camera}: events must come in order of time, at or after {known_us} us, as set by an "
                    f"earlier packet, until_us or start_us; this packet starts at {packet.t[0]} us"
                )
            try:
                check_events(packet, height, width)
            except UserError as error:
                raise UserError(f"camera {camera}: {error}") from None
        for camera, packet in enumerate(packets):
            self._check_silence(camera, packet, until_us)

    def _check_silence(self, camera: int, packet: Events, until_us: int | None) -> None:
        known_us = None if self._known_us[camera] == _NEVER_US else self._known_us[camera]
        last_us = int(packet.t[-1]) if len(packet) else known_us
        until = np.array([] if until_us is None else [until_us], np.int64)
        for before_us, times in ((known_us, packet.t), (last_us, until)):
            if (jump := first_jump(before_us, times)) is not None:
                raise UserError(
                    f"camera {camera}: no event for more than {LONGEST_SILENCE_US / 1e6:g} s before {times[jump]} us; "
                    "if the clock has jumped, or start_us belongs to another clock, make a new StreamDetector; if "
                    f"nothing happened, pass until_us in steps of at most {LONGEST_SILENCE_US / 1e6:g} s"
                )

    def _times_until(self, known_us: int) -> npt.NDArray[np.int64]:
        """Return the times of the events of all cameras since the end of the last window, ascending."""
        times = [_between(counter.times_us, self._end_us, max(known_us, self._end_us)) for counter in self._counters]
        return times[0] if len(times) == 1 else np.sort(np.concatenate(times), kind="stable")

    def _next_window(self, known_us: int, merge: Callable[[], npt.NDArray[np.int64]]) -> tuple[int, int, float] | None:
        """Return start, end and step in microseconds of the next window if it can be closed, otherwise None."""
        if known_us <= self._end_us:
            return None

        def merge_left() -> npt.NDArray[np.int64]:
            return merge()[np.searchsorted(merge(), self._end_us) :]

        known = KnownSoFar(
            self._anchor_us, self._count, self._end_us, self._last_rate_hz, merge_left, len(self._counters)
        )
        end_us, step_us = self._schedule.next_end(known)
        length_us = self._schedule.length_us or end_us - self._end_us
        if not self._end_us < end_us <= self._end_us + _LONGEST_US or length_us > _LONGEST_US:
            raise UserError(
                f"{self._schedule!r} plans a window of {length_us} us that ends at {end_us} us, after "
                f"{self._end_us} us; windows must move forward by at most {_LONGEST_US} us"
            )
        return (int(end_us - length_us), int(end_us), step_us) if end_us <= known_us else None

    def _closed_windows(self) -> Iterator[tuple[int, int, float]]:
        """Yield start, end and step in microseconds of the windows that have closed, and advance the schedule."""
        if self._start_us is None:
            first = [int(counter.times_us[0]) for counter in self._counters if len(counter.times_us)]
            if not first or min(self._known_us) < min(first):  # another camera may still send an earlier event
                return
            self._start_us = self._anchor_us = self._end_us = min(first)
        known_us = min(self._known_us) - self.windows.includes_end  # if closed, more events may come at the end
        merge = functools.cache(lambda: self._times_until(known_us))
        while (window := self._next_window(known_us, merge)) is not None:
            _, end_us, _ = window
            num_events = sum(len(_between(counter.times_us, self._end_us, end_us)) for counter in self._counters)
            self._last_rate_hz = num_events / len(self._counters) / ((end_us - self._end_us) / 1e6)
            self._count, self._end_us = self._count + 1, end_us
            yield window

    def _compute(self, start_us: int, end_us: int, step_us: float, num_passed: int = 0) -> LiveWindow:
        began = time.perf_counter()
        bounds_us = np.array([[start_us, end_us]])
        hist = np.stack([counter.take(bounds_us) for counter in self._counters], axis=1)
        cameras = list(range(len(self._counters)))
        detections = self._streams.detect(
            torch.from_numpy(hist),
            torch.full((1, len(cameras)), step_us, dtype=torch.float64),
            torch.tensor([[0, camera] for camera in cameras]),
            slots=cameras,
            is_first=[self._is_first] * len(cameras),
            t_us=[end_us] * len(cameras),
            config=self.config,
            downsample=self.downsample,
        )
        self._is_first = False
        for counter in self._counters:
            counter.forget_before(end_us - (self._schedule.length_us or 0))
        return LiveWindow(start_us, end_us, detections, time.perf_counter() - began, num_passed)


_TIMES = ("start_us", "anchor_us", "end_us", "count", "is_first", "last_rate_hz")
_STORED = ("streams", "sensor_hw", "pending", "known_us", "schedule", *_TIMES)


def _whole_us(name: str, time_us: int | None) -> int | None:
    if time_us is None:
        return None
    check_number(name, time_us, -_LATEST_US, _LATEST_US)
    return int(time_us)


def _between(times_us: npt.NDArray[np.int64], start_us: int, end_us: int) -> npt.NDArray[np.int64]:
    """Return the times with start_us <= t < end_us from ascending times."""
    first, stop = np.searchsorted(times_us, np.array((start_us, end_us)))
    return times_us[first:stop]


def _pixels(sensor_hw: Sequence[int]) -> str:
    height, width = sensor_hw
    return f"{width}x{height}"
