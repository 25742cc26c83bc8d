"""The head of YOLOX and its loss: a box and scores for every location of the maps.

The head is decoupled and without anchors; its width is a quarter of the channels of the coarsest map. The loss counts
the overlap of boxes, objectness everywhere, and the class where there is an object. SimOTA assigns each object to the
locations that must predict it, for all frames and objects at once. The candidates are the locations whose centre lies
within 1.5 strides of the centre of an object (`YoloxOptions`).
Source: YOLOX (Ge et al., 2021), section 2.1 and its code, without the L1 term, as RVT trains it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rvtssm.models import ModelConfig, PostprocessConfig
from rvtssm.models.contracts import RARE, Head, at_least_one
from rvtssm.models.pafpn import ConvNormAct
from rvtssm.models.postprocess import postprocess, to_probabilities
from rvtssm.records import Detections
from rvtssm.system.limits import check_number
from rvtssm.system.machine import on_device

OUTSIDE_COST = 1e6  # added cost of a location that is only near another object, so that it is chosen last


@dataclass(frozen=True)
class YoloxOptions:
    """How the head is trained: `model.head_options`."""

    iou_weight: float = 5.0
    """Weight of the overlap in the loss."""
    iou_cost: float = 3.0
    """Weight of the overlap in the cost of a location for an object."""
    center_radius: float = 1.5
    """Farthest location from the centre of its object, in strides."""
    num_candidates: int = 10
    """An object gets as many locations as the sum of this many best overlaps."""

    def __post_init__(self) -> None:
        for name in ("iou_weight", "iou_cost", "center_radius"):
            check_number(f"model.head_options.{name}", getattr(self, name), 0)
        check_number("model.head_options.num_candidates", self.num_candidates, 1, is_whole=True)


_USUAL = YoloxOptions()


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
        for layer in (self.class_out, self.objectness_out):
            assert layer.bias is not None
            nn.init.constant_(layer.bias, RARE)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        box_features = self.box_convs(x)
        class_features = self.class_convs(x)
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
    options = YoloxOptions
    locations: Tensor  # (A, 3) px: centre x, centre y and stride of each location

    def __init__(
        self, model: ModelConfig, channels: Mapping[int, int], num_classes: int, padded_hw: tuple[int, int]
    ) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.settings = model.options_of("head", YoloxOptions)
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
        return yolox_loss(predictions.rows, targets, num_targets, self.locations, divisor, weights, self.settings)

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
        probabilities = to_probabilities(predictions.rows)
        return probabilities[..., :4], probabilities[..., 4:5] * probabilities[..., 5:]


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


def overlap_cxcywh(a: Tensor, b: Tensor) -> Tensor:
    """Return the intersection over union of corresponding boxes.

    Areas are computed from the sides, because corners of a small box far from the origin lose digits.

    Args:
        a: Boxes (..., 4) [cx, cy, w, h].
        b: Boxes (..., 4) [cx, cy, w, h], of a shape that broadcasts against a.

    Returns:
        The overlaps (...).
    """
    far = torch.minimum(a[..., :2] + a[..., 2:] / 2, b[..., :2] + b[..., 2:] / 2)
    near = torch.maximum(a[..., :2] - a[..., 2:] / 2, b[..., :2] - b[..., 2:] / 2)
    side = (far - near).clamp(min=0)
    common = side[..., 0] * side[..., 1]
    return common / (a[..., 2] * a[..., 3] + b[..., 2] * b[..., 3] - common + 1e-16)


@torch.no_grad()
def assign_targets(
    predictions: Tensor, targets: Tensor, num_targets: Tensor, locations: Tensor, options: YoloxOptions = _USUAL
) -> Tensor:
    """Return the target of every location.

    Args:
        predictions: Rows (M, A, 5 + K) of the head.
        targets: Objects (M, N, 5) [class, cx, cy, w, h px], padded to N rows.
        num_targets: Number of objects of each frame, (M,).
        locations: Locations (A, 3) [centre x px, centre y px, stride px].
        options: Costs.

    Returns:
        Indices (M, A) int64 into the N targets of a frame, -1 for background.
    """
    # No object in any frame: every location is background.
    if targets.shape[1] == 0:
        return torch.full(predictions.shape[:2], -1, device=predictions.device)
    # Candidates: locations near the centre of an object that is no padding.
    is_real = torch.arange(targets.shape[1], device=targets.device) < on_device(num_targets, targets.device)[:, None]
    reach = options.center_radius * locations[:, 2]
    distance = (locations[:, :2] - targets[:, :, None, 1:3]).abs().amax(dim=-1)
    is_near = (distance < reach) & is_real[..., None]  # (M, N, A)
    is_candidate = is_near.any(dim=1, keepdim=True) & is_real[..., None]

    # Cost of a match: wrong class, small overlap, and a location outside of the centre.
    iou = overlap_cxcywh(targets[:, :, None, 1:], predictions[:, None, :, :4])
    iou = iou.masked_fill(~is_candidate, 0)
    cost = _class_cost(predictions, targets[..., 0].long()) - options.iou_cost * (iou + 1e-8).log()
    cost = (cost + OUTSIDE_COST * ~is_near).masked_fill(~is_candidate, torch.inf)

    # Each object takes as many locations as its best overlaps sum to.
    num_best = min(options.num_candidates, iou.shape[-1])
    num_matches = iou.topk(num_best).values.sum(-1).int().clamp(min=1)  # (M, N)
    best = cost.topk(num_best, largest=False)
    is_taken = (torch.arange(num_best, device=cost.device) < num_matches[..., None]) & best.values.isfinite()
    is_match = torch.zeros_like(is_candidate).scatter_(-1, best.indices, is_taken)

    num_claims = is_match.sum(dim=1)  # (M, A)
    # A location claimed by several objects goes to the object with the lowest cost.
    matched = torch.where(num_claims > 1, cost.argmin(dim=1), is_match.int().argmax(dim=1))
    return matched.masked_fill(num_claims == 0, -1)


def _class_cost(predictions: Tensor, class_id: Tensor) -> Tensor:
    """Return the cross-entropy of sqrt(objectness * class) and the true class: (M, A, 5 + K), (M, N) -> (M, N, A)."""
    probability = (predictions[..., 4:5].sigmoid() * predictions[..., 5:].sigmoid()).sqrt()
    is_class = -probability.log().clamp(min=-100)
    is_not = -torch.log1p(-probability).clamp(min=-100)
    others = 1 - torch.eye(probability.shape[-1], dtype=probability.dtype, device=probability.device)
    by_class = (is_class + is_not @ others).transpose(1, 2)  # (M, K, A)
    return by_class.gather(1, class_id[..., None].expand(-1, -1, by_class.shape[-1]))


def yolox_loss(
    predictions: Tensor,
    targets: Tensor,
    num_targets: Tensor,
    locations: Tensor,
    divisor: Callable[..., Tensor | int] = at_least_one,
    weights: Tensor | None = None,
    options: YoloxOptions = _USUAL,
) -> dict[str, Tensor]:
    """Return the losses of M frames.

    Args:
        predictions: Rows (M, A, 5 + K) of the head.
        targets: Objects (M, N, 5) [class, cx, cy, w, h px], padded to N rows.
        num_targets: Number of objects of each frame, (M,).
        locations: Locations (A, 3) [centre x px, centre y px, stride px].
        divisor: As in `rvtssm.models.contracts.Head.loss`.
        weights: Factors (M, N) of the targets, for all terms of their locations.
        options: Weights and costs.

    Returns:
        Scalars by name: `iou` (weighted), `objectness` and `class`, each a sum over the M frames, divided by the
            result of `divisor` for the number of matched locations; `total`, their sum; and `num_foreground`, the
            number of matched locations per object.
    """
    # Matched locations as rows of a fixed number, so that the device need not wait for a count.
    predictions = predictions.to(torch.promote_types(predictions.dtype, torch.float32))
    matched = assign_targets(predictions, targets, num_targets, locations, options)
    is_object = matched >= 0
    num_matched = is_object.sum()
    rows = torch.nonzero_static(is_object, size=most_matches(is_object, num_targets, options.num_candidates))
    is_row = torch.arange(len(rows), device=rows.device) < num_matched  # the other rows are padding and count nothing
    frame, location = rows.clamp(min=0).unbind(1)
    answers = torch.where(is_row[:, None], predictions[frame, location], 1)
    target = matched[frame, location].clamp(min=0)
    objects = targets[frame, target]
    weight = is_row.to(predictions.dtype)
    location_weight = None
    counts = [num_matched]
    # Uncertain objects weigh less, in all three losses.
    if weights is not None:
        weight = weight * weights[frame, target].to(predictions.dtype)
        by_location = weights.new_ones(())
        if weights.shape[1]:
            by_location = weights.gather(1, matched.clamp(min=0))
        location_weight = torch.where(is_object, by_location, 1).to(predictions.dtype)
        counts.insert(0, (weight > 0).sum())
    norm = divisor(*counts)

    # Boxes by overlap, objectness everywhere, classes with the overlap as their target.
    iou = overlap_cxcywh(answers[:, :4], objects[:, 1:])
    objectness = F.binary_cross_entropy_with_logits(
        predictions[..., 4], is_object.to(predictions.dtype), location_weight, reduction="sum"
    )
    class_target = F.one_hot(objects[:, 0].long(), predictions.shape[-1] - 5) * iou.detach()[:, None]
    class_ = F.binary_cross_entropy_with_logits(answers[:, 5:], class_target, weight[:, None], reduction="sum")
    missing = (1 - iou**2) * weight
    losses = {"iou": options.iou_weight * missing.sum() / norm, "objectness": objectness / norm, "class": class_ / norm}
    losses["total"] = losses["iou"] + losses["objectness"] + losses["class"]
    losses["num_foreground"] = num_matched / max(int(num_targets.sum()), 1)
    return losses


def most_matches(is_object: Tensor, num_targets: Tensor, num_candidates: int) -> int:
    """Return a bound for the number of matched locations: exact on the CPU, elsewhere without a wait for the device.

    Args:
        is_object: Whether each location is matched, (M, A) bool.
        num_targets: Number of objects of each frame, (M,), on the CPU.
        num_candidates: The most locations of an object.
    """
    if is_object.device.type == "cpu":
        return int(is_object.sum())
    return min(num_candidates * int(num_targets.sum()), is_object.numel())
