"""Training a detector with queries: matching, loss, and noisy copies of the objects as extra queries.

Objects are matched one-to-one with queries, separately for every decoder layer. Classification is varifocal with the
overlap as its target; boxes learn from L1 and generalised IoU. SciPy computes the matching (extra `rtdetr`).

The noisy copies are extra queries of a training step, which learn to restore an object or to reject it. They need no
matching, so the decoder learns from the first steps on. In our version, padding is hidden from all queries and from the
loss.
Sources: RT-DETR (Zhao et al., 2024); contrastive denoising of DINO (Zhang et al., 2023) with the numbers of RT-DETR.
"""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rvtssm.boxes import cxcywh_to_xyxy
from rvtssm.models.yolox import overlap_cxcywh
from rvtssm.system.machine import on_device

CLASS_WEIGHT, L1_WEIGHT, GIOU_WEIGHT = 1.0, 5.0, 2.0
CLASS_COST, L1_COST, GIOU_COST = 2.0, 5.0, 2.0  # weights in the cost of a match
FOCAL_ALPHA, FOCAL_GAMMA = 0.25, 2.0  # in the class cost of a match
VARIFOCAL_ALPHA, VARIFOCAL_GAMMA = 0.75, 2.0


def match_queries(boxes: Tensor, logits: Tensor, targets: Tensor, num_targets: Tensor, frame: Tensor) -> Tensor:
    """Return the target of every query of M frames, from S stages of the head.

    Args:
        boxes: Boxes of the queries, (S, M, Q, 4) float32 [cx, cy, w, h px].
        logits: Their class logits, (S, M, Q, K) float32.
        targets: Objects (M, N, 5) [class, cx, cy, w, h px], padded to N rows.
        num_targets: Number of objects of each frame, (M,).
        frame: Size of the frame, (4,) [width, height, width, height px].

    Returns:
        Indices (S, M, Q) int64 into the N targets of a frame, -1 for background.
    """
    boxes, logits = boxes.detach(), logits.detach()
    probability = logits.sigmoid()
    is_class = FOCAL_ALPHA * (1 - probability) ** FOCAL_GAMMA * -F.logsigmoid(logits)
    is_not = (1 - FOCAL_ALPHA) * probability**FOCAL_GAMMA * -F.logsigmoid(-logits)
    class_id = targets[..., 0].long()  # (M, N)
    by_target = class_id[None, :, None].expand(*logits.shape[:-1], -1)  # (S, M, Q, N)
    class_cost = (is_class - is_not).gather(-1, by_target)
    target_boxes = targets[None, :, None, :, 1:]
    l1_cost = ((boxes[..., None, :] - target_boxes).abs() / frame).sum(-1)
    giou_cost = _giou_loss(boxes[..., None, :], target_boxes)
    cost = CLASS_COST * class_cost + L1_COST * l1_cost + GIOU_COST * giou_cost
    matched = match_cheapest(cost.flatten(0, 1), num_targets.repeat(len(boxes)))
    return matched.unflatten(0, boxes.shape[:2])


def query_losses(
    boxes: Tensor,
    logits: Tensor,
    matched: Tensor,
    targets: Tensor,
    frame: Tensor,
    counts: Tensor | None = None,
    weights: Tensor | None = None,
) -> Tensor:
    """Return the weighted terms of the loss, summed over frames and queries.

    Args:
        boxes: As in `match_queries`.
        logits: As in `match_queries`.
        matched: Target of every query, (S, M, Q), as `match_queries` returns it.
        targets: Objects (M, N, 5) [class, cx, cy, w, h px], padded to N rows.
        frame: Size of the frame, (4,) [width, height, width, height px].
        counts: Factors (M, Q) of the class terms of the queries; False leaves a query out.
        weights: Factors (M, N) of the targets, for all terms of the queries matched with them.

    Returns:
        The terms (S, 3) [class, L1, generalised IoU].
    """
    stage, row, query = torch.where(matched >= 0)
    answers, objects = boxes[stage, row, query], targets[row, matched[stage, row, query]]
    class_id, object_boxes = objects[:, 0].long(), objects[:, 1:]
    overlap = overlap_cxcywh(answers.detach(), object_boxes).to(logits.dtype)
    where = (stage, row, query, class_id)
    target = torch.zeros_like(logits).index_put(where, overlap)
    is_object = torch.zeros_like(target).index_put(where, torch.ones_like(overlap))
    background = VARIFOCAL_ALPHA * logits.detach().sigmoid() ** VARIFOCAL_GAMMA * (1 - is_object)
    class_ = F.binary_cross_entropy_with_logits(logits, target, background + target, reduction="none")
    if counts is not None:
        class_ = class_ * counts[..., None]
    l1 = ((answers - object_boxes).abs() / frame).sum(-1)
    giou = _giou_loss(answers, object_boxes)
    if weights is not None:
        weight = weights[row, matched[stage, row, query]].to(class_.dtype)
        class_ = class_ * torch.ones_like(class_[..., 0]).index_put((stage, row, query), weight)[..., None]
        l1, giou = l1 * weight, giou * weight
    sums = [class_.new_zeros(len(class_)).index_add(0, stage, term) for term in (l1, giou)]
    return torch.stack([CLASS_WEIGHT * class_.sum((1, 2, 3)), L1_WEIGHT * sums[0], GIOU_WEIGHT * sums[1]], dim=-1)


def _giou_loss(a: Tensor, b: Tensor) -> Tensor:
    """Return 1 - generalised IoU of corresponding boxes [cx, cy, w, h]: (..., 4), (..., 4) -> (...); they broadcast."""
    from torchvision.ops import generalized_box_iou_loss  # loads PyTorch's compiler: 1.5 s

    return generalized_box_iou_loss(*torch.broadcast_tensors(cxcywh_to_xyxy(a), cxcywh_to_xyxy(b)))


def match_cheapest(cost: Tensor, num_targets: Tensor) -> Tensor:
    """Return the target of every query, so that the sum of costs is smallest.

    If a frame has more targets than queries, every query gets a target. Costs that are not finite are replaced by -1e9
    or 1e9.

    Args:
        cost: Cost of each pair, (M, Q, N).
        num_targets: Number of real targets of each frame, (M,); they come first.

    Returns:
        Indices (M, Q) int64 into the N targets, -1 for none, on the device of `cost`.
    """
    from scipy.optimize import linear_sum_assignment  # imported here, because only training needs the extra `rtdetr`

    finite = torch.nan_to_num(cost.detach().double(), nan=1e9, posinf=1e9, neginf=-1e9)
    matched = np.full(cost.shape[:2], -1, np.int64)
    for frame, number, targets in zip(finite.cpu().numpy(), num_targets.tolist(), matched, strict=True):
        queries, of_queries = linear_sum_assignment(frame[:, :number])
        targets[queries] = of_queries
    return torch.from_numpy(matched).to(cost.device)


LABEL_NOISE = 0.25  # share of the copies that get a random class
# In sides of the box: an edge moves by at most this in a copy to restore, by 1 to 2 times this in a copy to reject.
BOX_NOISE = 0.5


class NoisyQueries(NamedTuple):
    """R queries per frame, in groups: N copies to restore, then N copies to reject."""

    class_id: Tensor  # (M, R) int64
    boxes: Tensor  # (M, R, 4) [cx, cy, w, h px]
    target: Tensor  # (M, R) int64, index of the target to restore; -1: to be rejected, -2: a copy of padding
    group: Tensor  # (R,) int64, index of the group


def draw_noisy_queries(targets: Tensor, num_targets: Tensor, num_queries: int, num_classes: int) -> NoisyQueries:
    """Return about 2 * num_queries noisy copies of the targets.

    There are as many groups as fit into `num_queries`, but at least one. If N = 0, there is one row of padding, so that
    all parameters take part in every training step.

    Args:
        targets: Objects (M, N, 5) [class, cx, cy, w, h px], padded to N rows.
        num_targets: Number of objects of each frame, (M,).
        num_queries: Number of copies to restore per frame, rounded down to whole groups.
        num_classes: Number of classes K.
    """
    if targets.shape[1] == 0:
        targets = targets.new_zeros(len(targets), 1, 5)
    num_frames, most = targets.shape[:2]
    num_groups = max(1, num_queries // most)
    shape = (num_frames, num_groups, 2, most)  # the copies to restore come first
    copies = targets[:, None, None].expand(*shape, 5)
    random_class = torch.randint(0, num_classes, shape, device=targets.device)
    class_id = torch.where(torch.rand(shape, device=targets.device) < LABEL_NOISE, random_class, copies[..., 0].long())

    is_rejected = torch.arange(2, device=targets.device)[:, None]  # (2, 1)
    distance = torch.rand(*shape, 4, device=targets.device, dtype=targets.dtype) + is_rejected[..., None]
    sign = torch.randint(0, 2, (*shape, 4), device=targets.device) * 2 - 1
    center, side = copies[..., 1:3], copies[..., 3:5]
    shift = BOX_NOISE * distance * sign * torch.cat([side, side], dim=-1)
    near, far = center - side / 2 + shift[..., :2], center + side / 2 + shift[..., 2:]
    boxes = torch.cat([(near + far) / 2, (far - near).abs().clamp(min=1)], dim=-1)

    index = torch.arange(most, device=targets.device)
    is_real = (index < on_device(num_targets, targets.device)[:, None])[:, None, None]  # (M, 1, 1, N)
    target = torch.where(is_real, torch.where(is_rejected == 0, index, -1), -2)  # (M, 1, 2, N)
    target = target.expand(shape)
    group = torch.arange(num_groups, device=targets.device).repeat_interleave(2 * most)
    return NoisyQueries(class_id.flatten(1), boxes.flatten(1, 3), target.flatten(1), group)


def build_attention_mask(noisy: NoisyQueries, num_queries: int) -> Tensor:
    """Return which query may attend to which, among ordinary queries, which come first, and noisy ones.

    Ordinary queries never attend to noisy ones, which know the answers. Noisy queries attend to their own group and to
    ordinary queries. No query attends to padding, except to itself.

    Args:
        noisy: The R noisy queries.
        num_queries: Number of ordinary queries Q.

    Returns:
        A mask (M, 1, Q + R, Q + R) bool, True where the query of the row may attend to the query of the column.
    """
    ordinary = noisy.group.new_full((num_queries,), -1)
    group = torch.cat([ordinary, noisy.group])
    is_near = (group == -1) | (group[:, None] == group)  # (Q + R, Q + R)
    is_real = torch.cat([noisy.target.new_zeros(len(noisy.target), num_queries), noisy.target], dim=1) > -2
    itself = torch.eye(len(group), dtype=torch.bool, device=group.device)  # no row may be empty
    return ((is_near & is_real[:, None]) | itself)[:, None]
