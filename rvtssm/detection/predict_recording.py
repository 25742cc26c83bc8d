"""Turn a recording, finished or still growing, into boxes and pictures, without labels.

Windows end at a fixed stride; in a DSEC sequence, also at the times of its images and labels.
"""

import json
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from rvtssm.detection.choose_downsample import ChosenDownsample, choose_downsample
from rvtssm.detection.detect import detect, open_stream
from rvtssm.detection.inference_config import PredictConfig
from rvtssm.detection.result_files import ResultContext, Write, open_result_files, result_file_names
from rvtssm.detection.sources import EventsInMemory, Interruption, Source, ended_by_signals, opened_source
from rvtssm.detection.stream import check_causal
from rvtssm.detection.summary import PredictionSummary, Tally
from rvtssm.detection.track_objects import Tracker
from rvtssm.detection.window_results import WindowResult
from rvtssm.drawing.draw import SHOWN_US
from rvtssm.drawing.pictures import PictureSettings, open_pictures
from rvtssm.drawing.sensor_frames import SensorFrames
from rvtssm.events.cells import frame_pixels
from rvtssm.events.frame_counter import FrameCounter, count_as_they_close
from rvtssm.events.windows import FreeGrid, label_grid
from rvtssm.models.checkpoint_meta import LoadedCheckpoint
from rvtssm.models.frame_size import advice_for_cameras, downsample_by_size, reduced_hw, reduction_in_words
from rvtssm.models.model_config import PostprocessConfig
from rvtssm.models.streams import Streams
from rvtssm.readers import Recording
from rvtssm.records import Detections, Labels, Windows, WindowSettings
from rvtssm.system.output_folder import result_set
from rvtssm.system.progress import progress_bar
from rvtssm.system.user_error import UserError

_PICTURES = ("video.mp4", "strip.png", "still_*.png")


def predict_recording(
    checkpoint: LoadedCheckpoint,
    recording: Path | str | Source,
    out: Path | str,
    config: PredictConfig | None = None,
    *,
    ground_truth: Labels | None = None,
    ends_us: np.ndarray | None = None,
    on_frame: Callable[[Detections, int], None] | None = None,
    progress: bool = True,
    interruption: Interruption | None = None,
) -> PredictionSummary:
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
        config: All other settings.
        ground_truth: Labels in sensor pixels, ordered by time, which are only drawn.
        ends_us: int64, times at which a window must end.
        on_frame: Called with the detections of every window and its start in microseconds.
        progress: Whether to show a progress bar.
        interruption: Lets Ctrl-C and SIGTERM end the prediction after a window; what was found before is written, and
            the summary says so. None: they raise KeyboardInterrupt and end the process, and nothing is written.

    Returns:
        The summary that is also written as `prediction.json`.

    Raises:
        UserError: The recording cannot be read to its end or holds no events, or the weights need later windows.
    """
    config = config or PredictConfig()
    check_causal(checkpoint.detector)
    tally = Tally(config.min_score, config.windows_per_call)
    opened = (
        nullcontext(recording)
        if isinstance(recording, Source)
        else opened_source(str(recording), config.height, config.width, config.camera_settings, repair=config.repair)
    )
    with opened as source:
        plan = _plan(checkpoint, source, config, ends_us)
        interrupted = ""
        with (
            nullcontext() if interruption is None else ended_by_signals(interruption),
            result_set(out, "prediction", [*result_file_names(), *_PICTURES, "prediction.json"]) as staged,
        ):
            with (
                open_result_files(
                    staged, config.formats, ResultContext(checkpoint.spec, plan.sensor_hw, config.min_score)
                ) as writers,
                open_pictures(
                    staged,
                    plan.pictures,
                    ground_truth,
                    source.images if config.overlay else None,
                    sensor := plan.sensor_frames(bool(listeners := _picture_listeners(writers))),
                    listeners,
                ) as show,
                progress_bar("predicting" if progress else None, plan.num_windows) as advance,
            ):
                blocks = tally.watched(source.blocks())
                if sensor is not None:
                    blocks = sensor.watched(blocks)
                counter = FrameCounter(plan.settings, frame_pixels(*plan.sensor_hw, plan.downsample))
                counted = count_as_they_close(blocks, plan.windows, counter, config.windows_per_call)
                stride_us = plan.settings.stride_us if plan.windows is None else None
                tracker = (
                    Tracker(
                        config.track,
                        checkpoint.spec.num_classes,
                        plan.settings.hz,
                        config.track_memory_s,
                        config.min_score,
                        config.track_smooth_s,
                    )
                    if config.track
                    else None
                )
                stream = open_stream(checkpoint, plan.frame_hw)
                steps = detect(stream, counted, stride_us, config.postprocess, plan.downsample)
                for hist, found, start_us, seconds in steps:
                    if tracker:
                        found = tracker.update(found)
                    result = WindowResult(
                        found,
                        start_us,
                        plan.sensor_hw,
                        checkpoint.spec,
                        seconds=seconds,
                        step_us=found.t_us - tally.done_us,
                    )
                    for write in writers:
                        write(result)
                    if on_frame is not None:
                        on_frame(found, start_us)
                    shown = (
                        found if sensor is not None else replace(found, xyxy=found.xyxy / np.float32(plan.downsample))
                    )
                    show(hist, shown, start_us)
                    advance(1)
                    tally.add(found, seconds)
                    if interruption is not None and interruption.is_ended:
                        interrupted = f"interrupted {(found.t_us - tally.start_us) / 1e6:.3f} s after the first event"
                        break
                if source.is_piped:
                    _check_frame(source, tally.num_events)
                    if not tally.num_events:
                        message = f"{source.name} ended without an event; a stream of events is needed"
                        raise UserError(source.broke_off or message)
            (wall_s, startup_s, realtime_factor), step_ms = tally.pace(), tally.step_ms()
            median_ms, cameras = step_ms["p50"] if tally.is_timed else None, ""
            differs = plan.downsample != downsample_by_size(checkpoint, *plan.sensor_hw)
            is_slow = 2 * step_ms["p50"] > plan.settings.stride_us / 1000
            if (differs or is_slow) and not (source.is_piped or interrupted):
                # a camera gives one window at a time, whatever `windows_per_call` says
                single_ms = _ms_of_one_more(stream, plan, config.postprocess, hist, (start_us, found.t_us))
                cameras = advice_for_cameras(checkpoint, plan.sensor_hw, plan.downsample, single_ms, plan.settings.hz)
                median_ms = median_ms or single_ms
            summary = PredictionSummary(
                recording=source.name,
                format=source.recording.format,
                sensor_hw=plan.sensor_hw,
                frame_hw=plan.frame_hw,
                trained_frame_hw=(checkpoint.spec.frame_height, checkpoint.spec.frame_width),
                downsample=plan.downsample,
                reduction=reduction_in_words(checkpoint, plan.sensor_hw, plan.downsample, median_ms),
                doubt=plan.doubt,
                cameras=cameras,
                hz=plan.settings.hz,
                window_ms=(plan.settings.length_us or plan.settings.stride_us) / 1000,
                num_windows=len(tally.seconds),
                num_events=tally.num_events,
                start_us=tally.start_us,
                duration_s=tally.duration_s,
                classes=checkpoint.spec.names_on_disk,
                num_detections=tally.num_written,
                written_min_score=float(config.postprocess.min_score),
                num_drawn_detections=tally.num_drawn,
                drawn_min_score=config.min_score,
                highest_score=tally.highest_score,
                sensor_guess=source.guess,
                assumed_sensor=source.assumed_sensor,
                faults=asdict(source.recording.faults),
                broke_off=source.broke_off or interrupted,
                wall_s=wall_s,
                startup_s=startup_s,
                realtime_factor=realtime_factor,
                windows_per_call=config.windows_per_call,
                is_timed=tally.is_timed,
                step_ms=step_ms,
                remedy=tally.remedy(),
                files=tuple(sorted([path.name for path in staged.iterdir()] + ["prediction.json"])),
            )
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
    doubt: str  # a sentence if the downsampling was chosen for boxes with low scores
    pictures: PictureSettings

    @property
    def frame_hw(self) -> tuple[int, int]:
        return reduced_hw(*self.sensor_hw, self.downsample)

    def sensor_frames(self, has_listeners: bool) -> SensorFrames | None:
        """Return what counts events for pictures; None without pictures, or if they show the detector's frames."""
        is_needed = has_listeners or not self.pictures.is_empty
        if not is_needed or self.pictures.downsample == self.downsample:
            return None
        is_surfaces = self.settings.representation == "surfaces"
        overlap_us = SHOWN_US if is_surfaces else self.settings.length_us or 0
        return SensorFrames(self.sensor_hw, overlap_us, None if self.windows is None else int(self.windows.ends_us[-1]))


def _plan(checkpoint: LoadedCheckpoint, source: Source, config: PredictConfig, ends_us: np.ndarray | None) -> _Plan:
    """Return the plan. Raise UserError without events, or if no pixel is left after downsampling."""
    recording, settings = source.recording, checkpoint.windows_at(config.hz, config.window)
    windows, num_windows = None, None
    if isinstance(recording, Recording):
        given = [times for times in (ends_us, source.images and source.images.times_us) if times is not None]
        windows = _windows_at(recording, np.concatenate([np.empty(0, np.int64), *given]), settings)
        first_us, last_us = recording.time_range_us
        num_windows = FreeGrid(first_us, settings).num_until(last_us) if windows is None else len(windows)
        if truncated := recording.faults.truncated_bytes:
            again = "copy it again" + (", or end its last line" if recording.format == "csv" else "")
            raise UserError(f"{source.name} is truncated: {truncated} bytes follow the last complete event; {again}")
        _check_frame(source, recording.num_events)
    elif isinstance(recording, EventsInMemory):
        first_us, last_us = recording.events.t[[0, -1]].tolist()
        num_windows = FreeGrid(first_us, settings).num_until(last_us)
    chosen = ChosenDownsample(config.downsample) if config.downsample else choose_downsample(checkpoint, source)
    downsample = chosen.downsample
    reduced_hw(recording.height, recording.width, downsample)
    pictures = PictureSettings(
        class_names=checkpoint.spec.class_names,
        min_score=config.min_score,
        windows=settings,
        windows_per_picture=max(1, math.ceil(settings.hz / config.max_fps - 1e-9)),
        has_video="mp4" in config.formats,
        num_stills=config.num_stills if "png" in config.formats else 0,
        downsample=downsample if config.view == "network" else 1,
        scale=config.scale,
        note=checkpoint.note,
    )
    return _Plan(
        settings, windows, num_windows, (recording.height, recording.width), downsample, chosen.doubt, pictures
    )


def _ms_of_one_more(
    stream: Streams, plan: _Plan, config: PostprocessConfig, hist: np.ndarray, bounds_us: tuple[int, int]
) -> float:
    """Compute a window again, now that the detector is prepared, and return its time in milliseconds."""
    window = Windows(np.array([bounds_us]), np.array([bounds_us[1] - bounds_us[0]]))
    calls = [(window, hist[None])] * 2  # the first one prepares the detector for single windows
    steps = detect(stream, calls, plan.settings.stride_us, config, plan.downsample)
    return 1000 * min(seconds for *_, seconds in steps)


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


def _check_frame(source: Source, num_events: int) -> None:
    """Raise UserError if most events lie outside the sensor: its size is wrong, or the bytes are not events."""
    recording = source.recording
    if (outside := recording.faults.out_of_frame) > num_events:
        again = "a stream must be RAW or DAT: send that" if source.is_piped else "copy it again"
        raise UserError(
            f"{source.name} has {outside} of {num_events + outside} events outside its "
            f"{recording.width}x{recording.height} (width x height) pixels; {again}, or give the right height and width"
        )
