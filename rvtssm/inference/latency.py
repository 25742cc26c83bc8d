"""How long a detector takes from the end of a window to its boxes: measured here, or read from a benchmark's file."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from rvtssm.events.readers import open_recording
from rvtssm.inference.live import StreamDetector
from rvtssm.inference.schedule import FixedRate
from rvtssm.models.checkpoint import LoadedCheckpoint
from rvtssm.models.model_config import PostprocessConfig
from rvtssm.records import WindowSettings

_WARM_UP = 5  # windows; the first ones compile and allocate
_TIMED = 60


def measured_latency_ms(
    checkpoint: LoadedCheckpoint, path: Path, windows: WindowSettings, config: PostprocessConfig
) -> float:
    """Return the median time of a window of a recording, from counting its events to its boxes, at batch 1."""
    recording = open_recording(path, checkpoint.spec.height, checkpoint.spec.width)
    detector = StreamDetector(
        checkpoint,
        recording.height,
        recording.width,
        schedule=FixedRate(windows.hz, windows.length_us),
        downsample=checkpoint.spec.downsample,
        config=config,
    )
    seconds: list[float] = []
    for packet in recording.iterate():
        seconds += [window.seconds for window in detector.push(packet)]
        if len(seconds) >= _WARM_UP + _TIMED:
            break
    recording.close()
    if not seconds:
        raise ValueError(
            f"{path} is shorter than a window of {windows.stride_us / 1000:g} ms, so no latency can be measured; "
            "give evaluation.latency_ms"
        )
    return 1000 * float(np.median(seconds[min(_WARM_UP, len(seconds) // 2) :]))


def read_latency_ms(path: Path, checkpoint: LoadedCheckpoint) -> float:
    """Return the latency that a file tells: `prediction.json`, or the JSON of `benchmarks.streaming`.

    Of the second, the row of the size and the layer of the checkpoint, run eagerly. Raise ValueError without a number.
    """
    try:
        found: Any = json.loads(path.read_text())
        if "step_ms" in found:
            return float(found["step_ms"]["p50"])
        wanted = {"size": checkpoint.model_config.size, "layer": checkpoint.temporal_config.name, "form": "eager"}
        rows = [row for row in found["rows"] if all(row[name] == value for name, value in wanted.items())]
        return float(rows[0]["median_ms"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ValueError(
            f"evaluation.latency_from={path} tells no latency of {checkpoint.model_config.size} "
            f"{checkpoint.temporal_config.name}; give a prediction.json of `rvtssm predict` or the JSON of "
            "benchmarks.streaming, or evaluation.latency_ms"
        ) from error
