"""Video and stills of a recording while it is streamed; at high rates one picture shows several windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rvtssm.inference.draw import draw_frame, open_video, write_png
from rvtssm.records import Detections, Labels


@dataclass(frozen=True)
class PictureSettings:
    """What is drawn, and how often."""

    class_names: Sequence[str]
    min_score: float
    hz: float  # windows per second
    windows_per_picture: int
    is_summed: bool  # windows follow on one another: a picture shows the events of all its windows
    has_video: bool
    num_stills: int
    start_us: int  # time zero of the captions
    downsample: int  # sensor pixels per frame pixel, for the ground truth
    scale: int | None = None


@contextmanager
def open_pictures(
    folder: Path, settings: PictureSettings, num_windows: int, ground_truth: Labels | None = None
) -> Iterator[Callable[[np.ndarray, Detections], None]]:
    """A function that takes histogram (2 * bins, H, W) and detections (frame px) of each window in turn.

    Leaves `video.mp4` and `still_<seconds>s.png` in a folder. `ground_truth` is in sensor px, ordered by time.
    """
    period = settings.windows_per_picture
    num_pictures = -(-num_windows // period)
    stills = set(np.linspace(0, num_pictures - 1, settings.num_stills + 2)[1:-1].round().astype(int).tolist())
    num_seen = 0
    summed: np.ndarray | None = None
    with ExitStack() as stack:
        write = None
        if settings.has_video:
            write = stack.enter_context(open_video(folder / "video.mp4", settings.hz / period))

        def show(hist: np.ndarray, frame: Detections) -> None:
            nonlocal num_seen, summed
            num_seen += 1
            is_due = num_seen % period == 0 or num_seen == num_windows
            if settings.is_summed and period > 1:
                summed = hist.astype(np.uint16) if summed is None else summed + hist
            if not is_due:
                return
            picture_index = -(-num_seen // period) - 1
            is_still = picture_index in stills
            if write or is_still:
                picture = _draw(hist if summed is None else summed, frame, settings, ground_truth)
                if write:
                    write(picture)
                if is_still:
                    write_png(folder / f"still_{_seconds(frame, settings):09.3f}s.png", picture)
            summed = None

        yield show


def _seconds(frame: Detections, settings: PictureSettings) -> float:
    return (frame.t_us - settings.start_us) / 1e6


def _draw(hist: np.ndarray, frame: Detections, settings: PictureSettings, ground_truth: Labels | None) -> np.ndarray:
    truth = None
    if ground_truth is not None:
        begin_us = frame.t_us - 1e6 * settings.windows_per_picture / settings.hz
        truth = _latest_labels(ground_truth, begin_us, frame.t_us)
        truth = replace(truth, boxes_ltwh=truth.boxes_ltwh / np.float32(settings.downsample))
    return draw_frame(
        hist,
        frame,
        truth,
        settings.class_names,
        scale=settings.scale,
        min_score=settings.min_score,
        caption=f"t = {_seconds(frame, settings):.3f} s    {settings.hz:g} Hz    score from {settings.min_score:g}",
    )


def _latest_labels(labels: Labels, begin_us: float, end_us: int) -> Labels:
    """The labels of the last label time in (begin_us, end_us], none when there is no such time."""
    last = int(np.searchsorted(labels.t_us, end_us, side="right"))
    if last == 0 or labels.t_us[last - 1] <= begin_us:
        return labels[:0]
    return labels[int(np.searchsorted(labels.t_us, labels.t_us[last - 1])) : last]
