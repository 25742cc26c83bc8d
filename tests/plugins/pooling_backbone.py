"""A backbone from outside the package: three convolutions without overlap, each followed by a temporal layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from rvtssm.models import ModelConfig
from rvtssm.models.contracts import Backbone, check_memory_strides
from rvtssm.models.detector import BACKBONES
from rvtssm.models.rvt import mix_in_time
from rvtssm.ssm import TemporalConfig
from rvtssm.ssm.layer import TemporalLayer
from rvtssm.ssm.temporal_layers import build_temporal_layer


class PoolingBackbone(Backbone):
    """Maps of the strides 8, 16 and 32."""

    def __init__(
        self, model: ModelConfig, temporal: TemporalConfig, frame_hw: tuple[int, int], in_channels: int
    ) -> None:
        super().__init__(model, temporal, frame_hw, in_channels)
        dim = model.embed_dim
        self.channels = {8: dim, 16: dim, 32: 2 * dim}
        self.padded_hw = -(-frame_hw[0] // 32) * 32, -(-frame_hw[1] // 32) * 32
        self.memory_strides = check_memory_strides(temporal.strides, self.channels)
        sizes = zip((in_channels, dim, dim), self.channels.values(), (8, 2, 2), strict=True)
        self.pools = nn.ModuleList(nn.Conv2d(before, after, size, size) for before, after, size in sizes)
        self.layers = nn.ModuleList(build_temporal_layer(temporal, dim) for dim in self.channels.values())

    def temporal_layers(self) -> dict[int, TemporalLayer]:
        return dict(zip(self.channels, self.layers, strict=True))  # type: ignore[arg-type]

    def forward(
        self, frames: Tensor, state: tuple[Any, ...], step_scales: Sequence[Any]
    ) -> tuple[dict[int, Tensor], tuple[Any, ...]]:
        x, maps, states = frames, {}, []
        parts = zip(self.temporal_layers().items(), self.pools, state, step_scales, strict=True)
        for (stride, layer), pool, before, step_scale in parts:
            pooled = pool(x.flatten(0, 1).permute(0, 3, 1, 2)).permute(0, 2, 3, 1).unflatten(0, x.shape[:2])
            x, after = mix_in_time(layer, pooled, before, step_scale, stride in self.memory_strides)
            maps[stride] = x
            states.append(after)
        return maps, tuple(states)


BACKBONES["pooling"] = PoolingBackbone
