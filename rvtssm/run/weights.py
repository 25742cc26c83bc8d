"""The weights a verb is told to use."""

from __future__ import annotations

import torch

from rvtssm.config import Config
from rvtssm.inference.exported import is_exported, read_exported
from rvtssm.models.checkpoint import LoadedCheckpoint, read_checkpoint
from rvtssm.run.inputs import needed


def read_weights(config: Config) -> LoadedCheckpoint:
    """What `checkpoint=FILE` names, on the GPU where there is one; what was exported, on the CPU."""
    path = needed(config.checkpoint, "checkpoint=FILE", "weights, such as outputs/demo/checkpoints/best.ckpt")
    if is_exported(path):
        return read_exported(path)
    return read_checkpoint(path, "cuda" if torch.cuda.is_available() else "cpu")
