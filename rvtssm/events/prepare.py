"""One raw recording to one prepared sequence: checked, cleaned, counted as it streams by, written aside."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from rvtssm.events.histogram import check_convention, count_stream
from rvtssm.events.labels import BOX_DTYPE, Boxes, clean_boxes, read_boxes, to_labels
from rvtssm.events.readers import Recording, open_recording
from rvtssm.events.store import Meta, read_meta, write_sequence
from rvtssm.events.tree import RawRecording
from rvtssm.events.windows import free_grid, label_grid
from rvtssm.records import DatasetSpec, Events

_SAMPLE_BYTES = 1 << 20  # of each end of a recording, for telling whether it is still the same file
_LATE_LABEL_US = 1_000_000  # labels may outlast the events by this much: objects can stand still at the end


@dataclass
class PreprocessConfig:
    """How recordings become sequences."""

    stride_ms: float = 50.0  # distance of window ends
    length_ms: float | None = None  # None: as long as the distance (shrink); a number: always that long (slide)
    convention: str = "exact"  # or "rvt", which reproduces RVT's files
    grid: str = "labels"  # "labels": every label time ends a window; "free": fixed stride from the first event
    labels: str = "required"  # or "none": prepare without, on the free grid
    num_bins: int = 10
    count_cutoff: int = 10
    splits: tuple[str, ...] = ("train", "val", "test")
    workers: int | None = None  # None: one per core
    overwrite: bool = False  # replace what was made with other settings

    def __post_init__(self) -> None:
        check_convention(self.convention)
        for name, choices in (("grid", ("labels", "free")), ("labels", ("required", "none"))):
            if getattr(self, name) not in choices:
                raise ValueError(f"preprocess.{name}={getattr(self, name)!r}; choose from {', '.join(choices)}")
        if self.grid == "free" and self.is_labelled:
            raise ValueError("grid=free has no windows that end at labels; set labels=none as well, or grid=labels")
        for name in ("stride_ms", "length_ms"):
            value = getattr(self, name)
            if value is not None and not 0.001 <= value < math.inf:
                raise ValueError(f"preprocess.{name}={value:g} must be at least 0.001, which is a microsecond")
        if self.num_bins < 1 or not 1 <= self.count_cutoff <= 255:
            raise ValueError(
                f"preprocess.num_bins={self.num_bins} must be at least 1, "
                f"preprocess.count_cutoff={self.count_cutoff} between 1 and 255"
            )
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"preprocess.workers={self.workers} must be at least 1, or null for one per core")
        if not self.splits:
            raise ValueError("preprocess.splits=[] leaves nothing to prepare; name some, such as [train,val,test]")

    @property
    def stride_us(self) -> int:
        return round(self.stride_ms * 1000)

    @property
    def length_us(self) -> int | None:
        """Window length; RVT's windows always have one, by default that of the stride."""
        if self.length_ms is None:
            return self.stride_us if self.convention == "rvt" else None
        return round(self.length_ms * 1000)

    @property
    def is_labelled(self) -> bool:
        return self.labels == "required"


@dataclass(frozen=True)
class Outcome:
    """What became of one recording: written, skipped (already complete), dropped (no boxes left) or failed."""

    status: str
    message: str = ""
    backward_steps: int = 0


def preprocess_recording(
    recording: RawRecording, path: Path | str, spec: DatasetSpec, config: PreprocessConfig, is_train: bool = False
) -> Outcome:
    """Prepare one recording as `path`; memory does not grow with its length.

    ValueError where the recording cannot be used, or `path` was made with other settings and may not be replaced.
    """
    settings, source = _settings(spec, config, is_train), _source(recording, config)
    if _is_complete(Path(path), settings, source, config.overwrite):
        return Outcome("skipped")
    boxes = _cleaned_boxes(recording, spec, config, is_train)
    if boxes is not None and not len(boxes):
        return Outcome("dropped", f"{recording.boxes_path} has no box left after cleaning")
    events = open_recording(recording.events_path, spec.height, spec.width)
    try:
        check_faults(events, 0)
        blocks = events.iterate()
        first = next(blocks, None)
        if first is None:
            raise events.error_without_events()
        first_us = int(first.t[0])
        if boxes is None:
            windows = free_grid(first_us, events.time_range_us[1], config.stride_us, config.length_us)
        else:
            # RVT's first window may not start at 0, whenever the first event comes.
            start_us = 1 if config.convention == "rvt" else first_us
            windows = label_grid(boxes["t"], config.stride_us, config.length_us, start_us)
        write_sequence(
            path,
            windows,
            to_labels(np.empty(0, BOX_DTYPE) if boxes is None else boxes, windows),
            count_stream(
                _checked(chain((first,), blocks), events, boxes),
                windows,
                spec.height,
                spec.width,
                num_bins=config.num_bins,
                count_cutoff=config.count_cutoff,
                downsample=spec.downsample,
                convention=config.convention,
            ),
            (2 * config.num_bins, spec.frame_height, spec.frame_width),
            lambda: {**settings, "source": source, "faults": asdict(events.faults)},
        )
    finally:
        events.close()
    return Outcome("written", backward_steps=events.faults.backward_steps)


def _checked(blocks: Iterable[Events], recording: Recording, boxes: Boxes | None) -> Iterator[Events]:
    """The blocks, and at their end a ValueError if they do not fit the sensor or the boxes."""
    first_us, last_us, num_events = None, 0, 0
    for block in blocks:
        if first_us is None:
            first_us = int(block.t[0])
        last_us, num_events = int(block.t[-1]), num_events + len(block)
        yield block
    check_faults(recording, num_events)
    if boxes is not None:
        check_label_times(recording, boxes, first_us or 0, last_us)


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
    boxes = read_boxes(recording.boxes_path)
    if not len(boxes):
        raise ValueError(f"{recording.boxes_path} holds no boxes; set labels=none to prepare without")
    return clean_boxes(boxes, spec, config.convention, is_train)


def _settings(spec: DatasetSpec, config: PreprocessConfig, is_train: bool) -> Meta:
    return {
        "dataset": spec.name,
        "convention": config.convention,
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


def _is_complete(path: Path, settings: Meta, source: Meta, overwrite: bool) -> bool:
    """Whether `path` need not be made again; ValueError if it is something else that may not be replaced."""
    if not path.exists():
        return False
    try:
        found = read_meta(path)
    except ValueError:
        if overwrite:
            return False
        raise
    differences = [f"{key}={found.get(key)}, now {value}" for key, value in settings.items() if found.get(key) != value]
    if differences and not overwrite:
        raise ValueError(f"{path} was made with {'; '.join(differences)}; set overwrite=true or choose another folder")
    return not differences and found["source"] == source
