"""Weights that start another detector: what fits is taken, what can be fitted is, and every tensor is accounted for."""

import copy
from dataclasses import replace

import pytest
import torch
from user_errors import raises

from rvtssm.models import ModelConfig
from rvtssm.models.checkpoint import write_checkpoint
from rvtssm.models.checkpoint_meta import CheckpointMeta
from rvtssm.models.transfer import read_source, transfer
from rvtssm.records import DatasetSpec, WindowSettings
from rvtssm.ssm import TemporalConfig

STEM = "backbone.stages.0.downsample.conv.weight"
SPEC = DatasetSpec("two", 64, 96, ("car", "pedestrian"), 50_000, 10, 30, 10, 30)
META = CheckpointMeta(
    SPEC,
    ModelConfig(size="custom", embed_dim=8, head_dim=4, num_blocks=(1, 0, 0, 0), fpn_blocks=0),
    TemporalConfig(),
    WindowSettings(50_000, None, "exact", 10, 10),
)


def with_model(**changes) -> CheckpointMeta:
    return replace(META, model_config=replace(META.model_config, **changes))


def with_windows(**changes) -> CheckpointMeta:
    return replace(META, windows=replace(META.windows, **changes))


@pytest.fixture
def start(tmp_path):
    """A function: two descriptions -> the detector of the first, that of the second filled from it, and the report."""

    def fill(before: CheckpointMeta, after: CheckpointMeta):
        torch.manual_seed(1)
        source = before.build()
        write_checkpoint(tmp_path / "start.ckpt", source, before)
        torch.manual_seed(2)
        target = after.build()
        untouched = copy.deepcopy(target.state_dict())
        report = transfer(read_source(tmp_path / "start.ckpt"), target, after)
        assert [row.name for row in report] == list(target.state_dict())
        filled, given = target.state_dict(), source.state_dict()
        for row in report:  # what is said is what was done
            own, new = filled[row.name], untouched[row.name]
            if row.outcome == "taken":
                assert torch.equal(own, given[row.name]), row
            elif row.outcome == "left":
                assert torch.equal(own, new) and row.reason, row
            else:
                assert row.outcome == "resized" and row.reason, row
        return source, target, {row.name: row for row in report}

    return fill


def outcomes(report, outcome: str) -> set[str]:
    return {name for name, row in report.items() if row.outcome == outcome}


@pytest.mark.parametrize("name", ["s4", "selective_s5", "lstm"])
@torch.no_grad()
def test_the_same_model_is_taken_whole(start, name):
    meta = replace(META, temporal_config=TemporalConfig(name=name))
    source, target, report = start(meta, meta)
    assert outcomes(report, "taken") == set(report)
    hist = torch.randint(0, 11, (2, 1, 20, 64, 96), dtype=torch.uint8)
    assert torch.equal(source.eval()(hist)[0].rows, target.eval()(hist)[0].rows)


def test_another_resolution_and_memory_in_fewer_stages_take_all(start):
    after = replace(META, spec=replace(SPEC, height=360, width=640), temporal_config=TemporalConfig(strides=(32,)))
    _, target, report = start(META, after)
    assert outcomes(report, "taken") == set(report)
    assert target.backbone.partition == (6, 10) and not target.backbone.stages[0].remembers


def test_classes_are_known_by_their_names(start):
    after = replace(META, spec=replace(SPEC, class_names=("bus", "pedestrian", "car")))
    source, target, report = start(META, after)
    changed = {name for name in report if ".class_out." in name}
    assert outcomes(report, "resized") == changed and outcomes(report, "taken") == set(report) - changed
    for one, other in zip(source.head.levels, target.head.levels, strict=True):
        assert torch.equal(other.class_out.weight[[2, 1]], one.class_out.weight)
        assert torch.equal(other.class_out.bias[[2, 1]], one.class_out.bias)
    assert (
        report["head.levels.0.class_out.weight"].reason == "of bus, pedestrian, car, the weights have pedestrian, car"
    )


def test_the_noisy_queries_of_a_class_are_known_by_its_name(start):
    before = with_model(head="rtdetr")
    after = replace(before, spec=replace(SPEC, class_names=("pedestrian", "car")))
    source, target, report = start(before, after)
    assert torch.equal(target.head.embed_class.weight[[1, 0]], source.head.embed_class.weight)
    assert outcomes(report, "resized") == {name for name in report if report[name].part == "head classes"}


@pytest.mark.parametrize("name", ["selective_s5", "lstm"])
def test_another_temporal_layer_stays_new_as_a_whole(start, name):
    _, _, report = start(META, replace(META, temporal_config=TemporalConfig(name=name)))
    assert outcomes(report, "left") == {key for key in report if ".temporal." in key}
    assert report["backbone.stages.0.temporal." + ("gates.weight" if name == "lstm" else "ssm.D")].reason.startswith(
        "the weights have temporal.name=s5"
    )


@pytest.mark.parametrize(
    ("name", "before", "after", "said"),
    [
        ("s5", {"discretization": "bilinear"}, {"discretization": "zoh"}, "temporal.discretization=bilinear"),
        ("s4d", {"discretization": "zoh"}, {"discretization": "dirac"}, "temporal.discretization=zoh"),
        ("selective_s5", {"discretization": "bilinear", "block": "gated"}, {}, "temporal.block=gated, temporal.disc"),
        ("s7", {"block": "feed_forward"}, {}, "temporal.block=feed_forward"),
    ],
)
def test_weights_of_another_step_or_block_are_refused_by_name(start, name, before, after, said):
    metas = [replace(META, temporal_config=TemporalConfig(name=name, **changes)) for changes in (before, after)]
    _, _, report = start(*metas)
    assert outcomes(report, "left") >= {key for key in report if ".temporal.ssm." in key}
    assert report["backbone.stages.0.temporal.ssm.D"].reason.startswith(f"the weights have {said}")


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "rule"), [("s4", "bilinear"), ("s4d", "zoh"), ("s5", "bilinear"), ("selective_s5", "zoh")]
)
def test_a_layer_of_another_stride_takes_the_steps_of_the_weights(start, name, rule):
    meta = replace(META, temporal_config=TemporalConfig(name=name, discretization=rule))
    source, target, _ = start(meta, replace(meta, windows=replace(meta.windows, stride_us=10_000)))
    for one, other in zip(source.backbone.stages, target.backbone.stages, strict=True):
        x = torch.randn(4, 3, one.temporal.dim if hasattr(one.temporal, "dim") else len(one.temporal.ssm.D))
        torch.testing.assert_close(other.temporal(x)[0], one.temporal(x, step_scale=0.2)[0], rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_other_bins_answer_alike_to_the_same_events(start):
    source, target, report = start(META, with_windows(num_bins=5))
    assert outcomes(report, "resized") == {STEM} and report[STEM].reason == "10 to 5 bins"
    even = torch.ones(1, 2, 10, 32, 32)
    found = target.backbone.stages[0].downsample.conv(2 * even[:, :, :5].flatten(1, 2))
    wanted = source.backbone.stages[0].downsample.conv(even.flatten(1, 2))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_filters_of_surfaces_are_taken_for_the_same_time_constants_only(start):
    before = with_windows(representation="surfaces")
    source, target, report = start(before, before)
    assert not outcomes(report, "left")
    assert torch.equal(target.state_dict()[STEM], source.state_dict()[STEM])
    after = with_windows(representation="surfaces", time_constants_us=(5_000, 20_000, 60_000, 200_000))
    _, _, report = start(before, after)
    assert outcomes(report, "left") == {STEM} and "time constants (5000, 17100" in report[STEM].reason


@pytest.mark.parametrize(
    ("after", "is_left"),
    [
        (replace(META, spec=replace(SPEC, class_names=("bus", "truck"))), lambda key: ".class_out." in key),
        (replace(META, temporal_config=TemporalConfig(state_size=6)), lambda key: ".temporal." in key),
        # as many channels, of another meaning
        (
            with_windows(representation="surfaces", time_constants_us=tuple(range(1000, 11_000, 1000))),
            lambda key: key == STEM,
        ),
        (with_model(head_dim=8), lambda key: ".attention." in key),
        (with_model(mixer="convnext"), lambda key: ".blocks." in key and "backbone" in key),
    ],
    ids=["classes", "state", "representation", "heads", "mixer"],
)
def test_what_has_another_meaning_or_size_is_left_and_the_rest_is_taken(start, after, is_left):
    _, _, report = start(META, after)
    assert outcomes(report, "left") == {key for key in report if is_left(key)}


def test_weights_with_nothing_in_common_are_refused(start):
    with raises("weights.do_not_fit"):
        start(META, with_model(embed_dim=16))


def test_a_file_without_weights_is_refused(tmp_path):
    with raises("weights.missing"):
        read_source(tmp_path / "missing.ckpt")
    torch.save({"weights": 3}, tmp_path / "other.ckpt")
    with raises("weights.not_a_checkpoint"):
        read_source(tmp_path / "other.ckpt")


@pytest.mark.golden
@pytest.mark.parametrize("fixture", ["golden_ssm", "golden_rvt"])
def test_released_weights_start_a_detector_of_other_classes_and_frames(request, tmp_path, fixture):
    golden = request.getfixturevalue(fixture)
    torch.save({"state_dict": golden.weights}, tmp_path / "released.ckpt")
    name = "s5" if fixture == "golden_ssm" else "lstm"
    stem = golden.detector.backbone.stages[0].downsample.conv.weight
    model = ModelConfig(size="custom", embed_dim=len(stem), head_dim=golden.head_dim, fpn_blocks=1)
    windows = replace(META.windows, num_bins=stem.shape[1] // 2)
    classes = tuple("abcde")
    spec = replace(SPEC, class_names=classes, height=128, width=160)
    meta = CheckpointMeta(spec, model, TemporalConfig(name=name), windows)
    detector = meta.build()
    report = transfer(read_source(tmp_path / "released.ckpt"), detector, meta)
    left = {row.name for row in report if row.outcome == "left"}
    own, released = detector.state_dict(), golden.detector.state_dict()
    assert left >= {key for key in own if ".class_out." in key}
    assert not [key for key in left if key.startswith("backbone")]
    for row in report:
        if row.outcome == "taken":
            assert torch.equal(own[row.name], released[row.name]), row.name
