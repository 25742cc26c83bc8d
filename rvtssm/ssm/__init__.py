"""The recurrence: temporal layers over sequences (L, N, D) with explicit state, at any rate."""

from __future__ import annotations

from collections.abc import Callable

from rvtssm.limits import check_choice
from rvtssm.ssm.layer import TemporalConfig, TemporalLayer
from rvtssm.ssm.lstm import LSTM
from rvtssm.ssm.s4 import S4
from rvtssm.ssm.s4d import S4D
from rvtssm.ssm.s5 import S5
from rvtssm.ssm.s7 import S7
from rvtssm.ssm.spectrum import Spectrum

__all__ = ["TEMPORAL_LAYERS", "Spectrum", "TemporalConfig", "TemporalLayer", "build_temporal_layer"]

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
