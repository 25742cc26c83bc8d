"""The backbones, necks and heads that a detector can have; these tables are where a new one is added."""

from rvtssm.models.contracts import Backbone, Head, Neck
from rvtssm.models.model_config import ModelConfig
from rvtssm.models.pafpn import Pafpn
from rvtssm.models.rtdetr_head import RtdetrHead
from rvtssm.models.rvt_backbone import RvtBackbone
from rvtssm.models.timm_backbone import TimmBackbone
from rvtssm.models.yolox_head import YoloxHead
from rvtssm.ssm.temporal_config import TemporalConfig
from rvtssm.system.plugins import check_part
from rvtssm.system.user_error import UserError

BACKBONES: dict[str, type[Backbone]] = {"rvt": RvtBackbone, "timm": TimmBackbone}
NECKS: dict[str, type[Neck]] = {"pafpn": Pafpn}
HEADS: dict[str, type[Head]] = {"yolox": YoloxHead, "rtdetr": RtdetrHead}


def head_class(model: ModelConfig) -> type[Head]:
    """Return the class of the head; ValueError lists the names."""
    check_part("model.head", model.head, HEADS)
    return HEADS[model.head]


def build_parts(
    model: ModelConfig, temporal: TemporalConfig, frame_hw: tuple[int, int], num_classes: int, in_channels: int
) -> tuple[Backbone, Neck, Head]:
    """Build the parts of a detector, each for what the one before it gives; ValueError if they do not fit."""
    check_part("model.backbone", model.backbone, BACKBONES)
    check_part("model.neck", model.neck, NECKS)
    backbone, neck_class = BACKBONES[model.backbone](model, temporal, frame_hw, in_channels), NECKS[model.neck]
    if not set(neck_class.strides) <= backbone.channels.keys():
        raise UserError(
            f"model.neck={model.neck} needs maps of the strides {list(neck_class.strides)}, and model.backbone="
            f"{model.backbone} gives {list(backbone.channels)}; choose another backbone or neck"
        )
    neck = neck_class(model, backbone.channels)
    return backbone, neck, head_class(model)(model, neck.channels, num_classes, backbone.padded_hw)
