"""Reads the weights that `checkpoint=FILE` names."""

from rvtssm.config import Config
from rvtssm.inference.exported import read_weights_file
from rvtssm.models.checkpoint import LoadedCheckpoint
from rvtssm.run.inputs import needed


def read_weights(config: Config) -> LoadedCheckpoint:
    """Return the weights of `checkpoint=FILE`: a checkpoint on the GPU if there is one, an exported file on the CPU."""
    path = needed(config.checkpoint, "checkpoint=FILE", "weights, such as outputs/demo/checkpoints/best.ckpt")
    return read_weights_file(path, config.precision, config.trust)
