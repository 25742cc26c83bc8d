"""Writes a video, stills and a strip of stills during streaming. At high rates, a picture shows several windows.

Images of a frame camera can lie below the events, as DSEC has them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import cv2
import numpy as np

from rvtssm.drawing import open_video, write_png
from rvtssm.drawing.draw import SHOWN_US, draw_frame, shown_events, strip_of
from rvtssm.events.cells import frame_pixels
from rvtssm.events.frame_counter import FrameCounter
from rvtssm.records import Detections, Events, Labels, WindowSettings
from rvtssm.system.files import check_name
from rvtssm.system.user_error import UserError, in_one_line

MAX_FPS = 30.0  # of a video; above this rate of windows, each picture covers several
NUM_STILLS = 4  # evenly spread over the recording; as many as the strip shows side by side
_DSEC_TIMES = "images/timestamps.txt"
_DSEC_IMAGES = "images/left/distorted"  # in the view of the event camera, unlike the rectified images


@dataclass(frozen=True)
class PictureSettings:
    """What is drawn, and how often."""

    class_names: Sequence[str]
    min_score: float
    windows: WindowSettings
    windows_per_picture: int
    has_video: bool
    num_stills: int
    downsample: int  # pixels of the sensor per pixel of the detections, to scale the ground truth
    scale: int | None = None  # factor that enlarges pictures, see `draw_frame`
    note: str | None = None  # the note of the weights

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not (self.has_video or self.num_stills)

    @property
    def is_summed(self) -> bool:
        """Whether windows do not overlap, so that a picture shows the events of all its windows."""
        return self.windows.length_us is None and not self.windows.warmup_us


class SensorFrames:
    """Counts the events per pixel of the sensor, which often has more of them than a detector's frames.

    Args:
        sensor_hw: Height and width of the sensor in pixels.
        overlap_us: How long before the end of a picture the next one may start, in microseconds.
        until_us: Events from this time on are left out.
    """

    def __init__(self, sensor_hw: tuple[int, int], overlap_us: int = 0, until_us: int | None = None) -> None:
        self._counter = FrameCounter(WindowSettings(num_bins=1, count_cutoff=255), frame_pixels(*sensor_hw))
        self._overlap_us = overlap_us
        self._until_us = np.iinfo(np.int64).max if until_us is None else until_us

    def add(self, block: Events) -> None:
        """Keep the events of the next block for `take`. Its arrays may be overwritten later."""
        self._counter.push(block.between(np.iinfo(np.int64).min, self._until_us))

    def take(self, start_us: int, end_us: int) -> np.ndarray:
        """Return the numbers of darker and brighter events with start_us <= t < end_us, at most 255 per pixel.

        Later calls must not start before `end_us - overlap_us`.

        Args:
            start_us: Start of the span in microseconds.
            end_us: End of the span in microseconds.

        Returns:
            The numbers (2, H, W) uint8, darker first.
        """
        (counts,) = self._counter.take(np.array([[start_us, end_us]]))
        self.forget(end_us)
        return counts

    def forget(self, end_us: int) -> None:
        """Forget events before `end_us - overlap_us`, which later pictures do not show."""
        self._counter.forget_before(end_us - self._overlap_us)


class Images:
    """Images of a frame camera, in the view of the event camera.

    Args:
        times_us: (N,) int64, times of the images.
        paths: The N files; empty if there are only times.
    """

    def __init__(self, times_us: np.ndarray, paths: list[Path]) -> None:
        self.times_us = times_us  # (N,) int64
        self._paths = paths
        self._shown: tuple[int, np.ndarray] | None = None

    def at(self, t_us: int) -> np.ndarray | None:
        """Return the latest image at or before a time, (h, w, 3) uint8 RGB; None if there is none."""
        i = int(np.searchsorted(self.times_us, t_us, side="right")) - 1
        if i < 0 or not self._paths:
            return None
        if self._shown is None or self._shown[0] != i:
            check_name(str(self._paths[i]))  # OpenCV crashes if it is not UTF-8
            picture = cv2.imread(str(self._paths[i]), cv2.IMREAD_COLOR)
            if picture is None:
                advice = "copy it again, or move the folder of images away"
                raise UserError("file.unreadable", name=self._paths[i], found="it is no picture", advice=advice)
            self._shown = i, picture[..., ::-1]
        return self._shown[1]


def dsec_images(sequence: Path) -> Images | None:
    """Return the images with their times. Without images in the view of the events, only times; without times, None."""
    times_path = sequence / _DSEC_TIMES
    if not times_path.is_file():
        return None
    try:
        times_us = np.array(times_path.read_text().split(), np.int64)
    except (ValueError, OverflowError) as error:
        raise UserError(
            "file.content", name=times_path, found=in_one_line(error), needed="one time in microseconds per line"
        ) from None
    if np.any(np.diff(times_us) <= 0):
        raise UserError("file.content", name=times_path, found="its times do not increase", advice="sort them")
    paths = sorted((sequence / _DSEC_IMAGES).glob("*.png"))
    if paths and len(paths) != len(times_us):
        found = f"it holds {len(paths)} images, and {times_path} {len(times_us)} times"
        raise UserError("file.content", name=sequence / _DSEC_IMAGES, found=found, advice="give each image a time")
    return Images(times_us, paths)


@contextmanager
def open_pictures(
    folder: Path,
    settings: PictureSettings,
    ground_truth: Labels | None = None,
    images: Images | None = None,
    sensor: SensorFrames | None = None,
    on_events: Sequence[Callable[[np.ndarray, int], None]] = (),
) -> Iterator[Callable[[np.ndarray, Detections, int], None]]:
    """Yield a function that takes the histogram (2 * bins, H, W), the detections and the start (us) of each window.

    The folder receives `video.mp4`, `still_<seconds>s.png`, and `strip.png` with all stills side by side, at most 1920
    pixels wide. Captions count the time from the start of the first window.

    Args:
        folder: Where the files are written.
        settings: What is drawn.
        ground_truth: Labels in pixels of the sensor, ordered by time.
        images: Camera images, drawn below the events.
        sensor: Events at the resolution of the sensor. They are drawn instead of the histogram, and detections must
            then be in pixels of the sensor instead of the histogram.
        on_events: Each is called with the events and the time (us) of each picture.
    """
    fps = settings.windows.hz / settings.windows_per_picture
    with ExitStack() as stack:
        video = None
        if settings.has_video:
            video = stack.enter_context(open_video(folder / "video.mp4", fps))
        stills = _StillChoice(settings.num_stills)
        pictures = _Pictures(settings, ground_truth, images, sensor, on_events, video, stills)
        yield pictures.show
        pictures.flush()
        chosen = stills.chosen()
        for seconds, picture in chosen:
            write_png(folder / f"still_{seconds:09.3f}s.png", picture)
        if chosen:
            write_png(folder / "strip.png", strip_of([picture for _, picture in chosen]))


@dataclass
class _Pictures:
    """Collects the windows of each picture and draws it. The first fields are the arguments of `open_pictures`."""

    settings: PictureSettings
    ground_truth: Labels | None
    images: Images | None
    sensor: SensorFrames | None
    on_events: Sequence[Callable[[np.ndarray, int], None]]
    video: Callable[[np.ndarray], None] | None
    stills: "_StillChoice"
    _start_us: int | None = None  # start of the first window
    _shown_from_us: int | None = None  # start of the events in the next picture
    _num_seen: int = 0
    _summed: np.ndarray | None = None
    _last: tuple[np.ndarray, Detections] | None = None

    def show(self, hist: np.ndarray, frame: Detections, window_start_us: int) -> None:
        """Take in a window, and draw a picture if it is the last one of the picture."""
        settings = self.settings
        # From when on the events of the next picture are.
        if settings.windows.representation == "surfaces":
            self._shown_from_us = frame.t_us - SHOWN_US
        elif self._shown_from_us is None or not settings.is_summed:
            self._shown_from_us = window_start_us
        if self._start_us is None:
            self._start_us = frame.t_us - round(1e6 / settings.windows.hz)
        self._num_seen += 1
        self._last = hist, frame
        # A picture of several windows shows the events of all.
        if settings.is_summed and settings.windows_per_picture > 1:
            if self._summed is None:
                self._summed = np.zeros(hist.shape, np.uint32)
            self._summed += hist
        if self._num_seen % settings.windows_per_picture == 0:
            self.flush()

    def flush(self) -> None:
        """Draw the picture of the windows since the last one, if there are any."""
        if self._last is None:
            return
        hist, frame = self._last
        # A still is kept if its boxes are the most certain of its part of the recording.
        scores = float(frame.score[frame.score >= self.settings.min_score].sum())
        is_still = self.stills.takes_next(scores)
        is_drawn = self.video is not None or is_still
        if is_drawn or self.on_events:
            events = self._events(hist, frame.t_us)
            for show_events in self.on_events:
                show_events(events, frame.t_us)
        elif self.sensor is not None:
            self.sensor.forget(frame.t_us)
        if is_drawn:
            seconds = (frame.t_us - (self._start_us or 0)) / 1e6
            picture = self._drawn(events, frame, seconds)
            if self.video is not None:
                self.video(picture)
            if is_still:
                self.stills.add(scores, seconds, picture)
        self._summed = None
        self._last = None
        self._shown_from_us = None

    def _events(self, hist: np.ndarray, t_us: int) -> np.ndarray:
        if self.sensor is None:
            if self._summed is not None:
                hist = self._summed
            return shown_events(hist, self.settings.windows)
        assert self._shown_from_us is not None
        return self.sensor.take(self._shown_from_us, t_us)

    def _drawn(self, events: np.ndarray, frame: Detections, seconds: float) -> np.ndarray:
        settings = self.settings
        truth = None
        behind = None
        if self.images is not None:
            behind = self.images.at(frame.t_us)
        if self.ground_truth is not None:
            begin_us = frame.t_us - 1e6 * settings.windows_per_picture / settings.windows.hz
            truth = _latest_labels(self.ground_truth, begin_us, frame.t_us)
            truth = replace(truth, boxes_ltwh=truth.boxes_ltwh / np.float32(settings.downsample))
        return draw_frame(
            events,
            frame,
            truth,
            settings.class_names,
            scale=settings.scale,
            min_score=settings.min_score,
            caption=f"t = {seconds:.3f} s    camera {frame.t_us / 1e6:.3f} s    {settings.windows.hz:g} Hz    "
            f"score from {settings.min_score:g}",
            behind=behind,
            note=settings.note,
        )


class _StillChoice:
    """Keeps at most 4 * count pictures, evenly spread over an unknown number: the best of every `_step`, which doubles.

    The best picture is the one with the largest sum of scores, so that pictures with boxes are preferred.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._kept: list[tuple[float, float, np.ndarray]] = []  # sum of scores, seconds, picture
        self._step = 1
        self._seen = 0

    def takes_next(self, scores: float) -> bool:
        """Count the next picture, and return whether `add` should get it."""
        place = self._seen // self._step
        self._seen += 1
        return self._count > 0 and (place == len(self._kept) or scores > self._kept[place][0])

    def add(self, scores: float, seconds: float, picture: np.ndarray) -> None:
        """Keep the picture that `takes_next` counted last."""
        self._kept[(self._seen - 1) // self._step :] = [(scores, seconds, picture)]
        if len(self._kept) > 4 * self._count:
            pairs = [self._kept[i : i + 2] for i in range(0, len(self._kept), 2)]
            self._kept = [max(pair, key=_sum_of_scores) for pair in pairs]
            self._step = 2 * self._step

    def chosen(self) -> list[tuple[float, np.ndarray]]:
        """Return seconds and picture of the best in each of `count` equal parts; among equals, the middle one."""
        num_chosen = min(self._count, len(self._kept))
        best = []
        for i in range(num_chosen):
            part = self._kept[i * len(self._kept) // num_chosen : (i + 1) * len(self._kept) // num_chosen]
            middle = part[len(part) // 2 :] + part[: len(part) // 2]
            best.append(max(middle, key=_sum_of_scores)[1:])
        return best


def _sum_of_scores(picture: tuple[float, float, np.ndarray]) -> float:
    return picture[0]


def _latest_labels(labels: Labels, begin_us: float, end_us: int) -> Labels:
    """Return the labels of the last label time in (begin_us, end_us], or none if there is no such time."""
    last = int(np.searchsorted(labels.t_us, end_us, side="right"))
    if last == 0 or labels.t_us[last - 1] <= begin_us:
        return labels[:0]
    return labels[int(np.searchsorted(labels.t_us, labels.t_us[last - 1])) : last]
