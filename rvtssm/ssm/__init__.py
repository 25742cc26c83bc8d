"""Temporal layers: recurrences over sequences (L, N, D) with explicit state, at any rate.

    from rvtssm.ssm import S5

    layer = S5(dim=32)
    y, state = layer(x)  # x (L, N, 32): steps, sequences, features; without a state the layer starts from zeros
    y, state = layer(more, state, 0.1)  # continues from there, with steps a tenth as long

A layer is imported when its name is first used, so that reading the settings does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rvtssm.ssm.lstm import LSTM
    from rvtssm.ssm.s4 import S4
    from rvtssm.ssm.s4d import S4D
    from rvtssm.ssm.s5 import S5
    from rvtssm.ssm.s7 import S7
    from rvtssm.ssm.selective_s5 import SelectiveS5
    from rvtssm.ssm.temporal_config import TemporalConfig

__all__ = ["LSTM", "S4", "S4D", "S5", "S7", "SelectiveS5", "TemporalConfig"]

_HOMES = {
    **{name: f"rvtssm.ssm.{name.lower()}" for name in ("LSTM", "S4", "S4D", "S5", "S7")},
    "SelectiveS5": "rvtssm.ssm.selective_s5",
    "TemporalConfig": "rvtssm.ssm.temporal_config",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'rvtssm.ssm' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
