"""Counts and times of one run of `predict` or `live`, as in its JSON file. docs/live.md says what to do about them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rvtssm.records import Events

if TYPE_CHECKING:
    from rvtssm.detection.engine import StreamDetector
    from rvtssm.detection.sources import OpenedSource
    from rvtssm.detection.window_results import WindowResult
    from rvtssm.readers.source import EventSource

_TIMED = 100_000  # windows whose times are kept for the percentiles, the last ones, because a camera can send for days


@dataclass(frozen=True)
class RunSummary:
    """The numbers of one run of a detector on a source, also written as `prediction.json` or `live.json`."""

    source: str
    format: str
    sensor_hw: tuple[int, int]  # pixels
    frame_hw: tuple[int, int]  # pixels of the detector's input
    downsample: int
    reduce: str  # how a square of the sensor became a pixel, one of REDUCTIONS
    tiles: str | None  # numbers of tiles across and down; None: frames were not cut
    assumed_sensor: str  # name of the common sensor whose size is assumed; empty if the source gives its size
    hz: float
    hz_is_auto: bool  # hz=auto has chosen it
    window_ms: float
    windows_per_call: int
    num_windows: int  # with a result
    num_passed: int  # windows without a result of their own, because the detector was late
    num_silent: int  # windows without a result of their own, because nothing happened
    num_events: int
    start_us: int  # camera time of the first event
    duration_s: float  # from the first to the last event
    classes: dict[str, str]  # class names by their ids in detections.npy and coco_results.json
    num_detections: int  # boxes in the files
    highest_score: float  # of all boxes, written or not; 0 if there are none
    faults: dict[str, int]  # repaired events by kind
    removed: dict[str, float]  # share of the events that each filter removed, 0 to 1
    num_lost_packets: int  # that arrived faster than they could be read
    num_lost_events: int  # events in these packets, as far as they are known
    num_unwritten: int  # windows that a file lacks because the disk was full
    num_restarts: int  # jumps of the clock
    broke_off: str  # why the source or the run ended early; empty if neither did
    wall_s: float  # of the whole run
    startup_s: float  # until the first call was done: code is compiled, and weights are prepared
    realtime_factor: float | None  # seconds of events per second after that; None if nothing was computed then
    step_ms: dict[str, float]  # computing time per window after the first call: p50, p90, p99
    lag_ms: dict[str, float]  # live: from the arrival of a window's last events to its boxes: p50, p90, p99, max
    files: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return the numbers with their units, a line for each subject."""
        # The sensor and its frames.
        sensor_h, sensor_w = self.sensor_hw
        frame_h, frame_w = self.frame_hw
        sensor = f"sensor {sensor_w} x {sensor_h} pixels"
        frames = [f"downsample={self.downsample}"]
        if self.assumed_sensor:
            sensor += f" (assumed: {self.assumed_sensor})"
        if self.downsample > 1:
            frames.append(f"reduce={self.reduce}")
        if self.tiles:
            frames.append(f"tiles={self.tiles}")
        # How fast it was.
        pace = f"{self.wall_s:.1f} s, {self.startup_s:.1f} s of it to start"
        if self.realtime_factor is not None:
            pace += f"; then {self.realtime_factor:.2g} x real time"
        # One line for each subject.
        lines = [f"{self.source}: {', '.join(self._of_events())}"]
        if self.removed:
            shares = [f"{100 * share:.1f} % ({name})" for name, share in self.removed.items()]
            lines.append(f"filters removed {', '.join(shares)} of the events before them")
        lines += [
            ", ".join(self._of_windows()),
            f"{sensor}, frames {frame_w} x {frame_h} ({', '.join(frames)})",
            f"{counted(self.num_detections, 'box')} for the files, highest score of all {self.highest_score:.2f}",
            pace,
        ]
        for what, numbers in (("computing", self.step_ms), ("lag", self.lag_ms)):
            if numbers:
                times = [f"{value:.1f} ms ({name})" for name, value in numbers.items()]
                lines.append(f"{what} per window: {', '.join(times)}")
        if self.files:
            lines.append(f"wrote {', '.join(self.files)}")
        return lines

    def _of_events(self) -> list[str]:
        begin = f"{self.duration_s:.3f} s from camera time {self.start_us / 1e6:.3f} s"
        facts = [f"{self.format}, {counted(self.num_events, 'event')}, {begin}"]
        facts += [f"{count} {name.replace('_', ' ')}" for name, count in self.faults.items() if count]
        if self.num_lost_packets:
            facts.append(f"{counted(self.num_lost_packets, 'packet')} lost")
        if self.num_lost_events:
            facts.append(f"{counted(self.num_lost_events, 'event')} lost")
        if self.num_restarts:
            facts.append(f"{counted(self.num_restarts, 'jump')} of the clock")
        return facts

    def _of_windows(self) -> list[str]:
        rate = f"{self.hz:g} Hz"
        if self.hz_is_auto:
            rate += " (auto)"
        facts = [f"{counted(self.num_windows, 'window')} of {self.window_ms:g} ms at {rate}"]
        if self.num_passed:
            facts.append(f"{self.num_passed} passed over")
        if self.num_silent:
            facts.append(f"{self.num_silent} of silence")
        if self.num_unwritten:
            facts.append(f"{self.num_unwritten} not written, because the disk was full")
        return facts


def run_summary(
    source: OpenedSource,
    events: EventSource,
    detector: StreamDetector,
    tally: Tally,
    *,
    num_restarts: int = 0,
    hz_is_auto: bool = False,
    broke_off: str,
    files: tuple[str, ...] = (),
) -> RunSummary:
    """Return the summary of a run that has ended.

    Args:
        source: The opened source.
        events: What the events were read from: that source, or what plays or feeds it.
        detector: The detector of the run.
        tally: What was counted.
        num_restarts: Jumps of the clock.
        hz_is_auto: Whether hz=auto has chosen the rate.
        broke_off: Why the run ended early; empty if it did not.
        files: The files that were written.
    """
    return RunSummary(
        source=source.name,
        format=source.events.format,
        sensor_hw=detector.sensor_hw,
        frame_hw=detector.frame_hw,
        downsample=detector.downsample,
        reduce=detector.windows.reduce,
        tiles=detector.tiles,
        assumed_sensor=source.assumed_sensor,
        hz=detector.windows.hz,
        hz_is_auto=hz_is_auto,
        window_ms=detector.windows.nominal_length_us / 1000,
        windows_per_call=detector.windows_per_call,
        **tally.counts(),
        classes=detector.checkpoint.spec.names_on_disk,
        faults=asdict(source.events.faults),
        removed=detector.filters.removed(),
        num_lost_packets=events.num_lost,
        num_lost_events=events.num_lost_events,
        num_restarts=num_restarts,
        broke_off=broke_off,
        files=files,
    )


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, such as "1 box" or "2 boxes"."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun}{'es' if noun.endswith('x') else 's'}"


class Tally:
    """Counts of a run.

    Args:
        num_warmup: Windows at the start that do not count as speed, unless there are no others.
    """

    def __init__(self, num_warmup: int = 1) -> None:
        self.num_events = self.num_windows = self.num_passed = self.num_silent = self.num_detections = 0
        self.num_unwritten = 0
        self.highest_score = 0.0
        self.start_us = self._last_us = 0
        self._done_us = 0.0  # time of the events that were computed after the start
        self._first_s = list[float]()
        self._steps_s = deque[float](maxlen=_TIMED)
        self._lags_s = deque[float](maxlen=_TIMED)
        self._longest_lag_s = 0.0
        self._num_warmup = num_warmup
        self._began_s = time.perf_counter()
        self._warm_s: float | None = None  # when the first windows were done

    def see(self, block: Events) -> None:
        """Count the events of a block."""
        if not len(block):
            return
        if not self.num_events:
            self.start_us = int(block.t[0])
        self._last_us = int(block.t[-1])
        self.num_events += len(block)

    def add(self, result: WindowResult, num_written: int) -> None:
        """Count a window, and the boxes of it that are written to files."""
        self.num_windows += 1
        self.num_passed += result.num_passed - result.num_silent
        self.num_silent += result.num_silent
        self.num_detections += num_written
        self.highest_score = max(self.highest_score, float(result.score.max(initial=0)))
        # The first windows compile code, so that they say nothing about speed.
        if self.num_windows > self._num_warmup:
            self._steps_s.append(result.seconds)
            self._done_us += result.step_us
        else:
            self._first_s.append(result.seconds)
        if result.lag_s:
            self._lags_s.append(result.lag_s)
            self._longest_lag_s = max(self._longest_lag_s, result.lag_s)
        if self.num_windows == self._num_warmup:
            self._warm_s = time.perf_counter()

    @property
    def duration_s(self) -> float:
        return (self._last_us - self.start_us) / 1e6

    def counts(self) -> dict[str, Any]:
        """Return the fields of a `RunSummary` that were counted."""
        return {
            "num_windows": self.num_windows,
            "num_passed": self.num_passed,
            "num_silent": self.num_silent,
            "num_unwritten": self.num_unwritten,
            "num_events": self.num_events,
            "start_us": self.start_us,
            "duration_s": self.duration_s,
            "num_detections": self.num_detections,
            "highest_score": self.highest_score,
            "step_ms": _percentiles_ms(self._steps_s or self._first_s),
            "lag_ms": self._lag_ms(),
            **self._pace(),
        }

    def _pace(self) -> dict[str, float | None]:
        """Return seconds of the run and of its start, and seconds of events per second after the start."""
        now_s = time.perf_counter()
        wall_s = now_s - self._began_s
        if self._warm_s is None or self.num_windows <= self._num_warmup:
            return {"wall_s": wall_s, "startup_s": wall_s, "realtime_factor": None}
        factor = self._done_us / 1e6 / (now_s - self._warm_s)
        return {"wall_s": wall_s, "startup_s": self._warm_s - self._began_s, "realtime_factor": factor}

    def _lag_ms(self) -> dict[str, float]:
        """Return percentiles and the maximum of the lag, in milliseconds; empty unless the run was live."""
        if not self._lags_s:
            return {}
        return {**_percentiles_ms(self._lags_s), "max": 1000 * self._longest_lag_s}


def _percentiles_ms(seconds: Iterable[float]) -> dict[str, float]:
    milliseconds = 1000 * np.array([*seconds], np.float64)
    if not len(milliseconds):
        return {}
    return {f"p{share}": float(np.percentile(milliseconds, share)) for share in (50, 90, 99)}
