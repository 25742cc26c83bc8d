"""Sizes: parameters as published, padding and partition derived from the frame, starting values."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from timm.layers import DropPath
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from user_errors import raises

from rvtssm.export.graphs import DetectorStep
from rvtssm.models import MODEL_SIZES, ModelConfig
from rvtssm.models.attention import SelfAttention
from rvtssm.models.checkpoint import read_checkpoint, write_checkpoint
from rvtssm.models.checkpoint_meta import CheckpointMeta
from rvtssm.models.detector import Detector, build_detector, count_parameters
from rvtssm.models.pafpn import CspLayer
from rvtssm.models.rvt import RvtBackbone, derive_partition
from rvtssm.models.streams import Streams
from rvtssm.records import DatasetSpec, WindowSettings
from rvtssm.ssm import TemporalConfig
from tests.closeness import assert_near


@pytest.mark.parametrize(
    ("size", "temporal", "published"),
    [
        ("base", "s5", 18_192_149),
        ("small", "s5", 9_677_205),
        ("base", "lstm", 18_536_469),
        ("base", "s4d", 16_570_389),  # 16.5 M in the paper
        ("small", "s4d", 8_787_285),  # 8.8 M in the paper
    ],
)
def test_parameter_counts_are_those_of_the_paper(size, temporal, published):
    detector = build_detector(MODEL_SIZES[size], TemporalConfig(name=temporal), 240, 304, num_classes=2)
    counts = count_parameters(detector)
    assert counts["total"] == published
    assert counts["total"] == sum(parameter.numel() for parameter in detector.parameters())
    assert counts["total"] == sum(number for room, number in counts.items() if room != "total")


def test_nano_has_under_a_million_parameters_and_a_third_of_the_products_of_tiny():
    """Products, because a time depends on the machine."""

    def costs(size):
        detector = build_detector(MODEL_SIZES[size], TemporalConfig(), 240, 304, num_classes=3).eval()
        state, hist = detector.init_state(1), torch.zeros(1, 1, 20, 240, 304, dtype=torch.uint8)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            detector(hist, state, 1.0, torch.zeros(1, 2, dtype=torch.int64))
        return sum(parameter.numel() for parameter in detector.parameters()), counter.get_total_flops()

    (nano, nano_flops), (_, tiny_flops) = costs("nano"), costs("tiny")
    assert 0.8e6 < nano < 1e6
    assert nano_flops < tiny_flops / 3


@pytest.mark.parametrize(
    ("frame", "padded", "partition"),
    [
        ((240, 304), (256, 320), (8, 10)),  # Gen1, as published
        ((360, 640), (384, 640), (6, 10)),  # 1Mpx at half resolution, as published
        ((720, 1280), (768, 1280), (6, 10)),
        ((120, 160), (128, 160), (4, 5)),
        ((1, 1), (32, 32), (1, 1)),
    ],
)
def test_padding_and_partition_follow_from_the_frame(frame, padded, partition):
    with torch.device("meta"):
        backbone = RvtBackbone(MODEL_SIZES["tiny"], TemporalConfig(), frame, 20)
    assert (backbone.padded_hw, backbone.partition) == (padded, partition)


@given(st.integers(1, 3000), st.integers(1, 3000))
def test_every_frame_fits_with_windows_of_at_most_ten_pixels(height, width):
    partition, split = derive_partition(height, width)
    for size, window in zip((height, width), partition, strict=True):
        full = 32 * split * window
        assert size <= full < size + 32 * split
        assert 1 <= window <= 10


def test_an_empty_frame_is_refused():
    with raises("setting.out_of_range"):
        build_detector(MODEL_SIZES["tiny"], TemporalConfig(), 0, 10, num_classes=2)


def test_a_detector_has_the_numbers_of_the_configuration():
    config = ModelConfig(
        embed_dim=8, dim_multiplier=(1, 2, 3, 5), num_blocks=(2, 1, 0, 1), head_dim=4, fpn_blocks=3, drop_path=0.25
    )
    detector = build_detector(config, TemporalConfig(), 64, 96, num_classes=2)
    assert [stage.downsample.conv.out_channels for stage in detector.backbone.stages] == [8, 16, 24, 40]
    assert [len(stage.blocks) for stage in detector.backbone.stages] == [2, 1, 0, 1]
    # only what comes right after the norm of the downsampling goes without one
    assert [isinstance(pair.block.norm1, nn.Identity) for pair in detector.backbone.stages[0].blocks] == [True, False]
    assert {part.head_dim for part in detector.modules() if isinstance(part, SelfAttention)} == {4}
    assert {part.drop_prob for part in detector.modules() if isinstance(part, DropPath)} == {0.25}
    assert {len(part.blocks) for part in detector.modules() if isinstance(part, CspLayer)} == {3}


@pytest.mark.parametrize(
    ("changes", "key", "about"),
    [
        ({"memory": "chunk"}, "setting.conflict", "model.memory_chunk=null"),
        ({"memory_chunk": 21}, "setting.conflict", "model.memory_chunk=21"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(changes, key, about):
    with raises(key, about):
        ModelConfig(**changes)


@torch.no_grad()
def test_head_scores_are_logits_and_boxes_pixels(build_small, draw_counts):
    (predictions,), _ = build_small()(draw_counts(1, 1))
    assert predictions.dtype == torch.float32
    assert (predictions[..., 2:4] > 0).all()
    assert predictions[..., 4:].mean().item() == pytest.approx(-math.log(99), abs=2)


# memory at some strides


L, B = 3, 2
STRIDES = 4, 8, 16, 32
SOME = pytest.mark.parametrize("strides", [(), (4, 16)], ids=str)


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
