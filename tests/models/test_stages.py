"""Memory in some stages only: the others start from zero at every step, whoever runs the detector."""

from __future__ import annotations

from dataclasses import asdict

import pytest
import torch

from rvtssm.models.checkpoint import CheckpointMeta, read_checkpoint, write_checkpoint
from rvtssm.models.detector import Detector, ModelConfig
from rvtssm.models.step import DetectorStep
from rvtssm.models.streams import Streams
from rvtssm.records import DatasetSpec, WindowSettings
from rvtssm.ssm import TEMPORAL_LAYERS, TemporalConfig

L, B = 3, 2
every_layer = pytest.mark.parametrize("name", TEMPORAL_LAYERS)
SOME = pytest.mark.parametrize("stages", [(), (4,), (1, 3)], ids=str)


def assert_near(found, wanted, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=tolerance * float(wanted.detach().abs().max()))


def reset_by_hand(plain: Detector, hist, scale, stages):
    """The slow twin: one step at a time, and zero for the stages that forget before each."""
    state, parts = plain.init_state(B), []
    for step in range(len(hist)):
        zero = plain.init_state(B)
        state = tuple(own if n in stages else none for n, (own, none) in enumerate(zip(state, zero, strict=True), 1))
        found, state = plain(hist[step : step + 1], state, scale[step : step + 1])
        parts.append(found)
    return torch.cat(parts)


@every_layer
@SOME
def test_stages_that_forget_start_every_step_from_zero(build_small, draw_counts, name, stages):
    hist, scale = draw_counts(L, B), torch.linspace(0.2, 1.5, L * B).view(L, B)
    detector, plain = build_small(name, stages=stages), build_small(name)
    assert detector.state_dict().keys() == plain.state_dict().keys()
    found, _ = detector(hist, None, scale)
    wanted = reset_by_hand(plain, hist, scale, stages)
    assert_near(found, wanted)
    found[..., 4:].square().sum().backward()
    wanted[..., 4:].square().sum().backward()
    for (key, one), other in zip(detector.named_parameters(), plain.parameters(), strict=True):
        if other.grad is not None and other.grad.abs().max() > 1e-6:
            assert (one.grad - other.grad).abs().max() <= 1e-4 * other.grad.abs().max(), key


@every_layer
@SOME
@torch.no_grad()
def test_cut_anywhere_is_whole_is_one_step_at_a_time(build_small, draw_counts, name, stages):
    detector, hist = build_small(name, stages=stages), draw_counts(L, B)
    whole, after = detector(hist, None, 0.5)
    assert [state == () for state in after] == [number not in stages for number in (1, 2, 3, 4)]
    for cuts in ([1], [2], [1, 2]):
        state, parts = detector.init_state(B), []
        for start, stop in zip([0, *cuts], [*cuts, L], strict=True):
            found, state = detector(hist[start:stop], state, 0.5 if start else detector.prepare(0.5))
            parts.append(found)
        assert_near(torch.cat(parts), whole)


@SOME
@torch.no_grad()
def test_streams_carry_what_is_left(build_small, draw_counts, stages):
    detector, hist = build_small(stages=stages), draw_counts(L, B)
    whole, _ = detector(hist)
    whole = whole.unflatten(0, (L, B))
    streams, dt_us = Streams(detector, 50_000), torch.full((1, B), 50_000)
    every = torch.tensor([(0, 0), (0, 1)])
    for step in range(L):
        if step == 2:  # another process goes on
            stored, streams = streams.state_dict(), Streams(detector, 50_000)
            streams.load_state_dict(stored)
        found = streams.push(hist[step : step + 1], dt_us, every, [0, 1], [step == 0] * B)
        assert_near(found, whole[step])


@every_layer
@torch.no_grad()
def test_the_exported_step_has_the_states_that_are_left(build_small, draw_counts, name):
    detector, hist = build_small(name, stages=(2,)), draw_counts(L, B)
    step = DetectorStep(detector)
    assert {state.split("_")[1] for state in step.state_names} == {"8"}
    whole, _ = detector(hist, None, 0.5)
    state, parts = step.init_state(B), []
    for frames in hist:
        found, state = step(frames, torch.full((B,), 0.5), state)
        parts.append(found)
    assert_near(torch.cat(parts), whole)


def describe(stages=None, **model) -> CheckpointMeta:
    spec = DatasetSpec("two", 64, 96, ("car", "pedestrian"), 50_000, 10, 30, 10, 30)
    config = ModelConfig(size="custom", embed_dim=8, head_dim=4, fpn_blocks=1, **model)
    return CheckpointMeta(spec, config, TemporalConfig(stages=stages), WindowSettings(50_000, None, "exact", 10, 10))


def test_a_checkpoint_says_which_stages_remember(tmp_path):
    meta = describe(stages=[3, 4])
    write_checkpoint(tmp_path / "model.ckpt", meta.build(), meta)
    found = read_checkpoint(tmp_path / "model.ckpt")
    assert found.temporal_config.stages == (3, 4)
    assert [stage.remembers for stage in found.detector.backbone.stages] == [False, False, True, True]


def test_a_checkpoint_from_before_there_was_a_choice_remembers_everywhere(tmp_path):
    meta = describe()
    written = meta.to_dict()
    del written["temporal"]["stages"], written["model"]["mixer"]
    torch.save({"rvtssm": written, "state_dict": meta.build().state_dict()}, tmp_path / "old.ckpt")
    found = read_checkpoint(tmp_path / "old.ckpt")
    assert asdict(found.temporal_config) == asdict(meta.temporal_config)
    assert found.model_config.mixer == "attention"
    assert all(stage.remembers for stage in found.detector.backbone.stages)


@pytest.mark.parametrize("stages", [(0,), (5,), (2, 2)])
def test_stages_that_are_none_are_refused(stages):
    with pytest.raises(ValueError, match=r"temporal.stages=\[.*of 1, 2, 3 and 4, null for all"):
        TemporalConfig(stages=stages)
