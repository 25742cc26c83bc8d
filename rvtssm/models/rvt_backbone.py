"""The backbone of RVT: four stages at strides 4, 8, 16 and 32, each of which mixes in space and then in time.

Source: RVT (Gehrig and Scaramuzza, 2023) and State Space Models for Event Cameras (Zubic et al., 2024).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rvtssm.models.contracts import Backbone, check_memory_strides, take_real_forms
from rvtssm.models.model_config import ModelConfig
from rvtssm.models.stage import Stage
from rvtssm.ssm import TemporalConfig, TemporalLayer, build_temporal_layer

LARGEST_PARTITION = 10  # pixels of the coarsest map; at 240x304 and at 360x640 this gives the published partitions
_FACTORS = (4, 2, 2, 2)
_STRIDES = (4, 8, 16, 32)


@dataclass(frozen=True)
class InputGeometry:
    """The sizes that follow from a frame, which is padded at the right and the bottom to multiples of 32 * split."""

    height: int  # frame, pixels
    width: int
    split: int  # attention windows of the coarsest map, per side

    @property
    def padded_height(self) -> int:
        return 32 * self.split * self.partition[0]

    @property
    def padded_width(self) -> int:
        return 32 * self.split * self.partition[1]

    @property
    def partition(self) -> tuple[int, int]:
        """Height and width of an attention window, in pixels of a feature map."""
        return ceil(self.height / (32 * self.split)), ceil(self.width / (32 * self.split))


def derive_geometry(height: int, width: int) -> InputGeometry:
    """Return the coarsest split in 1, 2, 4, ... whose attention windows are at most 10 x 10."""
    split = 1
    while ceil(max(height, width) / (32 * split)) > LARGEST_PARTITION:
        split *= 2
    return InputGeometry(height, width, split)


class RvtBackbone(Backbone):
    """Every stage has a temporal layer; at strides without memory each step starts from the zero state."""

    layouts: ClassVar[Mapping[str, str]] = {".attention.": "head_dim"}

    def __init__(
        self, model: ModelConfig, temporal: TemporalConfig, frame_hw: tuple[int, int], in_channels: int
    ) -> None:
        super().__init__(model, temporal, frame_hw, in_channels)
        self.geometry = derive_geometry(*frame_hw)
        self.mixer = model.mixer
        self.padded_hw = self.geometry.padded_height, self.geometry.padded_width
        dims = [model.embed_dim * m for m in model.dim_multiplier]
        self.channels = dict(zip(_STRIDES, dims, strict=True))
        self.memory_strides = check_memory_strides(temporal.strides, self.channels)
        layers = [build_temporal_layer(temporal, dim) for dim in dims]
        self.stages: Sequence[Stage] = nn.ModuleList(  # type: ignore[assignment]
            Stage(before, dim, factor, blocks, self.geometry.partition, layer, model, stride in self.memory_strides)
            for before, (stride, dim), factor, blocks, layer in zip(
                (in_channels, *dims[:-1]), self.channels.items(), _FACTORS, model.num_blocks, layers, strict=True
            )
        )

    def temporal_layers(self) -> dict[int, TemporalLayer]:
        return {stride: stage.temporal for stride, stage in zip(_STRIDES, self.stages, strict=True)}

    def forward(
        self, frames: Tensor, state: tuple[Any, ...], step_scales: Sequence[Any]
    ) -> tuple[dict[int, Tensor], tuple[Any, ...]]:
        x, maps, states = frames, {}, []
        for stride, stage, before, step_scale in zip(_STRIDES, self.stages, state, step_scales, strict=True):
            if stride in self.recomputed and torch.is_grad_enabled():
                x, after = checkpoint(stage, x, before, step_scale, use_reentrant=False)
            else:
                x, after = stage(x, before, step_scale)
            maps[stride] = x
            states.append(after)
        return maps, tuple(states)

    def to_real_step(self) -> None:
        for stride, stage in zip(_STRIDES, self.stages, strict=True):
            take_real_forms(stage, self.padded_hw[0] // stride, self.padded_hw[1] // stride)

    def facts(self) -> dict[str, Any]:
        return {"mixer": self.mixer, "partition_hw": list(self.geometry.partition)}
