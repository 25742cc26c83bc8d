"""Training: a Lightning module that connects detector, losses, optimiser and stored states.

The settings stand here, and which of them files decide. Start weights, the run that goes on or prepared frames decide
what nobody has named. One rule holds for the command line and for Python. A key that is named and differs from the
weights wins where the part can be built new. Frames cannot be made anew, so a training on frames with other windows
than the named ones is refused. The settings do not import torch.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rvtssm.datasets import AugmentConfig, DataConfig, DatasetConfig, SamplingConfig
from rvtssm.events.windows import WindowsConfig
from rvtssm.models import ModelConfig, PostprocessConfig
from rvtssm.ssm import TemporalConfig
from rvtssm.system.limits import Settings, check_class_map, setting
from rvtssm.system.user_error import UserError

if TYPE_CHECKING:
    from rvtssm.models.transfer import TransferSource

# Precisions of a training, with Lightning's name for each; float64 is a plugin of ours. Only products use 16 bits.
# Weights stay in float32, since torch has no complex numbers in bf16.
LIGHTNING_PRECISIONS = {"float32": "32-true", "bf16": "bf16-mixed", "float16": "16-mixed", "float64": None}
PRECISIONS = ("auto", *LIGHTNING_PRECISIONS)
OPTIMIZERS = ("adamw", "muon")
H2_BAND = (0.5, 10.0)  # frequencies that the H2 term covers, in Nyquist rates of the training step
ACCELERATORS = ("auto", "cpu", "gpu", "cuda", "mps")


@dataclass
class OptimConfig(Settings, section="optim"):
    """The optimiser, and its schedule over `training.steps`: one cycle of linear warm-up and decay (OneCycle).

    >>> rvtssm.OptimConfig(name="muon", learning_rate=5e-3).clip_value
    1.0
    """

    name: str = setting("adamw", choices=OPTIMIZERS)
    """adamw, or muon: weight matrices with Muon, all other parameters with AdamW."""
    learning_rate: float = setting(2e-4, above=0)
    """The peak, after the warm-up."""
    ssm_factor: float = setting(1.0, above=0)
    """Multiplies the learning rate of the parameters inside state-space layers."""
    weight_decay: float = setting(0.0, at_least=0)
    """Only for the weights of linear and convolutional layers."""
    warmup_fraction: float = setting(0.005, at_least=0, below=1)
    """Share of all steps that come before the peak."""
    start_divisor: float = setting(20.0, at_least=1)
    """Peak over the first learning rate, as in RVT."""
    end_divisor: float = setting(10_000.0, at_least=1)
    """Peak over the last learning rate, as in RVT."""
    scale_with_batch: bool = False
    """Peak = learning_rate * sqrt(batch / 8), as in the paper."""
    clip_value: float = setting(1.0, at_least=0)
    """Clip gradients to this absolute value; 0: off."""
    h2_weight: float = setting(0.0, at_least=0)
    """Weight of the H2 term in the loss; 0: off. See `h2_term` in rvtssm.training.optim."""


@dataclass
class TrainingConfig(Settings, section="training"):
    """Settings of `rvtssm train`. The batch is described in `sampling`, the learning rate in `optim`.

    >>> rvtssm.TrainingConfig(steps=1_000, average=0.995).precision
    'float32'
    """

    steps: int = setting(400_000, at_least=1)
    """Optimiser steps, over which the learning rate falls; with more of them, resume=auto extends a finished run."""
    patience: int | None = setting(None, at_least=1)
    """End the run after this many validations in a row without a higher AP; null: after all steps."""
    pseudo_weight: float = setting(1.0, at_least=0)
    """Weight of labels made by a detector, multiplied by their score; 0: leave them out."""
    init_from: str | None = setting(None, is_path=True)
    """Weights to start from: as for `checkpoint`, or of RVT or the official release."""
    class_map: Any = None
    """Maps classes of init_from to classes of the data, as in {vehicle: car}."""
    validate_every: int = setting(10_000, at_least=1)
    """Steps between validations; the last step is always followed by one."""
    checkpoint_every: int = setting(1_000, at_least=1)
    """Steps between checkpoints, from which a killed run can resume; ten minutes after the last one, another is due."""
    log_every: int = setting(50, at_least=1)
    """Steps between two rows of the logs."""
    devices: int = setting(1, at_least=1)
    """Processes per machine, one per GPU."""
    num_nodes: int = setting(1, at_least=1)
    """Number of machines."""
    accelerator: str = setting("auto", choices=ACCELERATORS)
    """The device; one of ACCELERATORS."""
    precision: str = setting("float32", choices=PRECISIONS)
    """One of PRECISIONS; auto: bf16 (16-bit products) where products are faster in it."""
    compile: bool = False
    """Compile backbone, neck and head, one graph each, for training but not for validation."""
    recompute_strides: tuple[int, ...] = ()
    """Strides of maps to compute again in the backward pass, to save memory."""
    average: float | None = setting(None, at_least=0, below=1)
    """Validate and keep averaged weights with this decay, such as 0.995; null: off."""
    accumulate: int = setting(1, at_least=1)
    """Batches per optimiser step."""
    sync_batchnorm: bool = False
    """Compute batch statistics over all processes; only on GPUs."""
    freeze_batchnorm: bool = False
    """Keep the batch norm statistics fixed, for fine-tuning with small batches."""
    loggers: list[str] = field(default_factory=lambda: ["tensorboard"])
    """Loggers in addition to CSV: tensorboard, or full names of logger classes that need no arguments."""
    pictures: bool = True
    """At each validation, log spectra of the temporal layers and, for loggers that accept images, detections."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_class_map("training.class_map", self.class_map)
        if self.class_map and self.init_from is None:
            needed = "it renames classes of training.init_from; name these weights as well"
            raise UserError("setting.needs", name="training.class_map", found=self.class_map, needed=needed)
        check_loggers(self.loggers)
        if self.sync_batchnorm and self.freeze_batchnorm:
            raise UserError(
                "setting.conflict",
                name="training.sync_batchnorm and training.freeze_batchnorm",
                advice="statistics are either computed or kept; set only one of them",
            )


def check_loggers(names: Sequence[str]) -> None:
    """Raise UserError for a name that cannot be a logger: neither `tensorboard` nor the full name of a class."""
    for name in names:
        if name != "tensorboard" and "." not in name:
            needed = (
                "give tensorboard or the full name of a logger class, such as "
                "lightning.pytorch.loggers.WandbLogger (CSV is always written)"
            )
            raise UserError("setting.choice", name="training.loggers", found=name, needed=needed)


@dataclass
class TrainSections(Settings):
    """All settings of a training. Those of the command line, `rvtssm.cli.config.Config`, extend them."""

    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    temporal: TemporalConfig = field(default_factory=TemporalConfig)
    windows: WindowsConfig = field(default_factory=WindowsConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    postprocess: PostprocessConfig = field(default_factory=PostprocessConfig)
    seed: int = setting(0, at_least=0, below=2**32)
    """Seed of all random numbers."""
    out: str | None = setting(None, is_path=True)
    """Folder to write to; null: outputs/<command>."""
    resume: str | None = setting(None, is_path=True)
    """Checkpoint to resume from; auto: the last one in `out`, if any."""

    @property
    def run_dir(self) -> Path:
        """The folder of the run."""
        return Path(self.out or "outputs/train")

    @property
    def folders(self) -> dict[str, str | None]:
        """The folders of the data by their key in the section `dataset`."""
        return {"raw_dir": self.dataset.raw_dir, "prepared_dir": self.dataset.prepared_dir}


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


def train(*, callbacks: Sequence[Any] = (), **sections: Any) -> Path:
    """Train a detector from Python, as `rvtssm train` does, and return the path of its best weights.

    >>> best = rvtssm.train(
    ...     dataset=rvtssm.DatasetConfig(raw_dir="street"),
    ...     model=rvtssm.ModelConfig(embed_dim=8, head_dim=8, num_blocks=(1, 0, 0, 0), fpn_blocks=0),
    ...     sampling=rvtssm.SamplingConfig(batch_size=2, chunk_length=2),
    ...     data=rvtssm.DataConfig(workers=0),
    ...     training=rvtssm.TrainingConfig(steps=1, pictures=False),
    ...     out="run",
    ... )
    about to train: source raw ...
    trained 0.132 M parameters for 1 steps in ...
    >>> print(best)
    run/checkpoints/best.ckpt

    Args:
        callbacks: Further Lightning callbacks.
        **sections: The fields of `rvtssm.training.TrainSections`: `dataset=DatasetConfig(raw_dir=DIR)`,
            `training=TrainingConfig(steps=1000)`, `out=DIR`, and so on.

    Raises:
        UserError: The settings do not fit each other, the data or this machine.
    """
    from rvtssm.training.loop import train as run  # it imports torch

    return run(TrainSections(**sections), callbacks)
