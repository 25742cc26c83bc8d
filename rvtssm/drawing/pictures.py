"""Writes a video, stills and a strip of stills during streaming. At high rates, a picture shows several windows."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rvtssm.detection.sources import Images
from rvtssm.drawing.draw import SHOWN_US, draw_frame, shown_events, strip_of
from rvtssm.drawing.image_files import open_video, write_png
from rvtssm.drawing.sensor_frames import SensorFrames
from rvtssm.records import Detections, Labels, WindowSettings


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
    period, fps = settings.windows_per_picture, settings.windows.hz / settings.windows_per_picture
    stills = _StillChoice(settings.num_stills)
    start_us: int | None = None  # start of the first window
    shown_from_us: int | None = None  # start of the events in the next picture
    num_seen = 0
    summed: np.ndarray | None = None
    last: tuple[np.ndarray, Detections] | None = None
    with ExitStack() as stack:
        write_video = stack.enter_context(open_video(folder / "video.mp4", fps)) if settings.has_video else None

        def flush() -> None:
            nonlocal summed, last, shown_from_us
            if last is None:
                return
            hist, frame = last
            scores = float(frame.score[frame.score >= settings.min_score].sum())
            is_still = stills.takes_next(scores)
            is_drawn = settings.has_video or is_still
            assert shown_from_us is not None
            if not is_drawn and not on_events:
                if sensor is not None:
                    sensor.forget(frame.t_us)
            elif sensor is None:
                events = shown_events(hist if summed is None else summed, settings.windows)
            else:
                events = sensor.take(shown_from_us, frame.t_us)
            for show_events in on_events:
                show_events(events, frame.t_us)
            if is_drawn:
                seconds, truth = (frame.t_us - (start_us or 0)) / 1e6, None
                if ground_truth is not None:
                    truth = _latest_labels(ground_truth, frame.t_us - 1e6 * period / settings.windows.hz, frame.t_us)
                    truth = replace(truth, boxes_ltwh=truth.boxes_ltwh / np.float32(settings.downsample))
                picture = draw_frame(
                    events,
                    frame,
                    truth,
                    settings.class_names,
                    scale=settings.scale,
                    min_score=settings.min_score,
                    caption=f"t = {seconds:.3f} s    camera {frame.t_us / 1e6:.3f} s    {settings.windows.hz:g} Hz    "
                    f"score from {settings.min_score:g}",
                    behind=images.at(frame.t_us) if images else None,
                    note=settings.note,
                )
                if write_video is not None:
                    write_video(picture)
                if is_still:
                    stills.add(scores, seconds, picture)
            summed, last, shown_from_us = None, None, None

        def show(hist: np.ndarray, frame: Detections, window_start_us: int) -> None:
            nonlocal num_seen, summed, start_us, last, shown_from_us
            if settings.windows.representation == "surfaces":
                shown_from_us = frame.t_us - SHOWN_US
            elif shown_from_us is None or not settings.is_summed:
                shown_from_us = window_start_us
            if start_us is None:
                start_us = frame.t_us - round(1e6 / settings.windows.hz)
            num_seen += 1
            last = hist, frame
            if settings.is_summed and period > 1:
                wide = np.uint16 if hist.dtype.kind == "u" else np.float32
                summed = hist.astype(wide) if summed is None else summed + hist
            if num_seen % period == 0:
                flush()

        yield show
        flush()
        chosen = stills.chosen()
        for seconds, picture in chosen:
            write_png(folder / f"still_{seconds:09.3f}s.png", picture)
        if chosen:
            write_png(folder / "strip.png", strip_of([picture for _, picture in chosen]))


class _StillChoice:
    """Keeps at most 4 * count pictures, evenly spread over an unknown number: the best of every `_step`, which doubles.

    The best picture is the one with the largest sum of scores, so that pictures with boxes are preferred.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._kept: list[tuple[float, float, np.ndarray]] = []  # sum of scores, seconds, picture
        self._step, self._seen = 1, 0

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
            self._kept, self._step = [max(pair, key=lambda kept: kept[0]) for pair in pairs], 2 * self._step

    def chosen(self) -> list[tuple[float, np.ndarray]]:
        """Return seconds and picture of the best in each of `count` equal parts; among equals, the middle one."""
        num_chosen, found = min(self._count, len(self._kept)), []
        for i in range(num_chosen):
            part = self._kept[i * len(self._kept) // num_chosen : (i + 1) * len(self._kept) // num_chosen]
            middle = part[len(part) // 2 :] + part[: len(part) // 2]
            found.append(max(middle, key=lambda kept: kept[0])[1:])
        return found


def _latest_labels(labels: Labels, begin_us: float, end_us: int) -> Labels:
    """Return the labels of the last label time in (begin_us, end_us], or none if there is no such time."""
    last = int(np.searchsorted(labels.t_us, end_us, side="right"))
    if last == 0 or labels.t_us[last - 1] <= begin_us:
        return labels[:0]
    return labels[int(np.searchsorted(labels.t_us, labels.t_us[last - 1])) : last]
