"""The settings of a training, one section per part. This file does not import torch."""

from dataclasses import dataclass, field, fields, replace
from typing import Any

from rvtssm.datasets import DatasetConfig
from rvtssm.datasets.data_config import AugmentConfig, DataConfig, SamplingConfig
from rvtssm.events.windows import WindowsConfig
from rvtssm.models.model_config import ModelConfig, PostprocessConfig
from rvtssm.ssm.temporal_config import TemporalConfig
from rvtssm.training.training_config import OptimConfig, TrainingConfig


@dataclass
class TrainSections:
    """All settings of a training. The defaults are those of the command line."""

    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    windows: WindowsConfig = field(default_factory=WindowsConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    temporal: TemporalConfig = field(default_factory=TemporalConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    postprocess: PostprocessConfig = field(default_factory=PostprocessConfig)
    seed: int = 0
    out: str | None = None  # the folder of the run; None: outputs/train
    resume: str | None = None  # a checkpoint to continue from; `auto`: the latest one in `out`, if any

    @classmethod
    def of(cls, config: Any) -> "TrainSections":
        """Return the sections of a larger configuration, which has them under the same names."""
        return cls(**{section.name: getattr(config, section.name) for section in fields(cls)})

    def applied_to(self, config: Any) -> Any:
        """Return a larger configuration with these sections in place of its own."""
        return replace(config, **{section.name: getattr(self, section.name) for section in fields(self)})

    @property
    def folders(self) -> dict[str, str | None]:
        """The folders of the data by their key in the section `dataset`."""
        return {"raw_dir": self.dataset.raw_dir, "prepared_dir": self.dataset.prepared_dir}
