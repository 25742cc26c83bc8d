"""The recurrence: temporal layers over sequences (L, N, D) with explicit state, at any rate."""

from __future__ import annotations

from collections.abc import Callable

from rvtssm.limits import check_choice
from rvtssm.ssm.layer import State, StepScale, TemporalConfig, TemporalLayer, to_constant
from rvtssm.ssm.lstm import LSTM
from rvtssm.ssm.s4 import S4, S4SSM
from rvtssm.ssm.s4d import S4D, S4DSSM
from rvtssm.ssm.s5 import S5, S5SSM
from rvtssm.ssm.s7 import S7, Eq4SSM, SelectiveSSM
from rvtssm.ssm.spectrum import Spectrum

TEMPORAL_LAYERS: dict[str, Callable[[int, TemporalConfig], TemporalLayer]] = {
    "s4": S4,
    "s4d": S4D,
    "s5": S5,
    "s7": S7,
    "lstm": LSTM,
}


def build_temporal_layer(config: TemporalConfig, dim: int) -> TemporalLayer:
    """Build the layer `config.name` over `dim` features. Raises a ValueError that lists the names if it is unknown."""
    check_choice("temporal.name", config.name, TEMPORAL_LAYERS)
    return TEMPORAL_LAYERS[config.name](dim, config)


__all__ = [
    "LSTM",
    "S4",
    "S4D",
    "S4DSSM",
    "S4SSM",
    "S5",
    "S5SSM",
    "S7",
    "TEMPORAL_LAYERS",
    "Eq4SSM",
    "SelectiveSSM",
    "Spectrum",
    "State",
    "StepScale",
    "TemporalConfig",
    "TemporalLayer",
    "build_temporal_layer",
    "to_constant",
]
