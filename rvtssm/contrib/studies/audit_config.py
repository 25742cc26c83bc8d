"""The settings of `rvtssm audit`. This file does not import torch."""

from dataclasses import dataclass, field

from rvtssm.cli.config import Config
from rvtssm.system.limits import Settings, setting


@dataclass
class AuditConfig(Settings, section="audit"):
    """Settings of `rvtssm audit`."""

    duration_s: float = setting(5.0, above=0)
    """Length of the events, simulated or read; longer memories cannot be seen."""
    hz: list[float] = setting([20.0, 40.0, 80.0, 100.0, 200.0], above=0, at_most=1_000_000, is_filled=True)
    """Rates at which a step is timed."""
    finer: list[int] = setting([1, 2, 4, 10], at_least=1, is_filled=True)
    """Finer steps that replace one step of training."""


@dataclass
class AuditSettings(Config):
    """All settings, with those of `audit`."""

    audit: AuditConfig = field(default_factory=AuditConfig)
