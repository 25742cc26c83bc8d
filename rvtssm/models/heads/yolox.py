"""The head of YOLOX: one row per location of the maps, with a box in pixels of the frame and scores as logits.

Source: YOLOX (Ge et al., 2021), decoupled head without anchors. Its width is a quarter of the channels of the coarsest
map.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rvtssm.models.contracts import Head, at_least_one
from rvtssm.models.heads.yolox_loss import yolox_loss
from rvtssm.models.model_config import ModelConfig, PostprocessConfig
from rvtssm.models.pafpn import ConvNormAct
from rvtssm.models.postprocess import postprocess, to_probabilities
from rvtssm.records import Detections


class HeadLevel(nn.Module):
    """The head at one stride: (M, C, H, W) -> (M, H * W, 5 + K), raw.

    Args:
        in_channels: Number of channels C of the map.
        hidden: Number of channels within the head.
        num_classes: Number of classes K.
    """

    def __init__(self, in_channels: int, hidden: int, num_classes: int) -> None:
        super().__init__()
        self.stem = ConvNormAct(in_channels, hidden, 1)
        self.class_convs = nn.Sequential(ConvNormAct(hidden, hidden, 3), ConvNormAct(hidden, hidden, 3))
        self.box_convs = nn.Sequential(ConvNormAct(hidden, hidden, 3), ConvNormAct(hidden, hidden, 3))
        self.class_out = nn.Conv2d(hidden, num_classes, 1)
        self.box_out = nn.Conv2d(hidden, 4, 1)
        self.objectness_out = nn.Conv2d(hidden, 1, 1)
        # Initially, the probability of an object is 1 %: Focal Loss (Lin et al., 2017), section 3.3.
        for layer in (self.class_out, self.objectness_out):
            assert layer.bias is not None
            nn.init.constant_(layer.bias, -math.log((1 - 0.01) / 0.01))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        box_features, class_features = self.box_convs(x), self.class_convs(x)
        raw = [self.box_out(box_features), self.objectness_out(box_features), self.class_out(class_features)]
        return torch.cat(raw, dim=1).permute(0, 2, 3, 1).flatten(1, 2)


class YoloxPredictions(NamedTuple):
    """One row per location, ordered by stride, then by y, then by x, as in `locate`."""

    rows: Tensor  # (M, A, 5 + K) float32 [cx, cy, w, h px, objectness logit, class logits]


class YoloxHead(Head):
    """Turns maps of any strides into one row per location.

    Args:
        model: Settings of the detector.
        channels: Number of channels of each map, by stride.
        num_classes: Number of classes K.
        padded_hw: Height and width of the padded frame in pixels.
    """

    record = YoloxPredictions
    locations: Tensor  # (A, 3) px: centre x, centre y and stride of each location

    def __init__(
        self, model: ModelConfig, channels: Mapping[int, int], num_classes: int, padded_hw: tuple[int, int]
    ) -> None:
        super().__init__()
        self.num_classes = num_classes
        hidden = list(channels.values())[-1] // 4
        self.levels = nn.ModuleList(HeadLevel(c, hidden, num_classes) for c in channels.values())
        self.locations = locate(*padded_hw, list(channels))  # no buffer, since averages of weights keep their shapes

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> YoloxHead:
        super()._apply(fn, recurse)
        self.locations = fn(self.locations)
        return self

    def forward(self, maps: dict[int, Tensor], targets: tuple[Tensor, Tensor] | None = None) -> YoloxPredictions:
        raw = torch.cat([level(x) for level, x in zip(self.levels, maps.values(), strict=True)], dim=1)
        raw = raw.to(torch.promote_types(raw.dtype, torch.float32))
        stride = self.locations[:, 2:]
        corner = self.locations[:, :2] - stride / 2  # offsets are relative to the top left corner of a cell
        rows = torch.cat([raw[..., :2] * stride + corner, raw[..., 2:4].exp() * stride, raw[..., 4:]], dim=-1)
        return YoloxPredictions(rows)

    def empty(self) -> YoloxPredictions:
        return YoloxPredictions(self.locations.new_zeros(0, len(self.locations), 5 + self.num_classes))

    def loss(
        self,
        predictions: YoloxPredictions,
        targets: Tensor,
        num_targets: Tensor,
        divisor: Callable[..., Tensor | int] = at_least_one,
        weights: Tensor | None = None,
    ) -> dict[str, Tensor]:
        return yolox_loss(predictions.rows, targets, num_targets, self.locations, divisor, weights)

    @staticmethod
    def decode(
        predictions: YoloxPredictions, t_us: Sequence[int] | Tensor, config: PostprocessConfig | None = None
    ) -> list[Detections]:
        return postprocess(predictions.rows, t_us, config)

    @staticmethod
    def describe_scores(config: PostprocessConfig) -> str:
        score = config.with_score(None).score
        return f"{score}, from {config.min_score:g}; non-maximum suppression per class at IoU {config.nms_iou:g}"

    @staticmethod
    def compared(predictions: YoloxPredictions) -> tuple[Tensor, Tensor]:
        found = to_probabilities(predictions.rows)
        return found[..., :4], found[..., 4:5] * found[..., 5:]


def locate(height: int, width: int, strides: Sequence[int] = (8, 16, 32)) -> Tensor:
    """Return the A locations of a padded frame.

    Args:
        height: Height of the padded frame in pixels.
        width: Width of the padded frame in pixels.
        strides: Strides of the maps in pixels.

    Returns:
        The locations (A, 3) float32 [centre x px, centre y px, stride px].
    """
    parts = []
    for stride in strides:
        y, x = np.mgrid[: height // stride, : width // stride].reshape(2, -1)
        parts.append(np.stack([(x + 0.5) * stride, (y + 0.5) * stride, np.full(len(x), stride)], axis=1))
    return torch.from_numpy(np.concatenate(parts).astype(np.float32))
