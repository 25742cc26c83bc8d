"""`rvtssm live`: boxes while a camera sends events, or while a recording is played at its own pace."""

import json
import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch

from rvtssm.cli.announcement import announce, say_replaced
from rvtssm.cli.config import Config
from rvtssm.cli.console import changing_line, say, say_error
from rvtssm.cli.inputs import default_out, weights_label, with_default_weights
from rvtssm.cli.weights import precision_in_words, read_weights, say_note, say_windows, with_chosen_precision
from rvtssm.detection.choose_downsample import ChosenDownsample, choose_downsample
from rvtssm.detection.event_camera import Camera, open_camera
from rvtssm.detection.inference_config import LiveConfig
from rvtssm.detection.live import StreamDetector
from rvtssm.detection.live_run import LiveResult, LiveRun
from rvtssm.detection.replay import Replay
from rvtssm.detection.result_files import ResultContext, detection_objects, open_result_files, result_file_names
from rvtssm.detection.schedule import FixedRate
from rvtssm.detection.sources import Source, ended_by_signals, find_sources
from rvtssm.detection.summary import counted
from rvtssm.detection.window_results import WindowResult
from rvtssm.models.checkpoint_meta import LoadedCheckpoint
from rvtssm.models.detector import Detector
from rvtssm.models.frame_size import downsample_by_size, faster_downsample, reduction_in_words, what_to_set
from rvtssm.readers import open_recording
from rvtssm.system.busy_machine import busy_machine_remedy, sustained_in_words, two_digits
from rvtssm.system.output_folder import result_set
from rvtssm.system.user_error import UserError

_SHOWN_EVERY_S = 0.5
_TIMED = 100_000  # windows whose times are kept for the percentiles, the last ones, because a camera can send for days


@dataclass
class _Totals:
    """The record `live.json`."""

    source: str = ""
    hz: float = 0.0  # the highest rate, at which no window is passed over
    num_events: int = 0
    num_windows: int = 0  # computed
    num_passed: int = 0  # windows that were passed over because the detector was slower
    classes: dict[str, str] = field(default_factory=dict)  # names by the ids of classes in the files
    num_detections: int = 0
    num_restarts: int = 0  # jumps of the clock
    num_lost_packets: int = 0  # of the camera, which no memory was left for
    step_ms: dict[str, float] = field(default_factory=dict)  # computing time of a window: p50 and p95 of the last ones
    lag_ms: dict[str, float] = field(default_factory=dict)  # from the arrival of a window's end to its boxes, likewise
    longest_wait_ms: float = 0.0  # of a window for its computation
    longest_lag_ms: float = 0.0
    remedy: str = ""  # what helps if the detector is slower than the windows; empty if it keeps up
    too_short: str = ""  # that a recording ends before its first window does; empty if it does not
    broke_off: str = ""

    @property
    def kept_hz(self) -> float:
        """The rate of the computed windows."""
        return self.hz * self.num_windows / (self.num_windows + self.num_passed)

    @property
    def is_late(self) -> bool:
        """Whether windows were passed over, or will be because most take longer than one has time."""
        return self.num_passed > 0 or self.step_ms.get("p50", 0.0) > 1000 / self.hz

    def sentence(self) -> str:
        """Return what happened."""
        passed = ""
        if self.num_passed:
            passed = f", {self.num_passed} passed over (computed {self.kept_hz:.3g} of {self.hz:g} windows per second)"
        times = ""
        if self.num_windows:
            times = (
                f"; a window took {self.step_ms['p50']:.1f} ms (median; 95 %: {self.step_ms['p95']:.1f}), "
                f"its lag was {self.lag_ms['p50']:.1f} ms (95 %: {self.lag_ms['p95']:.1f}, "
                f"longest: {self.longest_lag_ms:.1f})"
            )
        return (
            f"{self.source}: {counted(self.num_events, 'event')}, {counted(self.num_windows, 'window')}{passed}, "
            f"{counted(self.num_detections, 'box')}{times}{f'; {self.remedy}' if self.remedy else ''}"
        )


def live(config: Config, as_json: bool = False) -> int:
    """Write the boxes to `out` until the camera is unplugged or the user ends it; return 2 if the camera broke off.

    With `as_json`, print a line of JSON for every window at once. Return 2 also if the program that reads them ends,
    and if events cannot be used. The boxes before are written.
    """
    label = weights_label(config.checkpoint) if config.checkpoint else ""
    config = with_chosen_precision(with_default_weights(config))
    checkpoint, settings = read_weights(config), config.live
    windows = checkpoint.windows_at(settings.hz, settings.window)
    source_name = next(iter(find_sources(config.recording))) if config.recording else "camera"
    out = Path(config.out) if config.out else default_out("live", source_name, label)
    with (
        _opened(settings, config.recording, checkpoint) as (source, chosen),
        result_set(out, "live", [*result_file_names(), "live.json"]) as staged,
    ):
        if not as_json:
            say_replaced(out, "live")
            announce(
                "detect",
                weights=config.checkpoint,
                source=source.name,
                stride=f"{windows.stride_us / 1000:g} ms",
                device=checkpoint.detector.device,
                precision=precision_in_words(config.precision, checkpoint),
                output=out,
            )
            say_note(config.checkpoint, checkpoint)
            say_windows(checkpoint, windows)
            for said in (
                reduction_in_words(checkpoint, (source.height, source.width), chosen.downsample),
                chosen.doubt,
            ):
                if said:
                    say(said)

        def build() -> StreamDetector:
            return StreamDetector(
                checkpoint,
                source.height,
                source.width,
                schedule=FixedRate(windows.hz, windows.length_us),
                downsample=chosen.downsample,
                config=settings.postprocess,
            )

        run = LiveRun(source, build)
        totals = _run(run, checkpoint, settings, staged, as_json, windows.hz)
        if totals.is_late:
            sustained_hz = min(totals.kept_hz, 1000 / totals.step_ms["p50"])
            totals.remedy = "; ".join(
                filter(None, (_slower(sustained_hz, windows.hz, run.detector, checkpoint), totals.remedy))
            )
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
) -> Iterator[tuple[Camera | Replay, ChosenDownsample]]:
    """Open the camera, or the recording that is played in its place, and choose by how much its frames are reduced.

    A first Ctrl-C ends its events.
    """
    if recording is None:
        if Path(settings.camera).is_file():
            raise UserError(f"camera={settings.camera} is a file; to play it, set recording={settings.camera}")
        serial = "" if settings.camera == "auto" else settings.camera
        with open_camera(serial, settings.camera_settings) as camera, ended_by_signals(camera):
            usual = downsample_by_size(checkpoint, camera.height, camera.width)
            yield camera, ChosenDownsample(settings.downsample or usual)
        return
    opened = open_recording(recording, settings.height, settings.width, settings.repair)
    try:
        chosen = (
            ChosenDownsample(settings.downsample)
            if settings.downsample
            else choose_downsample(checkpoint, Source(recording, opened))
        )
        with ended_by_signals(Replay(opened, recording)) as replay:
            yield replay, chosen
    finally:
        opened.close()


def _slower(sustained_hz: float, hz: float, detector: StreamDetector, checkpoint: LoadedCheckpoint) -> str:
    """Return in words what to set if the machine computes `sustained_hz` windows per second instead of `hz`."""
    said = f"{sustained_in_words(sustained_hz)}: {what_to_set(checkpoint, sustained_hz)}"
    usual = downsample_by_size(checkpoint, *detector.sensor_hw)
    if not isinstance(checkpoint.detector, Detector) or detector.downsample >= usual:
        return said
    faster, faster_hz = faster_downsample(detector.downsample, usual, sustained_hz, hz)
    return f"{said}, or downsample={faster} for about {two_digits(faster_hz)} Hz without the smallest objects"


def _run(
    run: LiveRun, checkpoint: LoadedCheckpoint, settings: LiveConfig, folder: Path, as_json: bool, hz: float
) -> _Totals:
    """Run until the source ends, write and show what is found, and return the totals."""
    source, totals, names = run.source, _Totals(run.source.name, hz), checkpoint.spec.class_names
    steps_s, lags_s = deque[float](maxlen=_TIMED), deque[float](maxlen=_TIMED)
    sensor_hw = source.height, source.width
    context = ResultContext(checkpoint.spec, sensor_hw, settings.postprocess.min_score)
    with (
        open_result_files(folder, settings.formats, context) as writers,
        changing_line("preparing the detector") as show,
    ):
        run.warm_up()
        before_s = time.perf_counter(), time.process_time()
        began_s = shown_s = source.clock()
        until_s = began_s + (settings.duration_s or math.inf)
        while not source.is_ended and source.clock() < until_s:
            try:
                result = run.step()
            except UserError as error:
                totals.broke_off = str(error)
                break
            if result is None:
                continue
            (found,) = result.window.detections
            start_us, seconds = result.window.start_us, result.window.seconds
            written = WindowResult(found, start_us, sensor_hw, checkpoint.spec, seconds=seconds)
            for write in writers:
                write(written)
            totals.num_detections += len(found)
            steps_s.append(result.window.seconds)
            lags_s.append(result.lag_s)
            totals.longest_wait_ms = max(totals.longest_wait_ms, 1000 * result.waited_s)
            totals.longest_lag_ms = max(totals.longest_lag_ms, 1000 * result.lag_s)
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
    if steps_s:
        totals.step_ms, totals.lag_ms = _percentiles_ms(steps_s), _percentiles_ms(lags_s)
    totals.classes = checkpoint.spec.names_on_disk
    totals.num_windows, totals.num_passed, totals.num_restarts = run.num_computed, run.num_passed, run.num_restarts
    if totals.is_late:
        totals.remedy = busy_machine_remedy(torch.get_num_threads(), wall_s, processor_s)
    return totals


def _percentiles_ms(seconds: Sequence[float]) -> dict[str, float]:
    p50, p95 = (1000 * np.percentile(seconds, (50, 95))).tolist()
    return {"p50": p50, "p95": p95}


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
