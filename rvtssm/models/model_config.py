"""The settings of a detector: parts, sizes, precision, and which boxes count as detections. No import of torch."""

from dataclasses import dataclass, field, replace
from typing import Any

from rvtssm.system.limits import check_at_least, check_choice, check_share
from rvtssm.system.options import Options, checked_options
from rvtssm.system.user_error import UserError

PRECISIONS = ("float32", "bf16")  # choices outside of training
SCORES = ("objectness_times_class", "class_only")
_NUM_STAGES = 4  # stages of the rvt backbone


@dataclass
class ModelConfig:
    """The parts and sizes of a detector, except those that follow from the dataset or belong to the temporal layer.

    A key that starts with the name of a part applies to that part only.

    >>> rvtssm.ModelConfig(embed_dim=32, fpn_blocks=1).dim_multiplier
    (1, 2, 4, 8)
    """

    size: str = "base"
    """Name of this set of sizes in reports."""
    backbone: str = "rvt"
    """One of rvtssm.models.parts.BACKBONES."""
    neck: str = "pafpn"
    """One of rvtssm.models.parts.NECKS."""
    head: str = "yolox"
    """One of rvtssm.models.parts.HEADS."""
    freeze_spatial: bool = False
    """In the backbone, train the temporal layers only."""
    timm_name: str | None = None
    """Name of a model in timm, such as resnet18."""
    timm_weights: str | None = None
    """Its initial weights: a file, `pretrained` (downloaded by timm), or null: random."""
    backbone_options: dict[str, Any] = field(default_factory=dict)
    """Settings of a backbone that has some of its own, by name."""
    neck_options: dict[str, Any] = field(default_factory=dict)
    """Settings of a neck that has some of its own, by name."""
    head_options: dict[str, Any] = field(default_factory=dict)
    """Settings of a head that has some of its own, by name."""
    mixer_options: dict[str, Any] = field(default_factory=dict)
    """Settings of a mixer that has some of its own, by name."""
    embed_dim: int = 64
    """Channels of the first stage."""
    dim_multiplier: tuple[int, ...] = (1, 2, 4, 8)
    """Channels of the four stages, as multiples of embed_dim."""
    mixer: str = "attention"
    """One of rvtssm.models.backbones.rvt.SPATIAL_MIXERS."""
    num_blocks: tuple[int, ...] = (1, 1, 1, 1)
    """Mixers per stage; for attention, a mixer is a block and a grid layer."""
    head_dim: int = 32
    """Channels per attention head."""
    fpn_blocks: int = 2
    """Bottlenecks per CSP layer of the neck."""
    layer_scale: float = 1e-5
    """Initial scale of the residual branches of a mixer."""
    drop_path: float = 0.0
    """Share of the residual branches of mixers that a training step drops."""
    memory: str = "carried"
    """carried, or chunk: reset the state every memory_chunk steps, as for released SSM weights."""
    memory_chunk: int | None = None
    """Steps between two resets of the state, for memory=chunk."""

    def __post_init__(self) -> None:
        self.dim_multiplier, self.num_blocks = tuple(self.dim_multiplier), tuple(self.num_blocks)
        check_choice("model.memory", self.memory, ("carried", "chunk"))
        check_at_least("model", self, 1, "embed_dim", "head_dim", "memory_chunk")
        check_at_least("model", self, 0, "fpn_blocks", "layer_scale", "drop_path")
        if len(self.dim_multiplier) != _NUM_STAGES or len(self.num_blocks) != _NUM_STAGES:
            raise UserError(
                "model.stages",
                f"model.dim_multiplier={self.dim_multiplier} and model.num_blocks={self.num_blocks} "
                f"need one number for each of the {_NUM_STAGES} stages",
            )
        if min(self.dim_multiplier) < 1 or min(self.num_blocks) < 0:
            raise UserError(
                "model.stage_sizes",
                f"model.dim_multiplier={self.dim_multiplier} must be at least 1, model.num_blocks={self.num_blocks} "
                "at least 0",
            )
        if self.drop_path >= 1:
            raise UserError("model.drop_path", f"model.drop_path={self.drop_path:g} must be less than 1")
        if (self.memory == "chunk") != (self.memory_chunk is not None):
            raise UserError(
                "model.memory_chunk",
                f"model.memory={self.memory} with model.memory_chunk={self.memory_chunk}; "
                "give a length in steps with `chunk` and none with `carried`",
            )

    def options_of(self, part: str, kind: type[Options]) -> Options:
        """Return the settings of a part of its own.

        Args:
            part: backbone, neck, head or mixer.
            kind: The dataclass of these settings.

        Raises:
            UserError: The part has no such setting, or the value is wrong.
        """
        return checked_options(f"model.{part}_options", getattr(self, f"{part}_options"), kind)


MODEL_SIZES = {
    # a million parameters and a third of the time of tiny, for processors of robots
    "nano": ModelConfig(size="nano", embed_dim=16, head_dim=16, fpn_blocks=0, num_blocks=(0, 0, 1, 1)),
    "tiny": ModelConfig(size="tiny", embed_dim=32, head_dim=32, fpn_blocks=1),
    "small": ModelConfig(size="small", embed_dim=48, head_dim=24, fpn_blocks=1),
    "base": ModelConfig(size="base", embed_dim=64, head_dim=32, fpn_blocks=2),
}


@dataclass
class PostprocessConfig:
    """Which boxes count as detections. A head without non-maximum suppression does not read `nms_iou` and `score`.

    >>> rvtssm.PostprocessConfig(min_score=0.1).nms_iou
    0.45
    """

    min_score: float = 0.001
    """Drop boxes whose objectness times class probability is lower."""
    nms_iou: float = 0.45
    """Of two boxes of a class that overlap by more than this, keep the better one."""
    score: str | None = None
    """What ranks detections: objectness_times_class or class_only; null: as the weights were scored after training."""
    max_detections: int | None = None
    """Keep this many per frame, the best ones; null: all."""

    def __post_init__(self) -> None:
        if self.score not in (*SCORES, None):
            choices = ", ".join(SCORES)
            raise UserError(
                "model.score",
                f"postprocess.score={self.score!r}; choose from {choices} (the lowest score is min_score)",
            )
        check_share("postprocess", self, "min_score", "nms_iou")
        check_at_least("postprocess", self, 1, "max_detections")

    def with_score(self, score: str | None) -> "PostprocessConfig":
        """Return these settings with a score where they name none; None stands for objectness_times_class."""
        if self.score is not None:
            return self
        return replace(self, score=score or SCORES[0])
