"""Records of settings: how files are read, what a dataset is, and how events become frames."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from rvtssm.system.limits import Limits, check_choice, check_counts, check_number, check_value, field_names, values_of
from rvtssm.system.user_error import UserError

SHOWN_SCORE = 0.3  # detections from this score on are drawn, and counted in confusions and worst frames
SMALLEST_SIDE = 8  # of a frame in pixels: one place of the finest map from which boxes are predicted
STILL_US = 300_000  # an object that has not moved for this long emits almost no events
SPLITS = ("train", "val", "test")
TIME_UNITS = ("us", "ns", "ms", "s")
COLUMNS_EXAMPLE = "columns={t: timestamp, x: col, y: row, p: polarity}, or by number, columns={t: 0, x: 1, y: 2, p: 3}"
CONVENTIONS = ("exact", "rvt")
REDUCTIONS = ("nearest", "sum")  # of a square of sensor pixels to one frame pixel, see events/cells.py
# Channels per time bin; for `surfaces`, per time constant. See events/representations.py.
CHANNELS_PER_BIN = {"histogram": 2, "surfaces": 2}
TIME_CONSTANTS_US = 200, 10_000_000  # the shortest and the longest
_FASTEST_HZ = 500  # at faster whole rates, neighbouring steps differ by little more than the rounding
Settings = TypeVar("Settings", bound=Any)


def filled(settings: Settings, others: Mapping[str, Any]) -> Settings:
    """Return settings with the values of others where they say nothing: None, an empty text or no columns.

    Args:
        settings: A dataclass.
        others: Values by the names of its fields.
    """
    own = values_of(settings, others)
    said = {name: value for name, value in own.items() if value not in (None, "", {})}
    return replace(settings, **{**others, **said})


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a caller says about recordings that their files may not say. None: what the file says."""

    height: int | None = None  # of the sensor, pixels
    width: int | None = None  # of the sensor, pixels
    repair: bool | None = None  # read recordings with many faulty events
    time_unit: str | None = None  # one of TIME_UNITS
    format: str | None = None  # a key of READERS
    columns: Mapping[str, str] = field(default_factory=dict)  # by t, x, y, p: the name, or the number from 0
    key: str | None = None  # group or table of the events in an HDF5 file that holds several
    # Fields that hold only for files that do not say it themselves, as those of a whole folder do.
    yields: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        for name, side in (("height", self.height), ("width", self.width)):
            if side is not None and (isinstance(side, bool) or not isinstance(side, int | np.integer)):
                raise UserError("setting.form", name=name, found=repr(side), needed="give a whole number of pixels")
        check_choice("time_unit", self.time_unit, (*TIME_UNITS, None))
        if self.columns and (set(self.columns) != set("txyp") or len({*self.columns.values()}) < len("txyp")):
            needed = f"it must name four columns, t, x, y and p, as in {COLUMNS_EXAMPLE}"
            raise UserError("setting.form", name="columns", found=dict(self.columns), needed=needed)

    @classmethod
    def of(cls, settings: Any) -> ReadOptions:
        """Return the options among the fields of other settings, such as those of `predict`."""
        names = [name for name in field_names(cls) if hasattr(settings, name)]
        return cls(**values_of(settings, names))


@dataclass(frozen=True, slots=True)
class DatasetSpec:
    """The fixed properties of a dataset: its sensor, its classes, its label rules and its files.

    Sizes in pixels refer to the full resolution of the sensor. Frames are `downsample` times smaller.
    """

    name: str
    height: int  # of the sensor, pixels
    width: int  # of the sensor, pixels
    class_names: tuple[str, ...]
    label_interval_us: int = 50_000  # of labels that come at more than 20 Hz, about one per interval is used
    min_side_px: float = 10.0  # boxes with a shorter side are not scored
    min_diagonal_px: float = 0.0  # boxes with a shorter diagonal are not scored
    prepare_min_side_px: float = 2.0  # boxes with a shorter side are dropped, even from the training labels
    prepare_min_diagonal_px: float = 0.0  # the same for the diagonal
    class_ids: tuple[int, ...] = ()  # the id of each class in label files; empty: 0, 1, 2, ...
    # Classes to drop from label files, as names or as numbers in text. A class that is neither here nor in class_names
    # is an error. None: drop every class that is not in class_names.
    ignored_classes: tuple[str, ...] | None = None
    downsample: int = 1  # each downsample x downsample square of the sensor is one pixel of the frame
    repair: bool = False  # this and the next four: see ReadOptions
    time_unit: str | None = None
    format: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict, hash=False)
    key: str | None = None
    skip_us: int = 500_000  # labels up to this time are not scored
    # score label times without a box as well, where each false box costs precision; False: as published for Gen1, 1Mpx
    scores_empty_images: bool = False
    disk_names: tuple[str, ...] = ()  # other names that files use for this dataset
    event_suffixes: tuple[str, ...] = ("_td.dat", "_td.dat.h5", "_td.h5")  # (): those of all readable recordings
    boxes_suffix: str = "_bbox.npy"  # of label files; or a file with the labels of many recordings
    more_suffixes: tuple[str, ...] = ()  # of label files of other kinds, which some recordings have
    # Added to the times of labels. None: the time shift that the recording gives. from_start: the time of its first
    # event. A dict has the offsets of recordings by name.
    label_offset_us: int | str | Mapping[str, int] | None = field(default=0, hash=False)
    label_fps: float = 0.0  # rate of the frames that names of labelled images number; 0: they are microseconds
    label_names: str = ""  # form of the names of labelled images, see events/label_names.py; empty: the usual forms
    label_columns: tuple[str, ...] = ()  # what the numbers of a line of YOLO text are; empty: class, cx, cy, w, h
    events_dir: str | None = None  # subfolder that holds the splits of event files; None: the dataset's folder itself
    boxes_dir: str | None = None  # subfolder that holds the splits of label files; None: beside the event files
    # Glob patterns of the files of each split. A split without an entry has the pattern <split>/*.
    split_sources: dict[str, tuple[str, ...]] = field(default_factory=dict, hash=False)

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def boxes_suffixes(self) -> tuple[str, ...]:
        """The ends of the names of label files, one for each kind."""
        return self.boxes_suffix, *self.more_suffixes

    @property
    def disk_class_ids(self) -> tuple[int, ...]:
        return self.class_ids or tuple(range(self.num_classes))

    @property
    def names_on_disk(self) -> dict[str, str]:
        """The names of the classes by their ids in files, as text for JSON."""
        return dict(zip(map(str, self.disk_class_ids), self.class_names, strict=True))

    @property
    def sensor_hw(self) -> tuple[int, int]:
        """Height and width of the sensor."""
        return self.height, self.width

    @property
    def read_options(self) -> ReadOptions:
        """How its recordings are read."""
        read = (self.height, self.width, self.repair, self.time_unit, self.format, self.columns, self.key)
        return ReadOptions(*read, yields=("time_unit", "format", "columns", "key"))

    @property
    def frame_height(self) -> int:
        return self.height // self.downsample

    @property
    def frame_width(self) -> int:
        return self.width // self.downsample


def exact_us(step_us: float | np.ndarray) -> np.ndarray:
    """Return steps without the rounding of window ends, if they belong to a whole rate of at most 500 Hz.

    At 60 Hz windows end 16,666 or 16,667 us apart, because ends are whole microseconds. Both become 1/60 s: a step that
    differs from the step of a whole rate by less than a microsecond becomes the step of that rate. Strides that are
    equal up to rounding therefore have the same step scale, for one window at a time as for many.

    Args:
        step_us: Steps in microseconds, of any shape.

    Returns:
        float64 of the same shape.
    """
    step = np.asarray(step_us, np.float64)
    with np.errstate(divide="ignore"):
        of_rate = 1e6 / np.rint(1e6 / step)
    return np.where((np.abs(of_rate - step) < 1) & (step >= 1e6 / _FASTEST_HZ), of_rate, step)


def is_same_rate(hz: float, other_hz: float) -> bool:
    """Return whether two rates are equal up to rounding: 30 Hz is 33333.3 us, which may be stored as 33333."""
    return math.isclose(hz, other_hz, rel_tol=1e-3)


def check_window(key: str, value: object, other: str | None = None) -> None:
    """Raise UserError if a value does not choose the length of windows at other rates: slide, shrink or `other`.

    Args:
        key: Name of the value, for the message.
        value: The value.
        other: A third choice.
    """
    if value not in ("slide", "shrink", other):
        choices = ["slide (windows as long as in training)", "shrink (as long as the stride)", other]
        advice = "window_ms of the training sets the length in ms"
        raise UserError("setting.choice", name=key, found=value, needed=choices, advice=advice)


@dataclass(frozen=True, slots=True)
class WindowSettings:
    """How events become frames, both in prepared sequences and in recordings that are counted on the fly.

    >>> rvtssm.WindowSettings(stride_us=10_000, length_us=50_000).hz
    100.0
    """

    stride_us: float = 50_000  # time between window ends; a model uses step_scale = 1 at its training stride
    length_us: int | None = None  # length of a window; None: each window starts at the end of the previous one
    convention: str = "exact"  # one of CONVENTIONS, see events/representations.py
    num_bins: int = 10  # time bins per window
    count_cutoff: int = 10  # counts saturate here
    representation: str = "histogram"  # one of CHANNELS_PER_BIN
    time_constants_us: tuple[int, ...] = (5_000, 17_100, 58_500, 200_000)  # only for `surfaces`
    reduce: str = "nearest"  # one of REDUCTIONS

    def __post_init__(self) -> None:
        object.__setattr__(self, "time_constants_us", tuple(self.time_constants_us))  # files store a list
        # The same limits hold for settings, for files and for checkpoints.
        check_choice("convention", self.convention, CONVENTIONS)
        check_choice("representation", self.representation, CHANNELS_PER_BIN)
        check_choice("reduce", self.reduce, REDUCTIONS)
        if self.convention == "rvt" and (self.representation, self.reduce) != ("histogram", "nearest"):
            needed = (
                "it reproduces RVT's histograms of one pixel of each square, not "
                f"representation={self.representation} with reduce={self.reduce}"
            )
            raise UserError("setting.conflict", name="convention", found="rvt", needed=needed, advice="use exact")
        check_number("count_cutoff", self.count_cutoff, 1, 255, is_whole=True)
        check_counts(num_bins=self.num_bins)
        check_number("stride_us", self.stride_us, 1)
        if self.length_us is not None:
            check_number("length_us", self.length_us, 1)
        if self.stride_us != (exact := float(exact_us(self.stride_us))):  # 16,667 us from a file or an argument
            object.__setattr__(self, "stride_us", exact)
        shortest, longest = TIME_CONSTANTS_US
        limits = Limits(at_least=shortest, at_most=longest, is_filled=True)
        check_value("time_constants_us", self.time_constants_us, limits, is_number=True)

    @property
    def num_channels(self) -> int:
        """Number of channels of a frame, which is also the number of input channels of a model."""
        num_parts = self.num_bins
        if self.representation == "surfaces":
            num_parts = len(self.time_constants_us)
        return CHANNELS_PER_BIN[self.representation] * num_parts

    @property
    def warmup_us(self) -> int:
        """How much earlier than a window its frame needs events, in microseconds. Only `surfaces` need earlier events.

        A frame of `surfaces` depends on all earlier events. After five of the longest time constants, an event
        contributes less than 1 % of its initial weight.
        """
        if self.representation != "surfaces":
            return 0
        return 5 * max(self.time_constants_us)

    @property
    def hz(self) -> float:
        return 1e6 / self.stride_us

    @property
    def nominal_length_us(self) -> int:
        """Length of a window. Without a fixed length, the stride rounded to whole microseconds."""
        return self.length_us or round(self.stride_us)

    @property
    def includes_end(self) -> bool:
        """Whether windows are closed, so that an event exactly at the end of a window belongs to it, as in RVT."""
        return self.convention == "rvt"

    def at_rate(self, hz: float, window: str) -> WindowSettings:
        """Return these settings at another rate.

        Args:
            hz: The new rate, windows per second.
            window: `shrink` makes windows as long as the new stride; `slide` keeps the window length of these settings.
        """
        length_us = None
        stride_us = self.stride_us
        if window != "shrink":
            length_us = self.nominal_length_us
        if hz != self.hz:
            stride_us = 1e6 / float(hz)
        return replace(self, stride_us=stride_us, length_us=length_us)
