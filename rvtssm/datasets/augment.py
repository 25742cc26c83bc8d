"""Random flip, zoom in and zoom out of a chunk. Histograms and boxes move together, in the same way at every step.

The recipe is RVT's (Gehrig and Scaramuzza, CVPR 2023). The flip comes first. A zoom in shows a window that contains one
box of the latest labelled frame. A zoom out shrinks the frame into a window of an empty frame. Boxes are clipped to the
visible pixels, the last of which is width - 1, and dropped if no area is left.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from rvtssm.datasets import AugmentConfig
from rvtssm.records import Labels
from rvtssm.system.jit import jit

Frames = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Window:
    """A rectangle of whole pixels."""

    left: int
    top: int
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Placement:
    """A flip, followed by stretching the window `source` of a frame onto the window `target` of an empty frame."""

    frame: Window
    is_flipped: bool
    source: Window
    target: Window

    @property
    def is_identity(self) -> bool:
        return not self.is_flipped and self.source == self.target == self.frame

    def sources(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return which row (H,) and column (W,) of the frame each row and column shows; -1 if it stays empty."""
        rows = _sources(self.frame.height, self.source.top, self.source.height, self.target.top, self.target.height)
        columns = _sources(self.frame.width, self.source.left, self.source.width, self.target.left, self.target.width)
        if self.is_flipped:
            columns = np.where(columns >= 0, self.frame.width - 1 - columns, -1)
        return rows, columns

    def histograms(self, hist: Frames) -> Frames:
        """Move pixels to the nearest place.

        Args:
            hist: (n, C, H, W), frames of n steps.

        Returns:
            The moved frames, of the same shape and dtype.
        """
        if self.is_identity:
            return hist
        rows, columns = self.sources()
        moved = np.empty_like(hist)
        _gather(hist, rows, columns, moved)
        return moved

    def labels(self, labels: Labels) -> Labels:
        """Move boxes, and drop those with no area left."""
        if self.is_identity:
            return labels
        start = labels.boxes_ltwh[:, :2]
        size = labels.boxes_ltwh[:, 2:]
        if self.is_flipped:
            left = self.frame.width - 1 - start[:, :1] - size[:, :1]
            start = np.concatenate([left, start[:, 1:]], axis=1)
        corners = np.stack([start, start + size], axis=1)  # (N, 2, 2): left top, right bottom
        source = self.source
        target = self.target
        origin = np.array([source.left, source.top], np.float32)
        extent = np.array([source.width, source.height], np.float32)
        corners = np.clip(corners - origin, 0, extent - 1)
        new_origin = np.array([target.left, target.top], np.float32)
        new_extent = np.array([target.width, target.height], np.float32)
        corners = np.minimum(corners * (new_extent / extent), new_extent - 1) + new_origin
        size = corners[:, 1] - corners[:, 0]
        moved = replace(labels, boxes_ltwh=np.concatenate([corners[:, 0], size], axis=1).astype(np.float32))
        return moved[(size > 0).all(axis=1)]


def draw_placement(config: AugmentConfig, height: int, width: int, labels: Labels, seed: int) -> Placement:
    """Return the placement that belongs to a seed. Only a zoom in uses the labels; without labels there is no zoom in.

    Args:
        config: Probabilities and ranges.
        height: Height of the frame, pixels.
        width: Width of the frame, pixels.
        labels: Labels of one chunk, frame pixels.
        seed: The seed of the request.
    """
    rng = np.random.default_rng(seed)
    frame = Window(0, 0, width, height)
    is_flipped = bool(rng.random() < config.flip_prob)
    source = target = frame
    if rng.random() < config.zoom_prob:
        if rng.random() < config.zoom_in_share:
            factor = rng.uniform(1.0, config.max_zoom_in)
            flipped = Placement(frame, is_flipped, frame, frame).labels(labels)
            if len(flipped):
                source = _window_on_box(flipped, _shrunk(frame, factor), frame, rng)
        else:
            shrunk = _shrunk(frame, rng.uniform(1.0, config.max_zoom_out))
            left = int(rng.integers(0, width - shrunk.width, endpoint=True))
            top = int(rng.integers(0, height - shrunk.height, endpoint=True))
            target = replace(shrunk, left=left, top=top)
    return Placement(frame, is_flipped, source, target)


def _shrunk(frame: Window, factor: float) -> Window:
    return Window(0, 0, max(int(frame.width / factor), 1), max(int(frame.height / factor), 1))


def _window_on_box(labels: Labels, window: Window, frame: Window, rng: np.random.Generator) -> Window:
    """Place `window` at random so that it contains a random box of the latest frame, or lies inside a larger box."""
    latest = labels[labels.window_index == labels.window_index.max()]
    left, top, width, height = latest.boxes_ltwh[rng.integers(len(latest))].tolist()
    return replace(
        window,
        left=_start_around(left, left + width, window.width, frame.width, rng),
        top=_start_around(top, top + height, window.height, frame.height, rng),
    )


def _start_around(first: float, last: float, length: int, size: int, rng: np.random.Generator) -> int:
    """Return a start s with s <= first and last <= s + length - 1. For a longer box, the limits are swapped."""
    limits = np.clip([int(np.ceil(last)) + 1 - length, int(first)], 0, size - length)
    return int(rng.integers(limits.min(), limits.max(), endpoint=True))


def _sources(size: int, source: int, source_size: int, target: int, target_size: int) -> npt.NDArray[np.int64]:
    """Return, for each of `size` places, the place it is copied from; -1 outside the target."""
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
