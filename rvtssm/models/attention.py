"""Block and grid self-attention on channels-last images: within windows of neighbours, then over a sparse global grid.

Source: MaxViT (Tu et al., 2022), in the form that RVT (Gehrig and Scaramuzza, 2023) uses: without relative position
bias, and with query, key and value of each head side by side in the projection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rvtssm.system.user_error import UserError

if TYPE_CHECKING:
    from rvtssm.models import ModelConfig


def split_blocks(x: Tensor, partition: tuple[int, int]) -> Tensor:
    """Cut images into windows of p x q neighbouring pixels.

    Args:
        x: Images (B, H, W, C), where H and W are multiples of p and q.
        partition: The size (p, q) of a window in pixels.

    Returns:
        The windows (B * H / p * W / q, p, q, C).
    """
    batch, height, width, dim = x.shape
    p, q = partition
    return x.view(batch, height // p, p, width // q, q, dim).transpose(2, 3).reshape(-1, p, q, dim)


def merge_blocks(parts: Tensor, partition: tuple[int, int], image_hw: tuple[int, int]) -> Tensor:
    """Undo `split_blocks`.

    Args:
        parts: Windows (B * H / p * W / q, p, q, C).
        partition: The size (p, q) of a window in pixels.
        image_hw: Height and width of an image in pixels.

    Returns:
        The images (B, H, W, C).
    """
    height, width = image_hw
    p, q = partition
    dim = parts.shape[-1]
    return parts.view(-1, height // p, width // q, p, q, dim).transpose(2, 3).reshape(-1, height, width, dim)


def split_grid(x: Tensor, partition: tuple[int, int]) -> Tensor:
    """Group p x q pixels that are spread over the whole image, H / p rows and W / q columns apart.

    Args:
        x: Images (B, H, W, C), where H and W are multiples of p and q.
        partition: The number (p, q) of rows and columns of a group.

    Returns:
        The groups (B * H / p * W / q, p, q, C).
    """
    batch, height, width, dim = x.shape
    p, q = partition
    return x.view(batch, p, height // p, q, width // q, dim).permute(0, 2, 4, 1, 3, 5).reshape(-1, p, q, dim)


def merge_grid(parts: Tensor, partition: tuple[int, int], image_hw: tuple[int, int]) -> Tensor:
    """Undo `split_grid`.

    Args:
        parts: Groups (B * H / p * W / q, p, q, C).
        partition: The number (p, q) of rows and columns of a group.
        image_hw: Height and width of an image in pixels.

    Returns:
        The images (B, H, W, C).
    """
    height, width = image_hw
    p, q = partition
    dim = parts.shape[-1]
    rows = height // p
    columns = width // q
    return parts.view(-1, rows, columns, p, q, dim).permute(0, 3, 1, 4, 2, 5).reshape(-1, height, width, dim)


PARTITIONS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "block": (split_blocks, merge_blocks),
    "grid": (split_grid, merge_grid),
}

# Devices and precisions for which training is faster with our own attention, because the
# backward pass of PyTorch's call is slow. Elsewhere, and without gradients, PyTorch's call is as fast or faster.
WRITTEN_OUT = frozenset({("cpu", torch.bfloat16), ("cpu", torch.float16)})


class ScaledLinear(nn.Linear):
    """A linear map followed by a learned scale per output: LayerScale (Touvron et al., 2021).

    The scale multiplies the weight, which is small, instead of every pixel.

    Args:
        in_features: Number of input features.
        out_features: Number of output features.
        scale: Initial value of the scale.
    """

    def __init__(self, in_features: int, out_features: int, scale: float) -> None:
        super().__init__(in_features, out_features)
        self.gamma = nn.Parameter(torch.full((out_features,), scale))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, *self.scaled())

    def scaled(self) -> tuple[Tensor, Tensor]:
        """Return weight and bias multiplied by the scale."""
        return self.gamma[:, None] * self.weight, self.gamma * self.bias

    def export_form(self, height: int, width: int) -> nn.Linear:
        """Return a plain linear layer. See `rvtssm.models.contracts.take_export_forms`."""
        return _linear(*self.scaled())


class SelfAttention(nn.Module):
    """Multi-head self-attention within each of G groups of T pixels: (G, T, C) -> (G, T, C).

    Args:
        dim: Number of channels C.
        head_dim: Number of channels per head.
        layer_scale: Initial scale of the output.

    Raises:
        UserError: If `head_dim` does not divide `dim`.
    """

    def __init__(self, dim: int, head_dim: int, layer_scale: float = 1e-5) -> None:
        super().__init__()
        if dim % head_dim != 0:
            needed = f"it does not divide the {dim} channels of a stage"
            advice = "choose a divisor"
            raise UserError("setting.conflict", name="model.head_dim", found=head_dim, needed=needed, advice=advice)
        self.head_dim = head_dim
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = ScaledLinear(dim, dim, layer_scale)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(attend(self.qkv(x), self.head_dim))


def attend(qkv: Tensor, head_dim: int) -> Tensor:
    """Attend within groups, with `F.scaled_dot_product_attention` or, where `WRITTEN_OUT` says so, with our own code.

    Args:
        qkv: Projected queries, keys and values (G, T, 3C): head by head, and within a head query, key and value of
            head_dim features each.
        head_dim: Number of features per head.

    Returns:
        The mixed values (G, T, C).
    """
    if qkv.requires_grad and (qkv.device.type, qkv.dtype) in WRITTEN_OUT and not torch.compiler.is_exporting():
        return _WrittenOut.apply(qkv, head_dim)
    num_groups, num_tokens, width = qkv.shape
    # G T (heads 3 head_dim) -> three times G heads T head_dim
    heads = qkv.view(num_groups, num_tokens, width // (3 * head_dim), 3 * head_dim)
    query, key, value = heads.transpose(1, 2).chunk(3, dim=-1)
    mixed = F.scaled_dot_product_attention(query, key, value)
    return mixed.transpose(1, 2).reshape(num_groups, num_tokens, width // 3)


class _WrittenOut(torch.autograd.Function):
    """softmax(q k^T / sqrt(head_dim)) v and its gradient, in few products and copies. It keeps the (T, T) weights."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, head_dim: int) -> Tensor:
        num_groups, num_tokens, width = qkv.shape
        by_head = qkv.view(num_groups, num_tokens, -1, 3, head_dim).permute(3, 0, 2, 1, 4)
        query, key, value = by_head.reshape(3, -1, num_tokens, head_dim)  # (G heads, T, head_dim) each
        weights = torch.softmax(_scaled(query, key.mT, head_dim), dim=-1)
        ctx.save_for_backward(query, key, value, weights)
        mixed = (weights @ value).view(num_groups, -1, num_tokens, head_dim)
        return mixed.transpose(1, 2).reshape(num_groups, num_tokens, width // 3)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        query, key, value, weights = ctx.saved_tensors
        num_groups, num_tokens, dim = grad.shape
        head_dim = query.shape[-1]
        grad = grad.view(num_groups, num_tokens, -1, head_dim).transpose(1, 2).reshape(query.shape)
        grad_scores = torch._softmax_backward_data(grad @ value.mT, weights, -1, weights.dtype)
        grads = grad.new_empty(3, *query.shape)
        _scaled(grad_scores, key, head_dim, out=grads[0])
        _scaled(grad_scores.mT, query, head_dim, out=grads[1])
        torch.bmm(weights.mT, grad, out=grads[2])
        by_head = grads.view(3, num_groups, -1, num_tokens, head_dim).permute(1, 3, 2, 0, 4)
        return by_head.reshape(num_groups, num_tokens, 3 * dim), None


def _scaled(left: Tensor, right: Tensor, head_dim: int, out: Tensor | None = None) -> Tensor:
    """Return left right / sqrt(head_dim), for batches of matrices."""
    return torch.baddbmm(left.new_empty(()), left, right, beta=0, alpha=head_dim**-0.5, out=out)


def build_first_norm(dim: int, normed_input: bool) -> nn.Module:
    """Return the norm at the start of a mixer, or nothing if its input is the output of a norm.

    Args:
        dim: Number of channels.
        normed_input: Whether the input is the output of a norm.
    """
    if normed_input:
        return nn.Identity()
    return nn.LayerNorm(dim)


def build_drop_path(rate: float) -> nn.Module:
    """Return a module that drops the branches of a random share of the samples: stochastic depth (Huang et al., 2016).

    Args:
        rate: The share of samples, from 0 to 1.
    """
    if not rate:
        return nn.Identity()
    from timm.layers import DropPath  # imported here because it takes seconds

    return DropPath(rate)


class PartitionAttention(nn.Module):
    """Attention within the groups of an image, then an MLP, both residual: (B, H, W, C) -> (B, H, W, C).

    H and W must be multiples of the partition.

    Args:
        dim: Number of channels C.
        kind: `block` attends within windows of neighbouring pixels, `grid` between pixels spread over the whole image.
        partition: Number of rows and columns of a group.
        head_dim: Number of channels per head.
        normed_input: Whether the input is the output of a norm, so that the first norm is left out.
        layer_scale: Initial scale of both branches.
        drop_path: Share of the samples whose branches a training step drops.
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
        self.norm1 = build_first_norm(dim, normed_input)
        self.attention = SelfAttention(dim, head_dim, layer_scale)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), ScaledLinear(4 * dim, dim, layer_scale))
        self.drop_path = build_drop_path(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        height, width, dim = x.shape[1:]
        parts = self.split(self.norm1(x), self.partition)  # (G, *partition, C)
        mixed = self.attention(parts.flatten(1, 2))
        mixed = self.merge(mixed.view(-1, *self.partition, dim), self.partition, (height, width))
        x = x + self.drop_path(mixed)
        return x + self.drop_path(self.mlp(self.norm2(x)))


class AttentionPair(nn.Module):
    """Block attention, then grid attention: (B, H, W, C) -> (B, H, W, C).

    Args:
        dim: Number of channels C.
        partition: Number of rows and columns of a group.
        model: Settings of the detector.
        normed_input: Whether the input is the output of a norm.
    """

    def __init__(self, dim: int, partition: tuple[int, int], model: ModelConfig, normed_input: bool) -> None:
        super().__init__()
        scales: dict[str, Any] = {"layer_scale": model.layer_scale, "drop_path": model.drop_path}
        self.block = PartitionAttention(dim, "block", partition, model.head_dim, normed_input=normed_input, **scales)
        self.grid = PartitionAttention(dim, "grid", partition, model.head_dim, **scales)

    def forward(self, x: Tensor) -> Tensor:
        return self.grid(self.block(x))

    def export_form(self, height: int, width: int) -> ExportedAttentionPair:
        """Return the pair for maps of one size. See `rvtssm.models.contracts.take_export_forms`."""
        return ExportedAttentionPair(self, height, width)


class ExportedSelfAttention(nn.Module):
    """`SelfAttention` for export, with separate products for query, key and value, so that no product has to be split.

    Args:
        attention: The layer to export.
    """

    def __init__(self, attention: SelfAttention) -> None:
        super().__init__()
        self.head_dim = attention.head_dim
        # The rows of the projection are ordered by head, and within a head by query, key and value.
        weight = self._by_part(attention.qkv.weight)
        bias = self._by_part(attention.qkv.bias)
        scale = self.head_dim**-0.5
        self.query = _linear(weight[0] * scale, bias[0] * scale)
        self.key = _linear(weight[1], bias[1])
        self.value = _linear(weight[2], bias[2])
        self.proj = _linear(*attention.proj.scaled())

    def _by_part(self, parameter: Tensor) -> Tensor:
        """Return the rows of a parameter as (3, ...): those of query, key and value."""
        return parameter.detach().unflatten(0, (-1, 3, self.head_dim)).transpose(0, 1).flatten(1, 2)

    def _by_head(self, x: Tensor, num_tokens: int) -> Tensor:
        """Return pixels (G * T, C) as (G, heads, T, head_dim)."""
        return x.view(-1, num_tokens, x.shape[1] // self.head_dim, self.head_dim).transpose(1, 2)

    def forward(self, x: Tensor, num_tokens: int) -> Tensor:
        """Attend within groups of T consecutive pixels.

        Args:
            x: Pixels (G * T, C), group by group.
            num_tokens: Number of pixels T of a group.

        Returns:
            The pixels (G * T, C).
        """
        query = self._by_head(self.query(x), num_tokens)
        key = self._by_head(self.key(x), num_tokens)
        value = self._by_head(self.value(x), num_tokens)
        mixed = torch.softmax(query @ key.transpose(2, 3), dim=-1) @ value
        return self.proj(mixed.transpose(1, 2).reshape(x.shape))


class ExportedAttentionPair(nn.Module):
    """An `AttentionPair` for maps of H x W pixels, for export.

    It moves pixels only three times: into block order, from there into grid order, and back. All products are products
    of two matrices.

    Args:
        pair: The layers to export.
        height: Height of a map in pixels.
        width: Width of a map in pixels.
    """

    order: Tensor  # (H * W,): for each pixel in grid order, its place in block order

    def __init__(self, pair: AttentionPair, height: int, width: int) -> None:
        super().__init__()
        self.partition = pair.block.partition
        self.split = pair.block.split
        self.merge = pair.grid.merge
        pixels = torch.arange(height * width).view(1, height, width, 1)
        by_block = pair.block.split(pixels, self.partition).flatten()
        by_grid = pair.grid.split(pixels, self.partition).flatten()
        self.register_buffer("order", by_block.argsort()[by_grid])
        for name, part in (("block", pair.block), ("grid", pair.grid)):
            widen, activate, narrow = part.mlp
            mlp = nn.Sequential(widen, activate, _linear(*cast(ScaledLinear, narrow).scaled()))
            attention = ExportedSelfAttention(part.attention)
            layers = {"norm1": part.norm1, "norm2": part.norm2, "mlp": mlp, "attention": attention}
            setattr(self, name, nn.ModuleDict(layers))

    def forward(self, x: Tensor) -> Tensor:
        num_streams, height, width, dim = x.shape
        pixels = self.mixed(self.block, self.split(x, self.partition).reshape(-1, dim))
        pixels = pixels.view(num_streams, -1, dim).index_select(1, self.order).flatten(0, 1)
        pixels = self.mixed(self.grid, pixels)
        return self.merge(pixels.view(-1, *self.partition, dim), self.partition, (height, width))

    def mixed(self, part: Any, x: Tensor) -> Tensor:
        """Mix pixels (B * H * W, C), which are ordered by group, as `PartitionAttention` does."""
        x = x + part["attention"](part["norm1"](x), self.partition[0] * self.partition[1])
        return x + part["mlp"](part["norm2"](x))


def _linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    """Return a linear layer with copies of a weight and a bias."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    layer.weight = nn.Parameter(weight.detach().clone(), requires_grad=False)
    layer.bias = nn.Parameter(bias.detach().clone(), requires_grad=False)
    return layer
