"""`rvtssm predict`: boxes and a video of a recording of any supported format."""

from __future__ import annotations

from pathlib import Path

from rvtssm.config import Config
from rvtssm.inference.predict import PredictionSummary, predict_recording
from rvtssm.run.console import console
from rvtssm.run.inputs import needed
from rvtssm.run.weights import read_weights


def predict(config: Config) -> PredictionSummary:
    """Boxes and a video of one recording of any supported format."""
    checkpoint = read_weights(config)
    recording = needed(config.recording, "recording=FILE", "the events")
    out = Path(config.out or f"outputs/predict/{Path(recording).stem}")
    summary = predict_recording(checkpoint, recording, out, config.predict)
    for sentence in summary.sentences():
        console.print(sentence, soft_wrap=True, highlight=False)
    console.print(f"in {out}", soft_wrap=True)
    return summary
