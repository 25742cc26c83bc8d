"""The backbone of RVT: four stages at strides 4, 8, 16 and 32. A stage downsamples, mixes in space, then in time.

A mixer works on all steps at once. `ConvNeXtBlocks` mixes each pixel with its neighbours by large depthwise filters.
The appendix of State Space Models for Event Cameras has an S5-ConvNext-B, but does not describe its internals; we
replace one pair of attentions by three blocks, which have nearly as many parameters.
Sources: RVT (Gehrig and Scaramuzza, 2023); State Space Models for Event Cameras (Zubic et al., 2024), for a state-space
layer in place of the LSTM; A ConvNet for the 2020s (Liu et al., 2022), with the block from timm.
"""

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import Any, ClassVar

from torch import Tensor, nn

from rvtssm.models import ModelConfig
from rvtssm.models.attention import AttentionPair
from rvtssm.models.contracts import Backbone, check_memory_strides, take_export_forms
from rvtssm.models.ssm2d import SSM2DPair
from rvtssm.ssm import TemporalConfig
from rvtssm.ssm.layer import TemporalLayer
from rvtssm.ssm.temporal_layers import build_temporal_layer
from rvtssm.system.limits import NoOptions, check_choice

LARGEST_PARTITION = 10  # pixels of the coarsest map; for 240x304 and 360x640 this gives the published partitions
_FACTORS = (4, 2, 2, 2)
_STRIDES = (4, 8, 16, 32)
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


class Downsample(nn.Module):
    """Strided convolution with overlap, then layer norm: (B, H, W, C) -> (B, H / factor, W / factor, dim).

    Args:
        in_channels: Number of input channels C.
        dim: Number of output channels.
        factor: Stride of the convolution in pixels.
    """

    def __init__(self, in_channels: int, dim: int, factor: int) -> None:
        super().__init__()
        kernel = 2 * factor - 1
        self.conv = nn.Conv2d(in_channels, dim, kernel, stride=factor, padding=kernel // 2, bias=False)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        # No data is moved: the convolution expects channels first, but in memory they are last before and after it.
        return self.norm(self.conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1))


class Stage(nn.Module):
    """L steps of B streams: (L, B, H, W, C) -> (L, B, H / factor, W / factor, dim), and the state after step L.

    Every pixel is a sequence of its own, so the state has N = B * H * W / factor**2 rows, ordered by stream.

    Args:
        in_channels: Number of input channels C.
        dim: Number of output channels.
        factor: Stride of the downsampling in pixels.
        num_blocks: Number of spatial mixers.
        partition: Number of rows and columns of an attention group.
        temporal: The temporal layer.
        model: Settings of the detector.
        remembers: Whether the stage carries a state. If not, every step starts from the zero state, and the state is
            ().
    """

    def __init__(
        self,
        in_channels: int,
        dim: int,
        factor: int,
        num_blocks: int,
        partition: tuple[int, int],
        temporal: TemporalLayer,
        model: ModelConfig,
        remembers: bool = True,
    ) -> None:
        super().__init__()
        self.remembers = remembers
        self.downsample = Downsample(in_channels, dim, factor)
        check_choice("model.mixer", model.mixer, SPATIAL_MIXERS)
        mixer = SPATIAL_MIXERS[model.mixer]
        model.options_of("mixer", getattr(mixer, "options", NoOptions))  # raises if there is no such setting
        self.blocks = nn.Sequential(*(mixer(dim, partition, model, index == 0) for index in range(num_blocks)))
        self.temporal = temporal

    def forward(self, x: Tensor, state: Any, step_scale: Any) -> tuple[Tensor, Any]:
        """Run L steps.

        Args:
            x: Inputs (L, B, H, W, C).
            state: As in `mix_in_time`.
            step_scale: As in `mix_in_time`.

        Returns:
            The maps (L, B, H / factor, W / factor, dim) and the state after step L.
        """
        mixed = self.blocks(self.downsample(x.flatten(0, 1))).unflatten(0, x.shape[:2])
        return mix_in_time(self.temporal, mixed, state, step_scale, self.remembers)


def mix_in_time(
    layer: TemporalLayer, maps: Tensor, state: Any, step_scale: Any, remembers: bool = True
) -> tuple[Tensor, Any]:
    """Run L steps of a temporal layer on maps of B streams, with every pixel as a sequence of its own.

    Args:
        layer: The temporal layer.
        maps: Maps (L, B, H, W, D).
        state: State of N = B * H * W sequences, or () if the layer does not remember.
        step_scale: The step relative to training: a number, (B,), (L, B), or what the layer prepared.
        remembers: Whether the layer carries its state. If not, every step starts from the zero state.

    Returns:
        The maps (L, B, H, W, D), and the state after step L.
    """
    num_steps, num_streams, height, width, dim = maps.shape
    pixels = maps.reshape(num_steps, num_streams * height * width, dim)
    if remembers:
        y, state = layer(pixels, state, step_scale)
    else:
        y = layer.forward_without_memory(pixels, step_scale)
    return y.view(maps.shape), state


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
        # Frames are padded so that windows of attention fit at every stride.
        self.partition, split = derive_partition(*frame_hw)
        self.padded_hw = 32 * split * self.partition[0], 32 * split * self.partition[1]
        self.mixer = model.mixer
        dims = [model.embed_dim * m for m in model.dim_multiplier]
        self.channels = dict(zip(_STRIDES, dims, strict=True))
        self.memory_strides = check_memory_strides(temporal.strides, self.channels)
        # Each stage reads the map of the one before, and has a temporal layer.
        layers = [build_temporal_layer(temporal, dim) for dim in dims]
        stages = []
        before = in_channels
        for stride, dim, factor, blocks, layer in zip(_STRIDES, dims, _FACTORS, model.num_blocks, layers, strict=True):
            remembers = stride in self.memory_strides
            stages.append(Stage(before, dim, factor, blocks, self.partition, layer, model, remembers))
            before = dim
        self.stages: Sequence[Stage] = nn.ModuleList(stages)  # type: ignore[assignment]

    def temporal_layers(self) -> dict[int, TemporalLayer]:
        return {stride: stage.temporal for stride, stage in zip(_STRIDES, self.stages, strict=True)}

    def forward(
        self, frames: Tensor, state: tuple[Any, ...], step_scales: Sequence[Any]
    ) -> tuple[dict[int, Tensor], tuple[Any, ...]]:
        x = frames
        maps = {}
        states = []
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
