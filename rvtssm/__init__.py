"""rvtssm: object detection with event cameras, using state-space models that run at any rate.

Call `open` on a recording, `draw` its events, `load` the weights, and predict. The way to a detector of your own is
`preprocess`, `train`, `evaluate` at any rates, and `export_detector`; `generate` simulates recordings to try it on. The
package promises the names in `__all__` and those of installed parts, such as `generate` (entry points of the group
`rvtssm.names`); everything else may change. Each name is imported when it is first used, so `import rvtssm` itself is
fast.
"""

from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from rvtssm.system.machine import share_processors

if TYPE_CHECKING:
    from rvtssm.datasets import AugmentConfig, DataConfig, DatasetConfig, SamplingConfig
    from rvtssm.datasets.prepare_dataset import preprocess
    from rvtssm.detection.engine import StreamDetector, detect
    from rvtssm.detection.predictor import Predictor, live, load
    from rvtssm.detection.window_results import Prediction
    from rvtssm.drawing.draw import draw_events as draw
    from rvtssm.evaluation.coco import evaluate_detections as average_precision
    from rvtssm.evaluation.evaluating import evaluate
    from rvtssm.events.windows import WindowsConfig
    from rvtssm.export.checked_export import export_detector
    from rvtssm.models import ModelConfig, PostprocessConfig
    from rvtssm.models.detector import build_detector
    from rvtssm.readers import Recording
    from rvtssm.readers import open_recording as open
    from rvtssm.records import Detections, Events, Labels, Windows, WindowSettings
    from rvtssm.ssm import LSTM, S4, S4D, S5, S7, SelectiveS5, TemporalConfig
    from rvtssm.system.user_error import UserError
    from rvtssm.training import OptimConfig, TrainingConfig, train

__version__ = "0.1.0"
__all__ = [
    "LSTM",
    "S4",
    "S4D",
    "S5",
    "S7",
    "AugmentConfig",
    "DataConfig",
    "DatasetConfig",
    "Detections",
    "Events",
    "Labels",
    "ModelConfig",
    "OptimConfig",
    "PostprocessConfig",
    "Prediction",
    "Predictor",
    "Recording",
    "SamplingConfig",
    "SelectiveS5",
    "StreamDetector",
    "TemporalConfig",
    "TrainingConfig",
    "UserError",
    "WindowSettings",
    "Windows",
    "WindowsConfig",
    "__version__",
    "average_precision",
    "build_detector",
    "detect",
    "draw",
    "evaluate",
    "export_detector",
    "live",
    "load",
    "open",
    "preprocess",
    "train",
]

_NAMES_OF = {
    "rvtssm.datasets": ("AugmentConfig", "DataConfig", "DatasetConfig", "SamplingConfig"),
    "rvtssm.datasets.prepare_dataset": ("preprocess",),
    "rvtssm.detection.engine": ("StreamDetector", "detect"),
    "rvtssm.detection.predictor": ("Predictor", "live", "load"),
    "rvtssm.detection.window_results": ("Prediction",),
    "rvtssm.drawing.draw": ("draw",),
    "rvtssm.evaluation.coco": ("average_precision",),
    "rvtssm.evaluation.evaluating": ("evaluate",),
    "rvtssm.events.windows": ("WindowsConfig",),
    "rvtssm.export.checked_export": ("export_detector",),
    "rvtssm.models": ("ModelConfig", "PostprocessConfig"),
    "rvtssm.models.detector": ("build_detector",),
    "rvtssm.readers": ("Recording", "open"),
    "rvtssm.records": ("Detections", "Events", "Labels", "WindowSettings", "Windows"),
    "rvtssm.ssm": ("LSTM", "S4", "S4D", "S5", "S7", "SelectiveS5", "TemporalConfig"),
    "rvtssm.system.user_error": ("UserError",),
    "rvtssm.training": ("OptimConfig", "TrainingConfig", "train"),
}
_THERE = {"average_precision": "evaluate_detections", "draw": "draw_events", "open": "open_recording"}
_HOMES = {name: module for module, names in _NAMES_OF.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        for entry in entry_points(group="rvtssm.names", name=name):
            return entry.load()
        raise AttributeError(f"module 'rvtssm' has no attribute {name!r}")
    if name in ("evaluate", "train"):
        share_processors()
    return getattr(import_module(_HOMES[name]), _THERE.get(name, name))


def __dir__() -> list[str]:
    return __all__
