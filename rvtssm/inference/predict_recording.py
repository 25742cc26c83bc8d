"""From a recording, whole or while it is made, to boxes and pictures: windows from the first event to the last.

No labels are needed. Along a DSEC sequence windows end at the times of its images and labels, elsewhere at a fixed
stride.
"""

from __future__ import annotations

import errno
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch

from rvtssm.atomic_files import staging_folder
from rvtssm.events.readers import Recording
from rvtssm.events.windows import free_grid, label_grid
from rvtssm.inference.detection_files import DETECTION_FILES, open_detection_files
from rvtssm.inference.frame_size import detector_for_frame, in_sensor_pixels, nearest_downsample
from rvtssm.inference.grids import RecordingWindows, Step, steps_as_they_come, steps_of_file
from rvtssm.inference.pictures import PictureSettings, open_pictures
from rvtssm.inference.progress import progress_bar
from rvtssm.inference.sources import Source, opened_source
from rvtssm.inference.stream import check_causal
from rvtssm.inference.summary import PredictionSummary, Tally
from rvtssm.models.checkpoint import LoadedCheckpoint
from rvtssm.models.postprocess import PostprocessConfig, inside_frame
from rvtssm.models.streams import Streams
from rvtssm.records import Detections, Events, Labels, Windows, WindowSettings

__all__ = ["FORMATS", "PredictConfig", "PredictionSummary", "detect", "predict_recording"]

FORMATS = (*DETECTION_FILES, "mp4", "png")
_LARGEST_SCALE = 16  # of pictures: larger ones hold nothing new
_OURS = (*DETECTION_FILES.values(), "video.mp4", "strip.png", "still_*.png", "prediction.json")


@dataclass
class PredictConfig:
    """One run of `rvtssm predict`."""

    hz: float | None = None  # inference rate, null: the rate of training
    window: str = "shrink"  # at other rates: as long as the stride; or slide: as long as in training
    downsample: int | None = None  # frames keep one pixel in n x n, null: the n that comes nearest the training frames
    height: int | None = None  # sensor, pixels, for events that do not say it
    width: int | None = None
    min_score: float = 0.3  # of boxes that are drawn; files hold what `postprocess` lets through
    postprocess: PostprocessConfig = field(default_factory=lambda: PostprocessConfig(max_detections=100))
    formats: list[str] = field(default_factory=lambda: ["jsonl", "npy", "mp4", "png"])  # some of FORMATS
    overlay: bool = True  # draw on the images of a DSEC sequence, where they are in the view of the events
    max_fps: float = 30.0  # above this rate, the video shows several windows in one picture
    num_stills: int = 4  # pictures evenly spread over the recording, for png
    scale: int | None = None  # enlargement of pictures, null: to about 960 pixels of width
    windows_per_call: int = 8  # that go through the detector together: speed and memory, not results; 1 for latency

    def __post_init__(self) -> None:
        if self.window not in ("shrink", "slide"):
            raise ValueError(f"predict.window={self.window!r}; choose from shrink, slide")
        for name in ("hz", "downsample", "height", "width", "max_fps", "scale", "windows_per_call"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"predict.{name}={value} must be positive")
        if self.hz is not None and self.hz > 1e6:
            raise ValueError(f"predict.hz={self.hz:g} must be at most 1000000, windows of a microsecond")
        if self.scale is not None and self.scale > _LARGEST_SCALE:
            raise ValueError(f"predict.scale={self.scale} must be at most {_LARGEST_SCALE}")
        if not 0 <= self.min_score <= 1:
            raise ValueError(f"predict.min_score={self.min_score:g} must lie between 0 and 1")
        if self.num_stills < 0:
            raise ValueError(f"predict.num_stills={self.num_stills} must not be negative")
        if unknown := [name for name in self.formats if name not in FORMATS]:
            raise ValueError(f"predict.formats has {unknown[0]!r}; choose from {', '.join(FORMATS)}")


def predict_recording(
    checkpoint: LoadedCheckpoint,
    recording: Path | str,
    out: Path | str,
    config: PredictConfig | None = None,
    *,
    ground_truth: Labels | None = None,
    ends_us: np.ndarray | None = None,
    on_frame: Callable[[Detections], None] | None = None,
    progress: bool = True,
) -> PredictionSummary:
    """Detect in events of any supported format and sensor size, in bounded memory.

    `recording` is an event file, the folder of a DSEC sequence, `-` (standard input) or `tcp://HOST:PORT`.
    Writes to the folder `out`, all at once when everything is done, what `formats` asks for, and `prediction.json`:
    `detections.jsonl` (one line per window, also the empty ones), `detections.npy` (fields of Prophesee's boxes, class
    ids as in the dataset), `coco_results.json`, `video.mp4`, stills and a strip of them. Boxes are in pixels of the
    sensor; `on_frame` is handed those of every window, too. `ground_truth` (sensor px, ordered by time) is drawn only.
    At each of `ends_us` (int64) between the first and the last event a window ends.
    ValueError for a recording that cannot be read to its end or holds no events, and for weights that need later
    windows.
    """
    config = config or PredictConfig()
    check_causal(checkpoint.detector)
    began = time.perf_counter()
    with opened_source(str(recording), config.height, config.width) as source:
        plan = _plan(checkpoint, source, config, ends_us)
        tally = Tally(config.min_score)
        with _written_together(Path(out)) as staged:
            with (
                open_detection_files(
                    staged, config.formats, checkpoint.spec.class_names, checkpoint.spec.disk_class_ids
                ) as append,
                open_pictures(staged, plan.pictures, ground_truth, source.images if config.overlay else None) as show,
                progress_bar("predicting" if progress else None, plan.num_windows) as advance,
            ):
                steps = plan.steps(tally.watched(source.recording.iterate()))
                for hist, frame, seconds in detect(checkpoint, steps, plan.frame_hw, config.postprocess):
                    found = in_sensor_pixels(frame, plan.counting.downsample)
                    append(found)
                    if on_frame is not None:
                        on_frame(found)
                    show(hist, frame)
                    advance(1)
                    tally.add(frame, seconds)
                _check_read(source, tally)
            wall_s = time.perf_counter() - began
            stride_us, length_us = plan.counting.stride_us, plan.counting.length_us
            summary = PredictionSummary(
                recording=source.name,
                format=source.recording.format,
                sensor_hw=plan.counting.sensor_hw,
                frame_hw=plan.frame_hw,
                trained_frame_hw=(checkpoint.spec.frame_height, checkpoint.spec.frame_width),
                downsample=plan.counting.downsample,
                hz=1e6 / stride_us,
                window_ms=(length_us or stride_us) / 1000,
                num_windows=len(tally.seconds),
                num_events=tally.num_events,
                duration_s=tally.duration_s,
                num_detections=tally.num_written,
                written_min_score=config.postprocess.min_score,
                num_drawn_detections=tally.num_drawn,
                drawn_min_score=config.min_score,
                faults=asdict(source.recording.faults),
                broke_off=source.broke_off,
                wall_s=wall_s,
                realtime_factor=tally.duration_s / wall_s,
                windows_per_call=plan.counting.max_windows,
                step_ms=tally.step_ms(),
                files=tuple(sorted([path.name for path in staged.iterdir()] + ["prediction.json"])),
            )
            (staged / "prediction.json").write_text(json.dumps(asdict(summary), indent=2) + "\n")
    return summary


def detect(
    checkpoint: LoadedCheckpoint, steps: Iterable[Step], frame_hw: tuple[int, int], config: PostprocessConfig
) -> Iterator[tuple[np.ndarray, Detections, float]]:
    """Histogram, detections (frame px, inside the frame) and seconds of work of every window.

    The state is carried through all steps.
    """
    streams = Streams(
        detector_for_frame(checkpoint, *frame_hw), checkpoint.windows.stride_us, checkpoint.model_config.memory_chunk
    )
    is_first = True
    for step in steps:
        began = time.perf_counter()
        num_windows = len(step.hist)
        places = torch.arange(num_windows)
        predictions = streams.push(
            torch.from_numpy(step.hist)[:, None],
            torch.from_numpy(step.step_us)[:, None],
            torch.stack([places, torch.zeros_like(places)], dim=1),
            slots=[0],
            is_first=[is_first],
        )
        frames = streams.detector.head.decode(predictions, step.ends_us.tolist(), config)
        seconds = (time.perf_counter() - began) / num_windows
        for hist, frame in zip(step.hist, frames, strict=True):
            yield hist, inside_frame(frame, *frame_hw), seconds
        is_first = False


@dataclass(frozen=True)
class _Plan:
    """How one recording goes through the detector."""

    counting: RecordingWindows
    frame_hw: tuple[int, int]
    pictures: PictureSettings
    windows: Windows | None  # None: they close as events arrive
    is_fixed: bool  # the stride is the same everywhere

    @property
    def num_windows(self) -> int | None:
        return None if self.windows is None else len(self.windows)

    def steps(self, blocks: Iterable[Events]) -> Iterator[Step]:
        if self.windows is None:
            return steps_as_they_come(blocks, self.counting)
        return steps_of_file(blocks, self.windows, self.is_fixed, self.counting)


def _plan(checkpoint: LoadedCheckpoint, source: Source, config: PredictConfig, ends_us: np.ndarray | None) -> _Plan:
    """ValueError for a recording without events, or of which nothing is left at this downsampling."""
    recording, trained = source.recording, checkpoint.windows
    downsample = config.downsample or nearest_downsample(checkpoint.spec, recording.height, recording.width)
    frame_hw = (recording.height // downsample, recording.width // downsample)
    if min(frame_hw) < 1:
        raise ValueError(f"downsample={downsample} leaves nothing of {recording.width} x {recording.height} pixels")
    stride_us, length_us = _stride_and_length(trained, config)
    windows, is_fixed = None, True
    if isinstance(recording, Recording):
        given = [times for times in (ends_us, source.images and source.images.times_us) if times is not None]
        windows, is_fixed = _grid(recording, np.concatenate([np.empty(0, np.int64), *given]), stride_us, length_us)
        if truncated := recording.faults.truncated_bytes:
            again = "copy it again" + (", or end its last line" if recording.format == "csv" else "")
            raise ValueError(f"{source.name} is truncated: {truncated} bytes follow the last whole event; {again}")
        _check_frame(source, recording.num_events)
    hz = 1e6 / stride_us
    pictures = PictureSettings(
        class_names=checkpoint.spec.class_names,
        min_score=config.min_score,
        hz=hz,
        windows_per_picture=max(1, math.ceil(hz / config.max_fps - 1e-9)),
        is_summed=length_us is None,
        has_video="mp4" in config.formats,
        num_stills=config.num_stills if "png" in config.formats else 0,
        downsample=downsample,
        scale=config.scale,
    )
    counting = RecordingWindows(
        trained, stride_us, length_us, (recording.height, recording.width), downsample, config.windows_per_call
    )
    return _Plan(counting, frame_hw, pictures, windows, is_fixed)


def _grid(recording: Recording, ends_us: np.ndarray, stride_us: float, length_us: int | None) -> tuple[Windows, bool]:
    """The windows, and whether their stride is one number; they end at those of `ends_us` between the events, and go
    on by the stride after the last of them."""
    first_us, last_us = recording.time_range_us
    times_us = ends_us[(ends_us > first_us) & (ends_us <= last_us + 1)]
    if len(times_us):
        num_after = int((last_us + 1 - times_us.max()) // stride_us)
        after_us = np.rint(times_us.max() + stride_us * np.arange(1, num_after + 1)).astype(np.int64)
        return label_grid(np.concatenate([times_us, after_us]), stride_us, length_us, first_us), False
    return free_grid(first_us, last_us, stride_us, length_us), True


def _check_frame(source: Source, num_events: int) -> None:
    """ValueError where most events lie outside the sensor: its size is wrong, or these are no events."""
    recording = source.recording
    if (outside := recording.faults.out_of_frame) > num_events:
        again = "a stream has to be RAW or DAT: send that" if source.is_piped else "copy it again"
        raise ValueError(
            f"{source.name} has {outside} of {num_events + outside} events outside its "
            f"{recording.height}x{recording.width} (height x width) pixels; {again}, or give the right height and width"
        )


def _check_read(source: Source, tally: Tally) -> None:
    """What is known of a stream only when it has ended."""
    if source.is_piped:
        _check_frame(source, tally.num_events)
        if not tally.num_events:
            raise ValueError(source.broke_off or f"{source.name} ended without an event; it needs a stream of events")


def _stride_and_length(trained: WindowSettings, config: PredictConfig) -> tuple[float, int | None]:
    """Microseconds from window to window, and of a window; None: as long as the stride."""
    if config.hz is None or math.isclose(config.hz, 1e6 / trained.stride_us):
        return trained.stride_us, trained.length_us
    return 1e6 / config.hz, None if config.window == "shrink" else trained.length_us or round(trained.stride_us)


@contextmanager
def _written_together(out: Path) -> Iterator[Path]:
    """A folder whose files move to `out` when the block ends without an error, over those of an earlier prediction."""
    is_new = not out.exists()
    try:
        with staging_folder(out, "predict") as staged:
            try:
                yield staged
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) and error.filename is None:
                    error.filename = str(out)  # a full disk does not say where it is
                raise
            for stale in [path for pattern in _OURS for path in out.glob(pattern)]:
                stale.unlink(missing_ok=True)
            for path in staged.iterdir():
                os.replace(path, out / path.name)
    except BaseException:
        if is_new:
            with suppress(OSError):  # not empty: another prediction writes there, too
                out.rmdir()
        raise
