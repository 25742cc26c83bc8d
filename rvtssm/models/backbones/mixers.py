"""The spatial mixers that a stage of the rvt backbone can have. Add new mixers to the table below.

`ConvNeXtBlocks` mixes each pixel with its neighbours by large depthwise filters. Source: A ConvNet for the 2020s (Liu
et al., 2022), with the block from timm. The appendix of State Space Models for Event Cameras (Zubic et al., 2024) has
an S5-ConvNext-B, but does not describe its internals. We replace one pair of attentions by three blocks, which have
nearly as many parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from rvtssm.models.backbones.attention import AttentionPair
from rvtssm.models.backbones.ssm2d import SSM2DPair

if TYPE_CHECKING:
    from rvtssm.models.model_config import ModelConfig

_BLOCKS_PER_PAIR = 3  # a block has 8 C^2 parameters and its filter; a pair of attentions with MLPs has 24 C^2


class ConvNeXtBlocks(nn.Module):
    """Three ConvNeXt blocks with filters of 7 x 7 pixels: (B, H, W, C) -> (B, H, W, C).

    Args:
        dim: Number of channels C.
        partition: Ignored; it is for attention.
        model: Settings of the detector.
        normed_input: Ignored; it is for attention.
    """

    def __init__(self, dim: int, partition: tuple[int, int], model: ModelConfig, normed_input: bool) -> None:
        super().__init__()
        from timm.models.convnext import ConvNeXtBlock  # imported here because it takes seconds

        scales: dict[str, Any] = {"ls_init_value": model.layer_scale, "drop_path": model.drop_path}
        self.blocks = nn.Sequential(*(ConvNeXtBlock(dim, **scales) for _ in range(_BLOCKS_PER_PAIR)))

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.blocks(x.permute(0, 3, 1, 2))  # in memory, channels stay last
        return mixed.permute(0, 2, 3, 1)


# Each entry is called with (dim, partition, model, normed_input), like AttentionPair, and returns a module from
# (B, H, W, C) to the same shape, where H and W are multiples of the partition.
SPATIAL_MIXERS: dict[str, Callable[..., nn.Module]] = {
    "attention": AttentionPair,
    "convnext": ConvNeXtBlocks,
    "ssm2d": SSM2DPair,
}
