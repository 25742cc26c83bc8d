"""Reads the weights that `checkpoint=FILE` names."""

from rvtssm.config import Config
from rvtssm.inference.exported import read_weights_file
from rvtssm.models.checkpoint import LoadedCheckpoint
from rvtssm.run.inputs import weights_path


def read_weights(config: Config) -> LoadedCheckpoint:
    """Return the weights of `checkpoint=FILE`: a checkpoint on the GPU if there is one, an exported file on the CPU."""
    return read_weights_file(weights_path(config), config.precision, config.trust)
