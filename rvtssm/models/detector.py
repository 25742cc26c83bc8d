"""The detector: pads histograms, runs the backbone with carried states, and the neck and head where asked.

Source: RVT (Gehrig and Scaramuzza, 2023) and State Space Models for Event Cameras (Zubic et al., 2024).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rvtssm.models.backbone import STAGE_STRIDES, Backbone
from rvtssm.models.mixers import SPATIAL_MIXERS
from rvtssm.models.pafpn import Pafpn
from rvtssm.models.yolox_head import YoloxHead, locate
from rvtssm.ssm import TemporalConfig, build_temporal_layer
from rvtssm.ssm.layer import to_constant

LARGEST_PARTITION = 10  # pixels of the coarsest map; at 240x304 and at 360x640 this gives the published partitions


@dataclass
class ModelConfig:
    """The numbers of a detector that neither the dataset nor the temporal layer decides."""

    size: str = "base"  # what these numbers are called in reports
    embed_dim: int = 64  # channels of the first stage
    dim_multiplier: tuple[int, ...] = (1, 2, 4, 8)  # channels of the four stages, in embed_dim
    mixer: str = "attention"  # one of rvtssm.models.mixers.SPATIAL_MIXERS
    num_blocks: tuple[int, ...] = (1, 1, 1, 1)  # mixers per stage, of which attention is a pair: block and grid
    head_dim: int = 32  # channels per attention head
    fpn_blocks: int = 2  # bottlenecks per CSP layer of the neck
    layer_scale: float = 1e-5  # initial weight of the branches of a mixer
    drop_path: float = 0.0
    memory: str = "carried"  # or chunk: forget after every `memory_chunk` steps, as the released SSM weights expect
    memory_chunk: int | None = None  # steps

    def __post_init__(self) -> None:
        self.dim_multiplier, self.num_blocks = tuple(self.dim_multiplier), tuple(self.num_blocks)
        if self.mixer not in SPATIAL_MIXERS:
            raise ValueError(f"model.mixer={self.mixer!r}; choose from {', '.join(SPATIAL_MIXERS)}")
        if len(self.dim_multiplier) != len(STAGE_STRIDES) or len(self.num_blocks) != len(STAGE_STRIDES):
            raise ValueError(
                f"model.dim_multiplier={self.dim_multiplier} and model.num_blocks={self.num_blocks} "
                f"need one number for each of the {len(STAGE_STRIDES)} stages"
            )
        sizes = (self.embed_dim, self.head_dim, *self.dim_multiplier)
        if min(sizes) < 1 or min(*self.num_blocks, self.fpn_blocks) < 0:
            raise ValueError(
                f"model.embed_dim={self.embed_dim}, head_dim={self.head_dim} and dim_multiplier={self.dim_multiplier} "
                f"must be at least 1, num_blocks={self.num_blocks} and fpn_blocks={self.fpn_blocks} at least 0"
            )
        if not 0 <= self.layer_scale < inf:
            raise ValueError(f"model.layer_scale={self.layer_scale:g} must be at least 0, and finite")
        if not 0 <= self.drop_path < 1:
            raise ValueError(f"model.drop_path={self.drop_path:g} must be at least 0 and less than 1")
        if self.memory not in ("carried", "chunk"):
            raise ValueError(f"model.memory={self.memory!r}; choose from carried, chunk")
        if (self.memory == "chunk") != (self.memory_chunk is not None) or (self.memory_chunk or 1) < 1:
            raise ValueError(
                f"model.memory={self.memory} with model.memory_chunk={self.memory_chunk}; "
                "give a length in steps with `chunk` and none with `carried`"
            )


MODEL_SIZES = {
    "tiny": ModelConfig(size="tiny", embed_dim=32, head_dim=32, fpn_blocks=1),
    "small": ModelConfig(size="small", embed_dim=48, head_dim=24, fpn_blocks=1),
    "base": ModelConfig(size="base", embed_dim=64, head_dim=32, fpn_blocks=2),
}


@dataclass(frozen=True)
class InputGeometry:
    """Sizes that follow from the frame: it is padded at the right and the bottom to multiples of 32 * split."""

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
    """The coarsest split in 1, 2, 4, ... whose attention windows are at most 10 x 10."""
    if height < 1 or width < 1:
        raise ValueError(f"a frame of {height} x {width} pixels; height and width must be at least 1")
    split = 1
    while ceil(max(height, width) / (32 * split)) > LARGEST_PARTITION:
        split *= 2
    return InputGeometry(height, width, split)


@dataclass(frozen=True)
class PreparedStep:
    """What the temporal layers have in store for one step scale, and stays the same from call to call."""

    layers: tuple[Any, ...]  # one per stage, made by its `prepare`


class Detector(nn.Module):
    """Histograms and a state in, predictions and the next state out; nothing is remembered inside.

    `locations` (A, 3) lists centre and stride of every prediction, as the loss needs it.
    """

    locations: Tensor

    def __init__(
        self, model: ModelConfig, temporal: TemporalConfig, geometry: InputGeometry, num_classes: int, in_channels: int
    ) -> None:
        super().__init__()
        self.geometry = geometry
        self.num_classes = num_classes
        self.in_channels = in_channels
        dims = [model.embed_dim * m for m in model.dim_multiplier]
        self.backbone = Backbone(
            in_channels,
            dims,
            model.num_blocks,
            geometry.partition,
            model.head_dim,
            [build_temporal_layer(temporal, dim) for dim in dims],
            layer_scale=model.layer_scale,
            drop_path=model.drop_path,
            mixer=model.mixer,
            remembering=temporal.strides,
        )
        self.neck = Pafpn(dims[1:], model.fpn_blocks)
        self.head = YoloxHead(dims[1:], num_classes)
        locations = locate(geometry.padded_height, geometry.padded_width)
        self.register_buffer("locations", locations, persistent=False)

    def init_state(self, num_streams: int) -> tuple[Any, ...]:
        """The zero state of B streams: one per stage, of B * H * W / s**2 sequences, stream-major."""
        padded = self.geometry.padded_height * self.geometry.padded_width
        return tuple(
            stage.init_state(num_streams * padded // stride**2)
            for stage, stride in zip(self.backbone.stages, STAGE_STRIDES, strict=True)
        )

    @torch.no_grad()
    def prepare(self, step_scale: float) -> PreparedStep:
        """To be passed to `forward` in place of the step scale, by who streams with weights that stay as they are."""
        return PreparedStep(tuple(stage.temporal.prepare(step_scale) for stage in self.backbone.stages))

    def forward(
        self,
        hist: Tensor,
        state: tuple[Any, ...] | None = None,
        step_scale: float | Tensor | PreparedStep = 1.0,
        frame_index: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Any, ...]]:
        """Run L steps of B streams.

        hist (L, B, C, H, W), uint8 counts or float, as large as the frame; state from `init_state` or an earlier
        call, None for zero; step_scale the step relative to training, a number or (L, B), or what `prepare` returned.
        Returns the state after step L and predictions (M, A, 5 + K) float32 [cx, cy, w, h px, objectness logit,
        class logits] for the M rows (step, stream) of frame_index, for every step and stream when it is None.
        """
        num_streams = hist.shape[1]
        if state is None:
            state = self.init_state(num_streams)
        if isinstance(step_scale, PreparedStep):
            scales = step_scale.layers
        else:
            scales = (to_constant(step_scale),) * len(STAGE_STRIDES)
        maps, state = self.backbone(self._pad(hist), state, scales)
        if frame_index is None:
            chosen = [features.flatten(0, 1) for features in maps[1:]]
        else:
            rows = frame_index[:, 0] * num_streams + frame_index[:, 1]
            chosen = [features.flatten(0, 1)[rows] for features in maps[1:]]
        if chosen[0].shape[0] == 0 and not any(isinstance(part, nn.SyncBatchNorm) for part in self.modules()):
            # batch norm refuses an empty batch; one over all processes waits for every one of them
            return chosen[0].new_zeros(0, len(self.locations), 5 + self.num_classes, dtype=torch.float32), state
        channels_first = [features.permute(0, 3, 1, 2) for features in chosen]
        return self.head(self.neck(channels_first), self.locations), state

    def _pad(self, hist: Tensor) -> Tensor:
        """Counts (L, B, C, H, W) as the numbers the backbone computes in, padded and channels last: (L, B, H, W, C)."""
        size, wanted = tuple(hist.shape[2:]), (self.in_channels, self.geometry.height, self.geometry.width)
        if size != wanted:
            raise ValueError(
                f"frames of {size} (channels, height, width), but this detector was built for {wanted}; "
                "use data of the dataset it was trained on, or build it for these frames"
            )
        right, bottom = self.geometry.padded_width - wanted[2], self.geometry.padded_height - wanted[1]
        frames = F.pad(hist.flatten(0, 1).permute(0, 2, 3, 1), (0, 0, 0, right, 0, bottom))
        # moved while they are small; and laid out plainly, as a frame alone has to be for a fast convolution
        frames = frames.contiguous().to(self.backbone.stages[0].downsample.conv.weight.dtype)
        return frames.view(hist.shape[0], hist.shape[1], *frames.shape[1:])


def build_detector(
    model: ModelConfig,
    temporal: TemporalConfig,
    height: int,
    width: int,
    num_classes: int,
    in_channels: int = 20,
) -> Detector:
    """A detector for frames of height x width pixels; padding and attention partition follow from them."""
    return Detector(model, temporal, derive_geometry(height, width), num_classes, in_channels)


def parameters_by_room(detector: Detector) -> dict[str, list[nn.Parameter]]:
    """The parameters of a detector, apart: spatial and temporal parts of the backbone, neck, head."""
    temporal = [p for stage in detector.backbone.stages for p in stage.temporal.parameters()]
    is_temporal = {id(p) for p in temporal}
    return {
        "spatial": [p for p in detector.backbone.parameters() if id(p) not in is_temporal],
        "temporal": temporal,
        "neck": list(detector.neck.parameters()),
        "head": list(detector.head.parameters()),
    }


def count_parameters(detector: Detector) -> dict[str, int]:
    """Numbers of parameters by room, and their `total`."""
    counts = {room: sum(p.numel() for p in found) for room, found in parameters_by_room(detector).items()}
    return {**counts, "total": sum(counts.values())}
