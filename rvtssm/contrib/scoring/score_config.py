"""The settings of `rvtssm score`. This file does not import torch."""

from dataclasses import dataclass, field

from rvtssm.cli.config import Config
from rvtssm.evaluation.evaluation_config import FORMATS
from rvtssm.system.limits import check_at_least, check_choice
from rvtssm.system.user_error import UserError


@dataclass
class ScoreConfig:
    """Which boxes are scored on which labels."""

    detections: str | None = None
    """Boxes of a detector: a COCO result (.json), a .npy of Prophesee's tools, a .jsonl of `predict`, or a folder."""
    labels: str | None = None
    """The labels: a COCO data set (.json), a _bbox.npy of Prophesee, or a folder of those."""
    compared: list[str] = field(default_factory=list)
    """Boxes of further detectors, each compared with the first in pairs."""
    max_age_ms: float = 0.0
    """Score each label time with the newest boxes that are at most so old; 0: with boxes of exactly this time."""
    hz: float | None = None
    """The rate at which the detectors ran, for tables; null: unknown."""
    bootstrap: int = 1000
    """Bootstrap replicates for the confidence intervals; 0: none."""
    formats: list[str] = field(default_factory=list)
    """Also write what is scored: coco (labels and detections for COCO's tools), csv (per recording and per image)."""

    def __post_init__(self) -> None:
        check_at_least("score", self, 0, "bootstrap", "max_age_ms")
        for name in self.formats:
            check_choice("score.formats", name, FORMATS)


@dataclass
class ScoreSettings(Config):
    """All settings, with those of foreign boxes."""

    score: ScoreConfig = field(default_factory=ScoreConfig)


def check_score(config: ScoreSettings) -> None:
    """Raise UserError if a file is not named, or one is named twice."""
    for name in ("detections", "labels"):
        if not getattr(config.score, name):
            raise UserError("setting.missing", name=f"score.{name}", advice="give DETECTIONS and LABELS")
    files = [config.score.detections, *config.score.compared]
    if len(set(files)) != len(files):
        raise UserError(
            "setting.conflict", name="score.compared", found=files[1:], needed="each file of boxes is named once"
        )
