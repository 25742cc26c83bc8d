"""Box formats and overlap for torch tensors and numpy arrays.

Names give the layout of the last axis: `xyxy` = left, top, right, bottom; `ltwh` = left, top, width, height;
`cxcywh` = centre, width, height. All are pixels, and y points down.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

Boxes = TypeVar("Boxes", Tensor, np.ndarray)


def _stack(columns: list[Boxes], like: Boxes) -> Boxes:
    if isinstance(like, Tensor):
        return torch.stack(columns, dim=-1)
    return np.stack(columns, axis=-1)


def cxcywh_to_xyxy(boxes: Boxes) -> Boxes:
    """Convert (..., 4) to (..., 4) of the same kind and dtype."""
    cx, cy, w, h = (boxes[..., i] for i in range(4))
    return _stack([cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2], boxes)


def ltwh_to_xyxy(boxes: Boxes) -> Boxes:
    """Convert (..., 4) to (..., 4) of the same kind and dtype."""
    x, y, w, h = (boxes[..., i] for i in range(4))
    return _stack([x, y, x + w, y + h], boxes)


def xyxy_to_ltwh(boxes: Boxes) -> Boxes:
    """Convert (..., 4) to (..., 4) of the same kind and dtype."""
    x1, y1, x2, y2 = (boxes[..., i] for i in range(4))
    return _stack([x1, y1, x2 - x1, y2 - y1], boxes)


def pairwise_iou(xyxy_a: Boxes, xyxy_b: Boxes) -> Boxes:
    """Return the intersection over union of every a with every b: (..., N, 4), (..., M, 4) -> (..., N, M).

    Boxes with a negative side count as empty. Two empty boxes have an overlap of 0.
    """
    a, b = xyxy_a[..., :, None, :], xyxy_b[..., None, :, :]
    if isinstance(a, Tensor):
        inner = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp(min=0)
        side_a, side_b = (a[..., 2:] - a[..., :2]).clamp(min=0), (b[..., 2:] - b[..., :2]).clamp(min=0)
    else:
        inner = np.maximum(np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2]), 0)
        side_a, side_b = np.maximum(a[..., 2:] - a[..., :2], 0), np.maximum(b[..., 2:] - b[..., :2], 0)
    overlap = inner[..., 0] * inner[..., 1]
    union = side_a[..., 0] * side_a[..., 1] + side_b[..., 0] * side_b[..., 1] - overlap
    return overlap / (union + (union <= 0))  # an empty union has an empty overlap: 0 / 1
