"""`rvtssm live`: boxes while a camera or a program sends events, or while a recording is played at its own pace."""

import contextlib
import json
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from rvtssm.cli.chosen_weights import announce_detection, weights_to_detect
from rvtssm.cli.config import Config
from rvtssm.cli.console import changing_line, say, say_error, tell, tell_log, tell_warning
from rvtssm.cli.inputs import out_folder, weights_label
from rvtssm.detection import AUTO
from rvtssm.detection.configured_detector import NUM_TIMED, settings_detector
from rvtssm.detection.engine import StreamDetector
from rvtssm.detection.event_camera import CAMERA
from rvtssm.detection.feed import Feed, Replay
from rvtssm.detection.live_run import LiveRun
from rvtssm.detection.result_files import (
    ResultContext,
    SturdyWriter,
    detection_objects,
    open_result_files,
    result_file_names,
)
from rvtssm.detection.sources import OpenedSource, ended_by_signals, find_sources, opened_source
from rvtssm.detection.summary import RunSummary, Tally, counted, run_summary
from rvtssm.detection.window_results import WindowResult
from rvtssm.models.checkpoint_meta import LoadedCheckpoint
from rvtssm.readers import Recording
from rvtssm.readers.source import LiveSource
from rvtssm.records import ReadOptions
from rvtssm.system.files import atomic_file
from rvtssm.system.output_folder import free_number, locked, numbered_name
from rvtssm.system.user_error import UserError, in_one_line

_STATUS = "status.json"
_SHOWN_EVERY_S = 0.5
_STATUS_EVERY_S = 5.0
_TOLD_EVERY_S = 60.0


def live(config: Config, as_json: bool = False) -> int:
    """Write the boxes to `out` until the source or the user ends it; return 2 if the source broke off.

    With `as_json`, print a line of JSON for every window at once. Return 2 also if the program that reads them ends,
    if events cannot be used, and if the disk has no room for the summary. Files grow window by window and are never
    replaced: a later run in the same folder writes `detections_2.jsonl` and `live_2.json`. Events are read while the
    weights are loaded.
    """
    label = weights_label(config.checkpoint)
    source_name = next(iter(find_sources(config.recording))) if config.recording else "camera"
    with _opened(config) as (source, opened):
        config, checkpoint = weights_to_detect(config)
        out = out_folder(config, "live", source_name, label)
        with locked(out):
            # An earlier run in the folder keeps its files.
            number = free_number(out, [*result_file_names(config.live.formats), "live.json"])
            _check_status(out / _STATUS)
            with changing_line("preparing the detector"):
                session = _Session(config, source, opened, checkpoint, as_json)
            why = None
            if session.hz_is_auto:
                why = f"auto: the highest rate that this machine sustains, by {NUM_TIMED} windows"
            if as_json and why:
                tell(f"detects at {session.hz:g} Hz ({why})")
            elif not as_json:
                detection = replace(config.detection, hz=session.hz)
                announced = replace(config, detection=detection)
                announce_detection("detect", announced, checkpoint, source.name, out, why=why)
            broke_off = session.run(out, number)
            summary = session.summary(broke_off)
            is_written = _has_written(out / numbered_name("live.json", number), summary)
            (out / _STATUS).unlink(missing_ok=True)
    # Programs read standard output, so that people read the rest.
    for line in [*summary.lines(), f"in {out}"]:
        (tell if as_json else say)(line)
    if not summary.num_windows and isinstance(source, Replay):
        say_error(f"{source_name} ends before its first window does; `rvtssm predict` shows what is in it")
    if summary.broke_off:
        say_error(f"{summary.broke_off}; what was found before is kept")
    return 2 if summary.broke_off or not is_written else 0


def _check_status(path: Path) -> None:
    """Raise UserError for a file that this run would replace, unless it is the status of a run that was killed."""
    with contextlib.suppress(FileNotFoundError, ValueError, TypeError):
        if {"time_s", "pid", "host"} <= {*json.loads(path.read_text())}:
            return
    if path.exists():
        found = "this file was written by someone else"
        raise UserError("file.exists", name=path, found=found, advice="move it, or choose another folder with out=")


def _has_written(path: Path, summary: RunSummary) -> bool:
    """Write the summary of a run, and return whether it could be written; the disk may be full."""
    try:
        with atomic_file(path) as staged:
            staged.write_text(json.dumps(asdict(summary), indent=2) + "\n")
    except OSError as error:
        tell_warning(f"{path} cannot be written ({error.strerror}); its numbers follow")
        return False
    return True


class _Session:
    """One run of `live`: the detector on its source, the files, and what is told meanwhile.

    Args:
        config: The settings.
        source: What sends the events.
        opened: The source that was opened for it.
        checkpoint: The weights.
        as_json: Whether every window is printed as a line of JSON.
    """

    def __init__(
        self, config: Config, source: LiveSource, opened: OpenedSource, checkpoint: LoadedCheckpoint, as_json: bool
    ) -> None:
        self.config = config
        self.source = source
        self.opened = opened
        self.as_json = as_json
        self.hz_is_auto = config.detection.hz == AUTO
        self.tally = Tally(1)
        self._run = LiveRun(source, self._detector(checkpoint), self.tally.see, config.live.heartbeat)
        self._minute = Tally(0)
        self._is_reload_asked = False

    def _detector(self, checkpoint: LoadedCheckpoint) -> StreamDetector:
        config = self.config
        how = {"skip": "late"}
        return settings_detector(checkpoint, self.opened, config.detection, config.postprocess, config.filters, **how)

    @property
    def hz(self) -> float:
        """The rate of the detector."""
        return self._run.detector.windows.hz

    def run(self, folder: Path, number: int) -> str:
        """Run until the source ends, write and show what is found, and return why the events broke off, if they did."""
        source = self.source
        run = self._run
        min_score = self.config.detection.min_score
        spec = run.detector.checkpoint.spec
        events = self.opened.events
        context = ResultContext(spec, run.detector.sensor_hw, min_score, events.stamp_offset_us, events.frame_id)
        with (
            open_result_files(folder, self.config.live.formats, context, number) as writers,
            changing_line("preparing the detector") as show,
            _asked_by(signal.SIGUSR1, self._ask_reload),
        ):
            files = [SturdyWriter(write, tell_warning) for write in writers]
            began_s = shown_s = status_s = told_s = source.clock()
            run.warm_up()
            until_s = source.clock() + (self.config.live.duration_s or math.inf)
            while not source.is_ended and source.clock() < until_s:
                try:
                    result = run.step()
                    now_s = source.clock()
                    # For programs that watch: a status file. For logs: a line per minute.
                    if now_s - status_s > _STATUS_EVERY_S:
                        status_s = now_s
                        self._write_status(folder)
                    if now_s - told_s > _TOLD_EVERY_S:
                        told_s = now_s
                        self._tell_minute()
                    if self._is_reload_asked:
                        self._reload()
                    if result is None:
                        continue
                    # For files and programs that read lines.
                    written = result.above(min_score)
                    for write in files:
                        write(written)
                    self._count(result, len(written), files)
                    if self.as_json:
                        say(_as_json(written, spec.class_names))
                    elif now_s - shown_s > _SHOWN_EVERY_S:
                        shown_s = now_s
                        show(f"{shown_s - began_s:.0f} s, {_in_words(written, self.tally)}")
                except UserError as error:
                    return str(error)
                except SystemExit:  # what rich raises if the reader of a pipe has ended
                    return "the program that reads the lines has ended"
        return source.broke_off

    def summary(self, broke_off: str) -> RunSummary:
        """Return the record of the run so far."""
        return run_summary(
            self.opened,
            self.source,
            self._run.detector,
            self.tally,
            num_restarts=self._run.num_restarts,
            hz_is_auto=self.hz_is_auto,
            broke_off=broke_off,
        )

    def _count(self, result: WindowResult, num_written: int, files: Sequence[SturdyWriter]) -> None:
        if not self.tally.num_windows and result.lag_s > _SHOWN_EVERY_S:
            tell(f"live begins {result.lag_s:.1f} s behind, because events arrived while it was prepared")
        self.tally.add(result, num_written)
        self._minute.add(result, num_written)
        self.tally.num_unwritten = sum(file.num_unwritten for file in files)

    def _write_status(self, folder: Path) -> None:
        """Write `status.json`, by which other programs see that the run goes on. A full disk does not end it."""
        facts = {**self.tally.counts(), "lag_ms": self._minute.counts()["lag_ms"], "source": self.source.name}
        facts |= {"num_lost_packets": self.source.num_lost, "hz": self.hz, "hz_is_auto": self.hz_is_auto}
        # A status stays young for a while after its process was killed.
        writer = {"time_s": time.time(), "pid": os.getpid(), "host": socket.gethostname()}
        with contextlib.suppress(OSError), atomic_file(folder / _STATUS) as staged:
            staged.write_text(json.dumps({**writer, **facts}) + "\n")

    def _tell_minute(self) -> None:
        """Say on standard error how the last minute was; for logs, as a terminal shows it anyway."""
        minute = self._minute.counts()
        self._minute = Tally(0)
        lag = ", ".join(f"{value:.0f} ms ({name})" for name, value in minute["lag_ms"].items())
        facts = [counted(minute["num_windows"], "window"), counted(minute["num_detections"], "box")]
        facts += [
            f"{minute['num_passed']} passed over",
            f"{minute['num_silent']} of silence",
            f"lag {lag or 'unknown'}",
        ]
        facts.append(f"{counted(self.source.num_lost, 'packet')} lost since the start")
        tell_log("the last minute: " + ", ".join(facts))

    def _ask_reload(self) -> None:
        self._is_reload_asked = True

    def _reload(self) -> None:
        """Load the weights again, and go on with them; with those before if they cannot be used."""
        self._is_reload_asked = False
        try:
            _, checkpoint = weights_to_detect(self.config)
            known = self._run.detector.checkpoint.spec.names_on_disk
            now = checkpoint.spec.names_on_disk
            # The files of this run name the classes of the weights before.
            if [*now.items()] != [*known.items()]:
                found = f"they know {', '.join(now.values())} in place of {', '.join(known.values())}"
                raise UserError("weights.other_classes", found=found, advice="start live again to use them")
            detector = self._detector(checkpoint)
            detector.warm_up()
        except (UserError, OSError) as error:
            tell_warning(f"the weights cannot be loaded again ({in_one_line(error)}); live goes on with those before")
            return
        self._run.use(detector)
        tell_log(f"live goes on with the weights that {self.config.checkpoint} holds now")


@contextmanager
def _asked_by(number: int, act: Callable[[], None]) -> Iterator[None]:
    """Call a function on a signal while the block runs, if this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, lambda *_: act())
    try:
        yield
    finally:
        signal.signal(number, before)


@contextmanager
def _opened(config: Config) -> Iterator[tuple[LiveSource, OpenedSource]]:
    """Open a camera, a stream, or a recording that is played. A first Ctrl-C ends its events."""
    recording = config.recording
    camera = config.live.camera
    if recording is None and Path(camera).is_file():
        needed = f"it is a file: to play it, set recording={camera}"
        raise UserError("setting.form", name="live.camera", found=camera, needed=needed)
    # A recording is played, a camera sends by itself, and anything else is read by a thread.
    where = recording
    if where is None:
        where = CAMERA if camera == "auto" else f"{CAMERA}{camera}"
    with opened_source(where, ReadOptions.of(config.dataset), config.detection.camera_settings) as opened:
        events = opened.events
        # Each of them becomes a source that is asked for what has arrived.
        if isinstance(events, Recording):
            live_source: LiveSource = Replay(events, where)
        elif isinstance(events, LiveSource):
            live_source = events
        else:
            live_source = Feed(events)
            live_source.begin()  # it reads while the weights are loaded
        with ended_by_signals(live_source.end):
            yield live_source, opened


def _as_json(result: WindowResult, class_names: tuple[str, ...]) -> str:
    """Return a window as a line of JSON."""
    content = {
        "time_s": round(result.time_s, 6),
        "start_us": result.start_us,
        "t_us": result.t_us,
        "lag_ms": round(1000 * result.lag_s, 2),
        "num_passed": result.num_passed,
        "num_silent": result.num_silent,
        "num_lost_packets": result.num_lost_packets,
        "num_lost_events": result.num_lost_events,
        "detections": detection_objects(result.detections, class_names),
    }
    return json.dumps(content)


def _in_words(result: WindowResult, tally: Tally) -> str:
    """Return what was found in a window, and how the detector keeps up."""
    times = f"lag {1000 * result.lag_s:.0f} ms, step {1000 * result.seconds:.0f} ms"
    return f"{counted(len(result), 'box')}, {times}, {counted(tally.num_passed, 'window')} passed over"
