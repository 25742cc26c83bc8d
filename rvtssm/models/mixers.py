"""The spatial mixers that a stage of the rvt backbone can have; a new one is added to the table below.

`ConvNeXtBlocks`: large depthwise filters mix each pixel with its neighbours. Source: A ConvNet for the 2020s (Liu et
al., 2022), with the block of timm. S5-ConvNext-B is in the appendix of State Space Models for Event Cameras (Zubic et
al., 2024), which does not describe its internals. Here three blocks replace one pair of attentions, which has nearly as
many parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from rvtssm.models.attention import AttentionPair
from rvtssm.models.ssm2d import SSM2DPair

if TYPE_CHECKING:
    from rvtssm.models.model_config import ModelConfig

_BLOCKS_PER_PAIR = 3  # 8 C^2 parameters and a filter each; a pair of attentions with its MLPs has 24 C^2


class ConvNeXtBlocks(nn.Module):
    """Three ConvNeXt blocks with filters of 7 x 7 pixels: (B, H, W, C) -> (B, H, W, C).

    `partition` and `normed_input` are for attention and are ignored.
    """

    def __init__(self, dim: int, partition: tuple[int, int], model: ModelConfig, normed_input: bool) -> None:
        super().__init__()
        from timm.models.convnext import ConvNeXtBlock  # imported here because it takes seconds

        scales: dict[str, Any] = {"ls_init_value": model.layer_scale, "drop_path": model.drop_path}
        self.blocks = nn.Sequential(*(ConvNeXtBlock(dim, **scales) for _ in range(_BLOCKS_PER_PAIR)))

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.blocks(x.permute(0, 3, 1, 2))  # channels last in memory, before and after
        return mixed.permute(0, 2, 3, 1)


# Each is called with (dim, partition, model, normed_input), as AttentionPair is, and
# returns a module from (B, H, W, C) to the same shape, where H and W are multiples of the partition.
SPATIAL_MIXERS: dict[str, Callable[..., nn.Module]] = {
    "attention": AttentionPair,
    "convnext": ConvNeXtBlocks,
    "ssm2d": SSM2DPair,
}
