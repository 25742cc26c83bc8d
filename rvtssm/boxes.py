"""Box formats and overlap, for torch tensors and numpy arrays.

Function names give the layout of the last axis: `xyxy` = left, top, right, bottom; `ltwh` = left, top, width, height;
`cxcywh` = centre, width, height. All values are in pixels, and y points down.
"""

from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

Boxes = TypeVar("Boxes", Tensor, np.ndarray)


def _columns(boxes: Boxes) -> list[Boxes]:
    return [boxes[..., i] for i in range(4)]


def _stack(columns: list[Boxes], like: Boxes) -> Boxes:
    if isinstance(like, Tensor):
        return torch.stack(columns, dim=-1)
    return np.stack(columns, axis=-1)


def cxcywh_to_xyxy(boxes: Boxes) -> Boxes:
    """Convert boxes from centre, width, height to corners.

    Args:
        boxes: (..., 4), pixels.

    Returns:
        (..., 4), the same kind of array and the same dtype.
    """
    cx, cy, w, h = _columns(boxes)
    return _stack([cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2], boxes)


def ltwh_to_xyxy(boxes: Boxes) -> Boxes:
    """Convert boxes from left, top, width, height to corners.

    Args:
        boxes: (..., 4), pixels.

    Returns:
        (..., 4), the same kind of array and the same dtype.
    """
    x, y, w, h = _columns(boxes)
    return _stack([x, y, x + w, y + h], boxes)


def xyxy_to_ltwh(boxes: Boxes) -> Boxes:
    """Convert boxes from corners to left, top, width, height.

    Args:
        boxes: (..., 4), pixels.

    Returns:
        (..., 4), the same kind of array and the same dtype.
    """
    x1, y1, x2, y2 = _columns(boxes)
    return _stack([x1, y1, x2 - x1, y2 - y1], boxes)


def pairwise_iou(xyxy_a: Boxes, xyxy_b: Boxes) -> Boxes:
    """Return the intersection over union of every box of one set with every box of another.

    A box with a negative side counts as empty. The overlap of two empty boxes is 0.

    Args:
        xyxy_a: (..., N, 4), pixels.
        xyxy_b: (..., M, 4), pixels.

    Returns:
        (..., N, M), values from 0 to 1.
    """
    a = xyxy_a[..., :, None, :]
    b = xyxy_b[..., None, :, :]
    if isinstance(a, Tensor):
        inner = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp(min=0)
        side_a = (a[..., 2:] - a[..., :2]).clamp(min=0)
        side_b = (b[..., 2:] - b[..., :2]).clamp(min=0)
    else:
        inner = np.maximum(np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2]), 0)
        side_a = np.maximum(a[..., 2:] - a[..., :2], 0)
        side_b = np.maximum(b[..., 2:] - b[..., :2], 0)
    overlap = inner[..., 0] * inner[..., 1]
    union = side_a[..., 0] * side_a[..., 1] + side_b[..., 0] * side_b[..., 1] - overlap
    return overlap / (union + (union <= 0))  # if the union is empty, so is the overlap: 0 / 1
