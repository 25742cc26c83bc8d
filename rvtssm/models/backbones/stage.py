"""One stage of the backbone: downsample, mix in space (all steps at once), then mix in time.

Source: RVT (Gehrig and Scaramuzza, 2023); for a state-space layer in place of the LSTM, State Space Models for Event
Cameras (Zubic et al., 2024).
"""

from typing import Any

from torch import Tensor, nn

from rvtssm.models.backbones.mixers import SPATIAL_MIXERS
from rvtssm.models.model_config import ModelConfig
from rvtssm.ssm.layer import TemporalLayer
from rvtssm.system.limits import check_choice


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
