"""The settings of `rvtssm label`. This file does not import torch."""

from dataclasses import dataclass, field

from rvtssm.cli.config import Config
from rvtssm.cli.inputs import recordings_path, weights_path
from rvtssm.system.limits import check_at_least, check_positive, check_share
from rvtssm.system.user_error import UserError


@dataclass
class LabelConfig:
    """Settings of `rvtssm label`, which labels recordings with a detector."""

    splits: list[str] = field(default_factory=lambda: ["train"])
    """Splits to label; other splits keep their labels."""
    interval_ms: float | None = None
    """Time between labels, in whole steps; null: the usual interval of the dataset."""
    min_score: float = 0.4
    """Lowest score of a trusted box, averaged over both directions of time."""
    min_iou: float = 0.5
    """Smallest overlap with which boxes of both directions count as one object."""
    min_track_ms: float = 200.0
    """Shortest track of a trusted box."""
    track_memory_s: float = 0.5
    """How long a lost object keeps its track, in seconds."""
    workers: int | None = 1
    """Processes that share the recordings; null: one per GPU, or one per core."""

    def __post_init__(self) -> None:
        check_share("label", self, "min_score", "min_iou")
        check_at_least("label", self, 0, "min_track_ms", "track_memory_s")
        check_positive("label", self, "interval_ms")
        check_at_least("label", self, 1, "workers")
        if not self.splits or len(set(self.splits)) < len(self.splits):
            raise UserError("label.splits", f"label.splits={self.splits}; name each split once, such as [train]")


@dataclass
class LabelSettings(Config):
    """All settings, with those of `label`."""

    label: LabelConfig = field(default_factory=LabelConfig)


def check_label(config: LabelSettings) -> None:
    """Raise UserError if the weights or the recordings are missing."""
    weights_path(config)
    recordings_path(config)
