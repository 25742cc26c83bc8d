"""A head without anchors and without non-maximum suppression: a fixed number of queries, each of which yields one box.

Source: RT-DETR (Zhao et al., 2024), which selects queries among the pixels of the maps and refines them with a decoder.
Deviations: the neck of our detector replaces the hybrid encoder; boxes are refined in pixels (see
`rvtssm.contrib.rtdetr.decoder`); initial boxes have sides of two strides, and none of them is excluded.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rvtssm.boxes import cxcywh_to_xyxy
from rvtssm.contrib.rtdetr.decoder import RtdetrDecoder, build_box_out, build_class_out, refine_boxes
from rvtssm.contrib.rtdetr.loss import build_attention_mask, draw_noisy_queries
from rvtssm.contrib.rtdetr.options import RtdetrOptions
from rvtssm.models import ModelConfig, PostprocessConfig
from rvtssm.models.contracts import Head, at_least_one
from rvtssm.models.yolox import locate
from rvtssm.records import Detections

HEAD_DIM = 32  # channels per attention head


class RtdetrPredictions(NamedTuple):
    """The predictions of Q queries for M frames; in training, also those of earlier stages and of noisy queries."""

    boxes: Tensor  # (M, Q, 4) float32 [cx, cy, w, h px]
    logits: Tensor  # (M, Q, K) float32, class logits
    earlier_boxes: Tensor | None = None  # (M, S, Q, 4), from the selection and from all layers but the last
    earlier_logits: Tensor | None = None  # (M, S, Q, K)
    noisy_boxes: Tensor | None = None  # (M, S, R, 4), from all layers
    noisy_logits: Tensor | None = None  # (M, S, R, K)
    noisy_target: Tensor | None = None  # (M, R) int64, target to restore; -1: to be rejected, -2: a copy of padding


class RtdetrHead(Head):
    """A fixed number of queries with one box each, for maps (M, C, H / s, W / s) of any strides s.

    Args:
        model: Settings of the detector.
        channels: Number of channels of each map, by stride.
        num_classes: Number of classes K.
        padded_hw: Height and width of the padded frame in pixels.
    """

    record = RtdetrPredictions
    options = RtdetrOptions
    needed_to_train = ("rtdetr", "scipy")
    class_layers = ("class_out", "embed_class")
    locations: Tensor  # (A, 4) px: initial boxes, ordered by stride, then by y, then by x
    frame: Tensor  # (4,) px: width, height, width, height

    def __init__(
        self, model: ModelConfig, channels: Mapping[int, int], num_classes: int, padded_hw: tuple[int, int]
    ) -> None:
        super().__init__()
        options = model.options_of("head", RtdetrOptions)
        dim = options.dim or max(HEAD_DIM, max(channels.values()) // 2 // HEAD_DIM * HEAD_DIM)
        self.num_queries = options.queries
        self.num_denoising = options.denoising
        self.num_classes = num_classes
        self.projections = nn.ModuleList(
            nn.Sequential(nn.Conv2d(c, dim, 1, bias=False), nn.BatchNorm2d(dim)) for c in channels.values()
        )
        self.features = nn.Sequential(nn.Linear(dim, dim), nn.LayerNorm(dim))
        self.class_out = build_class_out(dim, num_classes)
        self.box_out = build_box_out(dim)
        self.embed_class = None
        if self.num_denoising:
            self.embed_class = nn.Embedding(num_classes, dim)
        self.decoder = RtdetrDecoder(dim, dim // HEAD_DIM, options.layers, len(channels), num_classes)
        height, width = padded_hw
        center, stride = locate(height, width, list(channels)).split([2, 1], dim=1)
        start = torch.cat([center, (2 * stride).expand(-1, 2)], dim=1)
        self.register_buffer("locations", start, persistent=False)
        self.register_buffer("frame", torch.tensor([width, height, width, height]).float(), persistent=False)

    def forward(self, maps: dict[int, Tensor], targets: tuple[Tensor, Tensor] | None = None) -> RtdetrPredictions:
        pixels, sizes = [], []
        for project, features in zip(self.projections, maps.values(), strict=True):
            projected = project(features)
            pixels.append(projected.flatten(2).transpose(1, 2))
            sizes.append((projected.shape[2], projected.shape[3]))
        memory = torch.cat(pixels, dim=1)  # (M, A, D)
        x, selected_boxes, selected_logits = self._select(memory)
        x, boxes = x.detach(), selected_boxes.detach()
        if not self.training:
            every_box, every_logit = self.decoder(x, boxes, memory, sizes, self.frame)
            return RtdetrPredictions(every_box[:, -1], every_logit[:, -1])

        num_queries, mask, noisy_target = x.shape[1], None, None
        if self.embed_class is not None and targets is not None:
            noisy = draw_noisy_queries(*targets, self.num_denoising, self.num_classes)
            x = torch.cat([x, self.embed_class(noisy.class_id).to(x.dtype)], dim=1)
            boxes = torch.cat([boxes, noisy.boxes.to(boxes.dtype)], dim=1)
            mask, noisy_target = build_attention_mask(noisy, num_queries), noisy.target
        every_box, every_logit = self.decoder(x, boxes, memory, sizes, self.frame, mask)
        own_boxes, noisy_boxes = every_box.tensor_split([num_queries], dim=2)
        own_logits, noisy_logits = every_logit.tensor_split([num_queries], dim=2)
        predictions = RtdetrPredictions(
            own_boxes[:, -1],
            own_logits[:, -1],
            torch.cat([selected_boxes[:, None], own_boxes[:, :-1]], dim=1),
            torch.cat([selected_logits[:, None], own_logits[:, :-1]], dim=1),
        )
        if noisy_target is None:
            return predictions
        return predictions._replace(noisy_boxes=noisy_boxes, noisy_logits=noisy_logits, noisy_target=noisy_target)

    def _select(self, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return features (M, Q, D), boxes (M, Q, 4) px and class logits (M, Q, K) of the best pixels of the maps.

        The best pixels are the ones with the highest score of any class; they keep the order of `locations`.
        """
        features = self.features(memory)
        logits = self.class_out(features).to(self.locations.dtype)
        num_queries = min(self.num_queries, len(self.locations))
        best = logits.amax(dim=-1).topk(num_queries, dim=1).indices.sort(dim=1).values[..., None]  # (M, Q, 1)
        x = features.gather(1, best.expand(-1, -1, features.shape[-1]))
        start = self.locations[best[..., 0]]
        boxes = refine_boxes(start, self.box_out(x).to(start.dtype))
        return x, boxes, logits.gather(1, best.expand(-1, -1, self.num_classes))

    def empty(self) -> RtdetrPredictions:
        num_queries = min(self.num_queries, len(self.locations))
        return RtdetrPredictions(
            self.locations.new_zeros(0, num_queries, 4), self.locations.new_zeros(0, num_queries, self.num_classes)
        )

    def loss(
        self,
        predictions: RtdetrPredictions,
        targets: Tensor,
        num_targets: Tensor,
        divisor: Callable[..., Tensor | int] = at_least_one,
        weights: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Return the terms of the loss. See `Head.loss` for the arguments.

        The terms are `class`, `l1` and `giou` of the last layer, `earlier` for the earlier stages, `denoising`, and
        their `total`. All are weighted sums over the M frames, divided by the number of objects, or by the result of
        `divisor` for that number. The `weights` of the targets multiply the terms of matched queries and of noisy
        copies.
        """
        from rvtssm.contrib.rtdetr.loss import match_queries, query_losses  # takes seconds

        counts: list[Tensor | int] = [int(num_targets.sum())]
        if weights is not None:
            counts.insert(0, (weights > 0).sum())
        norm = divisor(*counts)
        boxes, logits = predictions.boxes[:, None], predictions.logits[:, None]
        if predictions.earlier_boxes is not None and predictions.earlier_logits is not None:
            boxes = torch.cat([predictions.earlier_boxes, boxes], dim=1)
            logits = torch.cat([predictions.earlier_logits, logits], dim=1)
        boxes, logits = boxes.transpose(0, 1), logits.transpose(0, 1)
        matched = match_queries(boxes, logits, targets, num_targets, self.frame)
        terms = query_losses(boxes, logits, matched, targets, self.frame, weights=weights) / norm  # (S, 3)
        losses = dict(zip(("class", "l1", "giou"), terms[-1], strict=True))
        losses["earlier"] = terms[:-1].sum()
        if self.embed_class is not None:
            losses["denoising"] = self._denoising_loss(predictions, targets, weights) / norm
        losses["total"] = torch.stack(list(losses.values())).sum()
        return losses

    def _denoising_loss(self, predictions: RtdetrPredictions, targets: Tensor, weights: Tensor | None) -> Tensor:
        """Return the loss of the noisy queries, summed over the layers and averaged over the groups of copies."""
        boxes, logits, target = predictions.noisy_boxes, predictions.noisy_logits, predictions.noisy_target
        if boxes is None or logits is None or target is None:
            return predictions.boxes.new_zeros(())  # in evaluation mode, or if there is no frame
        from rvtssm.contrib.rtdetr.loss import query_losses

        num_groups = target.shape[1] // (2 * max(targets.shape[1], 1))
        matched = target.expand(boxes.shape[1], -1, -1)
        counts = target > -2
        if weights is not None and weights.shape[1]:  # a copy to reject counts as much as its object
            by_copy = weights.repeat(1, target.shape[1] // weights.shape[1])
            counts = torch.where(target == -1, by_copy, 1.0) * counts
        stages = boxes.transpose(0, 1), logits.transpose(0, 1)
        return query_losses(*stages, matched, targets, self.frame, counts, weights).sum() / num_groups

    @staticmethod
    @torch.no_grad()
    def decode(
        predictions: RtdetrPredictions, t_us: Sequence[int] | Tensor, config: PostprocessConfig | None = None
    ) -> list[Detections]:
        """Return the best pairs of query and class in each frame. See `Head.decode`.

        A query can be detected once per class. The score is the class probability; `score` and `nms_iou` of the
        settings have no effect.
        """
        config = config or PostprocessConfig()
        boxes, probability = predictions.boxes.float(), predictions.logits.float().sigmoid()
        num_queries, num_classes = probability.shape[1:]
        limit = min(config.max_detections or num_queries, num_queries * num_classes)
        score, index = probability.flatten(1).topk(limit, dim=1)
        chosen = cxcywh_to_xyxy(boxes).gather(1, (index // num_classes)[..., None].expand(-1, -1, 4))
        detections = []
        frames = chosen.cpu(), score.cpu(), (index % num_classes).cpu()
        for xyxy, scores, class_id, time in zip(*frames, t_us, strict=True):
            keep = scores >= config.min_score
            detections.append(Detections(xyxy[keep].numpy(), scores[keep].numpy(), class_id[keep].numpy(), int(time)))
        return detections

    @staticmethod
    def compared(predictions: RtdetrPredictions) -> tuple[Tensor, Tensor]:
        """Return boxes, multiplied by their best score, and scores, each column sorted in ascending order.

        Two detectors that differ only by rounding may select different pixels if scores are nearly equal. Therefore
        queries are not compared one by one, and bad ones count little.
        """
        scores = predictions.logits.float().sigmoid()
        weighted = predictions.boxes.float() * scores.amax(dim=-1, keepdim=True)
        return weighted.sort(dim=1).values, scores.sort(dim=1).values
