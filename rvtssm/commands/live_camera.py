"""`rvtssm live`: boxes while a camera sends events, or while a recording is played at its own pace."""

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from rvtssm.commands.announcement import announce, say_replaced
from rvtssm.commands.console import changing_line, say, say_error
from rvtssm.commands.inputs import default_out, weights_label, with_default_weights
from rvtssm.commands.weights import read_weights, say_note, say_windows, with_chosen_precision
from rvtssm.config import Config
from rvtssm.events.readers import open_recording
from rvtssm.models.checkpoint_meta import LoadedCheckpoint
from rvtssm.models.frame_size import reduction_in_words, usual_downsample
from rvtssm.prediction.choose_downsample import choose_downsample
from rvtssm.prediction.detection_bag import check_rosbags
from rvtssm.prediction.detection_files import detection_objects, open_detection_files
from rvtssm.prediction.inference_config import DETECTION_FILES, LiveConfig
from rvtssm.prediction.summary import counted
from rvtssm.streaming.event_camera import Camera, open_camera
from rvtssm.streaming.live import StreamDetector
from rvtssm.streaming.live_run import LiveResult, LiveRun
from rvtssm.streaming.replay import Replay
from rvtssm.streaming.schedule import FixedRate
from rvtssm.streaming.sources import Source, ended_by_signals, find_sources
from rvtssm.system.busy_machine import busy_machine_remedy
from rvtssm.system.output_folder import result_set
from rvtssm.system.user_error import UserError

_SHOWN_EVERY_S = 0.5


@dataclass
class _Totals:
    """The record `live.json`."""

    source: str = ""
    hz: float = 0.0  # the highest rate, at which no window is passed over
    num_events: int = 0
    num_windows: int = 0  # computed
    num_passed: int = 0  # windows that were passed over because the detector was slower
    num_passed_at_start: int = 0  # of these, while the first window was computed, which takes longer
    classes: dict[str, str] = field(default_factory=dict)  # names by the ids of classes in the files
    num_detections: int = 0
    num_restarts: int = 0  # jumps of the clock
    num_lost_packets: int = 0  # of the camera, which no memory was left for
    longest_wait_ms: float = 0.0  # of a window for its computation, without the first window
    longest_lag_ms: float = 0.0  # from the arrival of the end of a window to its boxes, without the first window
    remedy: str = ""  # what helps if other programs use the processors; empty if nothing is known to
    too_short: str = ""  # that a recording ends before its first window does; empty if it does not
    broke_off: str = ""

    def sentence(self) -> str:
        """Return what happened; the time in which the first window was computed does not count as speed."""
        passed, num_after = "", self.num_windows - 1
        if num_late := self.num_passed - self.num_passed_at_start:
            kept_hz = self.hz * num_after / (num_after + num_late)
            remedy = f"; {self.remedy}" if self.remedy else ""
            passed = f", {num_late} passed over (kept up: {kept_hz:.3g} of {self.hz:g} Hz{remedy})"
        passed += f", {self.num_passed_at_start} passed over at the start" if self.num_passed_at_start else ""
        return (
            f"{self.source}: {counted(self.num_events, 'event')}, {counted(self.num_windows, 'window')}{passed}, "
            f"{counted(self.num_detections, 'box')}; longest lag {self.longest_lag_ms:.1f} ms"
        )


def live(config: Config, as_json: bool = False) -> int:
    """Write the boxes to `out` until the camera is unplugged or the user ends it; return 2 if the camera broke off.

    With `as_json`, print a line of JSON for every window at once. Return 2 also if the program that reads them ends,
    and if events cannot be used. The boxes before are written.
    """
    if "mcap" in config.live.formats:
        check_rosbags()
    label = weights_label(config.checkpoint) if config.checkpoint else ""
    config = with_chosen_precision(with_default_weights(config))
    checkpoint, settings = read_weights(config), config.live
    windows = checkpoint.windows_at(settings.hz, settings.window)
    source_name = next(iter(find_sources(config.recording))) if config.recording else "camera"
    out = Path(config.out) if config.out else default_out("live", source_name, label)
    with (
        _opened(settings, config.recording, checkpoint) as (source, downsample),
        result_set(out, "live", [*DETECTION_FILES.values(), "live.json"]) as staged,
    ):
        if not as_json:
            say_replaced(out, "live")
            announce(
                "detect",
                weights=config.checkpoint,
                source=source.name,
                stride=f"{windows.stride_us / 1000:g} ms",
                device=checkpoint.detector.device,
                precision=config.precision,
                output=out,
            )
            say_note(config.checkpoint, checkpoint)
            say_windows(checkpoint, windows)
            if said := reduction_in_words(checkpoint.spec, (source.height, source.width), downsample):
                say(said)

        def build() -> StreamDetector:
            return StreamDetector(
                checkpoint,
                source.height,
                source.width,
                schedule=FixedRate(windows.hz, windows.length_us),
                downsample=downsample,
                config=settings.postprocess,
            )

        totals = _run(LiveRun(source, build), checkpoint, settings, staged, as_json)
        totals.hz = windows.hz
        totals.too_short = source.too_short(windows.stride_us) if isinstance(source, Replay) else ""
        (staged / "live.json").write_text(json.dumps(asdict(totals), indent=2) + "\n")
    if not as_json:
        say(f"{totals.sentence()}; in {out}")
    if totals.too_short:
        say_error(f"{source_name}: {totals.too_short}; `rvtssm predict` shows what is in it")
    if totals.broke_off:
        say_error(f"{totals.broke_off}; what was found before is kept")
    return 2 if totals.broke_off else 0


@contextmanager
def _opened(
    settings: LiveConfig, recording: str | None, checkpoint: LoadedCheckpoint
) -> Iterator[tuple[Camera | Replay, int]]:
    """Open the camera, or the recording that is played in its place, and choose by how much its frames are reduced.

    A first Ctrl-C ends its events.
    """
    if recording is None:
        serial = "" if settings.camera == "auto" else settings.camera
        with open_camera(serial, settings.camera_settings) as camera, ended_by_signals(camera):
            yield camera, settings.downsample or usual_downsample(checkpoint.spec, camera.height, camera.width)
        return
    opened = open_recording(recording, settings.height, settings.width, settings.repair)
    try:
        downsample = settings.downsample or choose_downsample(checkpoint, Source(opened.name, opened))
        with ended_by_signals(Replay(opened, opened.name)) as replay:
            yield replay, downsample
    finally:
        opened.close()


def _run(run: LiveRun, checkpoint: LoadedCheckpoint, settings: LiveConfig, folder: Path, as_json: bool) -> _Totals:
    """Run until the source ends, write and show what is found, and return the totals."""
    source, totals, names = run.source, _Totals(run.source.name), checkpoint.spec.class_names
    before_s = time.perf_counter(), time.process_time()
    began_s = shown_s = source.clock()
    until_s = began_s + (settings.duration_s or math.inf)
    with (
        open_detection_files(folder, settings.formats, names, checkpoint.spec.disk_class_ids) as append,
        changing_line("computing the first window") as show,
    ):
        while not source.is_ended and source.clock() < until_s:
            try:
                result = run.step()
            except UserError as error:
                totals.broke_off = str(error)
                break
            if result is None:
                continue
            (found,) = result.window.detections
            append(found)
            totals.num_detections += len(found)
            if run.num_computed > 1:
                totals.longest_wait_ms = max(totals.longest_wait_ms, 1000 * result.waited_s)
                totals.longest_lag_ms = max(totals.longest_lag_ms, 1000 * result.lag_s)
            if run.num_computed <= 2:  # those before the second window were passed over during the first
                totals.num_passed_at_start = run.num_passed
            if as_json:
                try:
                    say(_line(result, names))
                except SystemExit:  # what rich raises if the reader of a pipe has ended
                    totals.broke_off = "the program that reads the lines has ended"
                    break
            elif source.clock() - shown_s > _SHOWN_EVERY_S:
                shown_s = source.clock()
                show(
                    f"{shown_s - began_s:.0f} s, {counted(len(found), 'box')}, lag {1000 * result.lag_s:.0f} ms, "
                    f"step {1000 * result.window.seconds:.0f} ms, {counted(run.num_passed, 'window')} passed over"
                )
    totals.num_events, totals.num_lost_packets = source.num_events, source.num_lost
    totals.broke_off = totals.broke_off or source.broke_off
    wall_s, processor_s = time.perf_counter() - before_s[0], time.process_time() - before_s[1]
    totals.remedy = busy_machine_remedy(torch.get_num_threads(), wall_s, processor_s)
    totals.classes = checkpoint.spec.names_on_disk
    totals.num_windows, totals.num_passed, totals.num_restarts = run.num_computed, run.num_passed, run.num_restarts
    return totals


def _line(result: LiveResult, class_names: tuple[str, ...]) -> str:
    """Return a window as a line of JSON."""
    window, (found,) = result.window, result.window.detections
    content = {
        "start_us": window.start_us,
        "t_us": window.end_us,
        "lag_ms": round(1000 * result.lag_s, 2),
        "num_passed": window.num_passed,
        "detections": detection_objects(found, class_names),
    }
    return json.dumps(content)
