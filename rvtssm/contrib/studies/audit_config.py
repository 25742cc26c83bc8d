"""The settings of `rvtssm audit`. This file does not import torch."""

from dataclasses import dataclass, field

from rvtssm.cli.config import Config
from rvtssm.system.limits import check_positive
from rvtssm.system.user_error import UserError


@dataclass
class AuditConfig:
    """Settings of `rvtssm audit`."""

    duration_s: float = 5.0
    """Length of the events, simulated or read; longer memories cannot be seen."""
    hz: list[float] = field(default_factory=lambda: [20.0, 40.0, 80.0, 100.0, 200.0])
    """Rates at which a step is timed."""
    finer: list[int] = field(default_factory=lambda: [1, 2, 4, 10])
    """Finer steps that replace one step of training."""

    def __post_init__(self) -> None:
        if not (self.hz and all(0 < hz <= 1e6 for hz in self.hz)):
            raise UserError(
                "audit.rates", f"audit.hz={self.hz}; name positive rates up to 1000000 Hz, such as [20,200]"
            )
        if not (self.finer and min(self.finer) >= 1):
            raise UserError(
                "audit.finer", f"audit.finer={self.finer}; name whole numbers of at least 1, such as [1,10]"
            )
        check_positive("audit", self, "duration_s")


@dataclass
class AuditSettings(Config):
    """All settings, with those of `audit`."""

    audit: AuditConfig = field(default_factory=AuditConfig)
