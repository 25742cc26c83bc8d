"""The detector: pads frames, runs the backbone with carried states, and the neck and head on the chosen frames.

Outside of training it can compute its products in bfloat16, with states, steps and boxes in float32.
Sources: RVT (Gehrig and Scaramuzza, 2023) and State Space Models for Event Cameras (Zubic et al., 2024).
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from functools import cache
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rvtssm.models import PRECISIONS, SCORES, ModelConfig
from rvtssm.models.contracts import Backbone, Head, Neck
from rvtssm.models.pafpn import Pafpn
from rvtssm.models.rvt import RvtBackbone
from rvtssm.models.timm import TimmBackbone
from rvtssm.models.yolox import YoloxHead
from rvtssm.ssm import TemporalConfig
from rvtssm.ssm.layer import TemporalLayer, to_constant
from rvtssm.system.extras import check_part, installed_parts
from rvtssm.system.limits import check_choice
from rvtssm.system.machine import on_device
from rvtssm.system.user_error import UserError

_PRODUCT_SIDE = 512  # of the matrices whose product is timed; 2 to 10 ms per product on one core
_TIMED_PRODUCTS = 5

# The parts that a detector can have. Add new ones here.
BACKBONES: dict[str, type[Backbone]] = {"rvt": RvtBackbone, "timm": TimmBackbone}
NECKS: dict[str, type[Neck]] = {"pafpn": Pafpn}
HEADS: dict[str, type[Head]] = {"yolox": YoloxHead}


def heads() -> dict[str, type[Head]]:
    """Return all heads by name: those of HEADS, and the entry points of the group `rvtssm.heads`."""
    return {**HEADS, **installed_parts("rvtssm.heads")}


def head_class(model: ModelConfig) -> type[Head]:
    """Return the class of the head that the settings name.

    Args:
        model: Settings of the detector.

    Raises:
        UserError: If there is no head of this name. The message lists the names.
    """
    check_part("model.head", model.head, heads())
    return heads()[model.head]


def with_all_options(model: ModelConfig) -> ModelConfig:
    """Return settings that name every option of the backbone, the neck and the head.

    Args:
        model: Settings of the parts.

    Raises:
        UserError: If a name is unknown, or if a part has no such option.
    """
    check_part("model.backbone", model.backbone, BACKBONES)
    check_part("model.neck", model.neck, NECKS)
    classes = (("backbone", BACKBONES[model.backbone]), ("neck", NECKS[model.neck]), ("head", head_class(model)))
    options: dict[str, Any] = {}
    for part, kind in classes:
        options[f"{part}_options"] = asdict(model.options_of(part, kind.options))
    return replace(model, **options)


PreparedStep = tuple[Any, ...]  # what each temporal layer prepared for one step scale, valid until the weights change


class Detector(nn.Module):
    """Connects a backbone, a neck and a head. Frames and a state go in, predictions and the next state come out.

    The detector itself holds no state. `head` defines what predictions mean; see `rvtssm.models.contracts`.

    Args:
        model: Settings of the parts.
        temporal: Settings of the temporal layers.
        frame_hw: Height and width of a frame in pixels.
        num_classes: Number of classes K.
        in_channels: Number of channels C of a frame.

    Raises:
        UserError: If the settings or sizes do not fit together.
    """

    def __init__(
        self,
        model: ModelConfig,
        temporal: TemporalConfig,
        frame_hw: tuple[int, int],
        num_classes: int,
        in_channels: int,
    ) -> None:
        super().__init__()
        if min(frame_hw) < 1:
            found = f"{frame_hw[0]} x {frame_hw[1]} pixels"
            needed = "height and width must be at least 1"
            raise UserError("setting.out_of_range", name="frame_hw", found=found, needed=needed)
        self.frame_hw = frame_hw
        self.in_channels = in_channels
        self.score = SCORES[0]  # ranks detections unless settings name another, see `CheckpointMeta.scored_as`
        self.product_dtype: torch.dtype | None = None  # dtype of products outside of training, see `set_precision`
        # Names and own settings first, since a backbone takes long to build.
        model = with_all_options(model)
        neck_class = NECKS[model.neck]
        # Each part is told what the one before it gives.
        self.backbone = BACKBONES[model.backbone](model, temporal, frame_hw, in_channels)
        channels = self.backbone.channels
        if not set(neck_class.strides) <= channels.keys():
            needed = (
                f"it needs maps of the strides {list(neck_class.strides)}, and model.backbone={model.backbone} "
                f"gives {list(channels)}"
            )
            advice = "choose another backbone or neck"
            raise UserError("setting.conflict", name="model.neck", found=model.neck, needed=needed, advice=advice)
        self.neck = neck_class(model, channels)
        self.head = head_class(model)(model, self.neck.channels, num_classes, self.backbone.padded_hw)
        if model.freeze_spatial:
            self.backbone.freeze_spatial()

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def is_causal(self) -> bool:
        """Whether no prediction depends on later frames."""
        return self.backbone.is_causal

    @property
    def has_step_to_rescale(self) -> bool:
        """Whether the temporal layers have a step to rescale."""
        return self.backbone.has_step_to_rescale

    def init_state(self, num_streams: int) -> tuple[Any, ...]:
        """Return the zero state of B streams. See `Backbone.init_state`."""
        return self.backbone.init_state(num_streams)

    def empty(self) -> Any:
        """Return the predictions of no frame."""
        return self.head.empty()

    @torch.no_grad()
    def prepare(self, step_scale: float) -> PreparedStep:
        """Return what `forward` takes in place of this step scale until the weights change."""
        return self.backbone.prepare(step_scale)

    def forward(
        self,
        hist: Tensor,
        state: tuple[Any, ...] | None = None,
        step_scale: float | Tensor | PreparedStep = 1.0,
        frame_index: Tensor | None = None,
        targets: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Any, tuple[Any, ...]]:
        """Run L steps of B streams.

        Args:
            hist: Frames (L, B, C, H, W) of the size `frame_hw`, uint8 counts or floating-point.
            state: A result of `init_state` or of an earlier call; None means the zero state.
            step_scale: The step relative to training: a number, a tensor (L, B), or a result of `prepare`. A tensor on
                the CPU with equal values is treated as a number.
            frame_index: The frames that need predictions, (M, 2) int64 [step, stream]; None means all, step by step.
            targets: Targets (M, N, 5) of these frames and their numbers (M,), for heads that use them in training. See
                `Head.forward`.

        Returns:
            The predictions of the head for the M frames, and the state after step L.

        Raises:
            UserError: If the frames have another size or number of channels.
        """
        if state is None:
            state = self.init_state(hist.shape[1])
        # One step scale per temporal layer.
        if not isinstance(step_scale, tuple):
            scale = to_constant(step_scale)
            if isinstance(scale, Tensor):
                scale = on_device(scale, hist.device)
            step_scale = (scale,) * len(state)
        # Only labelled frames go on to neck and head: (L B) maps become M.
        rows = None
        if frame_index is not None:
            rows = on_device(frame_index[:, 0] * hist.shape[1] + frame_index[:, 1], hist.device)
        with self._precision():
            maps, state = self.backbone(self._pad(hist), state, step_scale)
            chosen = {}
            for stride in self.neck.strides:
                features = maps[stride].flatten(0, 1)
                if rows is not None:
                    features = features[rows]
                chosen[stride] = features.permute(0, 3, 1, 2)
            if features.shape[0] == 0 and not any(isinstance(part, nn.SyncBatchNorm) for part in self.modules()):
                # Batch norm refuses an empty batch. If it is synchronised, it must run: other processes wait for it.
                return self.head.empty(), state
            return self.head(self.neck(chosen), targets), state

    def _precision(self) -> AbstractContextManager[Any]:
        """Return the context in which products are computed."""
        if self.product_dtype is None:
            return nullcontext()
        return torch.autocast(self.device.type, self.product_dtype)

    def _pad(self, hist: Tensor) -> Tensor:
        """Return frames (L, B, C, H, W) padded and with channels last, in the dtype of the backbone."""
        size = tuple(hist.shape[2:])
        own_size = (self.in_channels, *self.frame_hw)
        if size != own_size:
            raise UserError(
                "frames.other_size",
                found=f"got frames of {size} (channels, height, width), but this detector was built for {own_size}",
                advice="detector_for_frame(checkpoint, height, width) builds one with the same weights for another "
                "size",
            )
        padded_height, padded_width = self.backbone.padded_hw
        right, bottom = padded_width - size[2], padded_height - size[1]
        dtype = next(self.backbone.parameters()).dtype
        if hist.dtype == torch.uint8 and torch.is_autocast_enabled(hist.device.type):
            dtype = torch.get_autocast_dtype(hist.device.type)  # dtype of the first layer; exact for counts below 256
        if torch.compiler.is_exporting():  # the convolutions of other programs expect channels first
            frames = F.pad(hist.flatten(0, 1), (0, right, 0, bottom)).to(dtype).permute(0, 2, 3, 1)
        else:
            # The channels are moved before the conversion, while the data is small. On a CPU, stacking the planes is
            # several times faster than copying a permuted view.
            frames = torch.stack(hist.flatten(0, 1).unbind(1), dim=-1)
            if right or bottom:
                frames = F.pad(frames, (0, 0, 0, right, 0, bottom))
            frames = frames.to(dtype)
        return frames.unflatten(0, hist.shape[:2])


def build_detector(
    model: ModelConfig, temporal: TemporalConfig, height: int, width: int, num_classes: int, in_channels: int = 20
) -> Detector:
    """Build a detector. See `Detector`.

    >>> model = rvtssm.ModelConfig(embed_dim=8, head_dim=8)
    >>> detector = rvtssm.build_detector(model, rvtssm.TemporalConfig(), height=64, width=96, num_classes=2)
    >>> frames = torch.zeros(3, 1, 20, 64, 96, dtype=torch.uint8)  # three steps of one stream
    >>> predictions, state = detector(frames, detector.init_state(1), step_scale=0.1)

    Args:
        model: Settings of the parts.
        temporal: Settings of the temporal layers.
        height: Height of a frame in pixels.
        width: Width of a frame in pixels.
        num_classes: Number of classes K.
        in_channels: Number of channels C of a frame.
    """
    return Detector(model, temporal, (height, width), num_classes, in_channels)


def parameters_by_room(detector: Detector) -> dict[str, list[nn.Parameter]]:
    """Return the parameters of a detector in groups: `spatial` and `temporal` parts of the backbone, `neck`, `head`."""
    return {
        **detector.backbone.parameters_by_room(),
        "neck": list(detector.neck.parameters()),
        "head": list(detector.head.parameters()),
    }


def count_parameters(detector: Detector) -> dict[str, int]:
    """Return the number of parameters of each group in `parameters_by_room`, and their `total`."""
    counts = {}
    for room, parameters in parameters_by_room(detector).items():
        counts[room] = sum(map(Tensor.numel, parameters))
    return {**counts, "total": sum(counts.values())}


def usual_device() -> str:
    """Return the type of the device on which detectors run if nothing else is asked for: a GPU if there is one."""
    if torch.cuda.is_available():
        return "cuda"
    return "cpu"


def fastest_precision(device_type: str) -> str:
    """Return `bf16` if a type of device computes matrix products faster in it, else `float32`.

    A CPU is measured, once per process, because its flags do not tell: Intel processors without AMX report AVX512-BF16,
    but their products in bfloat16 take about twice as long as those in float32.

    Args:
        device_type: Type of a torch device, such as `cpu` or `cuda`.
    """
    if device_type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False):
        return "bf16"
    if device_type == "cpu" and _bf16_is_faster():
        return "bf16"
    return "float32"


def set_precision(detector: Detector, precision: str) -> None:
    """Make a detector compute its products in bfloat16 from now on, if `precision` says so.

    The results are the ones of `torch.autocast`. The weights of products are rounded once, in place, because rounding
    them at every step would cost as much as a small step. Temporal layers keep weights, states and discretisation in
    float32 and round within the layer.

    Args:
        detector: The detector to change.
        precision: One of PRECISIONS, `float32` or `bf16`.

    Raises:
        UserError: If the precision is unknown.
    """
    check_choice("precision", precision, PRECISIONS)
    if precision == "float32":
        return
    detector.product_dtype = torch.bfloat16
    _round_weights(detector)


def _round_weights(module: nn.Module) -> None:
    for child in module.children():
        if type(child) in (nn.Linear, nn.Conv2d):  # subclasses may compute with their weights before the product
            child.to(torch.bfloat16)
        elif not isinstance(child, TemporalLayer):
            _round_weights(child)


@cache
def _bf16_is_faster() -> bool:
    matrix = torch.ones(_PRODUCT_SIDE, _PRODUCT_SIDE)
    matrices = matrix, matrix.to(torch.bfloat16)
    seconds = [list(map(_seconds_of_product, matrices)) for _ in range(1 + _TIMED_PRODUCTS)]
    of_float32, of_bf16 = map(min, zip(*seconds[1:], strict=True))  # the first round also prepares the kernels
    return of_bf16 < of_float32


def _seconds_of_product(matrix: torch.Tensor) -> float:
    before = perf_counter()
    matrix @ matrix
    return perf_counter() - before
