"""Run a detector on overlapping tiles of frames, each a stream of its own, and merge their boxes over the seams.

Tiles keep more pixels of a large sensor than one reduced frame, so that small objects are found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rvtssm.boxes import pairwise_iou
from rvtssm.detection import parse_tiles
from rvtssm.models import PostprocessConfig
from rvtssm.models.checkpoint_meta import LoadedCheckpoint, detector_for_frame
from rvtssm.models.postprocess import to_sensor
from rvtssm.models.streams import Streams
from rvtssm.records import Detections
from rvtssm.records.settings import SMALLEST_SIDE
from rvtssm.system.user_error import UserError

_OVERLAP = 0.25  # of neighbouring tiles, relative to their side; objects up to this size lie inside a tile
_EDGE_PX = 1.5  # a box that ends this close to an inner edge of its tile is cut off by it
_STEPS_PER_CALL = 16  # steps of a gap per call of a detector whose layers have no step to rescale
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


class TiledDetector:
    """A detector with its state, one step or several at a time. Each tile is a stream.

    Args:
        checkpoint: The weights.
        tiles: The tiles of a frame, often a single one.
        downsample: Side of a pixel of the frame in pixels of the sensor.
        config: Post-processing.
    """

    def __init__(
        self, checkpoint: LoadedCheckpoint, tiles: Tiles, downsample: int, config: PostprocessConfig | None
    ) -> None:
        self.tiles = tiles
        self.downsample = downsample
        self.config = config or PostprocessConfig()
        detector = detector_for_frame(checkpoint, *tiles.tile_hw)
        stride_us = checkpoint.windows.stride_us
        self.streams = Streams(detector, stride_us, checkpoint.model_config.memory_chunk)
        self.is_first = True  # whether the next step is the first of a stream

    def forget(self) -> None:
        """Begin a new stream."""
        self.streams.load_state_dict({"steps": {}})
        self.is_first = True

    def detect(
        self, frames: np.ndarray, dt_us: npt.NDArray[Any], indices: npt.NDArray[np.int64], ends_us: list[int]
    ) -> list[Detections]:
        """Run L steps, and return the detections, in pixels of the sensor, of those at `indices`.

        Args:
            frames: The frames (L, C, H, W).
            dt_us: The time of each step (L,), microseconds.
            indices: Steps (M,).
            ends_us: When these M steps end, microseconds.
        """
        # Every tile is a stream: L steps of N streams.
        num = len(self.tiles)
        index = np.stack([np.repeat(indices, num), np.tile(np.arange(num), len(indices))], axis=1)
        predictions = self.streams.push(
            torch.from_numpy(self.tiles.cut(frames)),
            torch.from_numpy(np.repeat(dt_us[:, None], num, axis=1)),
            torch.from_numpy(index),
            range(num),
            [self.is_first] * num,
        )
        self.is_first = False
        decoded = self.streams.decoded(predictions, np.repeat(ends_us, num).tolist(), self.config)
        detections = [to_sensor(tile, *self.tiles.tile_hw, self.downsample) for tile in decoded]
        by_step = (detections[start : start + num] for start in range(0, len(detections), num))
        return [self.tiles.merged(tiles, self.downsample, self.config.max_detections) for tiles in by_step]

    def detect_after_gap(self, frame: np.ndarray, num_windows: int, stride_us: float, end_us: int) -> Detections:
        """Return the detections after empty windows. The state takes steps of 1, 1, 2, 4, ... windows.

        A single long step would turn around the modes of the bilinear rule. Layers without a step to rescale take one
        step per window.

        Args:
            frame: A frame of zeros (C, H, W).
            num_windows: Number of windows.
            stride_us: Time of a window, microseconds.
            end_us: When the last one ends, microseconds.
        """
        # The steps, cut into calls; only the last one needs boxes.
        strides = np.ones(num_windows)
        if self.streams.detector.has_step_to_rescale:
            strides = gap_steps(num_windows)
        *before, last = np.split(strides, range(_STEPS_PER_CALL, len(strides), _STEPS_PER_CALL))
        for steps in before:
            self.detect(np.stack([frame] * len(steps)), steps * stride_us, np.empty(0, np.int64), [])
        frames = np.stack([frame] * len(last))
        index = np.array([len(last) - 1])
        (detections,) = self.detect(frames, last * stride_us, index, [end_us])
        return detections


def gap_steps(num_windows: int) -> npt.NDArray[np.float64]:
    """Return the steps over a gap of empty windows, in windows: 1, 1, 2, 4, ..., and the rest."""
    doubled = [1.0] + [2.0**power for power in range(int(math.log2(num_windows)))]
    rest = num_windows - sum(doubled)
    return np.array(doubled + [rest] * (rest > 0))


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
