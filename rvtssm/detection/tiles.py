"""Cut frames into overlapping tiles, and merge the boxes of the tiles over the seams.

Tiles keep more pixels of a large sensor than one reduced frame, so that small objects are found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rvtssm.boxes import pairwise_iou
from rvtssm.detection import parse_tiles
from rvtssm.records import Detections
from rvtssm.records.settings import SMALLEST_SIDE
from rvtssm.system.user_error import UserError

_OVERLAP = 0.25  # of neighbouring tiles, relative to their side; objects up to this size lie inside a tile
_EDGE_PX = 1.5  # a box that ends this close to an inner edge of its tile is cut off by it
_SAME_IOU = 0.5  # boxes of two tiles are one object if they overlap this much where both tiles look


@dataclass(frozen=True)
class Tiles:
    """Tiles of equal size that cover a frame, from left to right and from top to bottom."""

    frame_hw: tuple[int, int]  # of the whole frame, pixels
    tile_hw: tuple[int, int]  # pixels
    corners: npt.NDArray[np.int64]  # (N, 2), left and top of each tile, pixels of the frame

    @classmethod
    def of(cls, text: str | None, frame_hw: tuple[int, int]) -> Tiles:
        """Return the tiles of a frame.

        Args:
            text: Their numbers, across and down, such as 2x2. None: the frame is one tile.
            frame_hw: Height and width of the frame in pixels.

        Raises:
            UserError: The text does not give two numbers, or the tiles would be too small.
        """
        num_across, num_down = parse_tiles(text)
        height, rows = _cut(frame_hw[0], num_down)
        width, columns = _cut(frame_hw[1], num_across)
        if len(rows) * len(columns) > 1 and min(height, width) < SMALLEST_SIDE:
            cut = f"frames of {frame_hw[1]} x {frame_hw[0]} pixels become tiles of {width} x {height}"
            needed = f"{cut}, and the detector needs {SMALLEST_SIDE} x {SMALLEST_SIDE}"
            advice = "use fewer tiles or a smaller downsample"
            raise UserError("setting.out_of_range", name="tiles", found=text, needed=needed, advice=advice)
        corners = [(left, top) for top in rows for left in columns]
        return cls(frame_hw, (height, width), np.array(corners))

    def __len__(self) -> int:
        return len(self.corners)

    def cut(self, frames: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """Return the tiles (L, N, C, h, w) of frames (L, C, H, W)."""
        if len(self) == 1:
            return frames[:, None]
        height, width = self.tile_hw
        return np.stack([frames[..., y : y + height, x : x + width] for x, y in self.corners], axis=1)

    def merged(self, of_tiles: Sequence[Detections], downsample: int, most: int | None) -> Detections:
        """Return the boxes of one frame from those of its tiles.

        Two boxes of the same class in different tiles show one object if they agree where the tiles overlap. The object
        then has the better score. If an inner edge of a tile cuts off one of the boxes, the other box is taken; if both
        are cut off, the box around both.

        Args:
            of_tiles: The detections of each tile, in pixels of the sensor from the corner of the tile.
            downsample: Side of a pixel of the frame in pixels of the sensor.
            most: The most boxes to return, those with the highest scores; None returns all.
        """
        if len(self) == 1:
            return of_tiles[0]
        # N tiles, each with its rectangle (4,) on the sensor.
        rectangles = downsample * np.concatenate([self.corners, self.corners + self.tile_hw[::-1]], axis=1)
        frame = downsample * np.array([0, 0, *self.frame_hw[::-1]])
        pieces = []
        for tile, (boxes, rectangle) in enumerate(zip(of_tiles, rectangles, strict=True)):
            for xyxy, score, class_id in zip(boxes.xyxy, boxes.score, boxes.class_id, strict=True):
                pieces.append(_Piece(xyxy + np.tile(rectangle[:2], 2), score, class_id, rectangle, {tile}))
        # Join until nothing changes.
        count = None
        while count != len(pieces):  # an object may lie across several seams
            count = len(pieces)
            pieces = _joined(pieces, frame, _EDGE_PX * downsample)
        pieces = pieces[:most]
        # Back to arrays, the best first.
        xyxy = np.array([piece.xyxy for piece in pieces], np.float32).reshape(-1, 4)
        score = np.array([piece.score for piece in pieces], np.float32)
        classes = np.array([piece.class_id for piece in pieces], np.int64)
        return Detections(xyxy, score, classes, of_tiles[0].t_us)


@dataclass
class _Piece:
    """A box, and what is known of its object: the part of the sensor that its tiles show."""

    xyxy: np.ndarray  # (4,), pixels of the sensor
    score: float
    class_id: int
    seen: np.ndarray  # (4,), left, top, right and bottom of the tiles, pixels of the sensor
    tiles: set[int]

    def is_cut(self, frame: np.ndarray, edge_px: float) -> bool:
        """Return whether the box ends at an edge of its tiles that is not an edge of the frame."""
        is_at_edge = np.abs(self.xyxy - self.seen) < edge_px
        return bool((is_at_edge & (self.seen != frame)).any())


def _joined(pieces: list[_Piece], frame: np.ndarray, edge_px: float) -> list[_Piece]:
    """Return the pieces after each was joined to the best one before it that shows the same object."""
    objects: list[_Piece] = []
    # The better piece keeps its score; where it is cut, the other one gives the edges.
    for piece in sorted(pieces, key=lambda piece: -piece.score):
        same = _same_object(piece, objects)
        if same is None:
            objects.append(piece)
            continue
        if same.is_cut(frame, edge_px) and piece.is_cut(frame, edge_px):
            same.xyxy = _around(same.xyxy, piece.xyxy)
        elif same.is_cut(frame, edge_px):
            same.xyxy = piece.xyxy
        same.seen = _around(same.seen, piece.seen)
        same.tiles |= piece.tiles
    return objects


def _around(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the rectangle (4,) around two."""
    return np.concatenate([np.minimum(one, other)[:2], np.maximum(one, other)[2:]])


def _same_object(piece: _Piece, others: list[_Piece]) -> _Piece | None:
    """Return the piece of other tiles that agrees best where the tiles of both overlap; None if no piece agrees."""
    best = None
    best_iou = _SAME_IOU
    for other in others:
        if piece.class_id != other.class_id or piece.tiles & other.tiles:
            continue
        # Both are compared where the tiles of both look.
        start, end = np.maximum(piece.seen[:2], other.seen[:2]), np.minimum(piece.seen[2:], other.seen[2:])
        low, high = np.concatenate([start, start]), np.concatenate([end, end])
        iou = float(pairwise_iou(np.clip(piece.xyxy, low, high)[None], np.clip(other.xyxy, low, high)[None])[0, 0])
        if iou >= best_iou and (end > start).all():
            best = other
            best_iou = iou
    return best


def tile_size(sensor_hw: tuple[int, int], text: str | None) -> tuple[int, int]:
    """Return height and width of the tiles of a sensor that is not reduced, in pixels."""
    num_across, num_down = parse_tiles(text)
    return _cut(sensor_hw[0], num_down)[0], _cut(sensor_hw[1], num_across)[0]


def _cut(size: int, count: int) -> tuple[int, list[int]]:
    """Return the side of `count` overlapping tiles of an axis, and where each begins."""
    if count == 1:
        return size, [0]
    side = int(-(-size // (count - _OVERLAP * (count - 1))))
    return side, np.linspace(0, size - side, count).round().astype(int).tolist()
