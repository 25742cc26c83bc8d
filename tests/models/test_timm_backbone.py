"""A model of timm as the spatial part: its maps, where memory stands, what is frozen, and where weights come from."""

import pytest
import timm
import torch
from user_errors import raises

from rvtssm.models.detector import parameters_by_room
from rvtssm.training import OptimConfig
from rvtssm.training.optim import build_optimizer

MODEL = "test_convnext"


@pytest.fixture
def build_timm(build_small):
    """A function: strides with memory, other values of `ModelConfig` -> a small detector on a model of timm."""

    def build(strides=None, timm_name: str = MODEL, **model):
        return build_small(strides=strides, height=60, width=90, backbone="timm", timm_name=timm_name, **model)

    return build


@pytest.mark.parametrize("name", [MODEL, "test_resnet", "test_efficientnet"])
@torch.no_grad()
def test_the_maps_are_those_of_the_model_after_their_memory(build_timm, draw_counts, name):
    detector, counts = build_timm((8, 32), name), draw_counts(1, 1, 60, 90)
    backbone = detector.backbone
    assert backbone.padded_hw == (64, 96)
    frames = torch.nn.functional.pad(counts.float(), (0, 6, 0, 4))
    maps, state = backbone(frames.permute(0, 1, 3, 4, 2), detector.init_state(1), (1.0, 1.0))
    plain = timm.create_model(name, features_only=True, in_chans=20).eval()
    plain.load_state_dict(backbone.spatial.state_dict())
    wanted = {96 // x.shape[-1]: x.permute(0, 2, 3, 1)[None] for x in plain(frames[0])}
    assert list(maps) == list(backbone.channels) == [4, 8, 16, 32]
    for stride, found in maps.items():
        assert found.shape == (1, 1, 64 // stride, 96 // stride, backbone.channels[stride])
        assert torch.equal(found, wanted[stride]) == (stride == 4), stride  # coarser ones see memory
    assert len(state) == 2 and list(backbone.temporal_layers()) == [8, 32]


def test_a_frozen_model_stays_as_it_is(build_timm, draw_counts):
    detector = build_timm(timm_name="test_resnet", freeze_spatial=True).train()
    before = {name: value.clone() for name, value in detector.state_dict().items()}
    optimizer, _ = build_optimizer(detector, OptimConfig(learning_rate=0.1, weight_decay=0.1), 10, 8)
    (rows,), _ = detector(draw_counts(1, 2, 60, 90))
    rows[..., 4:].square().mean().backward()
    optimizer.step()
    frozen = {id(p) for p in parameters_by_room(detector)["spatial"]}
    assert not frozen & {id(p) for group in optimizer.param_groups for p in group["params"]}
    changed = {name for name, value in detector.state_dict().items() if not torch.equal(value, before[name])}
    assert not {name for name in changed if name.startswith("backbone.spatial.")}  # statistics included
    for part in ("backbone.temporal.", "neck.", "head."):
        assert any(name.startswith(part) for name in changed), part


def test_weights_come_from_a_file_with_the_first_filters_spread_over_the_channels(build_timm, tmp_path):
    torch.manual_seed(3)
    plain = timm.create_model(MODEL)
    torch.save(plain.state_dict(), tmp_path / "model.pth")
    detector = build_timm(timm_weights=str(tmp_path / "model.pth"))
    detector.backbone.load_pretrained()
    given = plain.state_dict()
    own = {
        name.replace("stages_", "stages.").replace("stem_", "stem."): v
        for name, v in detector.backbone.spatial.state_dict().items()
    }
    assert len(own) > 20
    for name, value in own.items():
        if value.shape == given[name].shape:
            assert torch.equal(value, given[name]), name
        else:
            torch.testing.assert_close(value, given[name].repeat(1, 7, 1, 1)[:, :20] * 3 / 20)
    assert [name for name in own if own[name].shape != given[name].shape] == ["stem.0.weight"]


def test_a_checkpoint_needs_the_file_no_more(build_timm, tmp_path):
    assert build_timm(timm_weights=str(tmp_path / "gone.pth"))
    with raises("file.missing"):
        build_timm(timm_weights=str(tmp_path / "gone.pth")).backbone.load_pretrained()


@pytest.mark.parametrize(("content", "key"), [("of another model", "weights.do_not_fit"), ("nothing", "file.kind")])
def test_weights_that_do_not_fit_are_refused(build_timm, tmp_path, content, key):
    path = tmp_path / "model.pth"
    if content == "nothing":
        path.write_bytes(b"nothing")
    else:
        torch.save(timm.create_model("test_resnet").state_dict(), path)
    detector = build_timm(timm_weights=str(path))
    with raises(key):
        detector.backbone.load_pretrained()


def test_recomputing_changes_no_gradient(build_timm, draw_counts):
    gradients = []
    for strides in ((), (4, 16)):
        detector = build_timm().train()
        detector.backbone.recompute(strides)
        (rows,), _ = detector(draw_counts(2, 1, 60, 90))
        rows[..., 4:].square().mean().backward()
        gradients.append([p.grad for p in detector.backbone.parameters() if p.grad is not None])
    for plain, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(recomputed, plain)
