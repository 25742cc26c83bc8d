"""One raw recording to one prepared sequence: checked, cleaned, counted as it streams by, compressed and written.

A long recording can be cut into sections of consecutive windows, counted anywhere and written in their order: the file
is the same to the byte.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rvtssm.events.frame_counter import count_stream
from rvtssm.events.labels import BOX_DTYPE, Boxes, clean_boxes, to_labels
from rvtssm.events.readers import Recording, open_recording
from rvtssm.events.representations import Counting
from rvtssm.events.tree import RawRecording
from rvtssm.events.windows import free_grid, label_grid
from rvtssm.preparation.compress import FrameCompressor
from rvtssm.preparation.preprocess_config import PreprocessConfig
from rvtssm.preparation.store import Meta, read_meta, sequence_writer
from rvtssm.records import DatasetSpec, Events, Labels, Windows

__all__ = [
    "Outcome",
    "Plan",
    "PreprocessConfig",
    "check_faults",
    "check_label_times",
    "count_section",
    "is_complete",
    "plan_recording",
    "prepare_recording",
]

_SAMPLE_BYTES = 1 << 20  # of each end of a recording, for telling whether it is still the same file
_LATE_LABEL_US = 1_000_000  # labels may outlast the events by this much: objects can stand still at the end
_kept = threading.local()
_FRAMES_AT_ONCE = 2  # few, so that a frame is compressed while it is still in the cache


@dataclass(frozen=True)
class Outcome:
    """What became of one recording: written, skipped (already complete), dropped (no boxes left) or failed."""

    status: str
    message: str = ""
    backward_steps: int = 0
    num_events: int = 0


@dataclass(frozen=True)
class Plan:
    """What a recording will become, known before its events are counted. Can be sent to other processes."""

    events: Recording
    windows: Windows
    labels: Labels  # sensor px
    boxes: Boxes | None  # cleaned; None: prepared without
    counting: Counting
    downsample: int
    frame_shape: tuple[int, int, int]
    meta: Meta  # all but what `events.faults` will tell

    @property
    def final_meta(self) -> Meta:
        return {**self.meta, "faults": asdict(self.events.faults)}

    def section(self, start: int, stop: int) -> Plan:
        """What it takes to count the windows [start, stop) alone: little, however long the recording."""
        windows = Windows(self.windows.bounds_us[start:stop], self.windows.dt_us[start:stop])
        return replace(
            self, events=self.events.part(*_span_us(windows)), windows=windows, labels=self.labels[:0], boxes=None
        )


def prepare_recording(
    recording: RawRecording,
    path: Path | str,
    spec: DatasetSpec,
    config: PreprocessConfig,
    is_train: bool = False,
    report: Callable[[float, int], None] | None = None,
) -> Outcome:
    """Prepare one recording as `path`; memory does not grow with its length. ValueError where it cannot be used.

    `report` is told the share of the windows that is done and how many events have been read.
    """
    plan = plan_recording(recording, spec, config, is_train)
    if isinstance(plan, Outcome):
        return plan
    checked = _CheckedEvents(plan)
    with (
        closing(plan.events),
        sequence_writer(path, plan.windows, plan.labels, plan.frame_shape, plan.counting.dtype) as writer,
    ):
        for frames in _compressed(plan, checked, plan.windows):
            writer.append(frames)
            if report is not None:
                report(writer.num_frames / len(plan.windows), checked.num_events)
        writer.meta = plan.final_meta
    return Outcome("written", "", plan.events.faults.backward_steps, checked.num_events)


def plan_recording(
    recording: RawRecording, spec: DatasetSpec, config: PreprocessConfig, is_train: bool, is_cut: bool = False
) -> Plan | Outcome:
    """The grid and the labels of a recording, or that it is dropped; ValueError where it cannot be used.

    `is_cut` reads all of it once, so that sections of it can be counted and its faults are known.
    """
    boxes = _cleaned_boxes(recording, spec, config, is_train)
    if boxes is not None and not len(boxes):
        return Outcome("dropped", f"{recording.boxes_path} has no box left after cleaning")
    with closing(open_recording(recording.events_path, spec.height, spec.width)) as events:
        check_faults(events, 0)
        if is_cut or boxes is None:
            first_us, last_us = events.time_range_us
            check_faults(events, events.num_events)
            if boxes is not None:
                check_label_times(events, boxes, first_us, last_us)
        else:
            first = next(events.iterate(), None)
            if first is None:
                raise events.error_without_events()
            first_us = int(first.t[0])
        if boxes is None:
            windows = free_grid(first_us, last_us, config.stride_us, config.length_us)
        else:
            # RVT's first window may not start at 0, whenever the first event comes.
            start_us = 1 if config.convention == "rvt" else first_us
            try:
                windows = label_grid(boxes["t"], config.stride_us, config.length_us, start_us)
            except ValueError as error:
                raise ValueError(
                    f"{recording.boxes_path} has labels until {boxes['t'][-1]} us, the events begin at {first_us} us: "
                    f"{error}, or they count from another moment"
                ) from None
        return Plan(
            events,
            windows,
            to_labels(np.empty(0, BOX_DTYPE) if boxes is None else boxes, windows),
            boxes,
            config.counting,
            spec.downsample,
            (config.counting.num_channels, spec.frame_height, spec.frame_width),
            {**_settings(spec, config, is_train), "source": _source(recording, config)},
        )


def count_section(section: Plan) -> tuple[list[bytes], int]:
    """The compressed frames of a `Plan.section` of a recording that was planned cut, and how many events it read."""
    start_us, end_us = _span_us(section.windows)
    num_events = 0

    def blocks() -> Iterator[Events]:
        nonlocal num_events
        for block in section.events.iterate(start_us=start_us, end_us=end_us):
            num_events += len(block)
            yield block

    with closing(section.events):
        frames = [frame for group in _compressed(section, blocks(), section.windows) for frame in group]
    return frames, num_events


def _span_us(windows: Windows) -> tuple[int, int]:
    """What the windows see, half-open; one more microsecond, since those of the convention `rvt` are closed."""
    return int(windows.bounds_us[:, 0].min()), int(windows.ends_us[-1]) + 1


def _compressed(plan: Plan, blocks: Iterable[Events], windows: Windows) -> Iterator[list[bytes]]:
    compressor = _compressor(math.prod(plan.frame_shape) * plan.counting.dtype.itemsize)
    counting: dict[str, Any] = asdict(plan.counting)
    size = plan.events.height, plan.events.width
    options = {**counting, "downsample": plan.downsample, "max_windows": _FRAMES_AT_ONCE}
    for frames in count_stream(blocks, windows, *size, **options):
        yield [compressor.compress(frame) for frame in frames]


def _compressor(num_bytes: int) -> FrameCompressor:
    """That of this thread, for frames of this size: a new one costs as much as several frames."""
    if getattr(_kept, "num_bytes", None) != num_bytes:
        _kept.num_bytes, _kept.compressor = num_bytes, FrameCompressor(num_bytes)
    compressor: FrameCompressor = _kept.compressor
    return compressor


class _CheckedEvents:
    """The blocks of a whole recording; at their end a ValueError if they do not fit the sensor or the boxes."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.num_events = 0

    def __iter__(self) -> Iterator[Events]:
        events, boxes = self._plan.events, self._plan.boxes
        first_us = last_us = 0
        for block in events.iterate():
            if not self.num_events:
                first_us = int(block.t[0])
            last_us = int(block.t[-1])
            self.num_events += len(block)
            yield block
        check_faults(events, self.num_events)
        if boxes is not None:
            check_label_times(events, boxes, first_us, last_us)


def check_faults(recording: Recording, num_events: int) -> None:
    """ValueError for faults that no repair can mend in a recording of which `num_events` events were read."""
    if recording.format == "dat" and recording.faults.truncated_bytes:
        raise ValueError(
            f"{recording.path} is truncated: {recording.faults.truncated_bytes} bytes follow the last whole event; "
            "copy it again"
        )
    if outside := recording.faults.out_of_frame:
        raise ValueError(
            f"{recording.path} has {outside} of {num_events + outside} events outside its "
            f"{recording.height}x{recording.width} (height x width) pixels; choose the dataset or the size that fits"
        )


def check_label_times(recording: Recording, boxes: Boxes, first_us: int, last_us: int) -> None:
    """ValueError for cleaned boxes that all lie before the events of their recording, or some long after them."""
    if boxes["t"][-1] < first_us:
        raise ValueError(
            f"{recording.path} has events from {first_us} us but labels only until {boxes['t'][-1]} us; "
            "they do not belong together, copy both again"
        )
    if boxes["t"][-1] > last_us + _LATE_LABEL_US:
        raise ValueError(
            f"{recording.path} has events until {last_us} us but labels until {boxes['t'][-1]} us; "
            "events are missing, copy it again"
        )


def is_complete(
    recording: RawRecording, path: Path, spec: DatasetSpec, config: PreprocessConfig, is_train: bool
) -> bool:
    """Whether `path` need not be made again; ValueError if it is something else that may not be replaced."""
    if not path.exists():
        return False
    try:
        found = read_meta(path)
    except ValueError:
        if config.overwrite:
            return False
        raise
    before_there_was_a_choice = {"representation": "histogram"}
    found = {**before_there_was_a_choice, **found}
    settings = _settings(spec, config, is_train)
    differences = [f"{key}={found.get(key)}, now {value}" for key, value in settings.items() if found.get(key) != value]
    if differences and not config.overwrite:
        raise ValueError(f"{path} was made with {'; '.join(differences)}; give that, overwrite=true or another folder")
    return not differences and found["source"] == _source(recording, config)


def _cleaned_boxes(
    recording: RawRecording, spec: DatasetSpec, config: PreprocessConfig, is_train: bool
) -> Boxes | None:
    if not config.is_labelled:
        return None
    if recording.boxes_path is None:
        raise ValueError(
            f"{recording.events_path} has no labels ({recording.name}{spec.boxes_suffix}); "
            "copy them, or set labels=none to prepare without"
        )
    boxes = recording.read_boxes(spec)
    if not len(boxes):
        raise ValueError(f"{recording.boxes_path} holds no boxes; set labels=none to prepare without")
    return clean_boxes(boxes, spec, config.convention, is_train)


def _settings(spec: DatasetSpec, config: PreprocessConfig, is_train: bool) -> Meta:
    return {
        "dataset": spec.name,
        "convention": config.convention,
        "representation": config.representation,
        "grid": "labels" if config.is_labelled else "free",
        "stride_us": config.stride_us,
        "length_us": config.length_us,
        "num_bins": config.num_bins,
        "count_cutoff": config.count_cutoff,
        "height": spec.height,
        "width": spec.width,
        "downsample": spec.downsample,
        "class_names": list(spec.class_names),
        "min_box_px": [spec.prepare_min_side_px, spec.prepare_min_diagonal_px],
        "is_train": is_train,
    }


def _source(recording: RawRecording, config: PreprocessConfig) -> Meta:
    """Name, size and a fingerprint of the files: all of the boxes, both ends of the events."""
    num_bytes = recording.events_path.stat().st_size
    digest = hashlib.sha256()
    with open(recording.events_path, "rb") as file:
        digest.update(file.read(_SAMPLE_BYTES))
        file.seek(max(0, num_bytes - _SAMPLE_BYTES))
        digest.update(file.read(_SAMPLE_BYTES))
    if config.is_labelled and recording.boxes_path is not None:
        digest.update(recording.boxes_path.read_bytes())
    return {"name": recording.events_path.name, "num_bytes": num_bytes, "fingerprint": digest.hexdigest()}
