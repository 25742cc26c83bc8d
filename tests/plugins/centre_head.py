"""A head from outside the package: one box for each cell, learned where an object has its centre."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torchvision.ops import batched_nms

from rvtssm.boxes import cxcywh_to_xyxy
from rvtssm.models.contracts import Head, at_least_one
from rvtssm.models.detector import HEADS
from rvtssm.records import Detections


class CentrePredictions(NamedTuple):
    boxes: Tensor  # (M, A, 4) [cx, cy, w, h] px
    logits: Tensor  # (M, A, K)


class CentreHead(Head):
    record = CentrePredictions

    def __init__(self, model, channels: Mapping[int, int], num_classes: int, padded_hw: tuple[int, int]) -> None:
        super().__init__()
        self.class_out, self.box_out = (nn.Conv2d(channels[8], n, 1) for n in (num_classes, 4))
        y, x = torch.meshgrid(*(torch.arange(4.0, side, 8) for side in padded_hw), indexing="ij")
        self.register_buffer("centres", torch.stack([x, y], dim=-1).flatten(0, 1), persistent=False)

    def forward(self, maps: dict[int, Tensor], targets=None) -> CentrePredictions:
        raw, logits = (layer(maps[8]).flatten(2).mT.float() for layer in (self.box_out, self.class_out))
        return CentrePredictions(torch.cat([self.centres + 8 * raw[..., :2], 8 * raw[..., 2:].exp()], dim=-1), logits)

    def empty(self) -> CentrePredictions:
        zeros = self.centres.new_zeros(0, len(self.centres), 4 + self.class_out.out_channels)
        return CentrePredictions(zeros[..., :4], zeros[..., 4:])

    def loss(self, predictions, targets, num_targets, divisor: Callable = at_least_one) -> dict[str, Tensor]:
        boxes, logits = predictions
        frame, number = torch.where(torch.arange(targets.shape[1]) < num_targets[:, None])
        wanted = targets[frame, number]
        cell = (self.centres - wanted[:, None, 1:3]).square().sum(-1).argmin(1)
        classes = torch.zeros_like(logits).index_put((frame, cell, wanted[:, 0].long()), logits.new_ones(()))
        class_ = nn.functional.binary_cross_entropy_with_logits(logits, classes, reduction="sum")
        return {"total": (class_ + (boxes[frame, cell] - wanted[:, 1:]).abs().sum() / 8) / divisor(len(frame))}

    @staticmethod
    def decode(predictions, t_us: Sequence[int] | Tensor, config=None) -> list[Detections]:
        found, best = [], predictions.logits.sigmoid().max(-1)
        for xyxy, score, class_id, time in zip(cxcywh_to_xyxy(predictions.boxes), *best, t_us, strict=True):
            kept = batched_nms(xyxy, score, class_id, 0.5)
            found.append(Detections(*(part[kept].cpu().numpy() for part in (xyxy, score, class_id)), t_us=int(time)))
        return found

    @staticmethod
    def compared(predictions) -> tuple[Tensor, Tensor]:
        return predictions.boxes, predictions.logits.sigmoid()


HEADS["centre"] = CentreHead
