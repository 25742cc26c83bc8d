"""Reads the weights that `checkpoint=FILE` names."""

import torch

from rvtssm.config import Config
from rvtssm.inference.exported import is_exported, read_exported
from rvtssm.models.checkpoint import LoadedCheckpoint, read_checkpoint
from rvtssm.models.low_precision import set_precision
from rvtssm.run.inputs import weights_path


def read_weights(config: Config) -> LoadedCheckpoint:
    """Return the weights of `checkpoint=FILE`: a checkpoint on the GPU if there is one, an exported file on the CPU."""
    path = weights_path(config)
    if is_exported(path):
        return read_exported(path, config.trust, config.precision)
    checkpoint = read_checkpoint(path, "cuda" if torch.cuda.is_available() else "cpu")
    set_precision(checkpoint.detector, config.precision)
    return checkpoint
