"""The neck: a feature pyramid that mixes maps of strides 8, 16 and 32, from coarse to fine and back.

Source: YOLOX (Ge et al., 2021), PAFPN with CSP layers and nearest-neighbour upsampling.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rvtssm.models import ModelConfig
from rvtssm.models.contracts import Neck


class ConvNormAct(nn.Module):
    """Convolution without bias, batch norm, SiLU. Padding keeps the size of the map, divided by the stride.

    Args:
        in_channels: Number of input channels.
        out_channels: Number of output channels.
        kernel: Side of the filter in pixels, odd.
        stride: Stride of the convolution in pixels.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel, stride, padding=kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.norm(self.conv(x)), inplace=True)


class CspLayer(nn.Module):
    """Sends half of the channels through bottlenecks and the other half around them, like C3 in YOLOv5.

    Args:
        in_channels: Number of input channels.
        out_channels: Number of output channels.
        num_blocks: Number of bottlenecks.
    """

    def __init__(self, in_channels: int, out_channels: int, num_blocks: int) -> None:
        super().__init__()
        hidden = out_channels // 2
        self.conv1 = ConvNormAct(in_channels, hidden, 1)
        self.conv2 = ConvNormAct(in_channels, hidden, 1)
        self.conv3 = ConvNormAct(2 * hidden, out_channels, 1)
        self.blocks = nn.Sequential()
        for _ in range(num_blocks):  # no shortcut
            self.blocks.append(nn.Sequential(ConvNormAct(hidden, hidden, 1), ConvNormAct(hidden, hidden, 3)))

    def forward(self, x: Tensor) -> Tensor:
        return self.conv3(torch.cat([self.blocks(self.conv1(x)), self.conv2(x)], dim=1))


class Pafpn(Neck):
    """Mixes maps of strides 8, 16 and 32. The maps keep their shapes.

    Args:
        model: Settings of the detector.
        channels: Number of channels of the maps of the backbone, by stride.
    """

    strides = (8, 16, 32)

    def __init__(self, model: ModelConfig, channels: Mapping[int, int]) -> None:
        super().__init__()
        self.channels = {stride: channels[stride] for stride in self.strides}
        c8, c16, c32 = self.channels.values()
        num_blocks = model.fpn_blocks
        self.twice = nn.Upsample(scale_factor=2, mode="nearest")
        self.reduce32 = ConvNormAct(c32, c16, 1)
        self.merge16_down = CspLayer(2 * c16, c16, num_blocks)
        self.reduce16 = ConvNormAct(c16, c8, 1)
        self.merge8_down = CspLayer(2 * c8, c8, num_blocks)
        self.shrink8 = ConvNormAct(c8, c8, 3, stride=2)
        self.merge16_up = CspLayer(2 * c8, c16, num_blocks)
        self.shrink16 = ConvNormAct(c16, c16, 3, stride=2)
        self.merge32_up = CspLayer(2 * c16, c32, num_blocks)

    def forward(self, maps: dict[int, Tensor]) -> dict[int, Tensor]:
        reduced32 = self.reduce32(maps[32])
        reduced16 = self.reduce16(self.merge16_down(torch.cat([self.twice(reduced32), maps[16]], dim=1)))
        out8 = self.merge8_down(torch.cat([self.twice(reduced16), maps[8]], dim=1))
        out16 = self.merge16_up(torch.cat([self.shrink8(out8), reduced16], dim=1))
        out32 = self.merge32_up(torch.cat([self.shrink16(out16), reduced32], dim=1))
        return {8: out8, 16: out16, 32: out32}
