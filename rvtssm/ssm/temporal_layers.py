"""The temporal layers that a detector can have; this table is where a new one is added."""

from collections.abc import Callable

from rvtssm.limits import check_choice
from rvtssm.ssm.discretize import DISCRETIZATIONS
from rvtssm.ssm.layer import TemporalLayer
from rvtssm.ssm.lstm import LSTM
from rvtssm.ssm.s4 import S4
from rvtssm.ssm.s4d import S4D
from rvtssm.ssm.s5 import S5
from rvtssm.ssm.s7 import S7
from rvtssm.ssm.temporal_config import TemporalConfig

TEMPORAL_LAYERS: dict[str, Callable[[int, TemporalConfig], TemporalLayer]] = {
    "s4": S4,
    "s4d": S4D,
    "s5": S5,
    "s7": S7,
    "lstm": LSTM,
}


def build_temporal_layer(config: TemporalConfig, dim: int) -> TemporalLayer:
    """Build the layer `config.name` over `dim` features. Raise ValueError for names that do not exist."""
    check_choice("temporal.name", config.name, TEMPORAL_LAYERS)
    check_choice("temporal.discretization", config.discretization, DISCRETIZATIONS)
    return TEMPORAL_LAYERS[config.name](dim, config)
