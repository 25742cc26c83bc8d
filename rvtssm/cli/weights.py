"""Reads the weights that `checkpoint=FILE` names, and says what everyone who uses them should know."""

from dataclasses import replace

from rvtssm.cli.config import Config
from rvtssm.cli.console import say
from rvtssm.cli.inputs import weights_path
from rvtssm.datasets import build_spec
from rvtssm.evaluation.detector_run import WeightsFile
from rvtssm.export.exported import ExportedDetector, chosen_precision, read_weights_file
from rvtssm.models.checkpoint_meta import CheckpointMeta, LoadedCheckpoint
from rvtssm.models.weights import card_of
from rvtssm.records import WindowSettings
from rvtssm.system.user_error import UserError


def read_weights(config: Config) -> LoadedCheckpoint:
    """Return the weights of `checkpoint=FILE`: a checkpoint on the GPU if there is one, an exported file on the CPU."""
    return read_weights_file(weights_path(config), config.precision)


def with_chosen_precision(config: Config) -> Config:
    """Return the configuration with a precision in place of `auto`, so that a run can say which one it was."""
    return replace(config, precision=chosen_precision(weights_path(config), config.precision))


def precision_in_words(precision: str, checkpoint: LoadedCheckpoint) -> str:
    """Return in what weights compute: in `precision`, and the products of an exported file of 8 bits in int8."""
    detector = checkpoint.detector
    return f"int8 and {precision}" if isinstance(detector, ExportedDetector) and detector.has_int8 else precision


def check_classes(config: Config, checkpoint: LoadedCheckpoint) -> None:
    """Raise UserError if the configuration names a dataset whose classes are not those of the weights."""
    if not config.dataset.name:
        return
    asked, known = build_spec(config.dataset).class_names, checkpoint.spec.class_names
    if asked != known:
        raise UserError(
            "predict.other_classes",
            f"{config.checkpoint} knows {', '.join(known)}; {config.dataset.name} has {', '.join(asked)}; "
            "leave out dataset to predict the classes of the weights",
        )


def weights_file(config: Config) -> WeightsFile:
    """Return what other processes need to read the weights of `checkpoint=FILE`."""
    return WeightsFile(weights_path(config), config.precision, tuple(config.plugins))


def say_note(path: str | None, checkpoint: LoadedCheckpoint) -> None:
    """Print the note of weights that were read from `path`, and where their model card is. Most weights have none."""
    if checkpoint.note:
        card = card_of(str(path))
        say(f"{path}: {checkpoint.note}" + (f"; its model card is {card}" if card else ""))


def say_windows(checkpoint: CheckpointMeta, settings: WindowSettings) -> None:
    """Print one line if the weights have not seen windows of such a length in training."""
    if warning := checkpoint.warn_of_windows(settings):
        say(warning)
