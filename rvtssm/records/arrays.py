"""Arrays of a recording, a frame or a batch: events, windows, labels and detections, which check dtypes and shapes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from rvtssm.records.settings import WindowSettings
from rvtssm.system.limits import field_names, values_of
from rvtssm.system.user_error import UserError

if TYPE_CHECKING:
    import torch

_UNSIGNED = (0xFF, 0xFFFF, 0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF)  # a stored -1
_PARTS = (
    "give a forward slice of whole numbers, as in events[:100], a mask, as in events[events.p == 1], or a range of "
    "time, as in events.between(start_us, end_us)"
)
_ORDER = "the order of the arguments is t, x, y, p"
_WHOLE = {"Events.t": "give whole microseconds (int64), as in np.rint(1e6 * seconds).astype(np.int64)"}


def _check(name: str, array: np.ndarray, dtype: type, shape: tuple[int | None, ...]) -> None:
    if not isinstance(array, np.ndarray):
        found = f"it is a {type(array).__name__}"
        raise UserError("array.form", name=name, found=found, advice=f"give a numpy array of {np.dtype(dtype)}")
    if array.dtype != dtype:
        raise UserError(
            "array.form", name=name, found=f"it is an array of {array.dtype}", needed=f"it must be {np.dtype(dtype)}"
        )
    if array.shape != shape and (
        array.ndim != len(shape) or any(s not in (None, a) for s, a in zip(shape, array.shape, strict=True))
    ):
        needed = str(shape).replace("None", "N")
        raise UserError(
            "array.form", name=name, found=f"it has the shape {array.shape}", needed=f"it must have the shape {needed}"
        )


def _whole(name: str, array: np.ndarray, dtype: type) -> np.ndarray:
    """Return whole numbers as another type. Raise UserError if they are fractions or do not fit."""
    holds = f"it holds {array.dtype}"
    if array.dtype.kind not in "iub":
        raise UserError(
            "array.value", name=name, found=holds, advice=_WHOLE.get(name, f"give whole numbers ({_ORDER})")
        )
    limits = np.iinfo(dtype)
    if array.size and not limits.min <= array.min() <= array.max() <= limits.max:
        needed = f"allowed are {limits.min} to {limits.max} ({_ORDER})"
        raise UserError("array.value", name=name, found=f"{holds} from {array.min()} to {array.max()}", needed=needed)
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
        needed = "the times are whole microseconds"
        raise UserError("time.range", name=call, needed=needed, advice="for seconds, give round(1e6 * seconds)")
    if start_us is not None and end_us is not None and end_us < start_us:
        raise UserError("time.range", name=call, found="it ends before it starts", advice="give the earlier time first")


def _polarity(p: np.ndarray) -> np.ndarray:
    """Return polarities of another type as uint8, 1 for brighter and 0 for darker. Raise UserError for other values."""
    if p.dtype.kind not in "iufb":
        advice = "give numbers: 1 for brighter, and 0 or -1 for darker"
        raise UserError("events.polarity", name="Events.p", found=f"it holds {p.dtype}", advice=advice)
    if not (valid := is_polarity(p)).all():
        needed = f"1 is brighter, and 0 or -1 is darker ({_ORDER})"
        raise UserError("events.polarity", name="Events.p", found=f"it holds the value {p[~valid][0]}", needed=needed)
    brighter: np.ndarray = (p == 1).astype(np.uint8)
    return brighter


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
            raise UserError(
                "events.part", name="Events", found=f"got {part!r:.60} of {len(self)} events", advice=_PARTS
            )
        return Events(self.t[part], self.x[part], self.y[part], self.p[part])

    def __iter__(self) -> NoReturn:
        """Raise UserError, since single events are too slow to work with."""
        found = "it has no single events"
        raise UserError("events.part", name="Events", found=found, advice=f"use its arrays t, x, y and p, or {_PARTS}")

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


def check_inside(events: Events, height: int, width: int) -> None:
    """Raise UserError for events outside a sensor of this size, in pixels."""
    if len(events) and (events.x.max() >= width or events.y.max() >= height):
        raise UserError(
            "events.outside_frame",
            found=f"events reach x={events.x.max()}, y={events.y.max()} outside {width}x{height} (width x height) "
            "pixels",
            advice="give the right height and width",
        )


@dataclass(frozen=True, slots=True)
class Windows:
    """T windows of time, half-open [start, end), with increasing ends. Length and stride are independent.

    >>> recording = rvtssm.open("street/test/test_0000_td.dat")
    >>> windows = rvtssm.Windows(bounds_us=np.array([[0, 50_000], [20_000, 70_000]]), dt_us=np.array([50_000, 20_000]))
    >>> parts = [recording.between(start_us, end_us) for start_us, end_us in windows.bounds_us.tolist()]
    >>> print(*(part.t.max() < end_us for part, end_us in zip(parts, windows.ends_us)))
    True True
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
        columns = values_of(self, {*field_names(self)} - {"empty_us"})
        return replace(self, **{name: column[index] for name, column in columns.items()})


@dataclass(frozen=True, slots=True)
class Detections:
    """N boxes found in one frame, in order of decreasing score.

    >>> boxes = np.array([[10, 20, 40, 35], [50, 20, 62, 32]], np.float32)
    >>> detections = rvtssm.Detections(boxes, np.array([0.9, 0.2], np.float32), np.zeros(2, np.int64), t_us=50_000)
    >>> detections, detections[detections.score > 0.5]
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
        tensors = values_of(self, {*field_names(self)} - {"events"})
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
        tensors = values_of(self, ("hist", "targets", "pseudo_scores"))
        moved = {
            name: tensor.to(device, non_blocking=non_blocking) for name, tensor in tensors.items() if tensor is not None
        }
        return replace(self, **moved)
