"""The weights that a command names: reading them, what to say of them, and their settings as words or as defaults."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from rvtssm.cli.composition import as_written
from rvtssm.cli.config import Config
from rvtssm.cli.console import announce, say
from rvtssm.cli.inputs import weights_path, with_default_weights
from rvtssm.datasets import DatasetConfig, build_spec
from rvtssm.datasets.tree import find_sequences
from rvtssm.events.windows import USUAL_REDUCTION, WindowsConfig
from rvtssm.export.exported import ExportedDetector, chosen_precision, read_weights_file
from rvtssm.models.checkpoint_meta import CheckpointMeta, LoadedCheckpoint
from rvtssm.models.model_config import MODEL_SIZES, ModelConfig
from rvtssm.models.weights import card_of
from rvtssm.records import WindowSettings
from rvtssm.ssm.temporal_config import TemporalConfig
from rvtssm.system.files import configs_dir
from rvtssm.system.user_error import UserError

if TYPE_CHECKING:
    from rvtssm.evaluation.detector_run import WeightsFile

PRIMARY = "of_files"  # the configuration whose defaults are the settings of weights or prepared frames


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
        asked, known = build_spec(config.dataset).class_names, checkpoint.spec.class_names
        if asked != known:
            raise UserError(
                "predict.other_classes",
                f"{config.checkpoint} knows {', '.join(known)}; {config.dataset.name} has {', '.join(asked)}; "
                "leave out dataset to predict the classes of the weights",
            )
    return config, checkpoint


def announce_detection(
    verb: str, config: Config, checkpoint: LoadedCheckpoint, source: str, out: Path, recordings: int | None = None
) -> None:
    """Print what a detector is about to do, and what is to be known of its weights and windows."""
    detection = config.detection
    windows = checkpoint.windows_at(detection.hz, detection.window, detection.reduce)
    announce(
        verb,
        weights=config.checkpoint,
        source=source,
        stride=f"{windows.stride_us / 1000:g} ms",
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


@dataclass(frozen=True)
class WeightSettings:
    """The sections of the configuration that decide what a checkpoint is."""

    model: ModelConfig | None  # None where the weights do not tell
    temporal: TemporalConfig
    windows: WindowsConfig

    def words(self) -> list[str]:
        """Return the settings as words `key=value`; those that are the defaults of the layer or the size are left out.

        A configuration that is composed from them has the same settings.
        """
        words = []
        if self.model is not None:
            known = MODEL_SIZES.get(self.model.size)
            if known:
                words.append(f"model={self.model.size}")
            words += _differing("model", self.model, known or ModelConfig())
        return [*words, *self._temporal_words(), *_differing("windows", self.windows, WindowsConfig())]

    def _temporal_words(self) -> list[str]:
        name = self.temporal.name
        return [f"temporal={name}", *_differing("temporal", self.temporal, TemporalConfig(name=name))]

    def others(self, own: WeightSettings) -> list[str]:
        """Return the words that a training with the settings `own` lacks to have these."""
        words: list[str] = []
        if self.model is not None:
            words += _differing("model", self.model, own.model or ModelConfig())
        if self.temporal.name == own.temporal.name:
            words += _differing("temporal", self.temporal, own.temporal)
        else:
            words += self._temporal_words()
        return [*words, *_differing("windows", self.windows, own.windows)]


def pasted(words: list[str]) -> str:
    """Return words as one line for a shell."""
    return " ".join(map(shlex.quote, words))


def settings_of(model: ModelConfig | None, temporal: TemporalConfig, windows: WindowSettings) -> WeightSettings:
    """Return the settings of weights by what their description says."""
    return WeightSettings(model, temporal, _windows_config(windows))


def _windows_config(windows: WindowSettings) -> WindowsConfig:
    return WindowsConfig(
        windows.stride_us / 1000,
        None if windows.length_us is None else windows.length_us / 1000,
        windows.num_bins,
        windows.count_cutoff,
        windows.convention,
        windows.representation,
        [tau / 1000 for tau in windows.time_constants_us],
        None if windows.reduce == USUAL_REDUCTION[windows.convention] else windows.reduce,
    )


def store_defaults(settings: type[Config], weights: WeightSettings | None, windows: WindowsConfig | None) -> None:
    """Let Hydra compose PRIMARY, whose defaults are the settings of weights and of frames."""
    schema = OmegaConf.structured(settings)
    schema.temporal = OmegaConf.structured(weights.temporal if weights else TemporalConfig)
    schema.sampling.chunk_length = "${usual:${dataset.name},chunk_length}"
    schema.windows.reduce = "${usual:${dataset.name},reduce}"
    unset: tuple[str, ...] = ()  # groups that would choose again
    if weights:
        unset = ("model", "mixer", "temporal") if weights.model else ("temporal",)
        schema.model = OmegaConf.structured(weights.model or ModelConfig())
        schema.windows = OmegaConf.structured(weights.windows)
    if windows:
        schema.windows = OmegaConf.structured(windows)
    composed: Any = OmegaConf.to_container(OmegaConf.load(configs_dir() / "config.yaml"))
    usual = composed["defaults"]
    defaults: list[Any] = []
    for entry in usual:
        if entry == "schema":
            defaults.append(f"schema_{PRIMARY}")
        elif (group := next(iter(entry))) in unset:
            defaults.append({group: None})
        else:
            defaults.append(entry)
    store = ConfigStore.instance()
    store.store(f"schema_{PRIMARY}", schema)
    store.store(PRIMARY, {"defaults": defaults})


def read_settings(config: Config) -> WeightSettings:
    """Return the settings of the weights that a training starts from, or of the run that it continues, if there is one.

    Raise UserError for a file that holds no weights.
    """
    from rvtssm.training.checkpoints import latest_checkpoint
    from rvtssm.training.loop import read_start

    start = Path(config.resume or "")
    if config.resume == "auto":
        start = latest_checkpoint(config.run_dir)
    source = read_start(str(start if start.is_file() else config.training.init_from))
    return settings_of(source.model, source.temporal, source.windows)


def read_windows(dataset: DatasetConfig) -> WindowsConfig | None:
    """Return how the frames of a training were prepared, by the first file; None if it counts raw events instead."""
    from rvtssm.datasets.datamodule import SequenceDataModule  # imports take seconds
    from rvtssm.datasets.sequence import open_prepared

    with suppress(UserError):  # the training says what is wrong when it reads them
        data = SequenceDataModule(dataset)
        if data.source == "prepared" and (paths := find_sequences(str(dataset.prepared_dir), "train")):
            return _windows_config(open_prepared(paths[0], data.spec).settings)
    return None


def _differing(section: str, settings: Any, others: Any) -> Iterator[str]:
    for field in fields(settings):
        value = getattr(settings, field.name)
        if value != getattr(others, field.name):
            yield f"{section}.{field.name}={as_written(value)}"
