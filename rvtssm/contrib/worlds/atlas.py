"""Procedural pictures of surfaces at several resolutions, packed into one array that compiled loops can read.

The sides of a picture are powers of two. Coarser levels, each half as large as the one before, prevent aliasing, which
would cause events.
"""

import math
from dataclasses import dataclass, field

import cv2
import numpy as np

from rvtssm.contrib.demo.painting import blotches

WEAVES = 8  # number of kinds of cloth


@dataclass
class Atlas:
    """A growing set of pictures, numbered in the order in which they were added."""

    levels: list[np.ndarray] = field(default_factory=list)  # flattened, float32
    places: list[tuple[int, int, int, int]] = field(default_factory=list)  # start, log2 rows, log2 columns, levels
    size: int = 0  # numbers in all levels

    def add(self, picture: np.ndarray) -> int:
        """Add a picture and return its number.

        Args:
            picture: Brightness or opacity, (2**a, 2**b).
        """
        rows, columns = (side.bit_length() - 1 for side in picture.shape)
        assert picture.shape == (1 << rows, 1 << columns), picture.shape
        count = min(rows, columns) + 1
        self.places.append((self.size, rows, columns, count))
        level: np.ndarray = picture.astype(np.float32)
        for _ in range(count):
            self.levels.append(level.ravel())
            self.size += level.size
            if min(level.shape) > 1:
                level = (level[::2, ::2] + level[1::2, ::2] + level[::2, 1::2] + level[1::2, 1::2]) / 4
        return len(self.places) - 1

    def packed(self) -> tuple[np.ndarray, np.ndarray]:
        """Return all levels as one array (N,) float32, and `places` (K, 4) int64."""
        return np.concatenate(self.levels), np.array(self.places, np.int64)


def repeating_blotches(rows: int, columns: int, size_px: float, rng: np.random.Generator) -> np.ndarray:
    """Return a texture like `blotches` whose opposite edges match.

    Args:
        rows: Height in pixels.
        columns: Width in pixels.
        size_px: Size of the spots in pixels.
        rng: Random generator.
    """
    cells = [max(2, round(side / size_px)) for side in (rows, columns)]
    wrapped = np.pad(rng.standard_normal(cells).astype(np.float32), 2, mode="wrap")
    size = [side * (count + 4) // count for side, count in zip((columns, rows), cells[::-1], strict=True)]
    texture: np.ndarray = cv2.resize(wrapped, size, interpolation=cv2.INTER_CUBIC)
    top, left = (size[1] - rows) // 2, (size[0] - columns) // 2
    texture = texture[top : top + rows, left : left + columns]
    return (texture - texture.mean()) / max(float(texture.std()), 1e-6)


def rough(rows: int, columns: int, rng: np.random.Generator, finest_px: float = 1.5) -> np.ndarray:
    """Return a repeating texture with structure of all sizes, mean 0, deviation 1, like plaster, asphalt or grass.

    Args:
        rows: Height in pixels.
        columns: Width in pixels.
        rng: Random generator.
        finest_px: Size of the finest structure in pixels.
    """
    texture = np.zeros((rows, columns), np.float32)
    size_px, weight = min(rows, columns) / 2.5, 1.0
    while size_px >= finest_px:
        texture += weight * repeating_blotches(rows, columns, size_px, rng)
        size_px, weight = size_px / 2, weight * rng.uniform(0.7, 0.95)
    return texture / max(float(texture.std()), 1e-6)


def facade(rng: np.random.Generator, is_night: bool) -> np.ndarray:
    """Return two storeys of a house with windows, (128, 128), which can be repeated.

    Args:
        rng: Random generator.
        is_night: Whether some windows are lit.
    """
    wall = rng.uniform(0.2, 0.75)
    picture = wall * (1 + rng.uniform(0.03, 0.12) * rough(128, 128, rng))
    if rng.random() < 0.4:  # courses of bricks or boards
        step = int(rng.choice((4, 8)))
        picture[::step] *= rng.uniform(0.6, 0.9)
        if rng.random() < 0.5:
            picture[:, ::16] *= 0.8
    columns = int(rng.choice((1, 2, 4)))
    pitch = 128 // columns
    wide, high = int(pitch * rng.uniform(0.35, 0.7)), int(64 * rng.uniform(0.35, 0.75))
    frame = wall * rng.uniform(1.2, 1.7) if rng.random() < 0.6 else wall * 0.5
    for row in range(2):
        for column in range(columns):
            left, top = column * pitch + (pitch - wide) // 2, row * 64 + (64 - high) // 2
            glass = rng.uniform(0.03, 0.4)
            if is_night and rng.random() < 0.3:
                glass = rng.uniform(2, 8)
            cv2.rectangle(picture, (left - 2, top - 2), (left + wide + 1, top + high + 1), frame, cv2.FILLED)
            cv2.rectangle(picture, (left, top), (left + wide - 1, top + high - 1), glass, cv2.FILLED)
            if rng.random() < 0.5:
                cv2.line(picture, (left + wide // 2, top), (left + wide // 2, top + high), frame, 1)
            if rng.random() < 0.3:  # curtain or blind
                low = top + int(high * rng.uniform(0.2, 0.8))
                cv2.rectangle(picture, (left, top), (left + wide - 1, low), rng.uniform(0.3, 0.8), cv2.FILLED)
    return np.clip(picture, 0.02, 8)


def poster(rng: np.random.Generator, rows: int = 64, columns: int = 64) -> np.ndarray:
    """Return a picture of random shapes and lines of text, as on signs, shelves, screens and lorries.

    Args:
        rng: Random generator.
        rows: Height in pixels.
        columns: Width in pixels.
    """
    picture = np.full((rows, columns), rng.uniform(0.05, 0.95), np.float32)
    for _ in range(rng.integers(2, 9)):
        grey, kind = rng.uniform(0.03, 1.0), rng.integers(4)
        x, y = (int(rng.integers(side)) for side in (columns, rows))
        w, h = (max(2, int(side * rng.uniform(0.05, 0.5))) for side in (columns, rows))
        if kind == 0:
            cv2.rectangle(picture, (x, y), (x + w, y + h), grey, cv2.FILLED)
        elif kind == 1:
            cv2.circle(picture, (x, y), max(2, min(w, h) // 2), grey, cv2.FILLED)
        elif kind == 2:
            cv2.line(
                picture, (x, y), (int(rng.integers(columns)), int(rng.integers(rows))), grey, int(rng.integers(1, 4))
            )
        else:
            for line in range(y, min(y + h, rows - 2), 4):
                for left in range(x, min(x + w, columns - 3), 5):
                    if rng.random() < 0.8:
                        cv2.rectangle(picture, (left, line), (left + 3, line + 1), grey, cv2.FILLED)
    return np.clip(picture * (1 + 0.04 * blotches(rows, columns, 3, rng)), 0.02, 1)


def cloth(kind: int, rng: np.random.Generator) -> np.ndarray:
    """Return the brightness factors of a cloth, (64, 64): plain, stripes, checks, prints or folds.

    Args:
        kind: A number below WEAVES.
        rng: Random generator.
    """
    y, x = np.mgrid[0:64, 0:64]
    folds = 1 + rng.uniform(0.05, 0.2) * rough(64, 64, rng, 4)
    if kind == 0:
        return np.clip(folds, 0.2, 2)
    if kind in (1, 2):  # stripes along or around
        period = int(rng.choice((8, 16, 32)))
        stripe = ((x if kind == 1 else y) % period < period * rng.uniform(0.3, 0.7)).astype(np.float32)
        return np.clip(folds * (1 - rng.uniform(0.3, 0.8) * stripe), 0.1, 2)
    if kind == 3:
        period = int(rng.choice((8, 16)))
        checks = ((x % period < period // 2) ^ (y % period < period // 2)).astype(np.float32)
        return np.clip(folds * (1 - rng.uniform(0.2, 0.6) * checks), 0.1, 2)
    if kind in (4, 5):
        return np.clip(2.2 * poster(rng), 0.1, 2)
    return np.clip(1 + rng.uniform(0.15, 0.5) * rough(64, 64, rng), 0.1, 2)


def foliage(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return leaves, (64, 64), and their opacity, (64, 64), with gaps.

    Args:
        rng: Random generator.
    """
    texture = rough(64, 64, rng)
    y, x = np.mgrid[-1:1:64j, -1:1:64j]
    edge = 1 - np.hypot(x, y) + 0.25 * rough(64, 64, rng, 6)
    opacity = np.clip(3 * (edge - 0.1), 0, 1) * np.clip(1.2 + 1.2 * texture, 0, 1)
    return np.clip(0.2 * (1 + 0.6 * rough(64, 64, rng)), 0.03, 0.7), opacity


def disc(softness: float) -> np.ndarray:
    """Return an opacity (64, 64) that is 1 in the middle and falls to 0 at the inscribed circle.

    Args:
        softness: Width of the soft edge, relative to the radius.
    """
    y, x = np.mgrid[-1:1:64j, -1:1:64j]
    return np.clip((1 - np.hypot(x, y)) / softness, 0, 1)


def spoked_wheel(num_spokes: int, rim: float, has_disc: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return a wheel and its opacity, both (128, 128): a tyre, spokes and a hub.

    Args:
        num_spokes: Number of spokes.
        rim: Width of the tyre, relative to the radius.
        has_disc: Whether a disc fills the space within the tyre.
    """
    grey, opacity = np.full((128, 128), 0.04, np.float32), np.zeros((128, 128), np.float32)
    cv2.circle(opacity, (64, 64), 63, 1.0, cv2.FILLED)
    inner = round(63 * (1 - rim))
    if has_disc:
        cv2.circle(grey, (64, 64), inner, 0.5, cv2.FILLED)
    else:
        cv2.circle(opacity, (64, 64), inner, 0.0, cv2.FILLED)
    for spoke in range(num_spokes):
        angle = 2 * math.pi * spoke / num_spokes
        end = (round(64 + inner * math.cos(angle)), round(64 + inner * math.sin(angle)))
        cv2.line(grey, (64, 64), end, 0.08 if has_disc else 0.5, 8 if has_disc else 1)
        cv2.line(opacity, (64, 64), end, 1.0, 8 if has_disc else 1)
    cv2.circle(opacity, (64, 64), 6, 1.0, cv2.FILLED)
    return grey, opacity
