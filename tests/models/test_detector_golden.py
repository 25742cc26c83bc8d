"""Backbone, neck, head, losses and gradients against the recorded official models."""

import pytest
import torch
from torch import Tensor

from rvtssm.models.official import rename_official
from rvtssm.models.postprocess import to_probabilities

LOSSES = {
    "total": "loss_loss",
    "iou": "loss_iou_loss",
    "objectness": "loss_conf_loss",
    "class": "loss_cls_loss",
    "num_foreground": "loss_num_fg",
}


def run_backbone(golden) -> tuple[dict[int, Tensor], tuple]:
    hist = golden.tensor("input")
    state = golden.detector.init_state(hist.shape[1])
    with torch.no_grad():
        return golden.detector.backbone(hist.float().permute(0, 1, 3, 4, 2), state, (1.0,) * 4)


def last_frames(golden) -> Tensor:
    num_steps, num_streams = golden.arrays["input"].shape[:2]
    return torch.tensor([(num_steps - 1, stream) for stream in range(num_streams)])


def to_image(leaf: Tensor, features: Tensor) -> Tensor:
    """A state (B * H * W, P) as (B, P, H, W)."""
    return leaf.view(*features.shape[1:4], -1).permute(0, 3, 1, 2)


def test_ssm_stages_and_states(golden_ssm):
    maps, states = run_backbone(golden_ssm)
    for number, (features, state) in enumerate(zip(maps.values(), states, strict=True), start=1):
        golden_ssm.assert_near(features.permute(0, 1, 4, 2, 3), f"stage{number}")
        golden_ssm.assert_near(to_image(state, features), f"state{number}")


def test_rvt_stages_and_states(golden_rvt):
    maps, states = run_backbone(golden_rvt)
    for number, (features, (hidden, cell)) in enumerate(zip(maps.values(), states, strict=True), start=1):
        golden_rvt.assert_near(features.permute(0, 1, 4, 2, 3), f"stage{number}")
        golden_rvt.assert_near(to_image(hidden, features), f"state{number}_h")
        golden_rvt.assert_near(to_image(cell, features), f"state{number}_c")


def test_neck(golden_ssm):
    maps, _ = run_backbone(golden_ssm)
    with torch.no_grad():
        found = golden_ssm.detector.neck(
            {stride: features[-1].permute(0, 3, 1, 2) for stride, features in maps.items()}
        )
    for level, features in enumerate(found.values()):
        golden_ssm.assert_near(features, f"fpn{level}")


@pytest.mark.golden
@pytest.mark.parametrize("model", ["golden_ssm", "golden_rvt"])
def test_predictions(model, request):
    golden = request.getfixturevalue(model)
    with torch.no_grad():
        predictions, _ = golden.detector(golden.tensor("input"), frame_index=last_frames(golden))
    golden.assert_near(to_probabilities(predictions.rows), "pred_eval")


def test_losses_and_gradients(golden_ssm):
    detector = golden_ssm.detector.train()
    targets = golden_ssm.tensor("targets_cls_cx_cy_w_h")
    num_targets = (targets.sum(dim=2) > 0).sum(dim=1)
    predictions, _ = detector(golden_ssm.tensor("input"), frame_index=last_frames(golden_ssm))
    losses = detector.head.loss(predictions, targets, num_targets)
    for ours, theirs in LOSSES.items():
        assert losses[ours].item() == pytest.approx(float(golden_ssm.arrays[theirs]), rel=1e-4), ours

    losses["total"].backward()
    recorded = dict(zip(golden_ssm.arrays["grad_names"].tolist(), golden_ssm.arrays["grad_norms"], strict=True))
    prefix = "" if all(name.startswith("mdl.") for name in recorded) else "mdl."
    wanted = rename_official({prefix + name: torch.tensor(norm) for name, norm in recorded.items()})
    found = {name: parameter.grad.norm() for name, parameter in detector.named_parameters()}
    assert found.keys() == wanted.keys()
    largest = max(wanted.values())
    for name, norm in wanted.items():
        assert abs(found[name] - norm) <= 1e-3 * largest, name
