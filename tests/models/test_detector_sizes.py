"""Sizes: parameters as published, padding and partition derived from the frame, starting values."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from timm.layers import DropPath
from torch import nn
from user_errors import raises

from rvtssm.models.backbones.attention import SelfAttention
from rvtssm.models.backbones.rvt import RvtBackbone, derive_partition
from rvtssm.models.detector import build_detector, count_parameters
from rvtssm.models.model_config import MODEL_SIZES, ModelConfig
from rvtssm.models.pafpn import CspLayer
from rvtssm.ssm.temporal_config import TemporalConfig


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
    with raises("model.frame_size"):
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
    ("changes", "key"),
    [
        ({"memory": "chunk"}, "model.memory_chunk"),
        ({"memory_chunk": 21}, "model.memory_chunk"),
        ({"memory": "forever"}, "settings.choice"),
        ({"num_blocks": (1, 1)}, "model.stages"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(changes, key):
    with raises(key):
        ModelConfig(**changes)


@torch.no_grad()
def test_head_scores_are_logits_and_boxes_pixels(build_small, draw_counts):
    (predictions,), _ = build_small()(draw_counts(1, 1))
    assert predictions.dtype == torch.float32
    assert (predictions[..., 2:4] > 0).all()
    assert predictions[..., 4:].mean().item() == pytest.approx(-math.log(99), abs=2)
