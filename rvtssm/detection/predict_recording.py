"""Turn a recording, finished or still growing, into boxes and pictures, without labels.

Windows end at a fixed stride; in a DSEC sequence, also at the times of its images and labels.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from rvtssm.detection.downsample import choose_downsample
from rvtssm.detection.engine import StreamDetector, detect
from rvtssm.detection.inference_config import DetectionConfig, PredictConfig, shown_boxes
from rvtssm.detection.result_files import ResultContext, Write, open_result_files, result_file_names
from rvtssm.detection.sources import EventsInMemory, Interruption, OpenedSource, ended_by_signals, opened_source
from rvtssm.detection.summary import RunSummary, Tally
from rvtssm.detection.track_objects import TRACK_MEMORY_S, Tracker
from rvtssm.detection.window_results import WindowResult
from rvtssm.drawing.draw import SHOWN_US
from rvtssm.drawing.pictures import MAX_FPS, NUM_STILLS, PictureSettings, SensorFrames, open_pictures
from rvtssm.events.windows import FreeGrid, label_grid
from rvtssm.models.checkpoint_meta import LoadedCheckpoint, reduced_hw
from rvtssm.models.model_config import PostprocessConfig
from rvtssm.readers import Recording
from rvtssm.records import Events, Labels, ReadOptions, Windows, WindowSettings
from rvtssm.system.output_folder import result_set
from rvtssm.system.progress import progress_bar
from rvtssm.system.user_error import UserError

_PICTURES = ("video.mp4", "strip.png", "still_*.png")


def predict_recording(
    checkpoint: LoadedCheckpoint,
    recording: Path | str | OpenedSource,
    out: Path | str,
    detection: DetectionConfig | None = None,
    config: PredictConfig | None = None,
    *,
    postprocess: PostprocessConfig | None = None,
    options: ReadOptions | None = None,
    ground_truth: Labels | None = None,
    on_window: Callable[[WindowResult], object] | None = None,
    progress: bool = True,
    interruption: Interruption | None = None,
) -> RunSummary:
    """Run a detector on events of any supported format and sensor size, in bounded memory.

    At the end, the folder `out` contains `prediction.json` and the files that `formats` asks for: `detections.jsonl`
    (one line per window), `detections.npy` (fields of Prophesee's boxes, class ids as in the dataset),
    `coco_results.json`, `video.mp4`, stills and a strip of them, and the files of contrib (`detections.mcap`,
    `prediction.rrd`). Boxes are in sensor pixels.

    Args:
        checkpoint: The weights.
        recording: An event file, the folder of a DSEC sequence, `-` (standard input), `tcp://HOST:PORT`, `camera:`, or
            an opened source, which stays open.
        out: The folder to write to.
        detection: Rate, windows and frames of the detector, and which boxes are shown.
        config: The files to write.
        postprocess: Which boxes count as detections.
        options: What the caller says about the recording.
        ground_truth: Labels in sensor pixels, ordered by time, which are only drawn.
        on_window: Called with every window and all of its boxes.
        progress: Whether to show a progress bar.
        interruption: Lets Ctrl-C and SIGTERM end the prediction after a window; what was found before is written, and
            the summary says so. None: they raise KeyboardInterrupt and end the process, and nothing is written.

    Returns:
        The summary that is also written as `prediction.json`.

    Raises:
        UserError: The recording cannot be read to its end or holds no events, or the weights need later windows.
    """
    detection, config = detection or DetectionConfig(), config or PredictConfig()
    tally = Tally(config.windows_per_call)
    opened = (
        nullcontext(recording)
        if isinstance(recording, OpenedSource)
        else opened_source(str(recording), options or ReadOptions(), detection.camera_settings)
    )
    with opened as source:
        plan = _plan(checkpoint, source, detection, config)
        detector = _detector(checkpoint, plan, detection, config, postprocess or PostprocessConfig())
        with (
            nullcontext() if interruption is None else ended_by_signals(interruption),
            result_set(out, "prediction", [*result_file_names(), *_PICTURES, "prediction.json"]) as staged,
        ):
            with (
                _opened_outputs(staged, checkpoint, plan, source, config, ground_truth) as (write, sensor),
                progress_bar("predicting" if progress else None, plan.num_windows) as advance,
            ):

                def see(block: Events) -> None:
                    tally.see(block)
                    if sensor is not None:
                        sensor.add(block)

                interrupted = ""
                for result in detect(source.events, detector, see):
                    if on_window is not None:
                        on_window(result)
                    tally.add(result, write(result))
                    advance(1)
                    if interruption is not None and interruption.is_ended:
                        interrupted = f"interrupted {(result.t_us - tally.start_us) / 1e6:.3f} s after the first event"
                        break
                if source.seekable is None:
                    _check_stream(source, tally.num_events)
            summary = _summary(checkpoint, plan, source, config, tally, interrupted)
            summary = replace(summary, files=(*sorted(path.name for path in staged.iterdir()), "prediction.json"))
            (staged / "prediction.json").write_text(json.dumps(asdict(summary), indent=2) + "\n")
    return summary


@dataclass(frozen=True)
class _Plan:
    """The windows, frames and pictures of one recording."""

    settings: WindowSettings
    windows: Windows | None  # None: windows at a fixed stride from the first event on
    num_windows: int | None  # None: unknown before the end
    sensor_hw: tuple[int, int]
    downsample: int
    tiles: str | None
    pictures: PictureSettings

    @property
    def frame_hw(self) -> tuple[int, int]:
        return reduced_hw(*self.sensor_hw, self.downsample)

    def sensor_frames(self, has_listeners: bool) -> SensorFrames | None:
        """Return what counts events for pictures; None without pictures, or if they show the detector's frames."""
        is_needed = has_listeners or not self.pictures.is_empty
        if not is_needed or self.pictures.downsample == self.downsample:
            return None
        overlap_us, until_us = self.settings.length_us or 0, None
        if self.settings.representation == "surfaces":
            overlap_us = SHOWN_US
        if self.windows is not None:
            until_us = int(self.windows.ends_us[-1])
        return SensorFrames(self.sensor_hw, overlap_us, until_us)


def _plan(
    checkpoint: LoadedCheckpoint, source: OpenedSource, detection: DetectionConfig, config: PredictConfig
) -> _Plan:
    """Return the plan. Raise UserError without events, or if no pixel is left after downsampling."""
    events, settings = source.events, checkpoint.windows_at(detection.hz, detection.window, detection.reduce)
    windows, num_windows = None, None
    if isinstance(events, Recording) and source.images is not None:
        windows = _windows_at(events, source.images.times_us, settings)
    if windows is not None:
        num_windows = len(windows)
    elif isinstance(events, Recording | EventsInMemory):
        first_us, last_us = events.time_range_us
        num_windows = FreeGrid(first_us, settings).num_until(last_us)
    downsample = detection.downsample or choose_downsample(checkpoint, source, detection.reduce, detection.tiles)
    reduced_hw(events.height, events.width, downsample)
    pictures = PictureSettings(
        class_names=checkpoint.spec.class_names,
        min_score=detection.min_score,
        windows=settings,
        windows_per_picture=max(1, math.ceil(settings.hz / MAX_FPS - 1e-9)),
        has_video="mp4" in config.formats,
        num_stills=NUM_STILLS * ("png" in config.formats),
        downsample=downsample if config.view == "network" else 1,
        scale=config.scale,
        note=checkpoint.note,
    )
    return _Plan(settings, windows, num_windows, (events.height, events.width), downsample, detection.tiles, pictures)


def _detector(
    checkpoint: LoadedCheckpoint,
    plan: _Plan,
    detection: DetectionConfig,
    config: PredictConfig,
    postprocess: PostprocessConfig,
) -> StreamDetector:
    tracking = checkpoint.spec.num_classes, plan.settings.hz, TRACK_MEMORY_S, detection.min_score
    return StreamDetector(
        checkpoint,
        *plan.sensor_hw,
        windows=plan.settings,
        grid=plan.windows,
        downsample=plan.downsample,
        tiles=plan.tiles,
        config=shown_boxes(postprocess),
        windows_per_call=config.windows_per_call,
        skip="never",
        keeps_frames=True,
        tracker=Tracker(detection.track, *tracking) if detection.track else None,
    )


@contextmanager
def _opened_outputs(
    folder: Path,
    checkpoint: LoadedCheckpoint,
    plan: _Plan,
    source: OpenedSource,
    config: PredictConfig,
    ground_truth: Labels | None,
) -> Iterator[tuple[Callable[[WindowResult], int], SensorFrames | None]]:
    """Yield a function that writes and draws a window and returns how many boxes it wrote, and what counts events.

    The second is None if pictures need no other events than those in the detector's frames.
    """
    context = ResultContext(checkpoint.spec, plan.sensor_hw, plan.pictures.min_score)
    with open_result_files(folder, config.formats, context) as writers:
        listeners = _picture_listeners(writers)
        sensor = plan.sensor_frames(bool(listeners))
        with open_pictures(folder, plan.pictures, ground_truth, source.images, sensor, listeners) as show:

            def write(result: WindowResult) -> int:
                written = result
                if not config.all_scores:
                    written = result.above(plan.pictures.min_score)
                for append in writers:
                    append(written)
                shown = result.detections
                if sensor is None:
                    shown = replace(shown, xyxy=shown.xyxy / np.float32(plan.downsample))
                assert result.frame is not None
                show(result.frame, shown, result.start_us)
                return len(written)

            yield write, sensor


def _summary(
    checkpoint: LoadedCheckpoint,
    plan: _Plan,
    source: OpenedSource,
    config: PredictConfig,
    tally: Tally,
    interrupted: str,
) -> RunSummary:
    return RunSummary(
        source=source.name,
        format=source.format,
        sensor_hw=plan.sensor_hw,
        frame_hw=plan.frame_hw,
        downsample=plan.downsample,
        reduce=plan.settings.reduce,
        tiles=plan.tiles,
        assumed_sensor=source.assumed_sensor,
        hz=plan.settings.hz,
        window_ms=plan.settings.nominal_length_us / 1000,
        windows_per_call=config.windows_per_call,
        **tally.counts(),
        classes=checkpoint.spec.names_on_disk,
        faults=asdict(source.faults),
        removed=source.removed,
        num_lost_packets=getattr(source.events, "num_lost", 0),
        num_restarts=0,
        broke_off=source.broke_off or interrupted,
    )


def _picture_listeners(writers: Sequence[Write]) -> list[Callable[[np.ndarray, int], None]]:
    """Return the methods `picture` of the writers that show pictures of events as well, such as those of Rerun."""
    return [getattr(writer, "picture") for writer in writers if hasattr(writer, "picture")]  # noqa: B009


def _windows_at(recording: Recording, ends_us: np.ndarray, settings: WindowSettings) -> Windows | None:
    """Return windows that end at the given times and continue at the stride after the last one.

    Times outside the events are ignored. Return None if none is left.
    """
    first_us, last_us = recording.time_range_us
    times_us = ends_us[(ends_us > first_us) & (ends_us <= last_us + 1)]
    if not len(times_us):
        return None
    after = FreeGrid(int(times_us.max()), settings)
    return label_grid(np.concatenate([times_us, after.ends_us(0, after.num_ended(last_us + 1))]), first_us, settings)


def _check_stream(source: OpenedSource, num_events: int) -> None:
    """Raise UserError for a stream that held no events, or events of another sensor."""
    outside = source.faults.out_of_frame
    if outside > num_events:
        raise UserError(
            "stream.outside_frame",
            f"{source.name} has {outside} of {num_events + outside} events outside its "
            f"{source.events.width}x{source.events.height} (width x height) pixels; a stream must be RAW or DAT: "
            "send that, or give the right height and width",
        )
    if not num_events:
        raise UserError(
            "live.broke_off", source.broke_off or f"{source.name} ended without an event; a stream of events is needed"
        )
