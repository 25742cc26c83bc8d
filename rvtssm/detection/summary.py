"""The summary of a prediction: counts during the run, sentences for the user, and the record `prediction.json`."""

import time
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from rvtssm.readers.recording import MANY_EVENTS
from rvtssm.records import Detections, Events
from rvtssm.system.busy_machine import busy_machine_remedy, floored, sustained_in_words

_ANY_UNIT = ("csv", "npy", "npz", "rvt_hdf5", "memory")  # formats whose times have no unit of their own


@dataclass(frozen=True)
class PredictionSummary:
    """The numbers and files of one prediction, also written as `prediction.json`."""

    recording: str
    format: str
    sensor_hw: tuple[int, int]  # pixels
    frame_hw: tuple[int, int]  # pixels of the detector's input
    trained_frame_hw: tuple[int, int]
    downsample: int
    reduction: str  # a sentence on how the frame size limits detection; empty for frames as in training
    doubt: str  # a sentence if the downsampling was chosen for boxes with low scores; otherwise empty
    cameras: str  # a sentence on the rate of a camera; empty if it keeps up and takes the same downsampling
    hz: float
    window_ms: float
    num_windows: int
    num_events: int
    start_us: int  # camera time of the first event, from which the times of pictures count
    duration_s: float  # from the first to the last event
    classes: dict[str, str]  # class names by their ids in detections.npy and coco_results.json
    num_detections: int  # boxes in the files
    written_min_score: float
    num_drawn_detections: int  # boxes in all windows with at least the score of drawn boxes
    drawn_min_score: float
    highest_score: float  # of all boxes; 0 if there are none
    sensor_guess: str  # a sentence on how the sensor size was chosen; empty if the recording gives it
    assumed_sensor: str  # the name of the sensor that this sentence assumes
    faults: dict[str, int]  # number of repaired events by kind
    broke_off: str  # why a stream or the prediction ended early; empty if neither did
    wall_s: float  # of the whole run
    startup_s: float  # until the first call was done: code is compiled, and weights are prepared
    realtime_factor: float  # seconds of recording per second after that
    windows_per_call: int
    is_timed: bool  # whether there was a second call; the first one also prepares the detector
    step_ms: dict[str, float]  # time per window after the first call, with post-processing: mean, p50, p90, p99
    remedy: str  # what helps if other programs use the processors; empty if nothing is known to
    files: tuple[str, ...]

    def sentences(self) -> list[str]:
        """Return the summary as sentences for the user."""
        (h, w), (trained_h, trained_w) = self.frame_hw, self.trained_frame_hw
        n = self.downsample
        size = f"{w} x {h} pixels, {f'one of every {n} x {n}' if n > 1 else 'all'} of the sensor"
        if self.frame_hw != self.trained_frame_hw:
            size += f"; the same weights were trained on frames of {trained_w} x {trained_h}"
        repaired = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in self.faults.items() if count)
        start_s = self.start_us / 1e6
        after = f"of which {self.startup_s:.1f} s until the first boxes; after that "
        after = after if self.is_timed else ""
        factor = f"{self.realtime_factor:#.2g}" if self.realtime_factor < 9.95 else f"{self.realtime_factor:.0f}"
        together = f"; computed {self.windows_per_call} windows per call" if self.windows_per_call > 1 else ""
        spread = f" (median; 90 %: {self.step_ms['p90']:.1f}, 99 %: {self.step_ms['p99']:.1f}{together})"
        spread = spread if self.is_timed else ", with its preparation"
        return [
            f"{self.recording}: {self.format}, {counted(self.num_events, 'event')} in {self.duration_s:.3f} s "
            f"(camera time {start_s:.3f} to {start_s + self.duration_s:.3f} s)"
            + (f"; repaired: {repaired}" if repaired else ""),
            f"{counted(self.num_windows, 'window')} of {self.window_ms:g} ms at {self.hz:g} Hz{self._short()}; frames "
            f"of {size}",
            *(sentence for sentence in (self.sensor_guess, self.reduction, self.doubt, self.cameras) if sentence),
            f"{counted(self.num_detections, 'box')} with a score from {self.written_min_score:g} in the files, "
            f"{self.num_drawn_detections} from {self.drawn_min_score:g}, as in the pictures{self._missed()}",
            f"{self.wall_s:.1f} s, {after}{factor} x real time; in the detector "
            f"{self.step_ms['p50']:.1f} ms for one window{spread}" + self._late(),
            *(["wrote " + ", ".join(self.files)] if self.files else []),
        ]

    def _short(self) -> str:
        """Return a clause if the events last less than one window, otherwise nothing.

        If another program may have written the times in another unit, it says so, but only of many events.
        """
        if 1000 * self.duration_s >= self.window_ms:
            return ""
        if self.format not in _ANY_UNIT:
            return f", but the recording is shorter than one window ({1000 * self.duration_s:g} ms)"
        if self.num_events < MANY_EVENTS:
            return ""
        return f", but the events last only {1000 * self.duration_s:g} ms (times must be in microseconds)"

    def _missed(self) -> str:
        """Return a clause on the score from which there are boxes, empty if some are drawn or none were found."""
        best = self.highest_score
        if self.num_drawn_detections or not best:
            return ""
        return f"; the highest score is {floored(best)}, and min_score={best / 2:.1g} draws more"

    def _late(self) -> str:
        """Return clauses on the rate that this machine sustains, unless `cameras` says it, and on what helps.

        Nothing if the machine keeps up or was not timed.
        """
        median_ms, stride_ms = self.step_ms["p50"], 1000 / self.hz
        if median_ms <= stride_ms or not self.is_timed:
            return ""
        sustained = f"{sustained_in_words(1000 / median_ms)}, not {self.hz:g} Hz"
        said = "" if self.cameras else f"a window comes every {stride_ms:.4g} ms: {sustained}"
        return "".join(f"; {clause}" for clause in (said, self.remedy) if clause)


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, such as "1 box" or "2 boxes"."""
    return f"{count} {noun}" + ("" if count == 1 else "es" if noun.endswith("x") else "s")


class Tally:
    """Counts of a running prediction.

    Args:
        drawn_min_score: The lowest score of boxes that are drawn.
        num_warmup: Windows at the start that do not count as speed, unless there are no others.
    """

    def __init__(self, drawn_min_score: float, num_warmup: int = 1) -> None:
        self.num_events = self.num_written = self.num_drawn = 0
        self.highest_score = 0.0
        self.seconds = array("f")  # per window, four bytes each, because a stream can last for days
        self._drawn_min_score = drawn_min_score
        self.start_us = self._last_us = 0
        self._num_warmup, self._began_s = num_warmup, time.perf_counter()
        self._processor_began_s = time.process_time()
        self._warm: tuple[float, int] | None = None  # when the first windows were done, and their end in microseconds
        self.done_us = 0  # end of the last window; before the first one, time of the first event

    def watched(self, blocks: Iterable[Events]) -> Iterator[Events]:
        """Yield the same blocks, and count their events."""
        for block in blocks:
            if not self.num_events:
                self.start_us = self.done_us = int(block.t[0])
            self._last_us = int(block.t[-1])
            self.num_events += len(block)
            yield block

    def add(self, frame: Detections, seconds: float) -> None:
        """Count the detections of one window, which took `seconds`."""
        self.seconds.append(seconds)
        self.num_written += len(frame)
        self.highest_score = max(self.highest_score, float(frame.score.max(initial=0)))
        self.num_drawn += int((frame.score >= self._drawn_min_score).sum())
        self.done_us = frame.t_us
        if len(self.seconds) == self._num_warmup:
            self._warm = time.perf_counter(), frame.t_us

    @property
    def duration_s(self) -> float:
        return (self._last_us - self.start_us) / 1e6

    @property
    def is_timed(self) -> bool:
        return len(self.seconds) > self._num_warmup

    def pace(self) -> tuple[float, float, float]:
        """Return seconds of the run, of its start, and seconds of the recording per second after the start."""
        now_s = time.perf_counter()
        if self._warm is None or not self.is_timed:
            return now_s - self._began_s, now_s - self._began_s, self.duration_s / (now_s - self._began_s)
        warm_s, warm_us = self._warm
        factor = (self.done_us - warm_us) / 1e6 / (now_s - warm_s)
        return now_s - self._began_s, warm_s - self._began_s, factor

    def remedy(self) -> str:
        """Return what `busy_machine_remedy` says about the run so far."""
        wall_s, processor_s = time.perf_counter() - self._began_s, time.process_time() - self._processor_began_s
        return busy_machine_remedy(torch.get_num_threads(), wall_s, processor_s)

    def step_ms(self) -> dict[str, float]:
        """Return the mean and percentiles of the time per window, in milliseconds."""
        milliseconds = 1000 * np.array(self.seconds, np.float64)
        milliseconds = milliseconds[self._num_warmup :] if self.is_timed else milliseconds
        found = {f"p{q}": float(np.percentile(milliseconds, q)) for q in (50, 90, 99)}
        return {"mean": float(milliseconds.mean()), **found}
