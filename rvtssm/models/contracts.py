"""What a backbone, a neck and a head offer to each other and to everything that uses a detector.

A part of another kind is a class that keeps one of these contracts, and one line in the table of `rvtssm.models.parts`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rvtssm.models.model_config import ModelConfig, PostprocessConfig
from rvtssm.records import Detections
from rvtssm.ssm.layer import TemporalLayer
from rvtssm.ssm.temporal_config import TemporalConfig
from rvtssm.system.user_error import UserError


def at_least_one(num_counted: Tensor | int, num_matched: Tensor | int = 0) -> Tensor | int:
    """Return what the losses are divided by in a single process: all matches if there are none that count."""
    if isinstance(num_counted, Tensor):
        return torch.where(num_counted > 0, num_counted, num_matched).clamp(min=1)
    return max(num_counted or num_matched, 1)


class Backbone(nn.Module, ABC):
    """Turns the frames of B streams into maps of several strides, and carries the states of the streams.

    It is built as `Backbone(model, temporal, frame_hw, in_channels)`, where frame_hw is the size of a frame in pixels.
    The constructor sets the three attributes below. The first weight that a backbone has must be the one that reads
    the frames; its second axis counts their channels.
    """

    channels: dict[int, int]  # of every map, by stride in pixels of the frame, finest first
    padded_hw: tuple[int, int]  # height and width that frames are padded to, at the right and the bottom
    memory_strides: tuple[int, ...]  # strides whose temporal layer carries a state from step to step

    # Weights whose layout does not show in their shape: a part of their name, and the key of ModelConfig that decides.
    layouts: ClassVar[Mapping[str, str]] = {}

    def __init__(
        self, model: ModelConfig, temporal: TemporalConfig, frame_hw: tuple[int, int], in_channels: int
    ) -> None:
        super().__init__()
        self.freezes_spatial = model.freeze_spatial
        self.recomputed: frozenset[int] = frozenset()

    @abstractmethod
    def temporal_layers(self) -> dict[int, TemporalLayer]:
        """Return the temporal layers by the stride of their map, finest first."""

    @abstractmethod
    def forward(
        self, frames: Tensor, state: tuple[Any, ...], step_scales: Sequence[Any]
    ) -> tuple[dict[int, Tensor], tuple[Any, ...]]:
        """Run L steps: frames (L, B, H, W, C) -> maps (L, B, H / s, W / s, D) by stride s, and the state after step L.

        The frames have the size `padded_hw` and the type of the first weight. `state` and `step_scales` have one entry
        for each temporal layer, in the order of `temporal_layers`. The state of a layer that is not in `memory_strides`
        is ().
        """

    def init_state(self, num_streams: int) -> tuple[Any, ...]:
        """Return the zero state of B streams: one per temporal layer, of B * H * W / s**2 sequences, stream-major."""
        pixels = num_streams * self.padded_hw[0] * self.padded_hw[1]
        return tuple(
            layer.init_state(pixels // stride**2) if stride in self.memory_strides else ()
            for stride, layer in self.temporal_layers().items()
        )

    def prepare(self, step_scale: float) -> tuple[Any, ...]:
        """Return what each temporal layer prepares for one step scale."""
        return tuple(layer.prepare(step_scale) for layer in self.temporal_layers().values())

    @property
    def is_causal(self) -> bool:
        """Whether no output depends on later frames, so that the frames can come one at a time."""
        return all(layer.is_causal for layer in self.temporal_layers().values())

    @property
    def input_weight(self) -> str:
        """The name of the weight that reads the channels of the frames."""
        return next(name for name, _ in self.named_parameters())

    def parameters_by_room(self) -> dict[str, list[nn.Parameter]]:
        """Return the parameters of the temporal layers, and all others, which are spatial."""
        temporal = [p for layer in self.temporal_layers().values() for p in layer.parameters()]
        is_temporal = {id(p) for p in temporal}
        return {"spatial": [p for p in self.parameters() if id(p) not in is_temporal], "temporal": temporal}

    def remembering_layers(self) -> list[TemporalLayer]:
        """Return the temporal layers that carry a state."""
        return [layer for stride, layer in self.temporal_layers().items() if stride in self.memory_strides]

    def idle_parameters(self) -> list[nn.Parameter]:
        """Return parameters that a prediction need not depend on: those of layers without memory may only read it."""
        layers = self.temporal_layers().items()
        return [p for stride, layer in layers if stride not in self.memory_strides for p in layer.parameters()]

    def recompute(self, strides: Sequence[int]) -> None:
        """Run the maps of these strides again in the backward pass, which saves memory; ValueError for others."""
        _check_strides("training.recompute_strides", strides, self.channels)
        self.recomputed = frozenset(strides)

    def load_pretrained(self) -> None:
        """Load the weights that the configuration names, where there are any; a new training calls this once."""

    def facts(self) -> dict[str, Any]:
        """Return what `rvtssm info` adds about this kind of backbone, as values that JSON can hold."""
        return {}

    def to_real_step(self) -> None:
        """Replace in place what has a form for export: one step in real numbers, for maps of this size.

        ValueError if a temporal layer has no such step.
        """
        take_export_forms(self, *self.padded_hw)

    def freeze_spatial(self) -> None:
        """Train the temporal layers only: the rest gets no gradient and stays in evaluation mode."""
        for parameter in self.parameters_by_room()["spatial"]:
            parameter.requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> Backbone:
        """Set the mode of every part that is not frozen."""
        super().train(mode)
        if self.freezes_spatial:
            trained = {id(part) for layer in self.temporal_layers().values() for part in layer.modules()}
            for part in self.modules():
                part.training = mode and id(part) in trained
        return self


class Neck(nn.Module, ABC):
    """Mixes the maps of several strides. It is built as `Neck(model, channels)`, channels those of the backbone."""

    strides: ClassVar[tuple[int, ...]]  # of the maps it takes
    channels: dict[int, int]  # of the maps it returns, by stride, finest first

    @abstractmethod
    def forward(self, maps: dict[int, Tensor]) -> dict[int, Tensor]:
        """Mix maps (M, C, H / s, W / s), by stride s."""


class Head(nn.Module, ABC):
    """Turns maps into predictions, and knows what those mean: their detections, and their loss.

    It is built as `Head(model, channels, num_classes, padded_hw)`: the channels of the neck's maps by stride, and the
    size of the padded frame in pixels. Predictions are a NamedTuple of tensors (M, ...), one row per frame. Tensors
    that only training has are None otherwise. What needs no weights is a static method, so that the predictions of an
    exported file are decoded without them.
    """

    record: ClassVar[type[Any]]  # the NamedTuple of its predictions
    class_layer: ClassVar[str] = "class_out"  # the name of layers whose weights have one row per class

    @abstractmethod
    def forward(self, maps: dict[int, Tensor], targets: tuple[Tensor, Tensor] | None = None) -> Any:
        """Predict from maps (M, C, H / s, W / s), by stride s.

        In training, `targets` are those of the loss: targets (M, N, 5) and num_targets (M,), which is on the CPU.
        """

    @abstractmethod
    def empty(self) -> Any:
        """Return the predictions of no frame, as `forward` returns them in evaluation mode."""

    @abstractmethod
    def loss(
        self,
        predictions: Any,
        targets: Tensor,
        num_targets: Tensor,
        divisor: Callable[..., Tensor | int] = at_least_one,
        weights: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Return the terms of the loss, which are scalars, and their `total`.

        targets (M, N, 5) [class, cx, cy, w, h] px, of which the first num_targets (M,), on the CPU, are real. `divisor`
        turns a number of matches in this process, an integer or a tensor (), into what a sum is divided by. Processes
        wait for each other in it, so every call of `loss` calls it equally often, with M = 0 as well. `weights` (M, N)
        from 0 to 1 say how much each target counts; they are given only if a detector made some of the targets, and
        with 0 nothing is learned there. `divisor` then gets the number of matches whose weight is not 0, and the number
        of all.
        """

    @staticmethod
    @abstractmethod
    def decode(
        predictions: Any, t_us: Sequence[int] | Tensor, config: PostprocessConfig | None = None
    ) -> list[Detections]:
        """Return the detections of M frames at the times t_us (M,)."""

    @staticmethod
    def describe_scores(config: PostprocessConfig) -> str:
        """Return what `decode` scores and leaves out, in words for reports."""
        return f"class probability, from {config.min_score:g}; no non-maximum suppression"

    @staticmethod
    @abstractmethod
    def compared(predictions: Any) -> tuple[Tensor, Tensor]:
        """Return boxes (M, N, 4) in pixels and scores (M, N, K) from 0 to 1, by which two detectors are compared."""


def take_export_forms(part: nn.Module, height: int, width: int) -> None:
    """Replace in place every temporal layer by its real step, and every module that has an `export_form` by that.

    An export form computes the same numbers up to rounding, for maps of one size in pixels, without complex numbers and
    in few operations. Its tensors are constants, because an exported model is not trained.
    """
    for name, child in part.named_children():
        export_form: Any = getattr(child, "export_form", None)
        if isinstance(child, TemporalLayer):
            setattr(part, name, child.real_step())
        elif export_form is not None:
            setattr(part, name, export_form(height, width))
        else:
            take_export_forms(child, height, width)


def concatenate(parts: Sequence[Any]) -> Any:
    """Join predictions of the same head along their frames."""
    joined = [None if field[0] is None else torch.cat(field) for field in zip(*parts, strict=True)]
    return type(parts[0])(*joined)


def check_memory_strides(strides: Sequence[int] | None, channels: Mapping[int, int]) -> tuple[int, ...]:
    """Return the strides with memory, None for all; ValueError for strides that the backbone does not have."""
    if strides is None:
        return tuple(channels)
    _check_strides("temporal.strides", strides, channels)
    return tuple(stride for stride in channels if stride in strides)


def _check_strides(key: str, strides: Sequence[int], channels: Mapping[int, int]) -> None:
    if len(set(strides)) < len(strides) or not set(strides) <= channels.keys():
        raise UserError(
            f"{key}={list(strides)}; name strides of the backbone once each, of {list(channels)}, or none: []"
        )
