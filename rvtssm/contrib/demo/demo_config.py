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
            "setting.out_of_range", name="synthetic.num_train, num_val, num_test",
            found=[counts.num_train, counts.num_val, counts.num_test],
            needed="at least 1 each, because a demo uses every split",
        )  # fmt: skip
    trained_hz = config.windows.settings.hz
    if rates and not any(is_same_rate(hz, trained_hz) for hz in rates):
        raise UserError(
            "setting.conflict", name="evaluation.hz", found=rates,
            needed=f"the rate of training, {trained_hz:g} Hz, from which the report starts", advice="name it as well",
        )  # fmt: skip
