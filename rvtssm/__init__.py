"""rvtssm: object detection with event cameras, using state-space models that run at any rate.

Call `open` on a recording, `draw` its events, `load` the weights, and predict. Each name below is imported when it is
first used, so `import rvtssm` itself is fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rvtssm.system.threads import share_processors

if TYPE_CHECKING:
    from rvtssm.detection.predictor import Predictor, live, load
    from rvtssm.detection.window_results import Prediction
    from rvtssm.drawing.draw import draw_events as draw
    from rvtssm.evaluation.evaluating import evaluate
    from rvtssm.readers import open_recording as open
    from rvtssm.records import Events

__version__ = "0.1.0"
__all__ = ["Events", "Prediction", "Predictor", "__version__", "draw", "evaluate", "live", "load", "open"]

_DETECTION = "rvtssm.detection.predictor"
_HOMES = {
    "draw": ("rvtssm.drawing.draw", "draw_events"),
    "evaluate": ("rvtssm.evaluation.evaluating", "evaluate"),
    "Events": ("rvtssm.records", "Events"),
    "open": ("rvtssm.readers", "open_recording"),
    "Prediction": ("rvtssm.detection.window_results", "Prediction"),
    **{name: (_DETECTION, name) for name in ("Predictor", "live", "load")},
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
