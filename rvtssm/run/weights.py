"""Reads the weights that `checkpoint=FILE` names."""

import hashlib
from pathlib import Path

from rvtssm.config import Config
from rvtssm.inference.exported import is_exported, read_weights_file
from rvtssm.models.checkpoint import LoadedCheckpoint, read_checkpoint, weights_digest
from rvtssm.models.hub import local_weights
from rvtssm.run.inputs import weights_path


def read_weights(config: Config) -> LoadedCheckpoint:
    """Return the weights of `checkpoint=FILE`: a checkpoint on the GPU if there is one, an exported file on the CPU."""
    return read_weights_file(weights_path(config), config.precision, config.trust)


def weights_sha256(path: str, precision: str, checkpoint: LoadedCheckpoint) -> str:
    """Return the SHA-256 of the weights of `checkpoint`, which was read from `path` in a precision."""
    if is_exported(path):
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()  # of the file, which holds more than weights
    # in bf16 the detector has rounded weights
    kept = checkpoint if precision == "float32" else read_checkpoint(local_weights(path))
    return weights_digest(kept.detector.state_dict())
