"""From YOLOX predictions to detections: probabilities, a score, a threshold, non-maximum suppression within each class.

Source: YOLOX (Ge et al., 2021). With `class_only`, the score of RVT's evaluation, boxes are selected and suppressed by
objectness times class probability, and then ranked by class probability alone.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rvtssm.boxes import cxcywh_to_xyxy
from rvtssm.models import PostprocessConfig
from rvtssm.records import Detections


def to_probabilities(predictions: Tensor) -> Tensor:
    """Convert the logits of predictions to probabilities.

    Args:
        predictions: Rows (..., 5 + K) [cx, cy, w, h, objectness logit, class logits].

    Returns:
        The same rows with probabilities; the boxes do not change.
    """
    return torch.cat([predictions[..., :4], predictions[..., 4:].sigmoid()], dim=-1)


def select_boxes(probabilities: Tensor, min_score: float, nms_iou: float) -> Tensor:
    """Return the boxes of one frame that pass the threshold and non-maximum suppression, best first.

    Args:
        probabilities: Rows (A, 5 + K) of `to_probabilities`.
        min_score: Least objectness times class probability.
        nms_iou: Overlap above which the worse of two boxes of a class is dropped.

    Returns:
        Rows (N, 7) [left, top, right, bottom px, objectness, class probability, class index].
    """
    class_probability, class_id = probabilities[:, 5:].max(dim=1)
    score = probabilities[:, 4] * class_probability
    others = torch.stack([probabilities[:, 4], class_probability, class_id.to(probabilities.dtype)], dim=1)
    rows = torch.cat([cxcywh_to_xyxy(probabilities[:, :4]), others], dim=1)
    above = score >= min_score
    rows = rows[above]
    score = score[above]
    class_id = class_id[above]
    if len(rows) == 0:
        return rows
    xyxy = rows[:, :4]
    apart = class_id * (xyxy.max() - xyxy.min() + 1)  # boxes of different classes do not overlap if moved by this
    return rows[load_nms()(xyxy + apart[:, None], score, nms_iou)]


@functools.cache
def load_nms() -> Callable[[Tensor, Tensor, float], Tensor]:
    """Return `torchvision.ops.nms` without importing torchvision, which would load PyTorch's compiler: 1.5 s."""
    package = find_spec("torchvision")
    for library in Path(str(package and package.origin)).parent.glob("_C*"):
        torch.ops.load_library(library)
    if not hasattr(torch.ops.torchvision, "nms"):  # a version that keeps its operators elsewhere
        import torchvision  # noqa: F401
    nms: Callable[[Tensor, Tensor, float], Tensor] = torch.ops.torchvision.nms
    return nms


@torch.no_grad()
def postprocess(
    predictions: Tensor, t_us: Sequence[int] | Tensor, config: PostprocessConfig | None = None
) -> list[Detections]:
    """Return the detections of M frames.

    Args:
        predictions: Rows (M, A, 5 + K) with logits, as for `to_probabilities`.
        t_us: Time of each frame in microseconds, (M,).
        config: Which boxes count as detections; None means the defaults.
    """
    config = config or PostprocessConfig()
    detections = []
    for probabilities, time in zip(to_probabilities(predictions.float()), t_us, strict=True):
        rows = select_boxes(probabilities, config.min_score, config.nms_iou).cpu()
        score = rows[:, 5]
        if config.score != "class_only":
            score = rows[:, 4] * score
        order = score.argsort(descending=True, stable=True)[: config.max_detections]
        rows = rows[order]
        score = score[order]
        detections.append(Detections(rows[:, :4].numpy(), score.numpy(), rows[:, 6].long().numpy(), int(time)))
    return detections


def to_sensor(frame: Detections, height: int, width: int, downsample: int) -> Detections:
    """Return detections in pixels of the sensor. Boxes are clipped to the frame, and boxes outside of it are dropped.

    Args:
        frame: Detections in pixels of a frame.
        height: Height of the frame in pixels.
        width: Width of the frame in pixels.
        downsample: Side of a pixel of the frame in pixels of the sensor.
    """
    xyxy = np.clip(frame.xyxy, 0, np.array([width, height, width, height], np.float32))
    keep = (xyxy[:, 2] > xyxy[:, 0]) & (xyxy[:, 3] > xyxy[:, 1])
    return replace(frame, xyxy=xyxy * np.float32(downsample))[keep]
