"""The backbone of RVT: four stages at strides 4, 8, 16 and 32, each of which mixes in space and then in time.

Sources: RVT (Gehrig and Scaramuzza, 2023) and State Space Models for Event Cameras (Zubic et al., 2024).
"""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, ClassVar

from torch import Tensor, nn

from rvtssm.models.backbones.stage import Stage
from rvtssm.models.contracts import Backbone, check_memory_strides, take_export_forms
from rvtssm.models.model_config import ModelConfig
from rvtssm.ssm.layer import TemporalLayer
from rvtssm.ssm.temporal_config import TemporalConfig
from rvtssm.ssm.temporal_layers import build_temporal_layer

LARGEST_PARTITION = 10  # pixels of the coarsest map; for 240x304 and 360x640 this gives the published partitions
_FACTORS = (4, 2, 2, 2)
_STRIDES = (4, 8, 16, 32)


def derive_partition(height: int, width: int) -> tuple[tuple[int, int], int]:
    """Return the size of an attention window, and the number of windows per side of the coarsest map.

    The number of windows is the first of 1, 2, 4, ... for which a window has at most 10 x 10 pixels.

    Args:
        height: Height of a frame in pixels.
        width: Width of a frame in pixels.

    Returns:
        Height and width of a window in pixels of a map, and the number of windows per side.
    """
    split = 1
    while ceil(max(height, width) / (32 * split)) > LARGEST_PARTITION:
        split *= 2
    return (ceil(height / (32 * split)), ceil(width / (32 * split))), split


class RvtBackbone(Backbone):
    """Four stages with a temporal layer each. At strides without memory, each step starts from the zero state.

    Args:
        model: Settings of the detector.
        temporal: Settings of the temporal layers.
        frame_hw: Height and width of a frame in pixels.
        in_channels: Number of channels of a frame.
    """

    layouts: ClassVar[Mapping[str, str]] = {".attention.": "head_dim"}

    def __init__(
        self, model: ModelConfig, temporal: TemporalConfig, frame_hw: tuple[int, int], in_channels: int
    ) -> None:
        super().__init__(model, temporal, frame_hw, in_channels)
        self.partition, split = derive_partition(*frame_hw)
        self.padded_hw = 32 * split * self.partition[0], 32 * split * self.partition[1]
        self.mixer = model.mixer
        dims = [model.embed_dim * m for m in model.dim_multiplier]
        self.channels = dict(zip(_STRIDES, dims, strict=True))
        self.memory_strides = check_memory_strides(temporal.strides, self.channels)
        layers = [build_temporal_layer(temporal, dim) for dim in dims]
        self.stages: Sequence[Stage] = nn.ModuleList(  # type: ignore[assignment]
            Stage(before, dim, factor, blocks, self.partition, layer, model, stride in self.memory_strides)
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
            x, after = self.run_part(stride, stage, x, before, step_scale)
            maps[stride] = x
            states.append(after)
        return maps, tuple(states)

    def to_real_step(self) -> None:
        for stride, stage in zip(_STRIDES, self.stages, strict=True):
            take_export_forms(stage, self.padded_hw[0] // stride, self.padded_hw[1] // stride)

    def facts(self) -> dict[str, Any]:
        return {"mixer": self.mixer, "partition_hw": list(self.partition)}
