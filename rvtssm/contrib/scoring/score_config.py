"""The settings of `rvtssm score`. This file does not import torch."""

from dataclasses import dataclass, field

from rvtssm.cli.config import Config
from rvtssm.evaluation.evaluation_config import FORMATS
from rvtssm.system.limits import Settings, setting
from rvtssm.system.user_error import UserError


@dataclass
class ScoreConfig(Settings, section="score"):
    """Which boxes are scored on which labels."""

    detections: str | None = setting(None, is_path=True)
    """Boxes of a detector: a COCO result (.json), a .npy of Prophesee's tools, a .jsonl of `predict`, or a folder."""
    labels: str | None = setting(None, is_path=True)
    """The labels: a COCO data set (.json), a _bbox.npy of Prophesee, or a folder of those."""
    compared: list[str] = setting([], is_path=True)
    """Boxes of further detectors, each compared with the first in pairs."""
    max_age_ms: float = setting(0.0, at_least=0)
    """Score each label time with the newest boxes that are at most so old; 0: with boxes of exactly this time."""
    hz: float | None = setting(None, above=0)
    """The rate at which the detectors ran, for tables; null: unknown."""
    bootstrap: int = setting(1000, at_least=0)
    """Bootstrap replicates for the confidence intervals; 0: none."""
    formats: list[str] = setting([], choices=FORMATS)
    """Also write what is scored: coco (labels and detections for COCO's tools), csv (per recording and per image)."""


@dataclass
class ScoreSettings(Config):
    """All settings, with those of foreign boxes."""

    score: ScoreConfig = field(default_factory=ScoreConfig)


def check_score(config: ScoreSettings) -> None:
    """Raise UserError if a file is not named, or one is named twice."""
    check_files(config.score)


def check_files(config: ScoreConfig) -> None:
    """Do the same for settings of this section alone."""
    for name in ("detections", "labels"):
        if not getattr(config, name):
            raise UserError("setting.missing", name=f"score.{name}", advice="give DETECTIONS and LABELS")
    files = [config.detections, *config.compared]
    if len(set(files)) != len(files):
        raise UserError(
            "setting.conflict", name="score.compared", found=files[1:], needed="each file of boxes is named once"
        )
