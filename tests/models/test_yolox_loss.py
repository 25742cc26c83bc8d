"""What the loss rewards, and what it must not depend on."""

import pytest
import torch
from torch import Tensor

from rvtssm.models.heads.yolox import locate, yolox_loss

LOCATIONS = locate(64, 96)
TARGETS = torch.tensor(
    [[[1.0, 30, 20, 24, 16], [0, 70, 40, 30, 30]], [[0, 50, 32, 40, 20], [0, 0, 0, 0, 0]]]
)  # (2, 2, 5)
NUM_TARGETS = torch.tensor([2, 1])


def draw(seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    raw = torch.randn(2, len(LOCATIONS), 7, generator=generator)
    raw[..., :2] = LOCATIONS[:, :2] + 4 * raw[..., :2]
    raw[..., 2:4] = 20 * (0.3 * raw[..., 2:4]).exp()
    return raw


def test_a_class_is_no_reason_to_move_a_box():
    predictions = draw().requires_grad_()
    yolox_loss(predictions, TARGETS, NUM_TARGETS, LOCATIONS)["class"].backward()
    gradient = predictions.grad
    assert gradient[..., 5:].any() and not gradient[..., :5].any(), "overlap is its target, and a constant"


def test_padded_targets_and_the_order_of_frames_do_not_matter():
    predictions = draw()
    wanted = yolox_loss(predictions, TARGETS, NUM_TARGETS, LOCATIONS)
    more_padding = torch.cat([TARGETS, torch.zeros(2, 3, 5)], dim=1)
    padded = yolox_loss(predictions, more_padding, NUM_TARGETS, LOCATIONS)
    turned = yolox_loss(predictions.flip(0), TARGETS.flip(0), NUM_TARGETS.flip(0), LOCATIONS)
    for name, value in wanted.items():
        assert padded[name].item() == pytest.approx(value.item(), rel=1e-6), name
        assert turned[name].item() == pytest.approx(value.item(), rel=1e-6), name


@pytest.mark.parametrize("num_boxes", [0, 2])
def test_without_objects_only_objectness_is_learned(num_boxes):
    predictions = draw().requires_grad_()
    losses = yolox_loss(predictions, TARGETS[:, :num_boxes], torch.tensor([0, 0]), LOCATIONS)
    losses["total"].backward()
    assert losses["iou"].item() == losses["class"].item() == losses["num_foreground"].item() == 0
    assert losses["total"].item() == losses["objectness"].item() > 0
    assert predictions.grad[..., 4].all()
    assert not predictions.grad[..., :4].any()
    assert not predictions.grad[..., 5:].any()


@pytest.mark.parametrize("cut", [0, 1])  # at 0 the first share has no frame at all
def test_the_mean_over_shares_is_the_loss_of_the_whole(cut):
    """What processes need that train together: divided by all matched locations over the number of shares."""
    predictions = draw().double()
    counts: list[int] = []
    whole = yolox_loss(predictions, TARGETS, NUM_TARGETS, LOCATIONS, lambda count: counts.append(count) or count)
    shares = [
        yolox_loss(predictions[part], TARGETS[part], NUM_TARGETS[part], LOCATIONS, lambda _: counts[0] / 2)
        for part in (slice(cut), slice(cut, None))
    ]
    for name in ("iou", "objectness", "class", "total"):
        assert sum(share[name].item() for share in shares) / 2 == pytest.approx(whole[name].item(), rel=1e-12), name


def test_half_precision_is_computed_in_full():
    predictions = draw().bfloat16()
    found = yolox_loss(predictions, TARGETS, NUM_TARGETS, LOCATIONS)
    wanted = yolox_loss(predictions.float(), TARGETS, NUM_TARGETS, LOCATIONS)
    assert found["total"].dtype == torch.float32
    assert found["total"].item() == wanted["total"].item()
