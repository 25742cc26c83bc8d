"""The page of shared weights: what they detect, how they were trained, how to use them."""

from rvtssm.models.checkpoint_meta import LoadedCheckpoint
from rvtssm.system.provenance import written_by

_CARD = """---
library_name: rvtssm
pipeline_tag: object-detection
tags:
- event-camera
- object-detection
- state-space-model
---

# {repo}

A detector for event cameras, made with the package rvtssm. It carries a state through time and runs at any rate.

| | |
|---|---|
{rows}

## Use

```python
import rvtssm

detector = rvtssm.load("hf://{repo}")
result = detector.predict("recording.raw", hz={hz:g})
```

or `rvtssm predict recording.raw checkpoint=hf://{repo}`. The file holds numbers only (safetensors).

## Limits

The weights were trained for the classes and the sensor above. Measure how well they work on other sensors and scenes,
for example with `rvtssm evaluate hf://{repo}`. The licence of the training data may restrict their use.
"""


def model_card(repo: str, checkpoint: LoadedCheckpoint) -> str:
    """Return the model card in Markdown.

    Args:
        repo: The repository, OWNER/NAME.
        checkpoint: The weights.
    """
    spec, model, windows = checkpoint.spec, checkpoint.model_config, checkpoint.windows
    written = written_by()
    commit = f", commit {written['commit']}" if written["commit"] else ""
    facts = {
        "classes": ", ".join(spec.class_names),
        "trained on": f"{spec.name}, sensor of {spec.width} x {spec.height} pixels",
        "frames": f"{spec.frame_width} x {spec.frame_height} pixels",
        "rate of the training": f"{windows.hz:g} Hz",
        "windows of the training": f"{', '.join(f'{us / 1000:g}' for us in checkpoint.window_lengths_us)} ms",
        "events as": f"{windows.representation}, {windows.num_channels} channels",
        "model": f"{model.size}: {model.backbone}, {model.neck}, {model.head}",
        "temporal layers": checkpoint.temporal_config.name,
        "parameters": f"{sum(weight.numel() for weight in checkpoint.detector.parameters()) / 1e6:.2f} million",
        "written by": f"rvtssm {written['rvtssm']}{commit}",
    }
    facts |= {"note": checkpoint.note} if checkpoint.note else {}
    rows = "\n".join(f"| {name} | {value} |" for name, value in facts.items())
    return _CARD.format(repo=repo, rows=rows, hz=windows.hz)
