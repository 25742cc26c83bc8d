"""Post-processing: the official boxes in the official order, and what a list of detections promises."""

import re

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.ops import batched_nms
from user_errors import raises

from rvtssm.boxes import cxcywh_to_xyxy, pairwise_iou
from rvtssm.models.model_config import PostprocessConfig
from rvtssm.models.postprocess import postprocess, select_boxes, to_probabilities


def draw(num_frames: int = 2, num_locations: int = 200, seed: int = 0) -> Tensor:
    """Crowded boxes of three classes, scores as logits."""
    generator = torch.Generator().manual_seed(seed)
    predictions = torch.randn(num_frames, num_locations, 8, generator=generator)
    predictions[..., :2] = 50 + 20 * predictions[..., :2]
    predictions[..., 2:4] = 20 * (0.3 * predictions[..., 2:4]).exp()
    return predictions


@pytest.mark.golden
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
    probabilities = to_probabilities(draw(num_frames=1, num_locations=num_locations))[0]
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
    predictions = draw()
    found = postprocess(predictions, [100, 200], PostprocessConfig(score=score))
    assert [frame.t_us for frame in found] == [100, 200]
    for frame in found:
        assert len(frame) > 10
        assert (np.diff(frame.score) <= 0).all()


def test_class_only_keeps_the_same_boxes_under_another_score():
    predictions = draw(num_frames=1)
    both = postprocess(predictions, [0], PostprocessConfig())[0]
    class_only = postprocess(predictions, [0], PostprocessConfig(score="class_only"))[0]
    assert sorted(map(tuple, both.xyxy)) == sorted(map(tuple, class_only.xyxy))
    probabilities = to_probabilities(predictions)[0]
    for box, score, class_id in zip(class_only.xyxy, class_only.score, class_only.class_id, strict=True):
        row = (cxcywh_to_xyxy(probabilities[:, :4]) - torch.from_numpy(box)).abs().sum(dim=1).argmin()
        assert score == pytest.approx(probabilities[row, 5 + class_id].item())


def test_no_two_boxes_of_a_class_overlap_more_than_allowed_and_none_scores_less():
    config = PostprocessConfig(min_score=0.2, nms_iou=0.3)
    for frame in postprocess(draw(), [0, 1], config):
        assert (frame.score >= 0.2).all()
        iou = pairwise_iou(frame.xyxy, frame.xyxy)
        same_class = frame.class_id[:, None] == frame.class_id
        assert (iou[same_class & ~np.eye(len(frame), dtype=bool)] <= 0.3).all()


def test_the_largest_number_of_detections_keeps_the_best():
    everything = postprocess(draw(), [0, 1])
    for some, frame in zip(postprocess(draw(), [0, 1], PostprocessConfig(max_detections=5)), everything, strict=True):
        np.testing.assert_array_equal(some.xyxy, frame.xyxy[:5])


def test_nothing_above_the_threshold_is_an_empty_frame():
    predictions = draw()
    predictions[..., 4] = -20
    for frame in postprocess(predictions, torch.tensor([5, 6])):
        assert len(frame) == 0
        assert frame.xyxy.shape == (0, 4)


def test_an_unknown_score_is_refused():
    with raises("model.score"):
        PostprocessConfig(score="objectness")
