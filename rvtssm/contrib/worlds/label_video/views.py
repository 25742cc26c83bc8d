"""What a recording sees of a part of a clip: its size, crop, mirror image and pan."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np

LONGEST_S, SHORTEST_S = 6.0, 1.0  # of a part
LEAST_CROP = 0.55  # of the largest crop of a frame
PAN_SHARE = 0.5
LEAST_VISIBLE = 0.3  # of a box within the crop


def parts(edges: Sequence[int], fps: float) -> list[tuple[int, int]]:
    """Return first frame and end of the parts of a clip: scenes, long ones divided, short ones left out."""
    pieces = []
    for start, end in itertools.pairwise(edges):
        borders = np.linspace(start, end, math.ceil((end - start) / (LONGEST_S * fps)) + 1).round().astype(int).tolist()
        pieces += [piece for piece in itertools.pairwise(borders) if piece[1] - piece[0] >= SHORTEST_S * fps]
    return pieces


@dataclass(frozen=True)
class View:
    """How a recording sees the frames of a part: `scale` times as large, mirrored or not, from an offset on."""

    height: int
    width: int
    scale: float
    is_mirrored: bool
    offsets: np.ndarray  # (frames, 2), x and y in pixels of the recording

    def picture(self, frame: np.ndarray, index: int) -> np.ndarray:
        """Return what is seen of frame number `index` of the part, (height, width, 3) uint8."""
        if self.is_mirrored:
            frame = frame[:, ::-1]
        size = [math.ceil(side * self.scale) for side in (frame.shape[1], frame.shape[0])]
        small = cv2.resize(frame, size, interpolation=cv2.INTER_AREA)
        move = np.array([[1, 0, -self.offsets[index, 0]], [0, 1, -self.offsets[index, 1]]])
        border = cv2.BORDER_REPLICATE
        return cv2.warpAffine(small, move, (self.width, self.height), flags=cv2.INTER_CUBIC, borderMode=border)

    def box(self, box: np.ndarray, index: float, frame_width: int) -> np.ndarray | None:
        """Return a box (4,) of the frames as left, top, right, bottom in the recording; None if little is visible."""
        if self.is_mirrored:
            box = np.array([frame_width - box[2], box[1], frame_width - box[0], box[3]])
        every = np.arange(len(self.offsets))
        offset = [np.interp(index, every, self.offsets[:, side]) for side in (0, 1)]
        moved = box * self.scale - np.tile(offset, 2)
        inside = np.clip(moved, 0, (self.width, self.height, self.width, self.height))
        visible, whole = (np.prod(np.maximum(corners[2:] - corners[:2], 0)) for corners in (inside, moved))
        return inside if visible >= LEAST_VISIBLE * whole > 0 else None


def draw_view(
    size: tuple[int, int], frame_hw: tuple[int, int], num_frames: int, fps: float, rng: np.random.Generator
) -> View:
    """Return a random view of a part. It is never larger than the frames, except where they are smaller than `size`."""
    height, width = size
    least = max(height / frame_hw[0], width / frame_hw[1])  # the whole frame fits
    scale = least if least >= 1 else min(1.0, least / rng.uniform(LEAST_CROP, 1.0))
    room = np.array([max(math.floor(side * scale) - want, 0) for side, want in zip(frame_hw, size, strict=True)])[::-1]
    t = np.arange(num_frames) / fps
    start, end = rng.uniform(0, 1, (2, 2)) * room
    offsets = np.tile(start, (num_frames, 1))
    if rng.random() < PAN_SHARE:
        way = np.sin(np.pi / 2 * t / max(t[-1], 1 / fps))[:, None] ** 2
        rates, phases = rng.uniform(0.5, 2.5, (2, 1, 3)), rng.uniform(0, 2 * np.pi, (2, 1, 3))
        shake = np.sin(2 * np.pi * rates * t[:, None] + phases).sum(axis=2).T * rng.uniform(0, 0.006) * height
        offsets = np.clip(start + way * (end - start) + shake, 0, room)
    return View(height, width, scale, bool(rng.random() < 0.5), offsets)
