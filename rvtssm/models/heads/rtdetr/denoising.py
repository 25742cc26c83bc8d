"""Noisy copies of the objects as extra queries of a training step, which learn to restore or to reject them.

These queries need no matching, so the decoder learns from the first steps on. Source: contrastive denoising of DINO
(Zhang et al., 2023) with the numbers of RT-DETR (Zhao et al., 2024). In our version, padding is hidden from all queries
and from the loss.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from rvtssm.system.machine import on_device

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
