"""Which settings of a training its start weights, the run that it continues or its prepared frames decide.

One rule holds for the command line and for Python. A key that is named and differs from the weights wins where the part
can be built new. Frames cannot be made anew, so a training on frames with other windows than the named ones is refused.
"""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rvtssm.datasets import DatasetConfig
from rvtssm.events.windows import WindowsConfig
from rvtssm.system.user_error import UserError
from rvtssm.training.training_config import TrainSections

if TYPE_CHECKING:  # it imports torch, which takes seconds
    from rvtssm.models.transfer import TransferSource

Sections = TypeVar("Sections", bound=TrainSections)


def with_settings_of_files(sections: Sections, follows_frames: bool = True) -> Sections:
    """Return settings in which weights and frames decide what nobody has named in `model`, `temporal` and `windows`.

    Args:
        sections: All settings.
        follows_frames: Whether prepared frames, if there are some, decide `windows`.

    Raises:
        UserError: `training.init_from` or the run that goes on holds no weights.
    """
    dataset = sections.dataset
    found: dict[str, Any] = {}
    if sections.training.init_from:
        weights = start_settings(sections)
        if weights.model is not None:
            found["model"] = sections.model.over(weights.model)
        # the settings of one layer mean nothing for another one
        if sections.temporal.named.get("name", weights.temporal.name) == weights.temporal.name:
            found["temporal"] = sections.temporal.over(weights.temporal)
        found["windows"] = sections.windows.over(WindowsConfig.of(weights.windows))
    if follows_frames and dataset.prepared_dir is not None and dataset.source != "raw":
        frames = _windows_of_frames(dataset)
        if frames is not None:
            found["windows"] = sections.windows.over(frames)
    return replace(sections, **found) if found else sections


def start_settings(sections: TrainSections) -> "TransferSource":
    """Return the weights that a training starts from, or those of the run that it continues, if there is one.

    Raises:
        UserError: The file holds no weights.
    """
    from rvtssm.training.checkpoints import latest_checkpoint
    from rvtssm.training.loop import read_start

    start = Path(sections.resume or "")
    if sections.resume == "auto":
        start = latest_checkpoint(sections.run_dir)
    return read_start(str(start if start.is_file() else sections.training.init_from))


def _windows_of_frames(dataset: DatasetConfig) -> WindowsConfig | None:
    """Return how the frames of a training were prepared, by the first file; None if it counts raw events instead."""
    from rvtssm.datasets.datamodule import SequenceDataModule
    from rvtssm.datasets.sequence import open_prepared
    from rvtssm.datasets.tree import find_sequences

    with suppress(UserError):  # the training says what is wrong when it reads them
        data = SequenceDataModule(dataset)
        if data.source == "prepared" and (paths := find_sequences(str(dataset.prepared_dir), "train")):
            return WindowsConfig.of(open_prepared(paths[0], data.spec).settings)
    return None
