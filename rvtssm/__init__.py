"""rvtssm: object detection with event cameras, using state-space models that run at any rate.

Call `open` on a recording, `draw` its events, `load` the weights, and predict. The way to a detector of your own is
`preprocess`, `train`, `evaluate` at any rates, and `export_detector`; `generate` simulates recordings to try it on. The
package promises the names in `__all__`; everything else may change. Each name is imported when it is first used, so
`import rvtssm` itself is fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rvtssm.system.machine import share_processors

if TYPE_CHECKING:
    from rvtssm.datasets import DatasetConfig
    from rvtssm.datasets.data_config import AugmentConfig, DataConfig, SamplingConfig
    from rvtssm.datasets.prepare_dataset import preprocess
    from rvtssm.detection.engine import StreamDetector, detect
    from rvtssm.detection.predictor import Predictor, live, load
    from rvtssm.detection.window_results import Prediction
    from rvtssm.drawing.draw import draw_events as draw
    from rvtssm.evaluation.coco import evaluate_detections as average_precision
    from rvtssm.evaluation.evaluating import evaluate
    from rvtssm.events.windows import WindowsConfig
    from rvtssm.export.checked_export import export_detector
    from rvtssm.models.detector import build_detector
    from rvtssm.models.model_config import ModelConfig, PostprocessConfig
    from rvtssm.readers import Recording
    from rvtssm.readers import open_recording as open
    from rvtssm.records import Detections, Events, Labels, Windows, WindowSettings
    from rvtssm.ssm import LSTM, S4, S4D, S5, S7, SelectiveS5, TemporalConfig
    from rvtssm.synthetic import generate
    from rvtssm.system.user_error import UserError
    from rvtssm.training import train
    from rvtssm.training.training_config import OptimConfig, TrainingConfig

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
    "generate",
    "live",
    "load",
    "open",
    "preprocess",
    "train",
]

_DETECTION = "rvtssm.detection.predictor"
_HOMES = {
    "average_precision": ("rvtssm.evaluation.coco", "evaluate_detections"),
    "build_detector": ("rvtssm.models.detector", "build_detector"),
    "draw": ("rvtssm.drawing.draw", "draw_events"),
    "DatasetConfig": ("rvtssm.datasets", "DatasetConfig"),
    "evaluate": ("rvtssm.evaluation.evaluating", "evaluate"),
    "export_detector": ("rvtssm.export.checked_export", "export_detector"),
    "generate": ("rvtssm.synthetic", "generate"),
    "open": ("rvtssm.readers", "open_recording"),
    "Prediction": ("rvtssm.detection.window_results", "Prediction"),
    "preprocess": ("rvtssm.datasets.prepare_dataset", "preprocess"),
    "Recording": ("rvtssm.readers", "Recording"),
    "train": ("rvtssm.training", "train"),
    "UserError": ("rvtssm.system.user_error", "UserError"),
    "WindowsConfig": ("rvtssm.events.windows", "WindowsConfig"),
    **{name: ("rvtssm.datasets.data_config", name) for name in ("AugmentConfig", "DataConfig", "SamplingConfig")},
    **{name: ("rvtssm.models.model_config", name) for name in ("ModelConfig", "PostprocessConfig")},
    **{name: ("rvtssm.training.training_config", name) for name in ("OptimConfig", "TrainingConfig")},
    **{name: (_DETECTION, name) for name in ("Predictor", "live", "load")},
    **{name: ("rvtssm.detection.engine", name) for name in ("StreamDetector", "detect")},
    **{name: ("rvtssm.records", name) for name in ("Detections", "Events", "Labels", "WindowSettings", "Windows")},
    **{name: ("rvtssm.ssm", name) for name in ("LSTM", "S4", "S4D", "S5", "S7", "SelectiveS5", "TemporalConfig")},
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'rvtssm' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    if module == _DETECTION:
        share_processors()
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return __all__
