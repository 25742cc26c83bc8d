"""Reads the weights that `checkpoint=FILE` names, and says what everyone who uses them should know."""

import hashlib
from dataclasses import replace
from pathlib import Path

from rvtssm.commands.console import say
from rvtssm.commands.inputs import weights_path
from rvtssm.config import Config
from rvtssm.export.exported import chosen_precision, is_exported, read_weights_file
from rvtssm.models.checkpoint import CheckpointMeta, LoadedCheckpoint, read_checkpoint, weights_digest
from rvtssm.models.hub import local_weights
from rvtssm.models.named_weights import card_of
from rvtssm.records import WindowSettings


def read_weights(config: Config) -> LoadedCheckpoint:
    """Return the weights of `checkpoint=FILE`: a checkpoint on the GPU if there is one, an exported file on the CPU."""
    return read_weights_file(weights_path(config), config.precision)


def with_chosen_precision(config: Config) -> Config:
    """Return the configuration with a precision in place of `auto`, so that a run can say which one it was."""
    return replace(config, precision=chosen_precision(weights_path(config), config.precision))


def say_note(path: str | None, checkpoint: LoadedCheckpoint) -> None:
    """Print the note of weights that were read from `path`, and where their model card is. Most weights have none."""
    if checkpoint.note:
        card = card_of(str(path))
        say(f"{path}: {checkpoint.note}" + (f"; its model card is {card}" if card else ""))


def say_windows(checkpoint: CheckpointMeta, settings: WindowSettings) -> None:
    """Print one line if the weights have not seen windows of such a length in training."""
    if warning := checkpoint.warn_of_windows(settings):
        say(warning)


def weights_sha256(path: str, precision: str, checkpoint: LoadedCheckpoint) -> str:
    """Return the SHA-256 of the weights of `checkpoint`, which was read from `path` in a precision."""
    if is_exported(path):
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()  # of the file, which holds more than weights
    # in bf16 the detector has rounded weights
    kept = checkpoint if precision == "float32" else read_checkpoint(local_weights(path))
    return weights_digest(kept.detector.state_dict())
