"""Turn detections into numbers: which boxes count, average precision, the table over inference rates, the report.

`evaluate` scores weights on a split; `rates.score_rate` is the definition of the numbers of one rate.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rvtssm.evaluation.evaluating import evaluate

__all__ = ["evaluate"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'rvtssm.evaluation' has no attribute {name!r}")
    return getattr(import_module("rvtssm.evaluation.evaluating"), name)  # which imports torch
