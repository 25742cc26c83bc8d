"""Turn a recording, finished or still growing, into boxes and pictures, without labels.

Windows end at a fixed stride; in a DSEC sequence, also at the times of its images and labels.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from rvtssm.detection import DetectionConfig, PredictConfig
from rvtssm.detection.configured_detector import settings_detector
from rvtssm.detection.engine import StreamDetector, detect
from rvtssm.detection.result_files import ResultContext, open_result_files, result_file_names
from rvtssm.detection.sources import Interruption, OpenedSource, ended_by_signals, opened_source
from rvtssm.detection.summary import RunSummary, Tally, run_summary
from rvtssm.detection.window_results import WindowResult
from rvtssm.drawing.draw import SHOWN_US
from rvtssm.drawing.pictures import MAX_FPS, NUM_STILLS, PictureSettings, SensorFrames, open_pictures
from rvtssm.events.windows import FreeGrid, label_grid
from rvtssm.models import PostprocessConfig
from rvtssm.models.checkpoint_meta import LoadedCheckpoint
from rvtssm.readers.filters import Filters
from rvtssm.records import Events, Labels, ReadOptions, Windows, WindowSettings
from rvtssm.system.output_folder import result_set
from rvtssm.system.user_error import UserError
from rvtssm.system.workers import progress_bar

_PICTURES = {"mp4": ["video.mp4"], "png": ["strip.png", "still_*.png"]}


def predict_recording(
    checkpoint: LoadedCheckpoint,
    recording: Path | str | OpenedSource,
    out: Path | str,
    detection: DetectionConfig | None = None,
    config: PredictConfig | None = None,
    *,
    postprocess: PostprocessConfig | None = None,
    options: ReadOptions | None = None,
    filters: Filters = (),
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
        filters: Filters of the events, see `FilterChain`.
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
    detection = detection or DetectionConfig()
    config = config or PredictConfig()
    opened: AbstractContextManager[OpenedSource]
    # A source that the caller has opened stays open.
    if isinstance(recording, OpenedSource):
        opened = nullcontext(recording)
    else:
        opened = opened_source(str(recording), options or ReadOptions(), detection.camera_settings)
    with opened as source:
        run = RecordingRun(checkpoint, source, detection, config, postprocess, filters, keeps_frames=True)
        with (
            nullcontext() if interruption is None else ended_by_signals(interruption.end),
            result_set(out, "prediction", _file_names(config.formats)) as staged,
        ):
            # Compute, count and write window by window, so that memory does not grow with the recording.
            interrupted = ""
            with _opened_outputs(staged, run, detection, config, ground_truth) as write:
                for result in run.windows(progress):
                    if on_window is not None:
                        on_window(result)
                    run.tally.add(result, write(result))
                    if interruption is not None and interruption.is_ended:
                        seconds = (result.t_us - run.tally.start_us) / 1e6
                        interrupted = f"interrupted {seconds:.3f} s after the first event"
                        break
            # Everything is complete, and the summary names it.
            files = (*sorted(path.name for path in staged.iterdir()), "prediction.json")
            summary = run.summary(interrupted, files)
            (staged / "prediction.json").write_text(json.dumps(asdict(summary), indent=2) + "\n")
    return summary


def _file_names(formats: Sequence[str]) -> list[str]:
    """Return the names, or patterns of names, of the files that some formats write."""
    names = [*result_file_names(formats), "prediction.json"]
    for name in formats:
        names += _PICTURES.get(name, [])
    return names


class RecordingRun:
    """A detector on all windows of a source, and what is counted meanwhile.

    Args:
        checkpoint: The weights.
        source: The opened source.
        detection: Rate, windows and frames of the detector, and tracks.
        config: The windows per call.
        postprocess: Which boxes count as detections.
        filters: Filters of the events, see `FilterChain`.
        keeps_frames: Give results the frame that the detector saw.
    """

    def __init__(
        self,
        checkpoint: LoadedCheckpoint,
        source: OpenedSource,
        detection: DetectionConfig,
        config: PredictConfig,
        postprocess: PostprocessConfig | None,
        filters: Filters,
        keeps_frames: bool = False,
    ) -> None:
        self.source = source
        self.tally = Tally(config.windows_per_call)
        windows = checkpoint.windows_at(detection.rate, detection.window, detection.reduce)
        self.grid, self._num_windows = _planned(source, windows)
        self.detector = settings_detector(
            checkpoint,
            source,
            detection,
            postprocess or PostprocessConfig(),
            filters,
            grid=self.grid,
            windows_per_call=config.windows_per_call,
            skip="never",
            keeps_frames=keeps_frames,
        )
        self.listeners: list[Callable[[Events], object]] = [self.tally.see]  # of the events that filters keep

    def windows(self, progress: bool) -> Iterator[WindowResult]:
        """Yield the result of every window, and show a progress bar if asked to.

        Raises:
            UserError: The source cannot be read to its end, or is a stream without events on its sensor.
        """

        def see(block: Events) -> None:
            for listener in self.listeners:
                listener(block)

        with progress_bar("predicting" if progress else None, self._num_windows) as advance:
            for result in detect(self.source.events, self.detector, see):
                yield result
                advance(1)
        if self.source.events.is_live:
            _check_stream(self.source, self.detector.filters.num_events)  # before any of them was removed

    def summary(self, interrupted: str = "", files: tuple[str, ...] = ()) -> RunSummary:
        """Return the record of the run, which has ended."""
        broke_off = self.source.events.broke_off or interrupted
        return run_summary(self.source, self.source.events, self.detector, self.tally, broke_off=broke_off, files=files)


def _planned(source: OpenedSource, windows: WindowSettings) -> tuple[Windows | None, int | None]:
    """Return the windows if they do not end at a fixed stride, and their number; None: unknown before the end."""
    events = source.events
    if events.is_live or events.time_range_us is None:
        return None, None
    # Pictures of a DSEC sequence need a window at their time.
    if source.images is not None:
        grid = _windows_at(events.time_range_us, source.images.times_us, windows)
        if grid is not None:
            return grid, len(grid)
    first_us, last_us = events.time_range_us
    return None, FreeGrid(first_us, windows).num_until(last_us)


def _pictures(detector: StreamDetector, detection: DetectionConfig, config: PredictConfig) -> PictureSettings:
    return PictureSettings(
        class_names=detector.checkpoint.spec.class_names,
        min_score=detection.min_score,
        windows=detector.windows,
        windows_per_picture=max(1, math.ceil(detector.windows.hz / MAX_FPS - 1e-9)),
        has_video="mp4" in config.formats,
        num_stills=NUM_STILLS * ("png" in config.formats),
        downsample=detector.downsample if config.view == "network" else 1,
        scale=config.scale,
        note=detector.checkpoint.note,
    )


def _sensor_frames(
    detector: StreamDetector, grid: Windows | None, pictures: PictureSettings, has_listeners: bool
) -> SensorFrames | None:
    """Return what counts events for pictures; None without pictures, or if they show the detector's frames."""
    is_needed = has_listeners or not pictures.is_empty
    if not is_needed or pictures.downsample == detector.downsample:
        return None
    overlap_us = detector.windows.length_us or 0
    until_us = None
    # Surfaces have no length, so pictures show the events of the last moments.
    if detector.windows.representation == "surfaces":
        overlap_us = SHOWN_US
    if grid is not None:
        until_us = int(grid.ends_us[-1])
    return SensorFrames(detector.sensor_hw, overlap_us, until_us)


@contextmanager
def _opened_outputs(
    folder: Path, run: RecordingRun, detection: DetectionConfig, config: PredictConfig, ground_truth: Labels | None
) -> Iterator[Callable[[WindowResult], int]]:
    """Yield a function that writes and draws a window and returns how many boxes it wrote.

    If pictures need other events than those in the detector's frames, these are counted as well.
    """
    detector = run.detector
    # What is drawn, and what every file says of the run.
    pictures = _pictures(detector, detection, config)
    events = run.source.events
    stamps = events.stamp_offset_us, events.frame_id
    context = ResultContext(detector.checkpoint.spec, detector.sensor_hw, detection.min_score, *stamps)
    with open_result_files(folder, config.formats, context) as writers:
        # Pictures of the sensor need events that the frames of the detector do not show.
        listeners = [getattr(writer, "picture") for writer in writers if hasattr(writer, "picture")]  # noqa: B009
        sensor = _sensor_frames(detector, run.grid, pictures, bool(listeners))
        if sensor is not None:
            run.listeners.append(sensor.add)
        with open_pictures(folder, pictures, ground_truth, run.source.images, sensor, listeners) as show:

            def write(result: WindowResult) -> int:
                # Files hold the boxes from `min_score` on, unless all are asked for.
                written = result
                if not config.all_scores:
                    written = result.above(detection.min_score)
                for append in writers:
                    append(written)
                # Boxes follow the picture: in pixels of the sensor, or of the frame.
                shown = result.detections
                if sensor is None:
                    shown = replace(shown, xyxy=shown.xyxy / np.float32(detector.downsample))
                assert result.frame is not None
                show(result.frame, shown, result.start_us)
                return len(written)

            yield write


def _windows_at(range_us: tuple[int, int], ends_us: np.ndarray, settings: WindowSettings) -> Windows | None:
    """Return windows that end at the given times and continue at the stride after the last one.

    Times outside the events are ignored. Return None if none is left.
    """
    first_us, last_us = range_us
    times_us = ends_us[(ends_us > first_us) & (ends_us <= last_us + 1)]
    if not len(times_us):
        return None
    after = FreeGrid(int(times_us.max()), settings)
    return label_grid(np.concatenate([times_us, after.ends_us(0, after.num_ended(last_us + 1))]), first_us, settings)


def _check_stream(source: OpenedSource, num_events: int) -> None:
    """Raise UserError for a stream that held no events, or events of another sensor."""
    outside = source.events.faults.out_of_frame
    if outside > num_events:
        size = f"{source.events.width}x{source.events.height} (width x height) pixels"
        raise UserError(
            "events.outside_frame",
            name=source.name,
            found=f"{outside} of its {num_events + outside} events lie outside {size}",
            advice="send RAW, DAT or the packets of docs/live.md, or give the right height and width",
        )
    if not num_events:
        found = source.events.broke_off or f"{source.name} ended without an event"
        raise UserError("source.broke_off", found=found, advice="send a stream of events")
