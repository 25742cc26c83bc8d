"""A detector for live events, in packets: when a window closes, it returns detections; its rate may change."""

import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torchvision.ops  # noqa: F401  takes seconds, which must not pass at the first window

from rvtssm.events.cells import frame_pixels
from rvtssm.events.event_checks import check_events, to_events
from rvtssm.events.frame_counter import FrameCounter
from rvtssm.events.windows import LONGEST_SILENCE_US, first_jump
from rvtssm.models.checkpoint import LoadedCheckpoint
from rvtssm.models.frame_size import detector_for_frame, usual_downsample
from rvtssm.models.model_config import PostprocessConfig
from rvtssm.models.streams import Streams
from rvtssm.records import Detections, Events
from rvtssm.streaming.schedule import FixedRate, KnownSoFar, Schedule
from rvtssm.streaming.stream import check_causal
from rvtssm.system.limits import check_number
from rvtssm.system.user_error import UserError

_NEVER_US = -(1 << 62)  # before all events
_MOST_PENDING = 1 << 26  # events of a camera, 0.8 GB; a window of a megapixel sensor has a thousandth of that
_LATEST_US = 1 << 61  # of a time that the caller gives
_LONGEST_US = 60_000_000  # of a window: what a live detector keeps of the past is bounded


@dataclass(frozen=True, slots=True)
class LiveWindow:
    """The result of a closed window."""

    start_us: int
    end_us: int
    detections: list[Detections]  # one per camera, in pixels of the sensor
    seconds: float  # of work: counting, detector, post-processing
    num_passed: int = 0  # windows before it that `newest` passed over


class StreamDetector:
    """Use this for live events: packets of events in, detections out, with constant work and memory per window.

    One window serves all cameras as a batch. A window [start, end) closes when every camera is known to be past its
    end: by an event at or after it (convention `rvt`: after it), or by `until_us`. The detections depend on the events
    and not on how they are cut into packets. The schedule decides the step of the detector; it can be set at any time
    and then holds from the end of the last window on. A window longer than those before begins with the events that
    they kept. `state_dict` has all state, also the pending events.
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
        """Take height and width in sensor pixels. The schedule defaults to the rate and window length of training.

        `start_us` is where the first window begins, by default at the first event of any camera. Frames keep one pixel
        in downsample x downsample, by default the largest that leaves frames as large as in training. Raise ValueError
        for weights that need later windows.
        """
        check_causal(checkpoint.detector)
        for name, value in {
            "height": height,
            "width": width,
            "num_cameras": num_cameras,
            "downsample": downsample,
        }.items():
            if value is not None:
                check_number(name, value, 1, is_whole=True)
        start_us = _whole_us("start_us", start_us)
        self.windows = checkpoint.windows
        self.downsample = downsample or usual_downsample(checkpoint.spec, height, width)
        self.sensor_hw = (height, width)
        self.frame_hw = (height // self.downsample, width // self.downsample)
        if min(self.frame_hw) < 1:
            raise UserError(f"downsample={self.downsample} leaves nothing of {width} x {height} pixels")
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
        self._count = 0  # windows since the anchor
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
        """Return the windows that close with a packet of events, or with one packet for each of several cameras.

        `until_us` says that no event before it is missing, which closes windows without events. Raise ValueError for
        events outside the sensor, for events before an earlier packet or `until_us`, and after a gap of more than
        LONGEST_SILENCE_US, such as a jump of the clock, since its windows would fill the memory. While one camera sends
        nothing, the events of the others are kept, unless `until_us` is given.
        """
        self.feed(events, until_us)
        return [self._compute(*window) for window in self._closed_windows()]

    def feed(self, events: Events | Sequence[Events], until_us: int | None = None) -> None:
        """Take events in as `push` does, and compute nothing. `newest` computes afterwards."""
        packets = [to_events(packet) for packet in (events if isinstance(events, list | tuple) else [events])]
        until_us = _whole_us("until_us", until_us)
        self._check(packets, until_us)
        for camera, packet in enumerate(packets):
            if len(packet):
                counter = self._counters[camera]
                if len(counter.times_us) + len(packet) > _MOST_PENDING:
                    raise UserError(
                        f"camera {camera}: more than {_MOST_PENDING} events wait for a window to close at "
                        f"{packet.t[-1]} us; its clock stands still, or another camera sends nothing; start again"
                    )
                counter.push(packet)
                self._known_us[camera] = int(packet.t[-1])
            if until_us is not None:
                self._known_us[camera] = max(self._known_us[camera], int(until_us))

    def newest(self) -> LiveWindow | None:
        """Compute the newest window that has closed and pass over those before it; return None if none has closed.

        Use it where the detector may be slower than the events, which then do not wait longer and longer. The step of
        the model is the whole time since the window that was computed last, so the state is not cut. If windows have no
        length of their own, this one begins where the last one ended, so that its frame has the events of those that
        were passed over. If they have one, its frame has the events of that length, as it has at a lower rate.
        """
        windows = list(self._closed_windows())
        if not windows:
            return None
        start_us, end_us, _ = windows[-1]
        if self._schedule.length_us is None:
            start_us = windows[0][0]
        return self._compute(start_us, end_us, sum(step_us for *_, step_us in windows), len(windows) - 1)

    def __repr__(self) -> str:
        size, frame = _pixels(self.sensor_hw), _pixels(self.frame_hw)
        return f"StreamDetector({size} pixels in frames of {frame}, {self._schedule}, at {self._end_us / 1e6:.3f} s)"

    @property
    def num_pending(self) -> int:
        """The number of events that are kept for windows that have not been computed."""
        return sum(len(counter.times_us) for counter in self._counters)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that is needed to continue elsewhere, as plain data and tensors for `torch.load`.

        The schedule is not included; another one than here holds from the end of the last window on.
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
        """Continue from a `state_dict`. Raise ValueError if the number of cameras, sensor or detector differ."""
        if missing := [name for name in _STORED if name not in stored]:
            raise UserError(f"the stored state lacks {', '.join(missing)}; give what `state_dict` of another returned")
        if len(stored["pending"]) != len(self._counters):
            raise UserError(
                f"the stored state is of {len(stored['pending'])} cameras, this detector has {len(self._counters)}; "
                "give num_cameras as it was"
            )
        if list(stored["sensor_hw"]) != list(self.sensor_hw):
            raise UserError(
                f"the stored state is of a sensor of {_pixels(stored['sensor_hw'])} pixels, this detector has "
                f"{_pixels(self.sensor_hw)}; give height and width as they were"
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
            raise UserError(f"got packets of {len(packets)} cameras, needed is one for each of {len(self._counters)}")
        height, width = self.sensor_hw
        for camera, (packet, known_us) in enumerate(zip(packets, self._known_us, strict=True)):
            if not len(packet):
                continue
            if packet.t[0] < known_us:
                raise UserError(
                    f"camera {camera}: events must come in order of time, at or after {known_us} us, which an earlier "
                    f"packet, until_us or start_us settled; this one starts at {packet.t[0]} us"
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
                    "if the clock has jumped, or start_us is of another, make a new StreamDetector; if nothing "
                    f"happened, say so by until_us in steps of at most {LONGEST_SILENCE_US / 1e6:g} s"
                )

    def _times_until(self, known_us: int) -> npt.NDArray[np.int64]:
        """Return the times of the events of all cameras since the last window, ascending."""
        times = [_between(counter.times_us, self._end_us, max(known_us, self._end_us)) for counter in self._counters]
        return times[0] if len(times) == 1 else np.sort(np.concatenate(times), kind="stable")

    def _next_window(self, known_us: int, merge: Callable[[], npt.NDArray[np.int64]]) -> tuple[int, int, float] | None:
        """Return start, end and step in microseconds of the window that can be closed, None if there is none."""
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
                f"{self._schedule} plans a window of {length_us} us that ends at {end_us} us, after {self._end_us} us; "
                f"windows must go forward, by at most {_LONGEST_US} us"
            )
        return (int(end_us - length_us), int(end_us), step_us) if end_us <= known_us else None

    def _closed_windows(self) -> Iterator[tuple[int, int, float]]:
        """Yield start, end and step in microseconds of the windows that have closed, and let the schedule go on."""
        if self._start_us is None:
            first = [int(counter.times_us[0]) for counter in self._counters if len(counter.times_us)]
            if not first or min(self._known_us) < min(first):  # another camera may have seen an earlier one
                return
            self._start_us = self._anchor_us = self._end_us = min(first)
        known_us = min(self._known_us) - self.windows.includes_end  # of the events at an end, more may come
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
    """Return those of ascending times with start_us <= t < end_us."""
    first, stop = np.searchsorted(times_us, np.array((start_us, end_us)))
    return times_us[first:stop]


def _pixels(sensor_hw: Sequence[int]) -> str:
    height, width = sensor_hw
    return f"{width}x{height}"
