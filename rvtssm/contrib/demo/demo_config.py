"""The settings of `rvtssm demo` and `rvtssm generate`. This file does not import anything that computes."""

from dataclasses import dataclass, field

from rvtssm.cli.config import Config
from rvtssm.contrib.demo.simulation_config import SyntheticConfig
from rvtssm.records.settings import is_same_rate
from rvtssm.system.user_error import UserError


@dataclass
class DemoSettings(Config):
    """All settings, with those of simulated recordings."""

    synthetic: SyntheticConfig = field(default_factory=SyntheticConfig)


def check_demo(config: DemoSettings) -> None:
    """Raise UserError now for settings that would fail after the training."""
    counts, rates = config.synthetic, config.evaluation.hz
    if min(counts.num_train, counts.num_val, counts.num_test) < 1:
        raise UserError(
            "demo.empty_split", "synthetic.num_train, num_val and num_test must be at least 1: a demo uses every split"
        )
    trained_hz = config.windows.settings.hz
    if rates and not any(is_same_rate(hz, trained_hz) for hz in rates):
        raise UserError(
            "demo.lacks_trained_rate",
            f"evaluation.hz={rates} lacks the rate of training, {trained_hz:g} Hz, which the report starts "
            "from; name it as well",
        )
