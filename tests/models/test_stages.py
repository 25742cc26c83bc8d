"""Memory at some strides only: the others start from zero at every step, whoever runs the detector."""

import pytest
import torch
from user_errors import raises

from rvtssm.export.real_detector import DetectorStep
from rvtssm.models.checkpoint import read_checkpoint, write_checkpoint
from rvtssm.models.checkpoint_meta import CheckpointMeta
from rvtssm.models.detector import Detector
from rvtssm.models.model_config import ModelConfig
from rvtssm.models.streams import Streams
from rvtssm.records import DatasetSpec, WindowSettings
from rvtssm.ssm.temporal_config import TemporalConfig

L, B = 3, 2
STRIDES = 4, 8, 16, 32
SOME = pytest.mark.parametrize("strides", [(), (4, 16)], ids=str)


def assert_near(found, wanted, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=tolerance * float(wanted.detach().abs().max()))


def reset_by_hand(plain: Detector, hist, scale, strides):
    """The slow twin: one step at a time, and zero before each at the strides without memory."""
    state, parts = plain.init_state(B), []
    for step in range(len(hist)):
        zero = plain.init_state(B)
        both = zip(STRIDES, state, zero, strict=True)
        state = tuple(own if stride in strides else none for stride, own, none in both)
        (found,), state = plain(hist[step : step + 1], state, scale[step : step + 1])
        parts.append(found)
    return torch.cat(parts)


@pytest.mark.parametrize(("name", "strides"), [("s5", ()), ("s4d", (4, 16)), ("s7", (4, 16)), ("lstm", (4, 16))])
def test_stages_that_forget_start_every_step_from_zero(build_small, draw_counts, name, strides):
    hist, scale = draw_counts(L, B), torch.linspace(0.2, 1.5, L * B).view(L, B)
    detector, plain = build_small(name, strides=strides), build_small(name)
    assert detector.state_dict().keys() == plain.state_dict().keys()
    (found,), _ = detector(hist, None, scale)
    wanted = reset_by_hand(plain, hist, scale, strides)
    assert_near(found, wanted)
    found[..., 4:].square().sum().backward()
    wanted[..., 4:].square().sum().backward()
    for (key, one), other in zip(detector.named_parameters(), plain.parameters(), strict=True):
        if other.grad is not None and other.grad.abs().max() > 1e-6:
            assert (one.grad - other.grad).abs().max() <= 1e-4 * other.grad.abs().max(), key


@pytest.mark.parametrize("name", ["s4d", "lstm"])
@SOME
@torch.no_grad()
def test_cut_anywhere_is_whole_is_one_step_at_a_time(build_small, draw_counts, name, strides):
    detector, hist = build_small(name, strides=strides), draw_counts(L, B)
    (whole,), after = detector(hist, None, 0.5)
    assert [state == () for state in after] == [stride not in strides for stride in STRIDES]
    for cuts in ([1], [2], [1, 2]):
        state, parts = detector.init_state(B), []
        for start, stop in zip([0, *cuts], [*cuts, L], strict=True):
            (found,), state = detector(hist[start:stop], state, 0.5 if start else detector.prepare(0.5))
            parts.append(found)
        assert_near(torch.cat(parts), whole)


@SOME
@torch.no_grad()
def test_streams_carry_what_is_left(build_small, draw_counts, strides):
    detector, hist = build_small(strides=strides), draw_counts(L, B)
    (whole,), _ = detector(hist)
    whole = whole.unflatten(0, (L, B))
    streams, dt_us = Streams(detector, 50_000), torch.full((1, B), 50_000)
    every = torch.tensor([(0, 0), (0, 1)])
    for step in range(L):
        if step == 2:  # another process goes on
            stored, streams = streams.state_dict(), Streams(detector, 50_000)
            streams.load_state_dict(stored)
        (found,) = streams.push(hist[step : step + 1], dt_us, every, [0, 1], [step == 0] * B)
        assert_near(found, whole[step])


@pytest.mark.parametrize("name", ["s5", "s7", "lstm"])
@torch.no_grad()
def test_the_exported_step_has_the_states_that_are_left(build_small, draw_counts, name):
    detector, hist = build_small(name, strides=(8,)), draw_counts(L, B)
    step = DetectorStep(detector)
    assert {state.split("_")[1] for state in step.state_names} == {"8"}
    (whole,), _ = detector(hist, None, 0.5)
    state, parts = step.init_state(B), []
    for frames in hist:
        (found,), state = step(frames, torch.full((B,), 0.5), state)
        parts.append(found)
    assert_near(torch.cat(parts), whole)


def describe(strides=None, **model) -> CheckpointMeta:
    spec = DatasetSpec("two", 64, 96, ("car", "pedestrian"), 50_000, 10, 30, 10, 30)
    config = ModelConfig(size="custom", embed_dim=8, head_dim=4, fpn_blocks=1, **model)
    return CheckpointMeta(spec, config, TemporalConfig(strides=strides), WindowSettings(50_000, None, "exact", 10, 10))


def test_a_checkpoint_says_where_state_is_carried(tmp_path):
    meta = describe(strides=[16, 32])
    write_checkpoint(tmp_path / "model.ckpt", meta.build(), meta)
    found = read_checkpoint(tmp_path / "model.ckpt")
    assert found.temporal_config.strides == (16, 32)
    assert [stage.remembers for stage in found.detector.backbone.stages] == [False, False, True, True]


@pytest.mark.parametrize("strides", [(0,), (-4,), (8, 8)])
def test_strides_that_mean_nothing_are_refused(strides):
    with raises("temporal.strides"):
        TemporalConfig(strides=strides)


def test_strides_that_the_backbone_has_not_are_refused_with_those_it_has():
    with raises("model.strides"):
        describe(strides=[5]).build()
