"""The distortion of a lens: where a point of the picture of a pinhole camera lies in the frame.

A point of the frame at a share r of the way from its middle to a corner shows the point of the picture at
r (1 + k r^2) / (1 + k), so that corners stay and the middle is 1 + k times as large.
"""

from typing import NamedTuple

import numpy as np

from rvtssm.contrib.worlds.rendered.raster import SAMPLES

_STEPS = 30  # of the iteration, which converges for k below 0.5


class Lens(NamedTuple):
    """A lens, in pixels."""

    source: tuple[np.ndarray, np.ndarray]  # x and y (H, W) of the picture that each pixel of the frame shows
    x: np.ndarray  # (2 H, 2 W) where the middle of each sample of the picture lies in the frame
    y: np.ndarray

    @property
    def is_inside(self) -> np.ndarray:
        """Which samples (2 H, 2 W) lie in the frame."""
        height, width = self.source[0].shape
        return (self.x >= 0) & (self.x < width) & (self.y >= 0) & (self.y < height)

    def part(self, is_covered: np.ndarray) -> tuple[float, float, float, float, float]:
        """Return left, top, right, bottom of samples (2 H, 2 W) in the frame, and the share of their extent in it."""
        height, width = self.source[0].shape
        # What the lens moves out of the frame may reach lower or higher than the rest.
        is_seen = is_covered & self.is_inside
        if not is_seen.any():
            return 0.0, 0.0, 0.0, 0.0, 0.0
        whole, part = _extent(self.x[is_covered], self.y[is_covered]), _extent(self.x[is_seen], self.y[is_seen])
        limits = (width, height, width, height)
        inside = np.clip(whole, 0, limits)
        share = np.prod(inside[2:] - inside[:2]) / np.prod(whole[2:] - whole[:2])
        left, top, right, bottom = np.clip(part, 0, limits).tolist()
        return left, top, right, bottom, float(share)


def _extent(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return left, top, right, bottom of samples."""
    half = 0.5 / SAMPLES
    return np.array([x.min() - half, y.min() - half, x.max() + half, y.max() + half])


def build_lens(height: int, width: int, k: float) -> Lens:
    """Return the lens of a frame of `height` x `width` pixels with the distortion k."""
    middle = np.array([width, height]) / 2
    radius = np.hypot(*middle)
    # Pixels of the frame: where in the picture.
    places = np.stack(np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5), -1) - middle
    r_squared = (places**2).sum(-1, keepdims=True) / radius**2
    source = (places * (1 + k * r_squared) / (1 + k) + middle - 0.5).astype(np.float32)
    # Samples of the picture: where in the frame, by fixed-point iteration.
    steps = (np.arange(side * SAMPLES) / SAMPLES + 0.5 / SAMPLES for side in (width, height))
    samples = np.stack(np.meshgrid(*steps), -1) - middle
    found = samples
    for _ in range(_STEPS):
        r_squared = (found**2).sum(-1, keepdims=True) / radius**2
        found = samples * (1 + k) / (1 + k * r_squared)
    found = found + middle
    return Lens((source[..., 0], source[..., 1]), found[..., 0], found[..., 1])
