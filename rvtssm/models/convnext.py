"""ConvNeXt blocks as a spatial mixer: large depthwise filters mix each pixel with its neighbours.

Source: A ConvNet for the 2020s (Liu et al., 2022), with the block of timm. S5-ConvNext-B is in the appendix of State
Space Models for Event Cameras (Zubic et al., 2024), which does not describe its internals. Here three blocks replace
one pair of attentions, which has nearly as many parameters.
"""

from __future__ import annotations

from timm.models.convnext import ConvNeXtBlock
from torch import Tensor, nn

_BLOCKS_PER_PAIR = 3  # 8 C^2 parameters and a filter each; a pair of attentions with its MLPs has 24 C^2


class ConvNeXtBlocks(nn.Module):
    """Three ConvNeXt blocks with filters of 7 x 7 pixels: (B, H, W, C) -> (B, H, W, C).

    `partition`, `head_dim` and `normed_input` are for attention and are ignored.
    """

    def __init__(
        self,
        dim: int,
        partition: tuple[int, int],
        head_dim: int,
        *,
        normed_input: bool,
        layer_scale: float = 1e-5,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.blocks = nn.Sequential(
            *(ConvNeXtBlock(dim, ls_init_value=layer_scale, drop_path=drop_path) for _ in range(_BLOCKS_PER_PAIR))
        )

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.blocks(x.permute(0, 3, 1, 2))  # channels last in memory, before and after
        return mixed.permute(0, 2, 3, 1)
