"""The detector: frames and carried states go in, boxes with scores come out.

The settings stand here: parts, sizes, precision, and which boxes count as detections. They do not import torch.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from rvtssm.system.limits import Options, Settings, checked_options, setting
from rvtssm.system.user_error import UserError

PRECISIONS = ("float32", "bf16")  # choices outside of training
SCORES = ("objectness_times_class", "class_only")
CUSTOM = "custom"  # a model without a preset
# The sizes of a model by name: channels of the first stage, mixers of each stage, channels per attention head,
# bottlenecks of the neck.
PRESETS: dict[str, dict[str, Any]] = {
    # 0.9 million parameters and a third of the time of tiny, for processors of robots
    "nano": {"embed_dim": 16, "num_blocks": (0, 0, 0, 1), "head_dim": 16, "fpn_blocks": 0},
    "tiny": {"embed_dim": 32, "num_blocks": (1, 1, 1, 1), "head_dim": 32, "fpn_blocks": 1},
    "small": {"embed_dim": 48, "num_blocks": (1, 1, 1, 1), "head_dim": 24, "fpn_blocks": 1},
    "base": {"embed_dim": 64, "num_blocks": (1, 1, 1, 1), "head_dim": 32, "fpn_blocks": 2},
}
_NUM_STAGES = 4  # stages of the rvt backbone


@dataclass
class ModelConfig(Settings, section="model"):
    """The parts and sizes of a detector, except those that follow from the dataset or belong to the temporal layer.

    A key that starts with the name of a part applies to that part only.

    >>> rvtssm.ModelConfig(size="tiny").embed_dim
    32
    """

    size: str = setting("base", choices=(*PRESETS, CUSTOM))
    """Preset of embed_dim, num_blocks, head_dim and fpn_blocks where they are not named; one of PRESETS, or custom."""
    backbone: str = "rvt"
    """One of rvtssm.models.detector.BACKBONES."""
    neck: str = "pafpn"
    """One of rvtssm.models.detector.NECKS."""
    head: str = "yolox"
    """One of rvtssm.models.detector.HEADS."""
    freeze_spatial: bool = False
    """In the backbone, train the temporal layers only."""
    timm_name: str | None = None
    """Name of a model in timm, such as resnet18."""
    timm_weights: str | None = setting(None, is_path=True)
    """Its initial weights: a file, `pretrained` (downloaded by timm), or null: random."""
    backbone_options: dict[str, Any] = field(default_factory=dict)
    """Settings of a backbone that has some of its own, by name."""
    neck_options: dict[str, Any] = field(default_factory=dict)
    """Settings of a neck that has some of its own, by name."""
    head_options: dict[str, Any] = field(default_factory=dict)
    """Settings of a head that has some of its own, by name."""
    mixer_options: dict[str, Any] = field(default_factory=dict)
    """Settings of a mixer that has some of its own, by name."""
    embed_dim: int = setting(64, at_least=1)
    """Channels of the first stage."""
    dim_multiplier: tuple[int, ...] = setting((1, 2, 4, 8), at_least=1)
    """Channels of the four stages, as multiples of embed_dim."""
    mixer: str = "attention"
    """One of rvtssm.models.rvt.SPATIAL_MIXERS."""
    num_blocks: tuple[int, ...] = setting((1, 1, 1, 1), at_least=0)
    """Mixers per stage; for attention, a mixer is a block and a grid layer."""
    head_dim: int = setting(32, at_least=1)
    """Channels per attention head."""
    fpn_blocks: int = setting(2, at_least=0)
    """Bottlenecks per CSP layer of the neck."""
    layer_scale: float = setting(1e-5, at_least=0)
    """Initial scale of the residual branches of a mixer."""
    drop_path: float = setting(0.0, at_least=0, below=1)
    """Share of the residual branches of mixers that a training step drops."""
    memory: str = setting("carried", choices=("carried", "chunk"))
    """carried, or chunk: reset the state every memory_chunk steps, as for released SSM weights."""
    memory_chunk: int | None = setting(None, at_least=1)
    """Steps between two resets of the state, for memory=chunk."""

    def __post_init__(self) -> None:
        # The preset gives what the caller does not name.
        for key, value in PRESETS.get(self.size, {}).items():
            if key not in self.named:
                setattr(self, key, value)
        super().__post_init__()
        for key in ("dim_multiplier", "num_blocks"):
            if len(getattr(self, key)) != _NUM_STAGES:
                needed = f"give one number for each of the {_NUM_STAGES} stages"
                raise UserError("setting.form", name=f"model.{key}", found=list(getattr(self, key)), needed=needed)
        if (self.memory == "chunk") != (self.memory_chunk is not None):
            raise UserError(
                "setting.conflict",
                name="model.memory_chunk",
                found="null" if self.memory_chunk is None else self.memory_chunk,
                needed=f"it does not go with model.memory={self.memory}",
                advice="give a length in steps with `chunk` and none with `carried`",
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

    def over(self, others: "ModelConfig") -> "ModelConfig":
        """Return other settings, with the values that the caller of these has named; a preset names its sizes."""
        return super().over(replace(others, **PRESETS.get(self.named.get("size", CUSTOM), {})))

    @property
    def preset(self) -> str:
        """What people call these sizes: a preset, or the model of timm; `custom` if they are those of none."""
        if self.backbone == "timm" and self.timm_name:
            return self.timm_name
        if (self.backbone, self.dim_multiplier) != ("rvt", (1, 2, 4, 8)):
            return CUSTOM
        for name, sizes in PRESETS.items():
            if all(getattr(self, key) == value for key, value in sizes.items()):
                return name
        return CUSTOM


MODEL_SIZES = {name: ModelConfig(size=name) for name in PRESETS}


@dataclass
class PostprocessConfig(Settings, section="postprocess"):
    """Which boxes count as detections. A head without non-maximum suppression does not read `nms_iou` and `score`.

    >>> rvtssm.PostprocessConfig(min_score=0.1).nms_iou
    0.45
    """

    min_score: float = setting(0.001, at_least=0, at_most=1)
    """Drop boxes whose objectness times class probability is lower."""
    nms_iou: float = setting(0.45, at_least=0, at_most=1)
    """Of two boxes of a class that overlap by more than this, keep the better one."""
    score: str | None = setting(None, choices=(*SCORES, None))
    """What ranks detections: objectness_times_class or class_only; null: as the weights were scored after training."""
    max_detections: int | None = setting(None, at_least=1)
    """Keep this many per frame, the best ones; null: all."""

    def with_score(self, score: str | None) -> "PostprocessConfig":
        """Return these settings with a score where they name none; None stands for objectness_times_class."""
        if self.score is not None:
            return self
        return replace(self, score=score or SCORES[0])
