"""Random flip, zoom in and zoom out of a chunk: histograms and boxes move together, the same way at every step.

The recipe is that of RVT (Gehrig and Scaramuzza, CVPR 2023): the flip comes first; a zoom in shows a window that holds
one box of the latest labelled frame; a zoom out shrinks the frame into a window of an empty one. Boxes are clipped to
the visible pixels, of which the last is width - 1, and dropped if nothing is left.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from rvtssm.events.jit import jit
from rvtssm.limits import check_at_least, check_choice, check_share
from rvtssm.records import Labels

Frames = npt.NDArray[np.generic]
RATE_WINDOWS = ("shrink", "slide", "random")


@dataclass
class FlipZoomConfig:
    """Probabilities and ranges; the defaults are those of random chunks."""

    flip_prob: float = 0.5
    zoom_prob: float = 0.8
    zoom_in_weight: float = 8.0  # how often a zoom is a zoom in rather than out
    zoom_out_weight: float = 2.0
    zoom_in_min: float = 1.0
    zoom_in_max: float = 1.5
    zoom_out_min: float = 1.0
    zoom_out_max: float = 1.2

    def check(self, section: str) -> None:
        """Raise ValueError for values out of range."""
        check_share(section, self, "flip_prob", "zoom_prob")
        check_at_least(section, self, 0, "zoom_in_weight", "zoom_out_weight")
        if self.zoom_in_weight + self.zoom_out_weight == 0:
            raise ValueError(f"{section}: zoom_in_weight and zoom_out_weight are both 0; set zoom_prob=0 for no zoom")
        for kind in ("zoom_in", "zoom_out"):
            check_at_least(section, self, 1, f"{kind}_min")
            check_at_least(section, self, getattr(self, f"{kind}_min"), f"{kind}_max")


@dataclass
class AugmentConfig:
    """Augmentation of training chunks; streams do not zoom in, since their window would depend on the labels.

    Chunks have the same number of steps at every rate, so they are shorter in time at high rates.
    """

    random: FlipZoomConfig = field(default_factory=FlipZoomConfig)
    stream: FlipZoomConfig = field(
        default_factory=lambda: FlipZoomConfig(zoom_prob=0.5, zoom_in_weight=0.0, zoom_out_weight=1.0)
    )
    # from raw events: every random chunk, and every recording in a stream, is counted at one of them; null: as trained
    rates_hz: list[float] | None = None
    rate_window: str = "shrink"  # at these rates, as long as the stride; slide: as long as trained; random: either

    def check(self) -> None:
        """Raise ValueError for values out of range."""
        self.random.check("augment.random")
        self.stream.check("augment.stream")
        if self.rates_hz is not None and not (self.rates_hz and all(0 < hz < math.inf for hz in self.rates_hz)):
            raise ValueError(f"augment.rates_hz={self.rates_hz}; name positive rates, such as [20,40,100], or null")
        check_choice("augment.rate_window", self.rate_window, RATE_WINDOWS)
        if self.stream.zoom_in_weight:
            raise ValueError(
                f"augment.stream.zoom_in_weight={self.stream.zoom_in_weight}; a zoom in is placed by the labels of one "
                "chunk and cannot stay the same over a stream: use 0"
            )


@dataclass(frozen=True, slots=True)
class Window:
    """A rectangle of whole pixels."""

    left: int
    top: int
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Placement:
    """A flip, then a stretch of the window `source` of a frame onto the window `target` of an empty frame."""

    frame: Window
    is_flipped: bool
    source: Window
    target: Window

    @property
    def is_identity(self) -> bool:
        return not self.is_flipped and self.source == self.target == self.frame

    def sources(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the row (H,) and the column (W,) that each row and column is taken from, -1 if it stays empty."""
        rows = _sources(self.frame.height, self.source.top, self.source.height, self.target.top, self.target.height)
        columns = _sources(self.frame.width, self.source.left, self.source.width, self.target.left, self.target.width)
        if self.is_flipped:
            columns = np.where(columns >= 0, self.frame.width - 1 - columns, -1)
        return rows, columns

    def histograms(self, hist: Frames) -> Frames:
        """Move pixels to the nearest place; hist (n, C, H, W) -> the same shape and dtype."""
        if self.is_identity:
            return hist
        rows, columns = self.sources()
        moved = np.empty_like(hist)
        # numba does not know float16; pixels are only moved, so int16 does the same
        whole = hist.view(np.int16) if hist.dtype == np.float16 else hist
        _gather(whole, rows, columns, moved.view(whole.dtype))
        return moved

    def labels(self, labels: Labels) -> Labels:
        """Move boxes; drop those of which nothing is left."""
        if self.is_identity:
            return labels
        start, size = labels.boxes_ltwh[:, :2], labels.boxes_ltwh[:, 2:]
        if self.is_flipped:
            left = self.frame.width - 1 - start[:, :1] - size[:, :1]
            start = np.concatenate([left, start[:, 1:]], axis=1)
        corners = np.stack([start, start + size], axis=1)  # (N, 2, 2): left top, right bottom
        source, target = self.source, self.target
        origin = np.array([source.left, source.top], np.float32)
        extent = np.array([source.width, source.height], np.float32)
        corners = np.clip(corners - origin, 0, extent - 1)
        new_origin = np.array([target.left, target.top], np.float32)
        new_extent = np.array([target.width, target.height], np.float32)
        corners = np.minimum(corners * (new_extent / extent), new_extent - 1) + new_origin
        size = corners[:, 1] - corners[:, 0]
        moved = replace(labels, boxes_ltwh=np.concatenate([corners[:, 0], size], axis=1).astype(np.float32))
        return moved[(size > 0).all(axis=1)]


def draw_placement(config: FlipZoomConfig, height: int, width: int, labels: Labels, seed: int) -> Placement:
    """Return the placement of a seed. Only a zoom in uses the labels (of one chunk, frame px), and needs one."""
    rng = np.random.default_rng(seed)
    frame = Window(0, 0, width, height)
    is_flipped = bool(rng.random() < config.flip_prob)
    source = target = frame
    if rng.random() < config.zoom_prob:
        zoom_in_prob = config.zoom_in_weight / (config.zoom_in_weight + config.zoom_out_weight)
        if rng.random() < zoom_in_prob:
            factor = rng.uniform(config.zoom_in_min, config.zoom_in_max)
            flipped = Placement(frame, is_flipped, frame, frame).labels(labels)
            if len(flipped):
                source = _window_on_box(flipped, _shrunk(frame, factor), frame, rng)
        else:
            shrunk = _shrunk(frame, rng.uniform(config.zoom_out_min, config.zoom_out_max))
            left = int(rng.integers(0, width - shrunk.width, endpoint=True))
            top = int(rng.integers(0, height - shrunk.height, endpoint=True))
            target = replace(shrunk, left=left, top=top)
    return Placement(frame, is_flipped, source, target)


def _shrunk(frame: Window, factor: float) -> Window:
    return Window(0, 0, max(int(frame.width / factor), 1), max(int(frame.height / factor), 1))


def _window_on_box(labels: Labels, window: Window, frame: Window, rng: np.random.Generator) -> Window:
    """Return a random place for `window` that holds a random box of the latest frame, or lies within a larger box."""
    latest = labels[labels.window_index == labels.window_index.max()]
    left, top, width, height = latest.boxes_ltwh[rng.integers(len(latest))].tolist()
    return replace(
        window,
        left=_start_around(left, left + width, window.width, frame.width, rng),
        top=_start_around(top, top + height, window.height, frame.height, rng),
    )


def _start_around(first: float, last: float, length: int, size: int, rng: np.random.Generator) -> int:
    """Return a start s with s <= first and last <= s + length - 1; the limits are swapped for a longer box."""
    limits = np.clip([int(np.ceil(last)) + 1 - length, int(first)], 0, size - length)
    return int(rng.integers(limits.min(), limits.max(), endpoint=True))


def _sources(size: int, source: int, source_size: int, target: int, target_size: int) -> npt.NDArray[np.int64]:
    """Return for each of `size` places the place that it is taken from, -1 outside the target."""
    places = np.full(size, -1, np.int64)
    twice_centre = 2 * np.arange(target_size) + 1  # the centre of a pixel decides (nearest-exact)
    places[target : target + target_size] = source + twice_centre * source_size // (2 * target_size)
    return places


@jit
def _gather(hist, rows, columns, moved):  # type: ignore[no-untyped-def]
    for n in range(hist.shape[0]):
        for c in range(hist.shape[1]):
            for i in range(len(rows)):
                for j in range(len(columns)):
                    is_shown = rows[i] >= 0 and columns[j] >= 0
                    moved[n, c, i, j] = hist[n, c, rows[i], columns[j]] if is_shown else 0
