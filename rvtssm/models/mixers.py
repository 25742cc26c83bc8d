"""The spatial mixers that a stage of the rvt backbone can have; a new one is added to this table."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from rvtssm.models.attention import AttentionPair
from rvtssm.models.convnext import ConvNeXtBlocks
from rvtssm.models.ssm2d import SSM2DPair

# Each is called with (dim, partition, model, normed_input), as AttentionPair is, and
# returns a module from (B, H, W, C) to the same shape, where H and W are multiples of the partition.
SPATIAL_MIXERS: dict[str, Callable[..., nn.Module]] = {
    "attention": AttentionPair,
    "convnext": ConvNeXtBlocks,
    "ssm2d": SSM2DPair,
}
