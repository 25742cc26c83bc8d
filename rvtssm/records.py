"""The records that pass between the rooms of the package. Nothing here computes.

Names carry units: `_us` is int64 microseconds and `_px` is pixels. Intervals of time are half-open. This module does
not import torch, so that readers and the worker processes of the preparation start fast.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from rvtssm.system.limits import check_choice
from rvtssm.system.user_error import UserError

if TYPE_CHECKING:
    import torch

SHOWN_SCORE = 0.3  # detections from this score on are drawn, and counted in confusions and worst frames
SMALLEST_SIDE = 8  # of a frame in pixels: one place of the finest map from which boxes are predicted
STILL_US = 300_000  # an object that has not moved for this long emits almost no events
BAG_SUFFIXES = (".bag", ".mcap", ".db3")  # ROS 1 and ROS 2
# The file suffixes of all readable recordings. A longer suffix comes before a shorter one that also fits.
EVENT_SUFFIXES = (
    *("_td.dat", ".dat", "_td.raw", ".raw", ".h5", ".hdf5", ".aedat4", ".npz", ".npy", ".csv"),
    *BAG_SUFFIXES,
)
TIME_UNITS = ("us", "ns", "ms", "s")
COLUMNS_EXAMPLE = "columns={t: timestamp, x: col, y: row, p: polarity}, or by number, columns={t: 0, x: 1, y: 2, p: 3}"
_UNSIGNED = tuple(int(np.iinfo(kind).max) for kind in (np.uint8, np.uint16, np.uint32, np.uint64))  # a stored -1
_PARTS = (
    "give a forward slice of whole numbers, as in events[:100], a mask, as in events[events.p == 1], or a range of "
    "time, as in events.between(start_us, end_us)"
)
_ORDER = "the order of the arguments is t, x, y, p"


def _check(name: str, array: np.ndarray, dtype: type, shape: tuple[int | None, ...]) -> None:
    if not isinstance(array, np.ndarray):
        raise UserError(
            "arrays.not_numpy", f"{name} is a {type(array).__name__}; give a numpy array of {np.dtype(dtype)}"
        )
    if array.dtype != dtype:
        raise UserError("arrays.dtype", f"{name} must be {np.dtype(dtype)}, got {array.dtype}")
    if array.shape != shape and (
        array.ndim != len(shape) or any(s not in (None, a) for s, a in zip(shape, array.shape, strict=True))
    ):
        wanted = str(shape).replace("None", "N")
        raise UserError("arrays.dimensions", f"{name} must have shape {wanted}, got {array.shape}")


def _whole(name: str, array: np.ndarray, dtype: type) -> np.ndarray:
    """Return whole numbers as another type. Raise UserError if they are fractions or do not fit."""
    limits, found = np.iinfo(dtype), f"{name} holds {array.dtype}"
    if array.dtype.kind not in "iub":
        if name == "Events.t" and array.dtype.kind in "fmM":
            of_unit = f'give t.astype("{array.dtype.name.partition("[")[0]}[us]").astype(np.int64)'
            of_number = (
                "if it is in seconds, give np.rint(t * 1e6).astype(np.int64); if in milliseconds, "
                "np.rint(t * 1e3).astype(np.int64)"
            )
            advice = of_number if array.dtype.kind == "f" else of_unit
            raise UserError("arrays.not_whole", f"{found}, but needs whole microseconds; {advice}")
        raise UserError(
            "arrays.not_whole",
            f"{found}, but needs whole numbers; convert it, as in array.astype(np.{np.dtype(dtype)})",
        )
    if array.size and not limits.min <= array.min() <= array.max() <= limits.max:
        raise UserError(
            "arrays.out_of_range",
            f"{found} from {array.min()} to {array.max()}; allowed are {limits.min} to {limits.max} ({_ORDER})",
        )
    return array.astype(dtype)


def _is_forward_slice(part: object) -> bool:
    if not isinstance(part, slice):
        return False
    limits = part.start, part.stop, part.step
    is_whole = all(limit is None or isinstance(limit, int | np.integer) for limit in limits)
    return is_whole and (part.step is None or part.step > 0)


def is_polarity(p: np.ndarray) -> np.ndarray:
    """Return which numbers are polarities: 1 and True are brighter; 0, -1 and False are darker.

    A -1 that was stored without a sign (255, 65535, 4294967295) is darker as well, unless there are 0 but no 1: then
    it stands for brighter, as in pictures, or for something else.
    """
    valid: np.ndarray = (p == 0) | (p == 1) | (p == -1)
    if valid.all() or ((p == 0).any() and not (p == 1).any()):
        return valid
    for unsigned in _UNSIGNED:
        valid |= p == unsigned
    return valid


def check_time_range(start_us: int | None, end_us: int | None, method: str = "between") -> None:
    """Raise UserError unless the times are whole microseconds and the end does not lie before the start.

    Args:
        start_us: Start of the time range; None: the first event.
        end_us: End of the time range; None: after the last event.
        method: Name of the called method, for the message.
    """
    call = f"{method}(start_us={start_us!r:.40}, end_us={end_us!r:.40})"
    if not all(isinstance(time_us, int | np.integer | None) for time_us in (start_us, end_us)):
        raise UserError("times.not_whole", f"{call} needs whole microseconds; for seconds, give round(1e6 * seconds)")
    if start_us is not None and end_us is not None and end_us < start_us:
        raise UserError("times.reversed", f"{call} ends before it starts; give the earlier time first")


def _polarity(p: np.ndarray) -> np.ndarray:
    """Return polarities of another type as uint8, 1 for brighter and 0 for darker. Raise UserError for other values."""
    if p.dtype.kind not in "iufb":
        raise UserError(
            "events.polarity", f"Events.p holds {p.dtype}; give numbers: 1 for brighter, and 0 or -1 for darker"
        )
    if not (valid := is_polarity(p)).all():
        raise UserError(
            "events.polarity",
            f"Events.p holds the value {p[~valid][0]}; 1 is brighter, and 0 or -1 is darker ({_ORDER})",
        )
    brighter: np.ndarray = (p == 1).astype(np.uint8)
    return brighter


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a caller says about recordings that their files may not say. None: what the file says."""

    height: int | None = None  # of the sensor, pixels
    width: int | None = None  # of the sensor, pixels
    repair: bool = False  # read recordings with many faulty events
    time_unit: str | None = None  # one of TIME_UNITS
    format: str | None = None  # a key of readers.READERS
    columns: Mapping[str, str] = field(default_factory=dict)  # by t, x, y, p: the name, or the number from 0
    filters: Sequence[str | Mapping[str, Any]] = ()  # see readers.filters.FilterChain

    def __post_init__(self) -> None:
        for name, side in (("height", self.height), ("width", self.width)):
            if side is not None and (isinstance(side, bool) or not isinstance(side, int | np.integer)):
                raise UserError("sensor.not_whole", f"{name}={side!r} is not a whole number of pixels")
        check_choice("time_unit", self.time_unit, (*TIME_UNITS, None))
        if self.columns and set(self.columns) != set("txyp"):
            raise UserError(
                "columns.names",
                f"columns={dict(self.columns)} must name the columns t, x, y and p, as in {COLUMNS_EXAMPLE}",
            )

    @classmethod
    def of(cls, settings: Any) -> ReadOptions:
        """Return the options among the fields of other settings, such as those of `predict`."""
        names = [field.name for field in fields(cls) if hasattr(settings, field.name)]
        return cls(**{name: getattr(settings, name) for name in names})


@dataclass(frozen=True, slots=True)
class DatasetSpec:
    """The fixed properties of a dataset: its sensor, its classes, its label rules and its files.

    Sizes in pixels refer to the full resolution of the sensor. Frames are `downsample` times smaller.
    """

    name: str
    height: int  # of the sensor, pixels
    width: int  # of the sensor, pixels
    class_names: tuple[str, ...]
    label_interval_us: int  # usual time between two labels of a file
    min_side_px: float  # boxes with a shorter side are not scored
    min_diagonal_px: float  # boxes with a shorter diagonal are not scored
    prepare_min_side_px: float  # boxes with a shorter side are dropped, even from the training labels
    prepare_min_diagonal_px: float  # the same for the diagonal
    class_ids: tuple[int, ...] = ()  # the id of each class in label files; empty: 0, 1, 2, ...
    # Classes to drop from label files, as names or as numbers in text. A class that is neither here nor in class_names
    # is an error. None: drop every class that is not in class_names.
    ignored_classes: tuple[str, ...] | None = None
    downsample: int = 1  # each downsample x downsample square of the sensor is one pixel of the frame
    repair: bool = False  # this and the next three: see ReadOptions
    time_unit: str | None = None
    format: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    skip_us: int = 500_000  # labels before this time are not scored
    # score label times without a box as well, where each false box costs precision; False: as published for Gen1, 1Mpx
    scores_empty_images: bool = False
    disk_names: tuple[str, ...] = ()  # other names that files use for this dataset
    event_suffixes: tuple[str, ...] = ("_td.dat", "_td.dat.h5", "_td.h5")
    boxes_suffix: str = "_bbox.npy"
    label_offset_us: int | None = 0  # added to the times of labels; None: the time shift that the recording gives
    label_fps: float = 0.0  # rate of the frames that names of labelled images number; 0: they are microseconds
    events_dir: str | None = None  # subfolder that holds the splits of event files; None: the dataset's folder itself
    boxes_dir: str | None = None  # subfolder that holds the splits of label files; None: beside the event files
    # Glob patterns of the files of each split. A split without an entry has the pattern <split>/*.
    split_sources: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def disk_class_ids(self) -> tuple[int, ...]:
        return self.class_ids or tuple(range(self.num_classes))

    @property
    def names_on_disk(self) -> dict[str, str]:
        """The names of the classes by their ids in files, as text for JSON."""
        return {str(disk_id): name for disk_id, name in zip(self.disk_class_ids, self.class_names, strict=True)}

    @property
    def sensor_hw(self) -> tuple[int, int]:
        """Height and width of the sensor."""
        return self.height, self.width

    @property
    def read_options(self) -> ReadOptions:
        """How its recordings are read."""
        return ReadOptions(self.height, self.width, self.repair, self.time_unit, self.format, self.columns)

    @property
    def frame_height(self) -> int:
        return self.height // self.downsample

    @property
    def frame_width(self) -> int:
        return self.width // self.downsample


@dataclass(frozen=True, slots=True)
class Events:
    """The events of one recording, or of a slice of it, as parallel arrays of length N.

    Whole numbers of other types are converted if they fit; anything else raises a UserError. Polarities follow one rule
    in `Events`, structured arrays and files: 1 and True are brighter; 0, -1 and False are darker, and become 0. Order,
    pixels and polarities that are already uint8 are only checked where events are counted or drawn.

    >>> t, x, y = np.array([0, 40, 90]), np.array([3, 3, 4]), np.array([7, 7, 7])
    >>> events = rvtssm.Events(t, x, y, p=np.array([1, 0, 1]))
    >>> events, events.between(0, 90), events[events.x == 4]
    (Events(3 from 0 to 90 us), Events(2 from 0 to 40 us), Events(1 from 90 to 90 us))
    """

    t: np.ndarray  # (N,) int64, microseconds, non-decreasing
    x: np.ndarray  # (N,) uint16, pixels, 0 at the left
    y: np.ndarray  # (N,) uint16, pixels, 0 at the top
    p: np.ndarray  # (N,) uint8, 0 = darker, 1 = brighter

    def __post_init__(self) -> None:
        for name, dtype in (("t", np.int64), ("x", np.uint16), ("y", np.uint16), ("p", np.uint8)):
            array = getattr(self, name)
            if isinstance(array, np.ndarray) and array.dtype != dtype:
                array = _polarity(array) if name == "p" else _whole(f"Events.{name}", array, dtype)
                object.__setattr__(self, name, array)
            _check(f"Events.{name}", array, dtype, (None if name == "t" else len(self.t),))

    def __len__(self) -> int:
        return len(self.t)

    def __repr__(self) -> str:
        span = f" from {self.t[0]} to {self.t[-1]} us" if len(self.t) else ""
        return f"Events({len(self.t)}{span})"

    def __getitem__(self, part: slice | np.ndarray) -> Events:
        """Return the events in a slice, `events[:100]`, as views without a copy, or those that a mask selects.

        Args:
            part: A slice that goes forward, or a boolean array (N,), such as `events.x < 320`, which copies.

        Raises:
            UserError: The argument is anything else, such as the number of one event.
        """
        is_mask = isinstance(part, np.ndarray) and part.dtype == np.bool_ and part.shape == self.t.shape
        if not is_mask and not _is_forward_slice(part):
            raise UserError("events.index", f"got {part!r:.60} of {len(self)} events; {_PARTS}")
        return Events(self.t[part], self.x[part], self.y[part], self.p[part])

    def __iter__(self) -> NoReturn:
        """Raise UserError, since single events are too slow to work with."""
        raise UserError(
            "events.not_iterable", f"Events has no single events; use its arrays t, x, y and p, or {_PARTS}"
        )

    def between(self, start_us: int, end_us: int) -> Events:
        """Return the events with start_us <= t < end_us as views, without a copy.

        Args:
            start_us: Start of the time range, whole microseconds.
            end_us: End of the time range, not before its start.

        Raises:
            UserError: A time is not a whole number, or the end lies before the start.
        """
        check_time_range(start_us, end_us)
        i, j = np.searchsorted(self.t, np.array((start_us, end_us), np.int64), side="left")
        return Events(self.t[i:j], self.x[i:j], self.y[i:j], self.p[i:j])


@dataclass(frozen=True, slots=True)
class Windows:
    """T windows of time, half-open [start, end), with increasing ends. Length and stride are independent.

    >>> recording = rvtssm.open("street/test/test_0000_td.dat")
    >>> windows = rvtssm.Windows(bounds_us=np.array([[0, 50_000], [20_000, 70_000]]), dt_us=np.array([50_000, 20_000]))
    >>> parts = [recording.between(start_us, end_us) for start_us, end_us in windows.bounds_us.tolist()]
    >>> [bool(part.t.max() < end_us) for part, end_us in zip(parts, windows.ends_us)]
    [True, True]
    """

    bounds_us: np.ndarray  # (T, 2) int64
    dt_us: np.ndarray  # (T,) int64, time from the previous window end to this one: the step of the model

    def __post_init__(self) -> None:
        _check("Windows.bounds_us", self.bounds_us, np.int64, (None, 2))
        _check("Windows.dt_us", self.dt_us, np.int64, (len(self.bounds_us),))

    def __len__(self) -> int:
        return len(self.bounds_us)

    def __getitem__(self, part: slice) -> Windows:
        """Return consecutive windows as views, without a copy."""
        return Windows(self.bounds_us[part], self.dt_us[part])

    @property
    def ends_us(self) -> np.ndarray:
        return self.bounds_us[:, 1]


CONVENTIONS = ("exact", "rvt")
REDUCTIONS = ("nearest", "sum")  # of a square of sensor pixels to one frame pixel, see events/cells.py
# Channels per time bin; for `surfaces`, per time constant. See events/representations.py.
CHANNELS_PER_BIN = {"histogram": 2, "surfaces": 2}
_TIME_CONSTANTS_US = 200, 10_000_000  # the shortest and the longest


_FASTEST_HZ = 500  # at faster whole rates, neighbouring steps differ by little more than the rounding


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


def check_window(key: str, value: object, other: str | None = None) -> None:
    """Raise UserError if a value does not choose the length of windows at other rates: slide, shrink or `other`.

    Args:
        key: Name of the value, for the message.
        value: The value.
        other: A third choice.
    """
    if value not in ("slide", "shrink", other):
        raise UserError(
            "windows.length_policy",
            f"{key}={value!r}; choose from slide (windows as long as in training), shrink (as long as the stride), "
            f"{other or 'null'}; window_ms of the training sets the length in ms",
        )


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
        check_choice("convention", self.convention, CONVENTIONS)
        check_choice("representation", self.representation, CHANNELS_PER_BIN)
        check_choice("reduce", self.reduce, REDUCTIONS)
        if self.convention == "rvt" and (self.representation, self.reduce) != ("histogram", "nearest"):
            raise UserError(
                "windows.rvt_convention",
                "convention=rvt reproduces RVT's histograms of one pixel of each square, not "
                f"representation={self.representation} with reduce={self.reduce}; use exact",
            )
        if not 1 <= self.count_cutoff <= 255 or self.num_bins < 1:
            raise UserError(
                "windows.bins",
                f"count_cutoff={self.count_cutoff} must be 1 to 255, and num_bins={self.num_bins} at least 1",
            )
        if not 1 <= self.stride_us < math.inf or (self.length_us is not None and self.length_us < 1):
            raise UserError(
                "windows.lengths", f"stride and length must be at least 1 us, got {self.stride_us} and {self.length_us}"
            )
        if self.stride_us != (exact := float(exact_us(self.stride_us))):  # 16,667 us from a file or an argument
            object.__setattr__(self, "stride_us", exact)
        shortest, longest = _TIME_CONSTANTS_US
        if not self.time_constants_us or not all(shortest <= tau <= longest for tau in self.time_constants_us):
            raise UserError(
                "windows.time_constants",
                f"the time constants are {list(self.time_constants_us)} us; give at least one, each between "
                f"{shortest} and {longest} us",
            )

    @property
    def num_channels(self) -> int:
        """Number of channels of a frame, which is also the number of input channels of a model."""
        num_parts = len(self.time_constants_us) if self.representation == "surfaces" else self.num_bins
        return CHANNELS_PER_BIN[self.representation] * num_parts

    @property
    def warmup_us(self) -> int:
        """How much earlier than a window its frame needs events, in microseconds. Only `surfaces` need earlier events.

        A frame of `surfaces` depends on all earlier events. After five of the longest time constants, an event
        contributes less than 1 % of its initial weight.
        """
        return 5 * max(self.time_constants_us) if self.representation == "surfaces" else 0

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """Data type of a frame."""
        return np.dtype(np.uint8)

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
        length_us = None if window == "shrink" else self.nominal_length_us
        return replace(self, stride_us=self.stride_us if hz == self.hz else 1e6 / float(hz), length_us=length_us)


@dataclass(frozen=True, slots=True)
class Labels:
    """N boxes of one recording, in order of time. `window_index` says which window each box belongs to.

    On the label grid, this is the window that ends at the time of the box; see `to_labels` for the free grid.

    >>> boxes = np.array([[10, 20, 30, 15], [50, 20, 12, 12]], np.float32)
    >>> zeros = np.zeros(2, np.int64)
    >>> labels = rvtssm.Labels(boxes, class_id=zeros, t_us=zeros + 50_000, window_index=zeros, still_us=zeros - 1)
    >>> len(labels[labels.boxes_ltwh[:, 2] > 20])
    1
    """

    boxes_ltwh: np.ndarray  # (N, 4) float32, pixels
    class_id: np.ndarray  # (N,) int64, index into DatasetSpec.class_names
    t_us: np.ndarray  # (N,) int64
    window_index: np.ndarray  # (N,) int64
    still_us: np.ndarray  # (N,) int64, time since the object last moved; -1 if unknown
    # (N,) float32. 0: an annotated box. Otherwise a detector made the box and this is its score, negative if the box is
    # uncertain. None: all boxes are annotated.
    pseudo_score: np.ndarray = None  # type: ignore[assignment]
    # (E,) int64, ascending. Label times at which there is no object.
    empty_us: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    def __post_init__(self) -> None:
        _check("Labels.empty_us", self.empty_us, np.int64, (None,))
        if self.pseudo_score is None:
            object.__setattr__(self, "pseudo_score", np.zeros(len(self.boxes_ltwh), np.float32))
        _check("Labels.pseudo_score", self.pseudo_score, np.float32, (len(self.boxes_ltwh),))
        _check("Labels.boxes_ltwh", self.boxes_ltwh, np.float32, (None, 4))
        for name in ("class_id", "t_us", "window_index", "still_us"):
            _check(f"Labels.{name}", getattr(self, name), np.int64, (len(self.boxes_ltwh),))

    def __len__(self) -> int:
        return len(self.t_us)

    def __getitem__(self, index: slice | np.ndarray) -> Labels:
        """Return the labels selected by a slice, a boolean mask or an index array. `empty_us` stays as it is."""
        names = [field.name for field in fields(self) if field.name != "empty_us"]
        return Labels(**{name: getattr(self, name)[index] for name in names}, empty_us=self.empty_us)


@dataclass(frozen=True, slots=True)
class PackedEvents:
    """The events of W windows, which are some of F frames, ready to be counted. The other frames are zero.

    Chunks hold numpy arrays. Batches hold tensors on the CPU, since loader workers send these through shared memory.
    """

    settings: WindowSettings
    shape: tuple[int, ...]  # of all frames: (n, C, H, W) of a chunk, (L, B, C, H, W) of a batch
    cells: np.ndarray | torch.Tensor  # (K,) int32, 2 * pixel + polarity
    ranges: np.ndarray | torch.Tensor  # (W, R, 2) int64, the cells [start, stop) of each bin
    bounds_us: np.ndarray | torch.Tensor  # (W, 2) int64, [start, end) of each window, from any origin
    places: np.ndarray | torch.Tensor  # (W,) int64, the frame of each window, counted through all frames in order
    first: int = 0  # number of the first cell among all that were counted with one ring

    def __len__(self) -> int:
        """Return the number of windows."""
        return len(self.places)


@dataclass(frozen=True, slots=True)
class SequenceBatch:
    """L consecutive steps of B streams. `frame_index` lists the M labelled (step, stream) pairs in order of steps.

    Only the frames, the targets and the pseudo-label scores move to the device of the model. The other tensors control
    what is computed. They stay on the CPU, so that reading them never waits for the device.
    """

    hist: torch.Tensor  # (L, B, C, H, W) uint8; empty while `events` holds what is to be counted
    dt_us: torch.Tensor  # (L, B) int64
    is_first: torch.Tensor  # (B,) bool, the stream starts a recording here, from the zero state
    is_pad: torch.Tensor  # (L, B) bool, steps after the end of a recording
    frame_index: torch.Tensor  # (M, 2) int64
    targets: torch.Tensor  # (M, N, 5) float32 [class, cx, cy, w, h], frame pixels; zero rows are padding
    num_targets: torch.Tensor  # (M,) int64
    t_us: torch.Tensor  # (M,) int64, time of the label
    slot: torch.Tensor  # (B,) int64, index in the state bank; -1 for a random chunk
    recording: torch.Tensor  # (B,) int64, index of the recording in its split
    pseudo_scores: torch.Tensor | None = None  # (M, N) float32, see Labels.pseudo_score; None: all are annotated
    events: PackedEvents | None = None  # the frames before they are counted; None: they are in `hist`

    def pin_memory(self) -> SequenceBatch:
        """Return the batch with its tensors in pinned memory, and of its events the cells, which a device reads."""
        tensors = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "events"}
        pinned = {name: tensor.pin_memory() for name, tensor in tensors.items() if tensor is not None}
        events = self.events
        if events is not None:
            events = replace(events, cells=events.cells.pin_memory())  # type: ignore[union-attr]
        return SequenceBatch(**pinned, events=events)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> SequenceBatch:
        """Return the batch with its frames, targets and pseudo-label scores on a device.

        Args:
            device: The device of the model.
            non_blocking: Copy asynchronously if the source is pinned memory.
        """
        tensors = {name: getattr(self, name) for name in ("hist", "targets", "pseudo_scores")}
        moved = {
            name: tensor.to(device, non_blocking=non_blocking) for name, tensor in tensors.items() if tensor is not None
        }
        return replace(self, **moved)


@dataclass(frozen=True, slots=True)
class Detections:
    """N boxes found in one frame, in order of decreasing score.

    >>> boxes = np.array([[10, 20, 40, 35], [50, 20, 62, 32]], np.float32)
    >>> found = rvtssm.Detections(boxes, np.array([0.9, 0.2], np.float32), np.zeros(2, np.int64), t_us=50_000)
    >>> found, found[found.score > 0.5]
    (Detections(2 at 50000 us), Detections(1 at 50000 us))
    """

    xyxy: np.ndarray  # (N, 4) float32, pixels of the frame
    score: np.ndarray  # (N,) float32
    class_id: np.ndarray  # (N,) int64
    t_us: int
    track_id: np.ndarray | None = None  # (N,) int64, 0 for a box without a track; None: not tracked

    def __post_init__(self) -> None:
        _check("Detections.xyxy", self.xyxy, np.float32, (None, 4))
        _check("Detections.score", self.score, np.float32, (len(self.xyxy),))
        _check("Detections.class_id", self.class_id, np.int64, (len(self.xyxy),))
        if self.track_id is not None:
            _check("Detections.track_id", self.track_id, np.int64, (len(self.xyxy),))

    def __len__(self) -> int:
        return len(self.score)

    def __repr__(self) -> str:
        return f"Detections({len(self.score)} at {self.t_us} us)"

    def __getitem__(self, index: np.ndarray) -> Detections:
        """Return the detections selected by a boolean mask or an index array."""
        track_id = None if self.track_id is None else self.track_id[index]
        return Detections(self.xyxy[index], self.score[index], self.class_id[index], self.t_us, track_id)
