"""Paints figures with soft edges at sub-pixel positions, because jumps by whole pixels would cause events."""

import math
from typing import Protocol

import cv2
import numpy as np

from rvtssm.system.jit import jit

SHADOW_OPACITY = 0.4

Point = tuple[float, float]  # x, y
Extent = tuple[float, float, float, float]  # left, bottom, right, top


class Figure(Protocol):
    """Something that stands on the ground. Lengths are in metres from its ground point, x to the right, y upwards.

    `gait_m` is the distance that it has moved, which determines the position of its limbs.
    """

    def extent_m(self, gait_m: float) -> Extent:
        """Return the smallest (left, bottom, right, top) around the figure, without its shadow.

        Args:
            gait_m: Distance moved in metres.
        """

    def paint(
        self, canvas: np.ndarray, ground_px: Point, px_per_m: float, gait_m: float, is_silhouette: bool = False
    ) -> None:
        """Paint the figure. Parts of it may lie outside of the canvas.

        Args:
            canvas: Picture (H, W) float32.
            ground_px: Position (x, y) of its ground point.
            px_per_m: Pixels per metre.
            gait_m: Distance moved in metres.
            is_silhouette: Paint it white and without shadow. On a black canvas this gives the covered share of each
                pixel.
        """


def either(share: float, usual: tuple[float, float], other: tuple[float, float], rng: np.random.Generator) -> float:
    """Return a random number from one of two ranges.

    Args:
        share: Probability of the usual range.
        usual: Its ends.
        other: The ends of the other range.
        rng: Random generator.
    """
    if rng.random() < share:
        return rng.uniform(*usual)
    return rng.uniform(*other)


def blotches(rows: int, columns: int, size_px: float, rng: np.random.Generator) -> np.ndarray:
    """Return a smooth random texture (rows, columns) float32 with mean 0 and deviation 1.

    Args:
        rows: Height in pixels.
        columns: Width in pixels.
        size_px: Size of the spots in pixels.
        rng: Random generator.
    """
    coarse = rng.standard_normal((max(2, math.ceil(rows / size_px)), max(2, math.ceil(columns / size_px))))
    texture: np.ndarray = cv2.resize(coarse.astype(np.float32), (columns, rows), interpolation=cv2.INTER_CUBIC)
    texture -= texture.mean()
    texture /= max(float(texture.std()), 1e-6)
    return texture


@jit
def paint_capsules(canvas: np.ndarray, parts: np.ndarray) -> None:
    """Paint capsules, which are segments with a radius, in order.

    Args:
        canvas: Picture (H, W) float32.
        parts: Capsules (K, 7): x0, y0, x1, y1, radius in px, grey, opacity.
    """
    height, width = canvas.shape
    for k in range(len(parts)):
        x0, y0, x1, y1, radius, grey, opacity = parts[k]
        reach = radius + 1
        length_2 = (x1 - x0) ** 2 + (y1 - y0) ** 2
        for row in range(max(0, int(min(y0, y1) - reach)), min(height, int(max(y0, y1) + reach) + 1)):
            for column in range(max(0, int(min(x0, x1) - reach)), min(width, int(max(x0, x1) + reach) + 1)):
                dx, dy = column + 0.5 - x0, row + 0.5 - y0
                along = 0.0
                if length_2 > 0:
                    along = min(1.0, max(0.0, (dx * (x1 - x0) + dy * (y1 - y0)) / length_2))
                distance = math.hypot(dx - along * (x1 - x0), dy - along * (y1 - y0))
                covered = opacity * min(1.0, max(0.0, radius - distance + 0.5))
                canvas[row, column] += covered * (grey - canvas[row, column])


@jit
def paint_picture(
    canvas: np.ndarray, grey: np.ndarray, opacity: np.ndarray, left: float, top: float, right: float, bottom: float
) -> None:
    """Paint a picture into a rectangle, with bilinear sampling.

    Args:
        canvas: Picture (H, W) float32.
        grey: Brightness, already multiplied by `opacity`.
        opacity: Opacity.
        left: Left edge of the rectangle in px.
        top: Top edge in px.
        right: Right edge in px.
        bottom: Bottom edge in px.
    """
    height, width = canvas.shape
    rows, columns = grey.shape
    zoom_x, zoom_y = columns / (right - left), rows / (bottom - top)
    for row in range(max(0, int(top)), min(height, int(bottom) + 1)):
        v = (row + 0.5 - top) * zoom_y - 0.5
        j = int(v)
        if v < 0 or j >= rows - 1:
            continue
        b = v - j
        for column in range(max(0, int(left)), min(width, int(right) + 1)):
            u = (column + 0.5 - left) * zoom_x - 0.5
            i = int(u)
            if u < 0 or i >= columns - 1:
                continue
            a = u - i
            w00, w01, w10, w11 = (1 - b) * (1 - a), (1 - b) * a, b * (1 - a), b * a
            covered = (
                w00 * opacity[j, i] + w01 * opacity[j, i + 1] + w10 * opacity[j + 1, i] + w11 * opacity[j + 1, i + 1]
            )
            light = w00 * grey[j, i] + w01 * grey[j, i + 1] + w10 * grey[j + 1, i] + w11 * grey[j + 1, i + 1]
            canvas[row, column] += light - covered * canvas[row, column]
