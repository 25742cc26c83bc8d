"""The weights that a command names: reading them, and what to say of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rvtssm.cli.config import Config
from rvtssm.cli.console import announce, say
from rvtssm.cli.inputs import weights_path, with_default_weights
from rvtssm.datasets import build_spec
from rvtssm.export.exported import ExportedDetector, chosen_precision, read_weights_file
from rvtssm.models.checkpoint_meta import CheckpointMeta, LoadedCheckpoint
from rvtssm.models.weight_files import card_of
from rvtssm.records import WindowSettings
from rvtssm.system.user_error import UserError

if TYPE_CHECKING:
    from rvtssm.evaluation.detector_run import WeightsFile


def read_weights(config: Config) -> LoadedCheckpoint:
    """Return the weights of `checkpoint=FILE`: a checkpoint on the GPU if there is one, an exported file on the CPU."""
    return read_weights_file(weights_path(config), config.precision)


def with_chosen_precision(config: Config) -> Config:
    """Return the configuration with a precision in place of `auto`, so that a run can say which one it was."""
    return replace(config, precision=chosen_precision(weights_path(config), config.precision))


def precision_in_words(precision: str, checkpoint: LoadedCheckpoint) -> str:
    """Return in what weights compute: in `precision`, or the products of an exported file in a lower one."""
    detector = checkpoint.detector
    if isinstance(detector, ExportedDetector) and detector.products:
        return f"{detector.products} and {precision}"
    return precision


def weights_to_detect(config: Config) -> tuple[Config, LoadedCheckpoint]:
    """Return the weights for recordings or events, by default the bundled ones, and the configuration that names them.

    Raise UserError if the configuration names a dataset whose classes are not those of the weights.
    """
    config = with_chosen_precision(with_default_weights(config))
    checkpoint = read_weights(config)
    if config.dataset.name:
        asked = build_spec(config.dataset).class_names
        known = checkpoint.spec.class_names
        if asked != known:
            found = f"it knows {', '.join(known)}; {config.dataset.name} has {', '.join(asked)}"
            advice = "leave out dataset to predict the classes of the weights"
            raise UserError("weights.other_classes", name=config.checkpoint, found=found, advice=advice)
    return config, checkpoint


def announce_detection(
    verb: str,
    config: Config,
    checkpoint: LoadedCheckpoint,
    source: str,
    out: Path,
    recordings: int | None = None,
    why: str | None = None,
) -> None:
    """Print what a detector is about to do, and what is to be known of its weights and windows.

    `why` tells where a rate comes from that the command does not name.
    """
    detection = config.detection
    windows = checkpoint.windows_at(detection.rate, detection.window, detection.reduce)
    announce(
        verb,
        weights=config.checkpoint,
        source=source,
        stride=f"{windows.stride_us / 1000:g} ms",
        rate=why and f"{windows.hz:g} Hz ({why})",
        recordings=recordings,
        device=checkpoint.detector.device,
        precision=precision_in_words(config.precision, checkpoint),
        output=out,
    )
    say_note(config.checkpoint, checkpoint)
    say_windows(checkpoint, windows)


def weights_file(config: Config) -> WeightsFile:
    """Return what other processes need to read the weights of `checkpoint=FILE`."""
    from rvtssm.evaluation.detector_run import WeightsFile  # imports Lightning, which takes seconds

    return WeightsFile(weights_path(config), config.precision, tuple(config.plugins))


def say_note(path: str | None, checkpoint: LoadedCheckpoint) -> None:
    """Print the note of weights that were read from `path`, and where their model card is. Most weights have none."""
    if checkpoint.note:
        text = f"{path}: {checkpoint.note}"
        if card := card_of(str(path)):
            text += f"; its model card is {card}"
        say(text)


def say_windows(checkpoint: CheckpointMeta, settings: WindowSettings) -> None:
    """Print one line if the weights have not seen windows of such a length in training."""
    if warning := checkpoint.warn_of_windows(settings):
        say(warning)
