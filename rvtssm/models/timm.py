"""Any model of timm as the spatial part of a backbone, with temporal layers after its maps.

Source of the models: timm (Wightman, 2019). A temporal layer follows a map instead of standing between two stages of
the model. The model therefore computes what it was trained for and may be frozen, and the memory learns on its maps, as
in EvRT-DETR (2024). A convolution adds the output of a temporal layer to the next coarser map, so a neck that does not
use the finest map still sees its memory.

Frames enter as counts, without scaling. timm repeats pretrained filters over the C channels and multiplies them by 3 /
C, so a pixel with C / 3 events gives about the response of an image value of 1, which is one standard deviation on
ImageNet.
"""

from collections.abc import Sequence
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rvtssm.models import ModelConfig
from rvtssm.models.contracts import Backbone, check_memory_strides
from rvtssm.models.rvt import mix_in_time
from rvtssm.ssm import TemporalConfig
from rvtssm.ssm.layer import TemporalLayer
from rvtssm.ssm.temporal_layers import build_temporal_layer
from rvtssm.system.user_error import UserError

_STRIDES = (4, 8, 16, 32)
PRETRAINED = "pretrained"


class TimmBackbone(Backbone):
    """A backbone around a model of timm. Use it to try another spatial model, or to add memory to a trained one.

    The temporal layers are at `temporal.strides`; by default these are all strides of the model among 4, 8, 16 and 32.

    Args:
        model: Settings of the detector; `timm_name` and `timm_weights` select the model and its weights.
        temporal: Settings of the temporal layers.
        frame_hw: Height and width of a frame in pixels.
        in_channels: Number of channels of a frame.

    Raises:
        UserError: If timm has no such model, or the model has no map of these strides.
    """

    def __init__(
        self, model: ModelConfig, temporal: TemporalConfig, frame_hw: tuple[int, int], in_channels: int
    ) -> None:
        import timm  # imported within functions, because it takes seconds

        super().__init__(model, temporal, frame_hw, in_channels)
        self.name = _known(model.timm_name)
        self.weights = model.timm_weights
        self.in_channels = in_channels
        height, width = frame_hw
        self.padded_hw = -(-height // _STRIDES[-1]) * _STRIDES[-1], -(-width // _STRIDES[-1]) * _STRIDES[-1]
        # What timm has to know; models with a fixed size of images take the padded one.
        self._options: dict[str, Any] = {}
        if model.drop_path:
            self._options["drop_path_rate"] = model.drop_path
        if getattr(timm.get_pretrained_cfg(self.name), "fixed_input_size", False):
            self._options["img_size"] = self.padded_hw
        self.spatial = self._create()
        # Which of its maps have the strides of a detector.
        info: Any = self.spatial.feature_info
        self._index = {stride: index for index, stride in enumerate(info.reduction()) if stride in _STRIDES}
        self.channels = {stride: info.channels()[index] for stride, index in sorted(self._index.items())}
        if not self.channels:
            needed = f"it has no map of the strides {list(_STRIDES)}"
            advice = "choose another model"
            raise UserError("setting.conflict", name="model.timm_name", found=self.name, needed=needed, advice=advice)
        # Memory, and a way for what was remembered down to the coarser maps.
        self.memory_strides = check_memory_strides(temporal.strides, self.channels)
        self.temporal = nn.ModuleDict()
        for stride in self.memory_strides:
            self.temporal[str(stride)] = build_temporal_layer(temporal, self.channels[stride])
        self.downwards = nn.ModuleDict()  # convolutions from the next finer map, by the stride of the coarser map
        for finer, stride in pairwise(self.channels):
            if any(remembering <= finer for remembering in self.memory_strides):
                size = stride // finer
                channels = self.channels[finer], self.channels[stride]
                self.downwards[str(stride)] = nn.Conv2d(*channels, size, stride=size, bias=False)

    def temporal_layers(self) -> dict[int, TemporalLayer]:
        return {int(stride): layer for stride, layer in self.temporal.items()}  # type: ignore[misc]

    def forward(
        self, frames: Tensor, state: tuple[Any, ...], step_scales: Sequence[Any]
    ) -> tuple[dict[int, Tensor], tuple[Any, ...]]:
        spatial_maps = self.spatial(frames.flatten(0, 1).permute(0, 3, 1, 2))
        maps: dict[int, Tensor] = {}
        states = []
        layers = self.temporal_layers()
        given = dict(zip(layers, zip(state, step_scales, strict=True), strict=True))
        for stride in self.channels:
            x = spatial_maps[self._index[stride]]
            # Some models give channels last.
            if getattr(self.spatial, "output_fmt", "NCHW") == "NCHW":
                x = x.permute(0, 2, 3, 1)
            # The finer map, with its memory, is added to the coarser one.
            if str(stride) in self.downwards:
                finer = next(reversed(maps.values())).flatten(0, 1).permute(0, 3, 1, 2)
                x = x + self.downwards[str(stride)](finer).permute(0, 2, 3, 1)
            x = x.unflatten(0, frames.shape[:2])
            if stride in layers:
                x, after = self.run_part(stride, mix_in_time, layers[stride], x, *given[stride])
                states.append(after)
            maps[stride] = x
        return maps, tuple(states)

    def parameters_by_room(self) -> dict[str, list[nn.Parameter]]:
        """Return the parameters of the model as `spatial`, all others as `temporal`."""
        temporal = [*self.temporal.parameters(), *self.downwards.parameters()]
        return {"spatial": list(self.spatial.parameters()), "temporal": temporal}

    def load_pretrained(self) -> None:
        """Load the spatial weights that `model.timm_weights` names.

        Raises:
            UserError: If the weights cannot be read or downloaded, or do not fit.
        """
        if self.weights is None:
            return
        import timm

        overlay = {}
        # A file of the user: it must hold all weights, of which timm would not complain.
        if self.weights != PRETRAINED:
            with torch.device("meta"):
                own = timm.create_model(self.name, num_classes=0).state_dict()
            given = _read(self.weights)
            if missing := [name for name in own if name not in given]:
                raise UserError(
                    "weights.do_not_fit",
                    name=f"model.timm_weights={self.weights}",
                    found=f"it lacks {len(missing)} of the {len(own)} weights of model.timm_name={self.name}, such as "
                    f"{missing[0]}",
                    advice="give weights that timm saved for this model",
                )
            overlay = {"pretrained_cfg_overlay": {"file": self.weights}}
        self.spatial.load_state_dict(self._create(pretrained=True, **overlay).state_dict())

    def facts(self) -> dict[str, Any]:
        return {"timm_name": self.name, "temporal_strides": list(self.memory_strides), "frozen": self.freezes_spatial}

    def _create(self, **weights: Any) -> nn.Module:
        import timm

        try:
            model: nn.Module = timm.create_model(
                self.name, features_only=True, in_chans=self.in_channels, **self._options, **weights
            )
        except Exception as error:  # models and the download of their weights raise errors of many kinds
            raise UserError(
                "model.cannot_build",
                name=f"model.timm_name={self.name}",
                found=f"timm cannot build it with model.timm_weights={self.weights} ({error})",
                advice="choose another model, or weights from a file",
            ) from error
        return model


def _known(name: str | None) -> str:
    import timm

    if name is None:
        needed = "this needs model.timm_name=NAME, such as resnet18 or convnext_atto"
        raise UserError("setting.needs", name="model.backbone", found="timm", needed=needed)
    if not timm.is_model(name):
        near = get_close_matches(name, timm.list_models(), n=3, cutoff=0.5)
        needed = "timm has no such model"
        advice = f"similar names are {', '.join(near) or 'none'}"
        raise UserError("setting.choice", name="model.timm_name", found=name, needed=needed, advice=advice)
    return name


def _read(path: str) -> dict[str, Any]:
    from timm.models import load_state_dict

    if not Path(path).is_file():
        advice = "give a file, pretrained or null"
        raise UserError("file.missing", name=f"model.timm_weights={path}", found="there is no such file", advice=advice)
    try:
        return load_state_dict(path, weights_only=True)
    except Exception as error:  # for files of another kind, torch raises many kinds of errors
        raise UserError(
            "file.kind", name=f"model.timm_weights={path}", found=f"it holds no weights that timm can read ({error})"
        ) from error
