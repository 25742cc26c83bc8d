"""The head: three maps to one row per location, box in pixels of the frame, scores as logits.

Source: YOLOX (Ge et al., 2021), decoupled head without anchors. Width: a quarter of the coarsest map.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rvtssm.models.pafpn import ConvNormAct

STRIDES = (8, 16, 32)


class HeadLevel(nn.Module):
    """One stride: (M, C, H, W) -> (M, H * W, 5 + K), raw."""

    def __init__(self, in_channels: int, hidden: int, num_classes: int) -> None:
        super().__init__()
        self.stem = ConvNormAct(in_channels, hidden, 1)
        self.class_convs = nn.Sequential(ConvNormAct(hidden, hidden, 3), ConvNormAct(hidden, hidden, 3))
        self.box_convs = nn.Sequential(ConvNormAct(hidden, hidden, 3), ConvNormAct(hidden, hidden, 3))
        self.class_out = nn.Conv2d(hidden, num_classes, 1)
        self.box_out = nn.Conv2d(hidden, 4, 1)
        self.objectness_out = nn.Conv2d(hidden, 1, 1)
        # at the start one location in a hundred is an object: Focal Loss (Lin et al., 2017), section 3.3
        for layer in (self.class_out, self.objectness_out):
            assert layer.bias is not None
            nn.init.constant_(layer.bias, -math.log((1 - 0.01) / 0.01))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        box_features, class_features = self.box_convs(x), self.class_convs(x)
        raw = [self.box_out(box_features), self.objectness_out(box_features), self.class_out(class_features)]
        return torch.cat(raw, dim=1).permute(0, 2, 3, 1).flatten(1, 2)


class YoloxHead(nn.Module):
    """(M, C, H / s, W / s) for s = 8, 16, 32 -> (M, A, 5 + K) [cx, cy, w, h px, objectness logit, class logits].

    Rows are ordered by stride, then by y, then by x, as in `locate`.
    """

    def __init__(self, channels: Sequence[int], num_classes: int) -> None:
        super().__init__()
        hidden = channels[-1] // 4
        self.levels = nn.ModuleList(HeadLevel(c, hidden, num_classes) for c in channels)

    def forward(self, maps: Sequence[Tensor], locations: Tensor) -> Tensor:
        raw = torch.cat([level(x) for level, x in zip(self.levels, maps, strict=True)], dim=1)
        raw = raw.to(torch.promote_types(raw.dtype, torch.float32))
        stride = locations[:, 2:]
        corner = locations[:, :2] - stride / 2  # offsets count from the top left of a cell
        return torch.cat([raw[..., :2] * stride + corner, raw[..., 2:4].exp() * stride, raw[..., 4:]], dim=-1)


def locate(height: int, width: int) -> Tensor:
    """The A locations of a padded frame: (A, 3) float32 [centre x px, centre y px, stride px]."""
    parts = []
    for stride in STRIDES:
        y, x = torch.meshgrid(torch.arange(height // stride), torch.arange(width // stride), indexing="ij")
        cells = torch.stack([x, y], dim=-1).reshape(-1, 2).float()
        parts.append(torch.cat([(cells + 0.5) * stride, torch.full((len(cells), 1), float(stride))], dim=1))
    return torch.cat(parts)
