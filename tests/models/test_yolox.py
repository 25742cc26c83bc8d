"""YOLOX: what its loss rewards, SimOTA against a loop over objects, and the official boxes in the official order."""

import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torchvision.ops import batched_nms
from user_errors import raises

from rvtssm.boxes import cxcywh_to_xyxy, pairwise_iou
from rvtssm.models import PostprocessConfig
from rvtssm.models.postprocess import postprocess, select_boxes, to_probabilities
from rvtssm.models.yolox import assign_targets, locate, yolox_loss

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


# SimOTA


HEIGHT, WIDTH, NUM_CLASSES = 64, 96, 3
PLACES = locate(HEIGHT, WIDTH)


def draw_objects(seed: int, num_frames: int, num_boxes: int, spread: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """Predictions (M, A, 5 + K) near their locations, targets (M, N, 5) and how many of them are real."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    num_locations = len(PLACES)
    centres = PLACES[:, :2] + 4 * normal(num_frames, num_locations, 2)
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
    near = torch.stack([(PLACES[:, :2] - target[1:3]).abs().amax(dim=1) < 1.5 * PLACES[:, 2] for target in targets])
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
    predictions, targets, num_targets = draw_objects(seed, num_frames, num_boxes, spread)
    found = assign_targets(predictions, targets, num_targets, PLACES)
    for frame, number in enumerate(num_targets.tolist()):
        wanted = assign_one_frame(predictions[frame], targets[frame, :number])
        assert torch.equal(found[frame], wanted)


def test_padding_is_never_assigned():
    predictions, targets, num_targets = draw_objects(seed=2, num_frames=4, num_boxes=6)
    found = assign_targets(predictions, targets, num_targets, PLACES)
    assert (found < num_targets[:, None]).all()
    targets[torch.arange(6) >= num_targets[:, None]] = torch.nan
    targets[..., 0] = targets[..., 0].nan_to_num()
    assert torch.equal(assign_targets(predictions, targets, num_targets, PLACES), found)


# post-processing


def drawn(num_frames: int = 2, num_locations: int = 200, seed: int = 0) -> Tensor:
    """Crowded boxes of three classes, scores as logits."""
    generator = torch.Generator().manual_seed(seed)
    predictions = torch.randn(num_frames, num_locations, 8, generator=generator)
    predictions[..., :2] = 50 + 20 * predictions[..., :2]
    predictions[..., 2:4] = 20 * (0.3 * predictions[..., 2:4]).exp()
    return predictions


def test_same_boxes_in_the_same_order_as_recorded(golden_dir):
    arrays = np.load(golden_dir / "model_small.npz")
    recorded = [re.fullmatch(r"postprocess_conf=([\d.]+)_image=(\d+)", name) for name in arrays.files]
    for match in filter(None, recorded):
        probabilities = torch.from_numpy(arrays["postprocess_input"][int(match[2])])
        found = select_boxes(probabilities, min_score=float(match[1]), nms_iou=0.45)
        np.testing.assert_allclose(found.numpy(), arrays[match[0]], rtol=1e-5, atol=1e-5, err_msg=match[0])
    assert any(recorded)


@pytest.mark.parametrize("num_locations", [0, 1, 7, 300, 3001])
def test_suppression_is_that_of_torchvision(num_locations):
    probabilities = to_probabilities(drawn(num_frames=1, num_locations=num_locations))[0]
    if num_locations <= 1000:  # torchvision leaves open how it orders equal scores of more boxes
        probabilities[::5, 4:] = probabilities[:1, 4:].clone()
    class_probability, class_id = probabilities[:, 5:].max(dim=1)
    score, xyxy = probabilities[:, 4] * class_probability, cxcywh_to_xyxy(probabilities[:, :4])
    kept = batched_nms(xyxy, score, class_id, 0.45)
    found = select_boxes(probabilities, min_score=0, nms_iou=0.45)
    columns = [xyxy, probabilities[:, 4:5], class_probability[:, None], class_id[:, None]]
    assert torch.equal(found, torch.cat(columns, dim=1)[kept])


@pytest.mark.parametrize("score", ["objectness_times_class", "class_only"])
def test_the_best_detection_comes_first(score):
    predictions = drawn()
    found = postprocess(predictions, [100, 200], PostprocessConfig(score=score))
    assert [frame.t_us for frame in found] == [100, 200]
    for frame in found:
        assert len(frame) > 10
        assert (np.diff(frame.score) <= 0).all()


def test_class_only_keeps_the_same_boxes_under_another_score():
    predictions = drawn(num_frames=1)
    both = postprocess(predictions, [0], PostprocessConfig())[0]
    class_only = postprocess(predictions, [0], PostprocessConfig(score="class_only"))[0]
    assert sorted(map(tuple, both.xyxy)) == sorted(map(tuple, class_only.xyxy))
    probabilities = to_probabilities(predictions)[0]
    for box, score, class_id in zip(class_only.xyxy, class_only.score, class_only.class_id, strict=True):
        row = (cxcywh_to_xyxy(probabilities[:, :4]) - torch.from_numpy(box)).abs().sum(dim=1).argmin()
        assert score == pytest.approx(probabilities[row, 5 + class_id].item())


def test_no_two_boxes_of_a_class_overlap_more_than_allowed_and_none_scores_less():
    config = PostprocessConfig(min_score=0.2, nms_iou=0.3)
    for frame in postprocess(drawn(), [0, 1], config):
        assert (frame.score >= 0.2).all()
        iou = pairwise_iou(frame.xyxy, frame.xyxy)
        same_class = frame.class_id[:, None] == frame.class_id
        assert (iou[same_class & ~np.eye(len(frame), dtype=bool)] <= 0.3).all()


def test_the_largest_number_of_detections_keeps_the_best():
    everything = postprocess(drawn(), [0, 1])
    for some, frame in zip(postprocess(drawn(), [0, 1], PostprocessConfig(max_detections=5)), everything, strict=True):
        np.testing.assert_array_equal(some.xyxy, frame.xyxy[:5])


def test_nothing_above_the_threshold_is_an_empty_frame():
    predictions = drawn()
    predictions[..., 4] = -20
    for frame in postprocess(predictions, torch.tensor([5, 6])):
        assert len(frame) == 0
        assert frame.xyxy.shape == (0, 4)


def test_an_unknown_score_is_refused():
    with raises("setting.choice"):
        PostprocessConfig(score="objectness")
