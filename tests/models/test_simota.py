"""SimOTA for all frames at once against a loop over frames and objects, and what it owes to every object."""

import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rvtssm.boxes import cxcywh_to_xyxy, pairwise_iou
from rvtssm.models.heads.yolox import assign_targets, locate

HEIGHT, WIDTH, NUM_CLASSES = 64, 96, 3
LOCATIONS = locate(HEIGHT, WIDTH)


def draw(seed: int, num_frames: int, num_boxes: int, spread: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """Predictions (M, A, 5 + K) near their locations, targets (M, N, 5) and how many of them are real."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    num_locations = len(LOCATIONS)
    centres = LOCATIONS[:, :2] + 4 * normal(num_frames, num_locations, 2)
    sizes = 20 * (0.5 * normal(num_frames, num_locations, 2)).exp()
    predictions = torch.cat([centres, sizes, normal(num_frames, num_locations, 1 + NUM_CLASSES)], dim=-1)
    middle = torch.tensor([WIDTH / 2, HEIGHT / 2])
    box_centres = middle + spread * middle * (2 * torch.rand(num_frames, num_boxes, 2, generator=generator) - 1)
    box_sizes = 24 * (0.5 * normal(num_frames, num_boxes, 2)).exp()
    class_id = torch.randint(NUM_CLASSES, (num_frames, num_boxes, 1), generator=generator)
    num_targets = torch.randint(0, num_boxes + 1, (num_frames,), generator=generator)
    return predictions, torch.cat([class_id, box_centres, box_sizes], dim=-1), num_targets


def assign_one_frame(predictions: Tensor, targets: Tensor) -> Tensor:
    """SimOTA as the YOLOX paper tells it, one object after the other: (A, 5 + K), (N, 5) -> (A,)."""
    matched = torch.full((len(predictions),), -1)
    if not len(targets):
        return matched
    near = torch.stack(
        [(LOCATIONS[:, :2] - target[1:3]).abs().amax(dim=1) < 1.5 * LOCATIONS[:, 2] for target in targets]
    )
    candidates = torch.where(near.any(dim=0))[0]
    if not len(candidates):
        return matched
    chosen = predictions[candidates]
    iou = pairwise_iou(cxcywh_to_xyxy(targets[:, 1:]), cxcywh_to_xyxy(chosen[:, :4]))
    probability = (chosen[:, 4:5].sigmoid() * chosen[:, 5:].sigmoid()).sqrt()
    cost = torch.empty_like(iou)
    for n, target in enumerate(targets):
        one_hot = F.one_hot(target[0].long(), NUM_CLASSES).float().expand_as(probability)
        cost[n] = F.binary_cross_entropy(probability, one_hot, reduction="none").sum(dim=1)
        cost[n] += -3 * (iou[n] + 1e-8).log() + 1e6 * ~near[n, candidates]
    claims = torch.zeros_like(iou, dtype=torch.bool)
    for n in range(len(targets)):
        best_overlaps = iou[n].topk(min(10, len(candidates))).values
        num_matches = max(int(best_overlaps.sum()), 1)
        claims[n, cost[n].topk(num_matches, largest=False).indices] = True
    for column, location in enumerate(candidates):
        if claims[:, column].sum() > 1:
            matched[location] = cost[:, column].argmin()
        elif claims[:, column].any():
            matched[location] = claims[:, column].int().argmax()
    return matched


@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 12), st.sampled_from([0.1, 0.5, 1.0, 1.3]))
def test_all_at_once_is_one_after_the_other(seed, num_frames, num_boxes, spread):
    predictions, targets, num_targets = draw(seed, num_frames, num_boxes, spread)
    found = assign_targets(predictions, targets, num_targets, LOCATIONS)
    for frame, number in enumerate(num_targets.tolist()):
        wanted = assign_one_frame(predictions[frame], targets[frame, :number])
        assert torch.equal(found[frame], wanted)


def test_padding_is_never_assigned():
    predictions, targets, num_targets = draw(seed=2, num_frames=4, num_boxes=6)
    found = assign_targets(predictions, targets, num_targets, LOCATIONS)
    assert (found < num_targets[:, None]).all()
    targets[torch.arange(6) >= num_targets[:, None]] = torch.nan
    targets[..., 0] = targets[..., 0].nan_to_num()
    assert torch.equal(assign_targets(predictions, targets, num_targets, LOCATIONS), found)
