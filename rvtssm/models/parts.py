"""The backbones, necks and heads that a detector can have. Add new ones to these tables."""

from dataclasses import asdict, replace
from typing import Any

from rvtssm.models import ModelConfig
from rvtssm.models.contracts import Backbone, Head, Neck
from rvtssm.models.pafpn import Pafpn
from rvtssm.models.rvt import RvtBackbone
from rvtssm.models.timm import TimmBackbone
from rvtssm.models.yolox import YoloxHead
from rvtssm.ssm import TemporalConfig
from rvtssm.system.extras import check_part, installed_parts
from rvtssm.system.user_error import UserError

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
    kinds: dict[str, Any] = {
        "backbone": BACKBONES[model.backbone],
        "neck": NECKS[model.neck],
        "head": head_class(model),
    }
    options: dict[str, Any] = {
        f"{part}_options": asdict(model.options_of(part, kind.options)) for part, kind in kinds.items()
    }
    return replace(model, **options)


def build_parts(
    model: ModelConfig, temporal: TemporalConfig, frame_hw: tuple[int, int], num_classes: int, in_channels: int
) -> tuple[Backbone, Neck, Head]:
    """Build the backbone, the neck for its maps, and the head for the maps of the neck.

    Args:
        model: Settings of the parts.
        temporal: Settings of the temporal layers.
        frame_hw: Height and width of a frame in pixels.
        num_classes: Number of classes.
        in_channels: Number of channels of a frame.

    Raises:
        UserError: If a name is unknown, or if the parts do not fit each other.
    """
    # Names and own settings first, since a backbone takes long to build.
    model = with_all_options(model)
    backbone_class = BACKBONES[model.backbone]
    neck_class = NECKS[model.neck]
    # Each part is told what the one before it gives.
    backbone = backbone_class(model, temporal, frame_hw, in_channels)
    if not set(neck_class.strides) <= backbone.channels.keys():
        raise UserError(
            "setting.conflict",
            name="model.neck",
            found=model.neck,
            needed=f"it needs maps of the strides {list(neck_class.strides)}, and model.backbone={model.backbone} "
            f"gives {list(backbone.channels)}",
            advice="choose another backbone or neck",
        )
    neck = neck_class(model, backbone.channels)
    return backbone, neck, head_class(model)(model, neck.channels, num_classes, backbone.padded_hw)
