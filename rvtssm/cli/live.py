"""`rvtssm live`: boxes while a camera or a program sends events, or while a recording is played at its own pace."""

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import torch

from rvtssm.cli.config import Config
from rvtssm.cli.console import changing_line, console, say, say_error, say_replaced
from rvtssm.cli.inputs import out_folder, weights_label
from rvtssm.cli.weights import announce_detection, precision_in_words, weights_to_detect
from rvtssm.detection.downsample import SustainedRate, sustained_rates
from rvtssm.detection.event_camera import CAMERA
from rvtssm.detection.feed import Feed
from rvtssm.detection.inference_config import shown_boxes
from rvtssm.detection.live_run import LiveRun
from rvtssm.detection.predict_recording import settings_detector
from rvtssm.detection.replay import Replay
from rvtssm.detection.result_files import ResultContext, detection_objects, open_result_files, result_file_names
from rvtssm.detection.sources import OpenedSource, ended_by_signals, find_sources, opened_source
from rvtssm.detection.summary import Tally, counted, run_summary
from rvtssm.detection.window_results import WindowResult
from rvtssm.evaluation.render import TerminalTable
from rvtssm.models.checkpoint_meta import LoadedCheckpoint
from rvtssm.readers import Recording
from rvtssm.readers.source import LiveSource
from rvtssm.records import ReadOptions
from rvtssm.system.output_folder import result_set
from rvtssm.system.user_error import UserError

_SHOWN_EVERY_S = 0.5


def live(config: Config, as_json: bool = False) -> int:
    """Write the boxes to `out` until the source or the user ends it; return 2 if the source broke off.

    With `as_json`, print a line of JSON for every window at once. Return 2 also if the program that reads them ends,
    and if events cannot be used. The boxes before are written.
    """
    label = weights_label(config.checkpoint)
    config, checkpoint = weights_to_detect(config)
    detection = config.detection
    source_name = next(iter(find_sources(config.recording))) if config.recording else "camera"
    out = out_folder(config, "live", source_name, label)
    if config.live.benchmark:
        return _benchmark(config, checkpoint, out, as_json)
    with (
        _opened(config) as (source, opened),
        result_set(out, "live", [*result_file_names(), "live.json"]) as staged,
    ):
        if not as_json:
            say_replaced(out, "live")
            announce_detection("detect", config, checkpoint, source.name, out)
        detector = settings_detector(checkpoint, opened, detection, config.postprocess, config.filters, skip="late")
        tally = Tally(1)
        run = LiveRun(source, detector, tally.see)
        broke_off = _run(run, tally, config, staged, as_json)
        restarts = run.num_restarts
        summary = run_summary(opened, source, detector, tally, num_restarts=restarts, broke_off=broke_off)
        (staged / "live.json").write_text(json.dumps(asdict(summary), indent=2) + "\n")
    if not as_json:
        for line in [*summary.lines(), f"in {out}"]:
            say(line)
    if not summary.num_windows and isinstance(source, Replay):
        say_error(f"{source_name} ends before its first window does; `rvtssm predict` shows what is in it")
    if summary.broke_off:
        say_error(f"{summary.broke_off}; what was found before is kept")
    return 2 if summary.broke_off else 0


def _benchmark(config: Config, checkpoint: LoadedCheckpoint, out: Path, as_json: bool) -> int:
    """Measure which rates this processor sustains on a recording, print a table, and write `benchmark.json`."""
    rates, detection = list[SustainedRate](), config.detection
    windows = checkpoint.windows_at(detection.hz, detection.window, detection.reduce)
    with _opened(config) as (source, opened), changing_line("measuring") as show:
        recording = opened.events
        if not isinstance(recording, Recording):
            raise UserError(
                "live.benchmark_source", f"benchmark=true needs a recording, not {source.name}; name a file"
            )
        postprocess, downsample = shown_boxes(config.postprocess), detection.downsample
        for rate in sustained_rates(checkpoint, recording, windows, postprocess, downsample):
            rates.append(rate)
            show(f"measuring: downsample={rate.downsample} takes {rate.p50_ms:.0f} ms per window")
    about = {
        "source": source.name,
        "weights": config.checkpoint,
        "sensor_hw": (source.height, source.width),
        "window_ms": windows.nominal_length_us / 1000,
        "precision": precision_in_words(config.precision, checkpoint),
        "threads": torch.get_num_threads(),
        "load_average": os.getloadavg()[0],  # of the last minute: other programs that run slow the detector down
        "rates": [asdict(rate) for rate in rates],
    }
    content = json.dumps(about, indent=2) + "\n"
    with result_set(out, "benchmark", ["benchmark.json"]) as staged:
        (staged / "benchmark.json").write_text(content)
    if as_json:
        say(content.rstrip())
    else:
        console.print(_rates_table(rates, f"{counted(torch.get_num_threads(), 'thread')}, {about['precision']}"))
        say(f"in {out / 'benchmark.json'}")
    return 0


def _rates_table(rates: list[SustainedRate], how: str) -> TerminalTable:
    rows: list[tuple[str, ...]] = [("downsample", "frame", "smallest object", "median", "95 % within", "sustained")]
    for rate in rates:
        frame = f"{rate.frame_hw[1]} x {rate.frame_hw[0]}"
        times = f"{rate.p50_ms:.1f} ms", f"{rate.p95_ms:.1f} ms", f"{rate.hz:.3g} Hz"
        rows.append((str(rate.downsample), frame, f"{rate.smallest_object_px:.0f} pixels", *times))
    return TerminalTable(f"time of a window ({counted(rates[0].num_windows, 'window')} each, {how})", rows)


@contextmanager
def _opened(config: Config) -> Iterator[tuple[LiveSource, OpenedSource]]:
    """Open a camera, a stream, or a recording that is played. A first Ctrl-C ends its events."""
    recording, camera = config.recording, config.live.camera
    if recording is None and Path(camera).is_file():
        raise UserError("live.camera_is_file", f"camera={camera} is a file; to play it, set recording={camera}")
    where = recording
    if where is None:
        where = CAMERA if camera == "auto" else f"{CAMERA}{camera}"
    with opened_source(where, ReadOptions.of(config.dataset), config.detection.camera_settings) as opened:
        events = opened.events
        if isinstance(events, Recording):
            live_source: LiveSource = Replay(events, where)
        elif isinstance(events, LiveSource):
            live_source = events
        else:
            live_source = Feed(events)
        with ended_by_signals(live_source):
            yield live_source, opened


def _run(run: LiveRun, tally: Tally, config: Config, folder: Path, as_json: bool) -> str:
    """Run until the source ends, write and show what is found, and return why the events broke off, if they did."""
    source, spec = run.source, run.detector.checkpoint.spec
    context = ResultContext(spec, run.detector.sensor_hw, config.detection.min_score)
    with (
        open_result_files(folder, config.live.formats, context) as writers,
        changing_line("preparing the detector") as show,
    ):
        began_s = shown_s = source.clock()
        run.warm_up()
        until_s = source.clock() + (config.live.duration_s or math.inf)
        while not source.is_ended and source.clock() < until_s:
            try:
                result = run.step()
                if result is None:
                    continue
                written = result.above(config.detection.min_score)
                for write in writers:
                    write(written)
                tally.add(result, len(written))
                if as_json:
                    say(_as_json(written, spec.class_names))
                elif source.clock() - shown_s > _SHOWN_EVERY_S:
                    shown_s = source.clock()
                    show(f"{shown_s - began_s:.0f} s, {_in_words(written, tally)}")
            except UserError as error:
                return str(error)
            except SystemExit:  # what rich raises if the reader of a pipe has ended
                return "the program that reads the lines has ended"
    return source.broke_off


def _as_json(result: WindowResult, class_names: tuple[str, ...]) -> str:
    """Return a window as a line of JSON."""
    content = {
        "start_us": result.start_us,
        "t_us": result.t_us,
        "lag_ms": round(1000 * result.lag_s, 2),
        "num_passed": result.num_passed,
        "detections": detection_objects(result.detections, class_names),
    }
    return json.dumps(content)


def _in_words(result: WindowResult, tally: Tally) -> str:
    """Return what was found in a window, and how the detector keeps up."""
    times = f"lag {1000 * result.lag_s:.0f} ms, step {1000 * result.seconds:.0f} ms"
    return f"{counted(len(result), 'box')}, {times}, {counted(tally.num_passed, 'window')} passed over"
