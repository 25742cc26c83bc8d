"""Attention that reads a few points of several maps instead of every pixel.

Source: Deformable DETR (Zhu et al., 2021), section 4, in the form whose points are relative to the box of a query.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NUM_POINTS = 4  # per map and head, as in the source


def sample_points(maps: Sequence[Tensor], points: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted sum of the values of maps at points, by bilinear interpolation; outside of a map lie zeros.

    maps: S tensors (N, C, H, W), where H and W differ; points (N, Q, S, P, 2) x and y as fractions of the frame,
    where 0 and 1 are the outer edges of the outer pixels; weights (N, Q, S * P) -> (N, C, Q)
    """
    grid = 2 * points - 1
    values = [F.grid_sample(x, grid[:, :, s], align_corners=False) for s, x in enumerate(maps)]  # (N, C, Q, P) each
    return (torch.cat(values, dim=-1) * weights[:, None]).sum(dim=-1)


class DeformableAttention(nn.Module):
    """Each query reads points in and around its box, on every map; where and how much follows from its features."""

    def __init__(self, dim: int, num_heads: int, num_maps: int) -> None:
        super().__init__()
        self.num_heads, self.num_maps = num_heads, num_maps
        self.value = nn.Linear(dim, dim)
        self.offset = nn.Linear(dim, num_heads * num_maps * NUM_POINTS * 2)
        self.weight = nn.Linear(dim, num_heads * num_maps * NUM_POINTS)
        self.out = nn.Linear(dim, dim)
        for layer in (self.value, self.out):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        for layer in (self.offset, self.weight):
            nn.init.zeros_(layer.weight)
        nn.init.zeros_(self.weight.bias)
        # at the start, head i reads in direction i, its points at growing distances up to the edge of the box
        angle = torch.arange(num_heads) * (2 * math.pi / num_heads)
        direction = torch.stack([angle.cos(), angle.sin()], dim=-1)
        direction = direction / direction.abs().amax(dim=-1, keepdim=True)
        distance = torch.arange(1, NUM_POINTS + 1)
        start = direction[:, None, None] * distance[:, None]  # (heads, 1, P, 2)
        with torch.no_grad():
            self.offset.bias.copy_(start.expand(-1, num_maps, -1, -1).flatten())

    def forward(self, queries: Tensor, boxes: Tensor, memory: Tensor, sizes: Sequence[tuple[int, int]]) -> Tensor:
        """Return (M, Q, D).

        queries (M, Q, D); boxes (M, Q, 4) [cx, cy, w, h] as fractions of the frame; memory (M, A, D) holds the pixels
        of S maps of `sizes` (height, width), one map after the other.
        """
        by_head = (self.num_heads, -1)
        offset = self.offset(queries).unflatten(-1, (*by_head, NUM_POINTS, 2)).to(boxes.dtype)  # (M, Q, heads, S, P, 2)
        center, side = boxes[:, :, None, None, None, :2], boxes[:, :, None, None, None, 2:]
        points = center + offset * side / (2 * NUM_POINTS)
        weights = self.weight(queries).unflatten(-1, by_head).to(boxes.dtype).softmax(dim=-1)
        # M A D -> (M heads) C A
        values = self.value(memory).to(boxes.dtype).transpose(1, 2).unflatten(1, by_head).flatten(0, 1)
        parts = values.split([height * width for height, width in sizes], dim=-1)
        maps = [part.unflatten(-1, size) for part, size in zip(parts, sizes, strict=True)]
        read = sample_points(maps, points.transpose(1, 2).flatten(0, 1), weights.transpose(1, 2).flatten(0, 1))
        return self.out(read.unflatten(0, (-1, self.num_heads)).flatten(1, 2).transpose(1, 2))
