"""Block and grid self-attention on channels-last images: first among neighbours, then over a sparse global grid.

Source: MaxViT (Tu et al., 2022) in the form RVT (Gehrig and Scaramuzza, 2023) uses it: no relative position bias,
query, key and value of one head side by side in the projection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from timm.layers import DropPath
from timm.models.maxxvit import grid_partition, grid_reverse, window_partition, window_reverse
from torch import Tensor, nn

if TYPE_CHECKING:
    from rvtssm.models.model_config import ModelConfig

PARTITIONS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "block": (window_partition, window_reverse),
    "grid": (grid_partition, grid_reverse),
}


class ScaledLinear(nn.Linear):
    """A linear map followed by a learned scale per output: LayerScale (Touvron et al., 2021).

    The scale is multiplied into the weight, which is small, instead of into every pixel.
    """

    def __init__(self, in_features: int, out_features: int, scale: float) -> None:
        super().__init__(in_features, out_features)
        self.gamma = nn.Parameter(torch.full((out_features,), scale))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.gamma[:, None] * self.weight, self.gamma * self.bias)


class SelfAttention(nn.Module):
    """Multi-head self-attention within each of G groups of T pixels: (G, T, C) -> (G, T, C)."""

    def __init__(self, dim: int, head_dim: int, layer_scale: float = 1e-5) -> None:
        super().__init__()
        if dim % head_dim != 0:
            raise ValueError(f"head_dim={head_dim} does not divide the {dim} channels of a stage; choose a divisor")
        self.head_dim = head_dim
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = ScaledLinear(dim, dim, layer_scale)

    def forward(self, x: Tensor) -> Tensor:
        num_groups, num_tokens, dim = x.shape
        # G T (heads 3 head_dim) -> three times G heads T head_dim
        heads = self.qkv(x).view(num_groups, num_tokens, dim // self.head_dim, 3 * self.head_dim)
        query, key, value = heads.transpose(1, 2).chunk(3, dim=-1)
        mixed = F.scaled_dot_product_attention(query, key, value)
        return self.proj(mixed.transpose(1, 2).reshape(num_groups, num_tokens, dim))


class PartitionAttention(nn.Module):
    """Attention within the parts of an image, then an MLP, both residual: (B, H, W, C) -> (B, H, W, C).

    `block` attends inside windows of `partition` pixels; `grid` attends between pixels that lie a regular distance
    apart, `partition` of them per group. H and W must be multiples of the partition.
    `normed_input` leaves out the first norm, because the input is the output of a norm.
    """

    def __init__(
        self,
        dim: int,
        kind: Literal["block", "grid"],
        partition: tuple[int, int],
        head_dim: int,
        *,
        normed_input: bool = False,
        layer_scale: float = 1e-5,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.partition = partition
        self.split, self.merge = PARTITIONS[kind]
        self.norm1 = nn.Identity() if normed_input else nn.LayerNorm(dim)
        self.attention = SelfAttention(dim, head_dim, layer_scale)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), ScaledLinear(4 * dim, dim, layer_scale))
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        height, width, dim = x.shape[1:]
        parts = self.split(self.norm1(x), self.partition)  # (G, *partition, C)
        mixed = self.attention(parts.flatten(1, 2))
        mixed = self.merge(mixed.view(-1, *self.partition, dim), self.partition, (height, width))
        x = x + self.drop_path(mixed)
        return x + self.drop_path(self.mlp(self.norm2(x)))


class AttentionPair(nn.Module):
    """Block attention, then grid attention: (B, H, W, C) -> (B, H, W, C)."""

    def __init__(self, dim: int, partition: tuple[int, int], model: ModelConfig, normed_input: bool) -> None:
        super().__init__()
        scales: dict[str, Any] = {"layer_scale": model.layer_scale, "drop_path": model.drop_path}
        self.block = PartitionAttention(dim, "block", partition, model.head_dim, normed_input=normed_input, **scales)
        self.grid = PartitionAttention(dim, "grid", partition, model.head_dim, **scales)

    def forward(self, x: Tensor) -> Tensor:
        return self.grid(self.block(x))
