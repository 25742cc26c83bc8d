"""From one event file to boxes and pictures: fixed windows from the first event to the last, no labels needed."""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from rvtssm.events.histogram import count_stream
from rvtssm.events.readers import Recording, open_recording
from rvtssm.events.windows import free_grid
from rvtssm.inference.detection_files import open_detection_files
from rvtssm.inference.frame_size import detector_for_frame, nearest_downsample
from rvtssm.inference.pictures import PictureSettings, open_pictures
from rvtssm.inference.progress import progress_bar
from rvtssm.inference.stream import Streams
from rvtssm.models.checkpoint import LoadedCheckpoint
from rvtssm.models.postprocess import PostprocessConfig, inside_frame, postprocess
from rvtssm.records import Detections, Labels, Windows, WindowSettings

_WINDOWS_PER_CALL = 8  # windows that go through the detector together; decides speed and memory, not results
_LARGEST_SCALE = 16  # of pictures: larger ones hold nothing new


@dataclass
class PredictConfig:
    """One run of `rvtssm predict`."""

    hz: float | None = None  # inference rate, null: the rate of training
    window: str = "shrink"  # at other rates: as long as the stride; or slide: as long as in training
    downsample: int | None = None  # frames keep one pixel in n x n, null: the n that comes nearest the training frames
    height: int | None = None  # sensor, pixels, for files that do not say it
    width: int | None = None
    min_score: float = 0.3  # of boxes that are drawn; files hold what `postprocess` lets through
    postprocess: PostprocessConfig = field(default_factory=lambda: PostprocessConfig(max_detections=100))
    video: bool = True
    max_fps: float = 30.0  # above this rate, the video shows several windows in one picture
    num_stills: int = 4  # pictures evenly spread over the recording
    scale: int | None = None  # enlargement of pictures, null: to about 960 pixels of width

    def __post_init__(self) -> None:
        if self.window not in ("shrink", "slide"):
            raise ValueError(f"predict.window={self.window!r}; choose from shrink, slide")
        for name in ("hz", "downsample", "height", "width", "max_fps", "scale"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"predict.{name}={value} must be positive")
        if self.scale is not None and self.scale > _LARGEST_SCALE:
            raise ValueError(f"predict.scale={self.scale} must be at most {_LARGEST_SCALE}")
        if not 0 <= self.min_score <= 1:
            raise ValueError(f"predict.min_score={self.min_score:g} must lie between 0 and 1")
        if self.num_stills < 0:
            raise ValueError(f"predict.num_stills={self.num_stills} must not be negative")


@dataclass(frozen=True)
class PredictionSummary:
    """What a prediction did, and where it wrote it; also written as `prediction.json`."""

    recording: str
    format: str
    sensor_hw: tuple[int, int]  # pixels
    frame_hw: tuple[int, int]  # pixels the detector saw
    trained_frame_hw: tuple[int, int]
    downsample: int
    hz: float
    window_ms: float
    num_windows: int
    num_events: int
    duration_s: float  # first to last event
    num_detections: int  # in the files
    written_min_score: float
    num_drawn_detections: int  # with the score that is drawn, in all windows
    drawn_min_score: float
    faults: dict[str, int]  # what had to be repaired in the file
    wall_s: float
    realtime_factor: float  # seconds of recording per second, everything included
    detector_ms: float  # per window
    files: tuple[str, ...]

    def sentences(self) -> list[str]:
        """The summary for a person."""
        (h, w), (trained_h, trained_w) = self.frame_hw, self.trained_frame_hw
        size = f"{w} x {h} pixels, {self.downsample} sensor pixels to one"
        if self.frame_hw != self.trained_frame_hw:
            size += f"; trained on {trained_w} x {trained_h}, same weights"
        repaired = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in self.faults.items() if count)
        return [
            f"{self.recording}: {self.format}, {self.num_events} events in {self.duration_s:.3f} s"
            + (f"; repaired: {repaired}" if repaired else ""),
            f"{self.num_windows} windows of {self.window_ms:g} ms at {self.hz:g} Hz; frames of {size}",
            f"{self.num_detections} boxes with a score from {self.written_min_score:g} in the files, "
            f"{self.num_drawn_detections} from {self.drawn_min_score:g}, as in the pictures",
            f"{self.wall_s:.1f} s, {self.realtime_factor:.2f} x real time; "
            f"{self.detector_ms:.1f} ms per window in the detector",
            "wrote " + ", ".join(self.files),
        ]


def predict_recording(
    checkpoint: LoadedCheckpoint,
    recording: Path | str,
    out: Path | str,
    config: PredictConfig | None = None,
    *,
    ground_truth: Labels | None = None,
    progress: bool = True,
) -> PredictionSummary:
    """Detect in one event file of any supported format and sensor size, in bounded memory.

    Writes to the folder `out`, all at once when everything is done: `detections.jsonl` (one line per window, also the
    empty ones), `detections.npy` (fields of Prophesee's boxes, class ids as in the dataset), `video.mp4`, stills and
    `prediction.json`. Boxes are in pixels of the sensor. `ground_truth` (sensor px, ordered by time) is drawn only.
    ValueError for a file that cannot be read or holds no events.
    """
    config = config or PredictConfig()
    began = time.perf_counter()
    source = open_recording(recording, config.height, config.width)
    first_us, last_us = source.time_range_us
    if (outside := source.faults.out_of_frame) > source.num_events:
        raise ValueError(
            f"{recording} has {outside} of {source.num_events + outside} events outside its "
            f"{source.height}x{source.width} (height x width) pixels; copy it again, or give the right height and width"
        )
    downsample = config.downsample or nearest_downsample(checkpoint.spec, source.height, source.width)
    frame_hw = (source.height // downsample, source.width // downsample)
    if min(frame_hw) < 1:
        raise ValueError(f"downsample={downsample} leaves nothing of {source.width} x {source.height} pixels")
    stride_us, length_us = _stride_and_length(checkpoint.windows, config)
    windows = free_grid(first_us, last_us, stride_us, length_us)
    hz = 1e6 / stride_us
    pictures = PictureSettings(
        class_names=checkpoint.spec.class_names,
        min_score=config.min_score,
        hz=hz,
        windows_per_picture=max(1, math.ceil(hz / config.max_fps - 1e-9)),
        is_summed=length_us is None,
        has_video=config.video,
        num_stills=config.num_stills,
        start_us=first_us,
        downsample=downsample,
        scale=config.scale,
    )
    num_written = num_drawn = 0
    detector_s = 0.0
    with closing(source), _written_together(Path(out)) as aside:
        with (
            open_detection_files(aside, checkpoint.spec.class_names, checkpoint.spec.disk_class_ids) as append,
            open_pictures(aside, pictures, len(windows), ground_truth) as show,
            progress_bar("predicting" if progress else None, len(windows)) as advance,
        ):
            hists = _histograms(source, windows, checkpoint.windows, downsample)
            found = detect(checkpoint, hists, windows.ends_us, stride_us, frame_hw, config.postprocess)
            for hist, frame, seconds in found:
                append(_enlarged(frame, downsample))
                show(hist, frame)
                advance(1)
                num_written += len(frame)
                num_drawn += int((frame.score >= config.min_score).sum())
                detector_s += seconds
        wall_s = time.perf_counter() - began
        summary = PredictionSummary(
            recording=str(recording),
            format=source.format,
            sensor_hw=(source.height, source.width),
            frame_hw=frame_hw,
            trained_frame_hw=(checkpoint.spec.frame_height, checkpoint.spec.frame_width),
            downsample=downsample,
            hz=hz,
            window_ms=(length_us or stride_us) / 1000,
            num_windows=len(windows),
            num_events=source.num_events,
            duration_s=(last_us - first_us) / 1e6,
            num_detections=num_written,
            written_min_score=config.postprocess.min_score,
            num_drawn_detections=num_drawn,
            drawn_min_score=config.min_score,
            faults=asdict(source.faults),
            wall_s=wall_s,
            realtime_factor=(last_us - first_us) / 1e6 / wall_s,
            detector_ms=1000 * detector_s / len(windows),
            files=tuple(sorted([path.name for path in aside.iterdir()] + ["prediction.json"])),
        )
        (aside / "prediction.json").write_text(json.dumps(asdict(summary), indent=2) + "\n")
    return summary


def detect(
    checkpoint: LoadedCheckpoint,
    histograms: Iterable[np.ndarray],
    times_us: np.ndarray,
    stride_us: float,
    frame_hw: tuple[int, int],
    config: PostprocessConfig,
) -> Iterator[tuple[np.ndarray, Detections, float]]:
    """Histogram, detections (frame px, inside the frame) and seconds of work of every window.

    histograms: blocks (n, C, H, W) of consecutive windows; times_us (T,) of all of them. The state is carried through.
    """
    streams = Streams(
        detector_for_frame(checkpoint, *frame_hw), checkpoint.windows.stride_us, checkpoint.model_config.memory_chunk
    )
    done = 0
    for block in histograms:
        began = time.perf_counter()
        num_steps = len(block)
        steps = torch.arange(num_steps)
        predictions = streams.push(
            torch.from_numpy(block)[:, None],
            torch.full((num_steps, 1), stride_us, dtype=torch.float64),  # the true stride, not its rounded edges
            torch.stack([steps, torch.zeros_like(steps)], dim=1),
            slots=[0],
            is_first=[done == 0],
        )
        frames = postprocess(predictions, times_us[done : done + num_steps].tolist(), config)
        seconds = (time.perf_counter() - began) / num_steps
        for hist, frame in zip(block, frames, strict=True):
            yield hist, inside_frame(frame, *frame_hw), seconds
        done += num_steps


def _stride_and_length(trained: WindowSettings, config: PredictConfig) -> tuple[float, int | None]:
    """Microseconds from window to window, and of a window; None: as long as the stride."""
    if config.hz is None or math.isclose(config.hz, 1e6 / trained.stride_us):
        return trained.stride_us, trained.length_us
    return 1e6 / config.hz, None if config.window == "shrink" else trained.length_us or round(trained.stride_us)


def _histograms(source: Recording, windows: Windows, trained: WindowSettings, downsample: int) -> Iterator[np.ndarray]:
    return count_stream(
        source.iterate(),
        windows,
        source.height,
        source.width,
        num_bins=trained.num_bins,
        count_cutoff=trained.count_cutoff,
        downsample=downsample,
        convention=trained.convention,
        max_windows=_WINDOWS_PER_CALL,
    )


def _enlarged(frame: Detections, factor: int) -> Detections:
    return replace(frame, xyxy=frame.xyxy * np.float32(factor))


@contextmanager
def _written_together(out: Path) -> Iterator[Path]:
    """A folder whose files move to `out` when the block ends without an error, over those of an earlier prediction."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".predict-") as aside:
        yield Path(aside)
        for stale in [*out.glob("still_*.png"), out / "video.mp4"]:
            stale.unlink(missing_ok=True)
        for path in Path(aside).iterdir():
            os.replace(path, out / path.name)
