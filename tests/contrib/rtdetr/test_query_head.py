"""The head with queries: its attention is the formula, its matching is as good as scipy's, and it learns its boxes."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from user_errors import raises

from rvtssm.boxes import cxcywh_to_xyxy, pairwise_iou
from rvtssm.contrib.rtdetr.decoder import NUM_POINTS, DeformableAttention, refine_boxes
from rvtssm.contrib.rtdetr.head import RtdetrHead, RtdetrPredictions
from rvtssm.contrib.rtdetr.loss import build_attention_mask, draw_noisy_queries, match_cheapest
from rvtssm.datasets import DATASETS
from rvtssm.models import ModelConfig, PostprocessConfig
from rvtssm.models.checkpoint_meta import CheckpointMeta
from rvtssm.models.detector import build_detector
from rvtssm.records import WindowSettings
from rvtssm.ssm import TemporalConfig

CHANNELS = {8: 8, 16: 16, 32: 32}
HEIGHT, WIDTH = 64, 96
OPTIONS = {"queries": 20, "layers": 2, "denoising": 8}
CONFIG = ModelConfig(head="rtdetr", head_options=OPTIONS)
TARGETS = torch.tensor(
    [
        [[1, 30, 20, 20, 10], [0, 60, 40, 12, 30], [0, 70, 20, 16, 16]],
        [[0, 50, 32, 40, 24], [0, 0, 0, 0, 0], [0, 0, 0, 0, 0]],
    ]
).float()
NUM_TARGETS = torch.tensor([3, 1])


def build_head(config: ModelConfig = CONFIG, height: int = HEIGHT, width: int = WIDTH) -> RtdetrHead:
    """As after some training: no layer is zero."""
    torch.manual_seed(0)
    head = RtdetrHead(config, CHANNELS, 2, (height, width))
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return head


def draw_maps(num_frames: int = 2, height: int = HEIGHT, width: int = WIDTH) -> dict[int, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {s: torch.randn(num_frames, c, height // s, width // s, generator=generator) for s, c in CHANNELS.items()}


def loss_of(head: RtdetrHead, predictions, targets=TARGETS, num_targets=NUM_TARGETS) -> dict[str, Tensor]:
    return head.loss(predictions, targets, num_targets)


def floor(x: Tensor) -> int:
    return math.floor(float(x.detach()))


def slow_attention(layer: DeformableAttention, queries, boxes, memory, sizes) -> Tensor:
    """Equation 3 of Deformable DETR for one frame, pixel by pixel."""
    num_heads, width = layer.num_heads, memory.shape[-1] // layer.num_heads
    values = layer.value(memory)
    rows = []
    for query, (cx, cy, w, h) in zip(queries, boxes, strict=True):
        weights = layer.weight(query).view(num_heads, -1).softmax(dim=-1)
        offsets = layer.offset(query).view(num_heads, len(sizes), NUM_POINTS, 2)
        heads = []
        for i in range(num_heads):
            read, first = torch.zeros(width, dtype=memory.dtype), 0
            for s, (rows_of_map, columns_of_map) in enumerate(sizes):
                for p in range(NUM_POINTS):
                    # a box reaches half a side from its centre; pixel 0 has its centre at half a pixel
                    x = (cx + offsets[i, s, p, 0] / NUM_POINTS * w / 2) * columns_of_map - 0.5
                    y = (cy + offsets[i, s, p, 1] / NUM_POINTS * h / 2) * rows_of_map - 0.5
                    for row in (floor(y), floor(y) + 1):
                        for column in (floor(x), floor(x) + 1):
                            if 0 <= row < rows_of_map and 0 <= column < columns_of_map:
                                near = (1 - (x - column).abs()) * (1 - (y - row).abs())
                                pixel = values[first + row * columns_of_map + column, i * width : (i + 1) * width]
                                read = read + weights[i, s * NUM_POINTS + p] * near * pixel
                first += rows_of_map * columns_of_map
            heads.append(read)
        rows.append(layer.out(torch.cat(heads)))
    return torch.stack(rows)


def test_the_attention_is_its_formula_forward_and_backward():
    torch.manual_seed(0)
    sizes = [(5, 7), (3, 4), (1, 2)]
    layer = DeformableAttention(8, 2, len(sizes)).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    queries = torch.randn(2, 3, 8, dtype=torch.float64)
    boxes = torch.rand(2, 3, 4, dtype=torch.float64)  # some points lie outside of the maps
    memory = torch.randn(2, 43 + 6, 8, dtype=torch.float64)
    inputs = [x.requires_grad_() for x in (queries, boxes, memory)]
    found = layer(*inputs, sizes)
    wanted = torch.stack([slow_attention(layer, *rows, sizes) for rows in zip(*inputs, strict=True)])
    torch.testing.assert_close(found, wanted)
    direction = torch.randn_like(found)
    leaves = [*inputs, *layer.parameters()]
    for a, b in zip(
        torch.autograd.grad((found * direction).sum(), leaves),
        torch.autograd.grad((wanted * direction).sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("ties", [False, True])
def test_each_target_has_one_query_and_each_query_one_target(ties):
    rng = np.random.default_rng(0)
    for _ in range(100):
        num_queries, most = rng.integers(1, 12, 2)
        cost = rng.normal(size=(3, num_queries, most))
        cost = cost.round() if ties else cost
        num_targets = rng.integers(0, most + 1, 3)
        matched = match_cheapest(torch.from_numpy(cost), torch.from_numpy(num_targets)).numpy()
        for found, number in zip(matched, num_targets, strict=True):
            queries = np.flatnonzero(found >= 0)
            assert len(queries) == len(set(found[queries])) == min(number, num_queries)
            assert (found < number).all()


def test_costs_that_are_not_finite_are_avoided():
    cost = torch.tensor([[[math.nan, 1.0], [2.0, math.inf], [5.0, 6.0]]])
    assert match_cheapest(cost, torch.tensor([2])).tolist() == [[1, 0, -1]]
    assert match_cheapest(torch.full((1, 3, 2), math.nan), torch.tensor([2])).sort().values.tolist() == [[-1, 0, 1]]


def test_a_box_is_refined_in_its_own_units():
    boxes = torch.tensor([[100.0, 50, 20, 10], [10, 5, 2, 1]])
    assert torch.equal(refine_boxes(boxes, torch.zeros(2, 4)), boxes)
    change = torch.tensor([0.5, -1, math.log(2), 100])
    torch.testing.assert_close(refine_boxes(boxes, change)[:, :3], torch.tensor([[110.0, 40, 40], [11, 4, 4]]))
    assert refine_boxes(boxes, change).isfinite().all()


@pytest.mark.parametrize("with_noise", [False, True])
def test_every_parameter_gets_a_gradient(with_noise):
    head = build_head(CONFIG if with_noise else replace(CONFIG, head_options={**OPTIONS, "denoising": 0}))
    losses = loss_of(head, head(draw_maps(), (TARGETS, NUM_TARGETS)))
    losses["total"].backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in head.parameters())
    assert ("denoising" in losses) == with_noise
    torch.testing.assert_close(losses["total"], sum(value for name, value in losses.items() if name != "total"))


@pytest.mark.parametrize("targets", [TARGETS, TARGETS[:, :0]], ids=["padding", "no rows"])
def test_frames_without_objects_teach_background_to_all(targets):
    """Processes that train together wait for the gradient of every parameter."""
    head = build_head()
    none = torch.zeros(2, dtype=torch.int64)
    losses = loss_of(head, head(draw_maps(), (targets, none)), targets, none)
    losses["total"].backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in head.parameters())
    assert losses["class"] > 0
    assert losses["l1"] == losses["giou"] == losses["denoising"] == 0


def test_no_frame_gives_a_loss_of_the_same_terms():
    """Processes average their losses term by term."""
    head = build_head()
    some = loss_of(head, head(draw_maps(), (TARGETS, NUM_TARGETS)))
    none = loss_of(head, head.empty(), TARGETS[:0], NUM_TARGETS[:0])
    assert none.keys() == some.keys()
    assert all(value == 0 for value in none.values())
    assert head.decode(head.empty(), []) == []
    with torch.no_grad():
        found = head.eval()({stride: x[:0] for stride, x in draw_maps().items()})
    assert [x.shape for x in found[:2]] == [x.shape for x in head.empty()[:2]]


def test_the_order_and_the_padding_of_targets_change_nothing():
    head = build_head()
    predictions = head(draw_maps(), None)
    wanted = loss_of(head, predictions)
    padded = torch.cat([TARGETS, torch.full((2, 4, 5), 7.0)], dim=1)
    padded[..., 0] = 1
    padded[:, :3] = TARGETS
    turned = TARGETS.clone()
    turned[0] = TARGETS[0, [2, 0, 1]]
    for targets in (padded, turned):
        torch.testing.assert_close(loss_of(head, predictions, targets), wanted)


def test_the_loss_is_divided_by_what_the_divisor_makes_of_the_objects():
    head = build_head()
    predictions, asked = head(draw_maps(), (TARGETS, NUM_TARGETS)), []
    found = head.loss(predictions, TARGETS, NUM_TARGETS, lambda number: asked.append(number) or 8)
    assert asked == [4]
    for name, value in loss_of(head, predictions).items():
        torch.testing.assert_close(found[name] * 2, value)


def test_every_stage_and_the_noisy_queries_count():
    """The earlier stages are scored like the last one."""
    head = build_head()
    predictions = head(draw_maps(), (TARGETS, NUM_TARGETS))
    stages = zip(predictions.earlier_boxes.unbind(1), predictions.earlier_logits.unbind(1), strict=True)
    single = [loss_of(head, RtdetrPredictions(*stage))["total"] for stage in stages]
    assert len(single) == OPTIONS["layers"]  # the selection and all layers but the last
    losses = loss_of(head, predictions)
    torch.testing.assert_close(losses["earlier"], sum(single))
    assert losses["denoising"] > 0


def test_a_perfect_answer_costs_nothing_and_a_doubled_one_does():
    head = build_head()
    boxes = torch.tensor([10.0, 10, 5, 5]).repeat(2, 20, 1)
    logits = torch.full((2, 20, 2), -20.0)
    for frame, number in enumerate(NUM_TARGETS):
        for i, target in enumerate(TARGETS[frame, :number]):
            boxes[frame, 3 * i], logits[frame, 3 * i, int(target[0])] = target[1:], 20.0
    losses = loss_of(head, RtdetrPredictions(boxes, logits))
    assert float(losses["total"]) == pytest.approx(0, abs=1e-4)
    boxes[1, 5], logits[1, 5] = boxes[1, 0], logits[1, 0]  # there is no suppression: the second answer is wrong
    assert loss_of(head, RtdetrPredictions(boxes, logits))["class"] > 1


def test_noisy_queries_change_no_other_query():
    head = build_head()
    maps = draw_maps()
    with torch.no_grad():
        alone, together = head(maps, None), head(maps, (TARGETS, NUM_TARGETS))
    for name in ("boxes", "logits", "earlier_boxes", "earlier_logits"):
        torch.testing.assert_close(getattr(together, name), getattr(alone, name))
    assert together.noisy_boxes.shape == (2, OPTIONS["layers"], 12, 4)  # 8 // 3 groups of 3 pairs


def test_noisy_copies_are_restored_where_near_and_rejected_where_far():
    torch.manual_seed(0)
    targets, num_targets = TARGETS.repeat(50, 1, 1), NUM_TARGETS.repeat(50)
    noisy = draw_noisy_queries(targets, num_targets, 60, 2)
    assert noisy.boxes.shape == (100, 120, 4)
    shape = (100, 20, 2, 3)  # frames, groups, kinds, targets
    target, class_id = noisy.target.view(shape), noisy.class_id.view(shape)
    near, far = cxcywh_to_xyxy(noisy.boxes.view(*shape, 4)).unbind(2)
    true = cxcywh_to_xyxy(targets[:, None, :, 1:]).expand(-1, 20, -1, -1)
    half = targets[:, None, :, [3, 4, 3, 4]].expand(-1, 20, -1, -1) / 2
    is_real = (torch.arange(3) < num_targets[:, None])[:, None].expand(-1, 20, -1)
    assert (((near - true).abs() <= half + 1e-3) | ~is_real[..., None]).all()
    assert torch.equal(target[:, :, 0], torch.where(is_real, torch.arange(3), -2))
    assert torch.equal(target[:, :, 1], torch.where(is_real, -1, -2))
    overlap = [torch.diagonal(pairwise_iou(x, true), dim1=-2, dim2=-1)[is_real].mean() for x in (near, far)]
    assert overlap[0] > 0.35 > 0.2 > overlap[1]
    assert (noisy.boxes[..., 2:] >= 1).all()
    wrong = (class_id != targets[:, None, None, :, 0]).transpose(2, 3)[is_real].float().mean()
    assert 0.1 < wrong < 0.15  # a quarter is drawn anew, of two classes


def test_noisy_queries_see_their_group_and_nobody_sees_padding():
    noisy = draw_noisy_queries(TARGETS, NUM_TARGETS, 6, 2)  # two groups of 2 x 3
    mask = build_attention_mask(noisy, 4)[:, 0]
    assert mask.shape == (2, 16, 16)
    assert mask[:, :, :4].all()  # all see the ordinary queries
    assert not mask[:, :4, 4:].any()  # those see no noisy one
    assert not mask[:, 4:10, 10:].any() and not mask[:, 10:, 4:10].any()
    assert mask[0, 4:10, 4:10].all() and mask[0, 10:, 10:].all()
    real = torch.tensor([True, False, False, True, False, False])
    assert torch.equal(mask[1, 4:10, 4:10], real.expand(6, 6) | torch.eye(6, dtype=torch.bool))


def test_detections_keep_the_limits():
    logits = torch.tensor([[[2.0, 1.0], [-9.0, 0.0], [-9.0, -9.0]], [[-9.0, -9.0]] * 3])
    boxes = torch.tensor([[50.0, 40, 20, 10], [20, 20, 10, 10], [5, 5, 2, 2]]).expand(2, 3, 4)
    predictions = RtdetrPredictions(boxes, logits)
    first, second = RtdetrHead.decode(predictions, [7, 8], PostprocessConfig(min_score=0.3))
    assert (first.t_us, second.t_us, len(second)) == (7, 8, 0)
    assert first.class_id.tolist() == [0, 1, 1]  # the best pairs of query and class
    np.testing.assert_allclose(first.score, 1 / (1 + np.exp([-2.0, -1, 0])), rtol=1e-6)
    np.testing.assert_allclose(first.xyxy, [[40, 35, 60, 45], [40, 35, 60, 45], [15, 15, 25, 25]])
    limited = RtdetrHead.decode(predictions, [7, 8], PostprocessConfig(min_score=0, max_detections=2))
    assert [len(found) for found in limited] == [2, 2]
    many = RtdetrHead.decode(predictions, [7, 8], PostprocessConfig(min_score=0, max_detections=100))
    assert [len(found) for found in many] == [6, 6]
    assert [len(found) for found in RtdetrHead.decode(predictions, [7, 8])] == [3, 0]
    assert RtdetrHead.describe_scores(PostprocessConfig(min_score=0.3)).startswith("class probability, from 0.3")


def test_a_small_frame_has_fewer_queries():
    head = build_head(height=32, width=32).eval()
    with torch.no_grad():
        found = head(draw_maps(1, 32, 32))
    assert found.boxes.shape[1] == head.empty().boxes.shape[1] == 20
    head = build_head(replace(CONFIG, head_options={**OPTIONS, "queries": 100}), height=32, width=32).eval()
    with torch.no_grad():
        assert head(draw_maps(1, 32, 32)).boxes.shape[1] == head.empty().boxes.shape[1] == 16 + 4 + 1


def test_the_loss_is_float32_under_lower_precision():
    head = build_head()
    with torch.autocast("cpu", torch.bfloat16):
        predictions = head(draw_maps(), (TARGETS, NUM_TARGETS))
        losses = loss_of(head, predictions)
    assert {x.dtype for x in predictions if x.is_floating_point()} == {torch.float32}
    assert {value.dtype for value in losses.values()} == {torch.float32}
    losses["total"].backward()
    assert all(parameter.grad.isfinite().all() for parameter in head.parameters())


def test_it_learns_the_boxes_of_two_frames():
    torch.manual_seed(0)
    config = replace(CONFIG, head_options={**OPTIONS, "queries": 12, "denoising": 4})
    head, maps = RtdetrHead(config, CHANNELS, 2, (HEIGHT, WIDTH)), draw_maps()
    optimizer = torch.optim.AdamW(head.parameters(), lr=5e-3, fused=True)
    for _ in range(60):
        losses = loss_of(head, head(maps, (TARGETS, NUM_TARGETS)))
        optimizer.zero_grad()
        losses["total"].backward()
        optimizer.step()
    with torch.no_grad():
        found = head.eval()(maps)
    for frame, targets, number in zip(head.decode(found, [0, 1]), TARGETS, NUM_TARGETS, strict=True):
        best = slice(0, int(number))
        assert (frame.score[best] > 0.5).all() and (frame.score[number:] < 0.5).all()
        overlap = pairwise_iou(cxcywh_to_xyxy(targets[best, 1:]).numpy(), frame.xyxy[best])
        assert (overlap.max(axis=1) > 0.7).all()
        assert (frame.class_id[best][overlap.argmax(axis=1)] == targets[best, 0].numpy()).all()


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"queries": 0}, "setting.out_of_range"),
        ({"queries": 1025}, "setting.out_of_range"),
        ({"denoising": -1}, "setting.out_of_range"),
        ({"layers": 2.5}, "setting.form"),
        ({"dim": 40}, "setting.out_of_range"),
        ({"query": 3}, "setting.unknown"),
    ],
)
def test_a_wrong_option_is_refused_by_name(options, kind):
    with raises(kind, f"model.head_options.{next(iter(options))}"):
        build_head(ModelConfig(head="rtdetr", head_options=options))


def test_another_head_has_no_such_options():
    with raises("setting.unknown", "model.head_options.queries"):
        build_detector(ModelConfig(head_options={"queries": 3}), TemporalConfig(), 32, 32, num_classes=1)


def test_weights_of_earlier_versions_have_options():
    """Their files had keys such as `rtdetr_queries`, also with another head."""
    described = CheckpointMeta(DATASETS["gen1"], CONFIG, TemporalConfig(), WindowSettings()).to_dict()
    model = described["model"]
    earlier = {name: value for name, value in model.items() if not name.endswith("_options")}
    earlier |= {f"rtdetr_{name}": value for name, value in OPTIONS.items()}
    for head, options in (("rtdetr", OPTIONS), ("yolox", {})):
        meta = CheckpointMeta.from_dict({**described, "model": {**earlier, "head": head}})
        assert (meta.model_config.head, meta.model_config.head_options) == (head, options)
