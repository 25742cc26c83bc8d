"""The settings of `rvtssm label`. This file does not import torch."""

from dataclasses import dataclass, field

from rvtssm.cli.config import Config
from rvtssm.cli.inputs import recordings_path, weights_path
from rvtssm.system.limits import Settings, setting


@dataclass
class LabelConfig(Settings, section="label"):
    """Settings of `rvtssm label`, which labels recordings with a detector."""

    splits: list[str] = setting(["train"], is_filled=True, is_distinct=True)
    """Splits to label; other splits keep their labels."""
    interval_ms: float | None = setting(None, above=0)
    """Time between labels, in whole steps; null: the usual interval of the dataset."""
    min_score: float = setting(0.4, at_least=0, at_most=1)
    """Lowest score of a trusted box, averaged over both directions of time."""
    min_iou: float = setting(0.5, at_least=0, at_most=1)
    """Smallest overlap with which boxes of both directions count as one object."""
    min_track_ms: float = setting(200.0, at_least=0)
    """Shortest track of a trusted box."""
    track_memory_s: float = setting(0.5, at_least=0)
    """How long a lost object keeps its track, in seconds."""
    workers: int | None = setting(1, at_least=1, or_null=True)
    """Processes that share the recordings; null: one per GPU, or one per core."""


@dataclass
class LabelSettings(Config):
    """All settings, with those of `label`."""

    label: LabelConfig = field(default_factory=LabelConfig)


def check_label(config: LabelSettings) -> None:
    """Raise UserError if the weights or the recordings are missing."""
    weights_path(config)
    recordings_path(config)
