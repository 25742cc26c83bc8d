"""The detection loss: overlap of boxes, objectness everywhere, class where there is an object.

Source: YOLOX (Ge et al., 2021) without its L1 term, as RVT trains it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from rvtssm.models.contracts import at_least_one
from rvtssm.models.simota import assign_targets, overlap_cxcywh

IOU_WEIGHT = 5.0


def yolox_loss(
    predictions: Tensor,
    targets: Tensor,
    num_targets: Tensor,
    locations: Tensor,
    divisor: Callable[[int], Tensor | int] = at_least_one,
) -> dict[str, Tensor]:
    """Return the losses of M frames as a dict of scalars.

    predictions (M, A, 5 + K) as the head gives them, targets (M, N, 5) [class, cx, cy, w, h] px of which the first
    num_targets (M,) are real, locations (A, 3) [centre x px, centre y px, stride px].

    `iou` (weighted by 5), `objectness` and `class` are sums over the M frames, divided by what `divisor` makes of the
    number of matched locations; `total` is their sum, `num_foreground` the matched locations per object.
    """
    predictions = predictions.to(torch.promote_types(predictions.dtype, torch.float32))
    matched = assign_targets(predictions, targets, num_targets, locations)
    frame, location = torch.where(matched >= 0)
    answers, wanted = predictions[frame, location], targets[frame, matched[frame, location]]
    norm = divisor(len(frame))

    iou = overlap_cxcywh(answers[:, :4], wanted[:, 1:])
    objectness = F.binary_cross_entropy_with_logits(
        predictions[..., 4], (matched >= 0).to(predictions.dtype), reduction="sum"
    )
    class_target = F.one_hot(wanted[:, 0].long(), predictions.shape[-1] - 5) * iou.detach()[:, None]
    class_ = F.binary_cross_entropy_with_logits(answers[:, 5:], class_target, reduction="sum")
    losses = {
        "iou": IOU_WEIGHT * (1 - iou**2).sum() / norm,
        "objectness": objectness / norm,
        "class": class_ / norm,
    }
    losses["total"] = losses["iou"] + losses["objectness"] + losses["class"]
    losses["num_foreground"] = len(frame) / num_targets.sum().clamp(min=1)
    return losses
