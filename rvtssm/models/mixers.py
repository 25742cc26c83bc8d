"""The spatial mixers that a stage can have; this table is where a new one is added."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from rvtssm.models.attention import AttentionPair
from rvtssm.models.convnext import ConvNeXtBlocks
from rvtssm.models.ssm2d import SSM2DPair

# Called as AttentionPair is: (dim, partition, head_dim, *, normed_input, layer_scale, drop_path); a module from
# (B, H, W, C) to the same, for H and W that are multiples of the partition.
SPATIAL_MIXERS: dict[str, Callable[..., nn.Module]] = {
    "attention": AttentionPair,
    "convnext": ConvNeXtBlocks,
    "ssm2d": SSM2DPair,
}
