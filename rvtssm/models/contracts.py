"""The contracts of backbone, neck and head, on which the other parts and all users of a detector rely.

To add a part of another kind, write a class that keeps one of these contracts, and add a line to a table in
`rvtssm.models.detector`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rvtssm.models import ModelConfig, PostprocessConfig
from rvtssm.records import Detections
from rvtssm.ssm import TemporalConfig
from rvtssm.ssm.layer import TemporalLayer
from rvtssm.system.limits import NoOptions
from rvtssm.system.user_error import UserError

RARE = -math.log((1 - 0.01) / 0.01)  # logit of 1 %, the initial probability of an object: Focal Loss (Lin et al., 2017)


def at_least_one(num_counted: Tensor | int, num_matched: Tensor | int = 0) -> Tensor | int:
    """Return the divisor of the losses in a single process, at least 1.

    Args:
        num_counted: Number of matches that count.
        num_matched: Number of all matches, which is used if no match counts.
    """
    if isinstance(num_counted, Tensor):
        return torch.where(num_counted > 0, num_counted, num_matched).clamp(min=1)
    if num_counted == 0:
        num_counted = num_matched
    return max(num_counted, 1)


class Backbone(nn.Module, ABC):
    """Turns the frames of B streams into maps at several strides, and carries the states of the streams.

    The constructor of a subclass calls this constructor and sets the three attributes below. The first parameter of a
    backbone must be the weight that reads the frames; its second axis counts their channels.

    Args:
        model: Settings of the detector.
        temporal: Settings of the temporal layers.
        frame_hw: Height and width of a frame in pixels.
        in_channels: Number of channels of a frame.
    """

    channels: dict[int, int]  # number of channels of every map, by its stride in pixels of the frame, finest first
    padded_hw: tuple[int, int]  # height and width to which frames are padded, at the right and the bottom
    memory_strides: tuple[int, ...]  # strides whose temporal layer carries a state from step to step

    options: ClassVar[type[Any]] = NoOptions  # the dataclass of its own settings, see `ModelConfig.options_of`
    # Weights whose shape does not reveal their layout: a part of their name, and the key of ModelConfig that sets it.
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
        """Run L steps.

        Args:
            frames: Frames (L, B, H, W, C) of the size `padded_hw`, in the dtype of the first weight.
            state: The state of each temporal layer, in the order of `temporal_layers`; () for layers that are not in
                `memory_strides`.
            step_scales: The step scale of each temporal layer, in the same order.

        Returns:
            The maps (L, B, H / s, W / s, D) by stride s, and the state after step L.
        """

    def init_state(self, num_streams: int) -> tuple[Any, ...]:
        """Return the zero state, with one entry per temporal layer of B * H * W / s**2 sequences, ordered by stream.

        Args:
            num_streams: Number of streams B.
        """
        pixels = num_streams * self.padded_hw[0] * self.padded_hw[1]
        states: list[Any] = []
        for stride, layer in self.temporal_layers().items():
            if stride in self.memory_strides:
                states.append(layer.init_state(pixels // stride**2))
            else:
                states.append(())
        return tuple(states)

    def prepare(self, step_scale: float) -> tuple[Any, ...]:
        """Return the result of `TemporalLayer.prepare` of each temporal layer.

        Args:
            step_scale: The step relative to training.
        """
        return tuple(layer.prepare(step_scale) for layer in self.temporal_layers().values())

    @property
    def is_causal(self) -> bool:
        """Whether no output depends on later frames, so that frames can be processed one at a time."""
        return all(layer.is_causal for layer in self.temporal_layers().values())

    @property
    def has_step_to_rescale(self) -> bool:
        """Whether every temporal layer has a step to rescale, by what it states in `follows_the_rate`."""
        return all(layer.follows_the_rate != "no" for layer in self.temporal_layers().values())

    @property
    def input_weight(self) -> str:
        """The name of the weight that reads the channels of the frames."""
        name, _ = next(self.named_parameters())
        return name

    def parameters_by_room(self) -> dict[str, list[nn.Parameter]]:
        """Return the parameters of the temporal layers as `temporal`, and all others as `spatial`."""
        temporal = list(nn.ModuleList(self.temporal_layers().values()).parameters())
        is_temporal = set(map(id, temporal))
        return {"spatial": [p for p in self.parameters() if id(p) not in is_temporal], "temporal": temporal}

    def layers_by_memory(self, remember: bool) -> list[TemporalLayer]:
        """Return the temporal layers that carry a state, or those that do not.

        Some parameters of a layer without memory only act on the state, and on no prediction.
        """
        layers = self.temporal_layers().items()
        return [layer for stride, layer in layers if (stride in self.memory_strides) == remember]

    def recompute(self, strides: Sequence[int]) -> None:
        """Compute the maps of some strides again in the backward pass, which saves memory.

        Args:
            strides: The strides.

        Raises:
            UserError: If the backbone does not have one of the strides, or a stride is named twice.
        """
        _check_strides("training.recompute_strides", strides, self.channels)
        self.recomputed = frozenset(strides)

    def run_part(self, stride: int, part: Callable[..., Any], *inputs: Any) -> Any:
        """Run the part that makes the map of a stride, and recompute it in the backward pass if `recompute` says so."""
        if stride in self.recomputed and torch.is_grad_enabled():
            return checkpoint(part, *inputs, use_reentrant=False)
        return part(*inputs)

    def load_pretrained(self) -> None:
        """Load the pretrained weights that the configuration names, if any. A new training calls this once."""

    def facts(self) -> dict[str, Any]:
        """Return what `rvtssm info` adds about this kind of backbone, as values that JSON can hold."""
        return {}

    def to_real_step(self) -> None:
        """Convert in place to one step in real numbers, for export and for maps of this size.

        Raises:
            UserError: If a temporal layer has no such step.
        """
        take_export_forms(self, *self.padded_hw)

    def freeze_spatial(self) -> None:
        """Train the temporal layers only: the other parts get no gradient and stay in evaluation mode."""
        for parameter in self.parameters_by_room()["spatial"]:
            parameter.requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> Backbone:
        """Set the mode of every part that is not frozen."""
        super().train(mode)
        if self.freezes_spatial:
            trained = set(map(id, nn.ModuleList(self.temporal_layers().values()).modules()))
            for part in self.modules():
                part.training = mode and id(part) in trained
        return self


class Neck(nn.Module, ABC):
    """Mixes the maps of several strides. A subclass is built as `Neck(model, channels)`.

    `model` holds the settings of the detector, `channels` the number of channels of each map of the backbone, by
    stride.
    """

    options: ClassVar[type[Any]] = NoOptions  # the dataclass of its own settings, see `ModelConfig.options_of`
    strides: ClassVar[tuple[int, ...]]  # strides of the maps that it takes
    channels: dict[int, int]  # number of channels of each map that it returns, by stride, finest first

    @abstractmethod
    def forward(self, maps: dict[int, Tensor]) -> dict[int, Tensor]:
        """Return mixed maps.

        Args:
            maps: Maps (M, C, H / s, W / s) by stride s.

        Returns:
            Maps of the same sizes, with `channels` channels.
        """


class Head(nn.Module, ABC):
    """Turns maps into predictions, and predictions into detections and losses.

    A subclass is built as `Head(model, channels, num_classes, padded_hw)`, with the settings of the detector, the
    number of channels of each map of the neck by stride, and the height and width of the padded frame in pixels.

    Predictions are a NamedTuple of tensors (M, ...), one row per frame. Fields that exist only in training are None
    otherwise. Everything that needs no weights is a static method, so that the predictions of an exported file can be
    decoded without weights.
    """

    options: ClassVar[type[Any]] = NoOptions  # the dataclass of its own settings, see `ModelConfig.options_of`
    needed_to_train: ClassVar[tuple[str, ...]] = ()  # an extra and the modules that it installs
    record: ClassVar[type[Any]]  # the NamedTuple of its predictions
    class_layers: ClassVar[tuple[str, ...]] = ("class_out",)  # names of the layers whose weights have one row per class

    @abstractmethod
    def forward(self, maps: dict[int, Tensor], targets: tuple[Tensor, Tensor] | None = None) -> Any:
        """Return the predictions of M frames.

        Args:
            maps: Maps (M, C, H / s, W / s) by stride s.
            targets: In training, the targets (M, N, 5) and their numbers (M,) as in `loss`; the numbers are on the CPU.
        """

    @abstractmethod
    def empty(self) -> Any:
        """Return the predictions of no frame, in the form that `forward` has in evaluation mode."""

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

        Args:
            predictions: Result of `forward` for M frames.
            targets: Objects (M, N, 5) [class, cx, cy, w, h px], padded to N rows.
            num_targets: Number of objects of each frame, (M,), on the CPU.
            divisor: Function from the number of matches in this process, an integer or a tensor (), to the divisor of
                the sums. Processes wait for each other in it, so every call of `loss` calls it equally often, even for
                M = 0. With `weights`, it gets the number of matches whose weight is not 0, and the number of all
                matches.
            weights: How much each target counts, (M, N), from 0 to 1; given only if a detector made some of the
                targets. Nothing is learned where the weight is 0.
        """

    @staticmethod
    @abstractmethod
    def decode(
        predictions: Any, t_us: Sequence[int] | Tensor, config: PostprocessConfig | None = None
    ) -> list[Detections]:
        """Return the detections of M frames.

        Args:
            predictions: Result of `forward` for M frames.
            t_us: Time of each frame in microseconds, (M,).
            config: Which boxes count as detections; None means the defaults.
        """

    @staticmethod
    def describe_scores(config: PostprocessConfig) -> str:
        """Return in words, for reports, what `decode` uses as score and which boxes it drops."""
        return f"class probability, from {config.min_score:g}; no non-maximum suppression"

    @staticmethod
    @abstractmethod
    def compared(predictions: Any) -> tuple[Tensor, Tensor]:
        """Return boxes and scores by which two detectors are compared.

        Args:
            predictions: Result of `forward` for M frames.

        Returns:
            Boxes (M, N, 4) in pixels, and scores (M, N, K) from 0 to 1.
        """


def take_export_forms(part: nn.Module, height: int, width: int) -> None:
    """Replace in place every temporal layer by its real step, and every module with an `export_form` by this form.

    An export form computes the same numbers up to rounding, for maps of one size, in few operations and without complex
    numbers. Its tensors are constants, because an exported model is not trained.

    Args:
        part: The module whose children are replaced.
        height: Height of a map in pixels.
        width: Width of a map in pixels.
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
    if len(parts) == 1:
        return parts[0]
    return type(parts[0])(*map(_joined, zip(*parts, strict=True)))


def _joined(fields: tuple[Any, ...]) -> Tensor | None:
    if fields[0] is None:
        return None
    return torch.cat(fields)


def check_memory_strides(strides: Sequence[int] | None, channels: Mapping[int, int]) -> tuple[int, ...]:
    """Return the strides with memory.

    Args:
        strides: The strides that the configuration asks for; None means all.
        channels: Number of channels of the maps of the backbone, by stride.

    Raises:
        UserError: If the backbone does not have one of the strides, or a stride is named twice.
    """
    if strides is None:
        return tuple(channels)
    _check_strides("temporal.strides", strides, channels)
    return tuple(stride for stride in channels if stride in strides)


def _check_strides(key: str, strides: Sequence[int], channels: Mapping[int, int]) -> None:
    if len(set(strides)) < len(strides) or not set(strides) <= channels.keys():
        needed = f"name each stride at most once, from {list(channels)}, or [] for none"
        raise UserError("setting.form", name=key, found=list(strides), needed=needed)
