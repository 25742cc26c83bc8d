"""Weights that several processes use. Each process reads them once and checks that they are the same."""

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path

from rvtssm.export.exported import is_exported, read_weights_file
from rvtssm.models.checkpoint import read_checkpoint, weights_digest
from rvtssm.models.checkpoint_meta import LoadedCheckpoint
from rvtssm.models.hub import local_weights
from rvtssm.system.plugins import import_plugins
from rvtssm.system.user_error import UserError


@dataclass(frozen=True)
class SharedWeights:
    """What another process needs to read the same weights."""

    path: str
    precision: str
    plugins: tuple[str, ...]  # files that add parts, imported first
    sha256: str

    def read(self) -> LoadedCheckpoint:
        """Return the weights, from memory if this process has read them already.

        Raises:
            UserError: The file was replaced.
        """
        import_plugins(self.plugins)
        return _read_once(self)


@functools.lru_cache(maxsize=1)
def _read_once(weights: SharedWeights) -> LoadedCheckpoint:
    checkpoint = read_weights_file(weights.path, weights.precision)
    if weights_sha256(weights.path, weights.precision, checkpoint) != weights.sha256:
        raise UserError(f"{weights.path} was replaced while it was used; run again, or use a copy")
    return checkpoint


def weights_sha256(path: str, precision: str, checkpoint: LoadedCheckpoint) -> str:
    """Return the SHA-256 of weights.

    Args:
        path: The file that the weights were read from.
        precision: The precision they were read in.
        checkpoint: The weights.
    """
    if is_exported(path):
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()  # digest of the file, which holds more than weights
    # In bf16 the detector has rounded weights, so the file is read again.
    kept = checkpoint if precision == "float32" else read_checkpoint(local_weights(path))
    return weights_digest(kept.detector.state_dict())
