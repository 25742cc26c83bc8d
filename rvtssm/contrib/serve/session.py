"""One open page: a source of events, a detector with its own state, and pictures of both, in a thread."""

from __future__ import annotations

import json
import math
import queue
import threading
import time
import traceback
import zlib
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rvtssm.contrib.serve.recent_events import SHOWN_US, RecentEvents
from rvtssm.contrib.serve.serve_config import MAX_HZ, MIN_HZ, ServeConfig
from rvtssm.detection.configured_detector import choose_downsample
from rvtssm.detection.engine import StreamDetector
from rvtssm.detection.event_camera import open_camera
from rvtssm.detection.feed import Replay
from rvtssm.detection.live_run import LiveRun
from rvtssm.detection.sources import opened_source
from rvtssm.detection.window_results import WindowResult
from rvtssm.models import PRECISIONS, PostprocessConfig
from rvtssm.models.checkpoint_meta import LoadedCheckpoint
from rvtssm.records import Detections, ReadOptions
from rvtssm.system.files import FILE_ERRORS
from rvtssm.system.user_error import UserError, in_one_line

_PICTURE_S = 0.04  # shortest time between pictures
_LOWEST_SCORE = 0.05  # lowest score of boxes that are sent; the page hides boxes below its own threshold
_IDLE_S = 0.2
_END_S = 1.0  # how long the end of a recording is shown before it starts again
# limits of queues; a page may send too fast or not read
_MOST_COMMANDS = 256
_MOST_MESSAGES = 64
_MOST_RESULTS = 4096
SPEEDS = (0.05, 4.0)  # slowest and fastest playback, in seconds of the recording per second


@dataclass(frozen=True)
class Opening:
    """A source that a page may play: a recording, or the camera if `path` is None."""

    name: str
    path: str | None = None
    height: int | str | None = None  # of the sensor in pixels, if the recording does not give it, as a page sends it
    width: int | str | None = None  # of the sensor in pixels, if the recording does not give it, as a page sends it
    camera_settings: str | None = None


class Session:
    """The session of one page. The page sends commands through `handle`, and `taken` returns what to send to it.

    Args:
        weights: Returns the weights in a given precision.
        camera: Lock held by the session that uses the camera.
        notify: Called from the thread of the session when there is something to take.
        config: The settings that a page starts with.
    """

    def __init__(
        self,
        weights: Callable[[str], LoadedCheckpoint],
        camera: threading.Lock,
        notify: Callable[[], None],
        config: ServeConfig | None = None,
    ) -> None:
        config = config or ServeConfig()
        self._weights = weights
        self._camera = camera
        self._notify = notify
        self._given_downsample = self._downsample = config.downsample
        self._commands: queue.Queue[dict[str, Any] | Opening | None] = queue.Queue(_MOST_COMMANDS)
        self._lock = threading.Lock()  # protects everything that waits to be sent
        self._messages: deque[str] = deque(maxlen=_MOST_MESSAGES)
        self._picture: bytes | None = None
        self._run: LiveRun | None = None
        self._opening = Opening("")
        self._opened = ExitStack()
        self.hz = config.hz or weights("float32").windows.hz
        self.window = config.window
        self.rates = min(self.hz, MIN_HZ), max(self.hz, MAX_HZ)
        self._precision = "float32"
        self._speed = 1.0
        self._is_paused = False
        self._ended_s: float | None = None  # when the recording ended; it starts again soon
        self._shown = RecentEvents(1, 1)
        self._boxes: list[list[float]] = []
        self._results: deque[list[float]] = deque(maxlen=_MOST_RESULTS)  # results since the last picture
        self._picture_at_s = 0.0
        self._thread = threading.Thread(target=self._work, name="rvtssm page", daemon=True)
        self._thread.start()

    def handle(self, command: dict[str, Any] | Opening) -> None:
        """Queue a command of the page: new values of settings, or a source to play.

        Raises:
            UserError: Too many commands are waiting.
        """
        try:
            self._commands.put_nowait(command)
        except queue.Full:
            found = f"{_MOST_COMMANDS} commands of the page are waiting"
            raise UserError("serve.page", found=found, advice="reload it") from None

    def close(self) -> None:
        """Stop the thread and close the source."""
        self._commands.put(None)
        self._thread.join()

    def taken(self) -> list[str | bytes]:
        """Return what to send: messages as JSON, and at most one picture. The next picture is made after this call."""
        with self._lock:
            messages: list[str | bytes] = [*self._messages]
            self._messages.clear()
            if self._picture is not None:
                messages.append(self._picture)
                self._picture = None
            return messages

    def _work(self) -> None:
        with self._opened:
            while True:
                try:
                    command = self._commands.get(timeout=_IDLE_S) if self._run is None else self._commands.get_nowait()
                except queue.Empty:
                    if self._run is not None:
                        self._guarded(self._step)
                    continue
                if command is None:
                    return
                self._guarded(self._start if isinstance(command, Opening) else self._set, command)

    def _guarded(self, act: Callable[..., None], *arguments: Any) -> None:
        """Run an action. Report an error to the page and stop playing, unless the action only changed a setting.

        An error of this package also gets its traceback on standard error. The thread goes on in any case, because
        without it the page would stand still and not say why.
        """
        try:
            act(*arguments)
        except Exception as error:
            message = in_one_line(error)
            if not isinstance(error, FILE_ERRORS):
                message = f"a bug of this package, which the server shows in full: {type(error).__name__}: {message}"
                traceback.print_exc()
            if act != self._set:
                self._stop()
            if path := self._opening.path:  # do not reveal the folder
                message = message.replace(path, self._opening.name).replace(f"{Path(path).parent}/", "")
            self._tell(kind="error", message=message, is_playing=self._run is not None)

    def _stop(self) -> None:
        self._run = None
        self._opened.close()
        self._shown.clear()
        self._boxes = []
        with self._lock:
            self._results.clear()
            self._picture = None

    def _start(self, opening: Opening) -> None:
        self._stop()
        self._opening = opening
        self._downsample = self._given_downsample
        assumed = ""
        # Open the camera, which only one page can use, or a recording.
        if opening.path is None:
            if not self._camera.acquire(blocking=False):
                raise UserError("source.in_use", found="another page uses the camera", advice="close it there first")
            self._opened.callback(self._camera.release)
            source: Any = self._opened.enter_context(open_camera(settings=opening.camera_settings))
        else:
            sensor_hw = sensor_side(opening.height), sensor_side(opening.width)
            opened = self._opened.enter_context(opened_source(opening.path, ReadOptions(*sensor_hw)))
            recording: Any = opened.events
            if self._downsample is None:
                self._downsample = choose_downsample(self._weights("float32"), recording)
            if opened.assumed_sensor:
                size = f"{recording.width} x {recording.height} pixels"
                assumed = f"{opening.name} does not say the size of its sensor: assuming {size}; Size changes it"
            source = Replay(recording, opening.name)
            self._is_paused = False
        # Detect on it, and show its events.
        self._shown = RecentEvents(source.height, source.width)
        self._run = LiveRun(source, self._detector(source), self._shown.add)
        self._run.warm_up()
        duration_s = None
        if isinstance(source, Replay):
            self._seek(source, source.first_us)
            source.set_speed(self._speed)
            duration_s = (source.last_us - source.first_us) / 1e6
        shape = {"height": source.height, "width": source.width, "downsample": self._run.detector.downsample}
        self._tell(kind="opened", name=opening.name, duration_s=duration_s, assumed=assumed, **shape)

    def _detector(self, source: Any) -> StreamDetector:
        checkpoint = self._weights(self._precision)
        return StreamDetector(
            checkpoint,
            source.height,
            source.width,
            windows=checkpoint.windows_at(self.hz, self.window),
            downsample=self._downsample,
            config=PostprocessConfig(min_score=_LOWEST_SCORE, max_detections=100),
            skip="late",
        )

    def _set(self, command: dict[str, Any]) -> None:
        """Change settings during playback. The state of the detector is kept, except when the page jumps in time."""
        run = self._run
        replay = getattr(self._run, "source", None)
        if "hz" in command or "window" in command or "precision" in command:
            self.hz = _number(command.get("hz", self.hz), *self.rates)
            if "window" in command:
                self.window = _choice(command["window"], ("slide", "shrink"))
            precision = _choice(command.get("precision", self._precision), PRECISIONS)
            checkpoint = self._weights(precision)
            self._precision = precision
            if run is not None and "precision" in command:
                detector = self._detector(run.source)
                detector.load_state_dict(run.detector.state_dict())
                run.use(detector)
            elif run is not None:
                run.detector.windows = checkpoint.windows_at(self.hz, self.window)
        if "speed" in command:
            self._speed = _number(command["speed"], *SPEEDS)
        if "paused" in command:
            self._is_paused = bool(command["paused"])
        # The rest only concerns recordings, which play at any pace.
        if isinstance(replay, Replay):
            if "speed" in command:
                replay.set_speed(self._speed)
            if "paused" in command:
                replay.pause(self._is_paused)
            if "seek" in command:
                share = _number(command["seek"], 0, 1)
                self._seek(replay, replay.first_us + int(share * (replay.last_us - replay.first_us)))

    def _seek(self, replay: Replay, at_us: int) -> None:
        """Continue at a time. Show the events just before it, or after it at the start, in case playback is paused."""
        replay.seek(at_us)
        self._shown.clear()
        self._boxes = []
        self._ended_s = None
        if len(around := replay.between(at_us - SHOWN_US, max(at_us, replay.first_us + SHOWN_US))):
            self._shown.add(around)

    def _step(self) -> None:
        assert self._run is not None
        result = self._run.step()
        source = self._run.source
        if result is not None:
            self._note(result)
        now_s = time.monotonic()
        if source.is_ended:
            if not isinstance(source, Replay):
                raise UserError("source.broke_off", found=source.broke_off or f"{source.name} ended")
            self._end(self._run, source, now_s)
        now_us = source.now_us if isinstance(source, Replay) else self._run.now_us
        # A picture is drawn when the last one was taken, at most 25 times a second.
        if self._picture is None and now_s - self._picture_at_s >= _PICTURE_S and now_us is not None:
            self._picture_at_s = now_s
            picture = self._drawn(self._run, now_us)
            with self._lock:
                self._picture = picture
            self._notify()

    def _end(self, run: LiveRun, replay: Replay, now_s: float) -> None:
        """Compute the window that the end of a recording cuts short. A little later, start again."""
        if self._ended_s is None:
            last = run.finish(replay.last_us + math.ceil(1e6 / self.hz) + run.detector.windows.includes_end)
            if last is not None:
                self._note(last)
            self._ended_s = time.monotonic()  # the last window may have taken long
        elif now_s - self._ended_s >= _END_S and not self._is_paused:
            self._seek(replay, replay.first_us)

    def _note(self, result: WindowResult) -> None:
        self._boxes = _rows(result.detections)
        delays = (result.seconds, result.lag_s)
        self._results.append([round(result.t_us / 1e6, 6), *(round(1000 * s, 2) for s in delays), result.num_passed])

    def _drawn(self, run: LiveRun, now_us: int) -> bytes:
        """Return a picture for the page: length of the header, header as JSON, and compressed `RecentEvents.pixels`."""
        source = run.source
        shown = self._shown
        pixels = shown.pixels(now_us)
        first_us = source.first_us if isinstance(source, Replay) else 0
        header = {
            "kind": "picture",
            "t_s": (now_us - first_us) / 1e6,
            "height": shown.height,
            "width": shown.width,
            "pixel": shown.pixel,
            "notice": self._notice(source, bool(pixels.any())),
            "boxes": self._boxes,  # each box: left, top, right, bottom, class, score
            "results": list(self._results),
            "hz": self.hz,
            "step_scale": round(run.detector.checkpoint.windows.hz / self.hz, 4),
            "num_lost": source.num_lost,
            "is_paused": self._is_paused,
        }
        self._results.clear()
        head = json.dumps(header).encode()
        return len(head).to_bytes(4, "little") + head + zlib.compress(pixels.tobytes(), 1)

    def _notice(self, source: Any, has_events: bool) -> str:
        """Explain why a picture is empty or has no boxes; empty if there is nothing to explain."""
        if isinstance(source, Replay) and source.last_us - source.first_us < 1e6 / self.hz:
            return "the recording is shorter than a window; its boxes appear at its end, as in `rvtssm predict`"
        return f"no events in {SHOWN_US / 1000:g} ms" * (not has_events)

    def _tell(self, **message: Any) -> None:
        with self._lock:
            self._messages.append(json.dumps(message))
        self._notify()


def _rows(detections: Detections) -> list[list[float]]:
    """Return left, top, right, bottom, class and score of every box."""
    columns = detections.xyxy.round(1).tolist(), detections.class_id.tolist(), detections.score.round(3).tolist()
    return [[*xyxy, class_id, score] for xyxy, class_id, score in zip(*columns, strict=True)]


def sensor_side(value: Any) -> int | None:
    """Return a side of the sensor in pixels as a page sends it; None if it sends none. UserError if it is no number."""
    if not value:
        return None
    if not str(value).isdecimal() or not 1 <= int(value) <= 1 << 14:
        raise UserError("serve.page", found=f"{value} is not a sensor size", advice="give a number of pixels")
    return int(value)


def _number(value: Any, lowest: float, highest: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < math.inf:
        found = f"the page sent {value!r} instead of a number"
        raise UserError("serve.page", found=found, advice="reload it")
    return float(min(max(value, lowest), highest))


def _choice(value: Any, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise UserError("serve.page", found=f"the page sent {value!r}", needed=choices, advice="reload it")
    return str(value)
