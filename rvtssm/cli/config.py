"""All settings of all commands as typed dataclasses, and the folder that holds their YAML files."""

import functools
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from rvtssm.datasets import DatasetConfig
from rvtssm.datasets.data_config import AugmentConfig, DataConfig, PreprocessConfig, SamplingConfig
from rvtssm.detection.inference_config import DetectionConfig, LiveConfig, PredictConfig
from rvtssm.evaluation.evaluation_config import EvaluationConfig
from rvtssm.events.windows import WindowsConfig
from rvtssm.export.export_config import ExportConfig
from rvtssm.models.model_config import MODEL_SIZES, PRECISIONS, ModelConfig, PostprocessConfig
from rvtssm.ssm.temporal_config import TemporalConfig
from rvtssm.synthetic.simulation_config import SyntheticConfig
from rvtssm.system.limits import check_choice
from rvtssm.system.user_error import UserError
from rvtssm.training.training_config import OptimConfig, TrainingConfig


@dataclass
class Config:
    """All settings of the core. Each verb reads some of the sections; verbs of contrib have subclasses of it."""

    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    temporal: TemporalConfig = field(default_factory=TemporalConfig)
    synthetic: SyntheticConfig = field(default_factory=SyntheticConfig)
    windows: WindowsConfig = field(default_factory=WindowsConfig)
    preprocess: PreprocessConfig = field(default_factory=PreprocessConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    postprocess: PostprocessConfig = field(default_factory=PostprocessConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    detection: DetectionConfig = field(default_factory=DetectionConfig)
    predict: PredictConfig = field(default_factory=PredictConfig)
    live: LiveConfig = field(default_factory=LiveConfig)
    export: ExportConfig = field(default_factory=ExportConfig)
    plugins: list[str] = field(default_factory=list)
    """Python files to import first; they can register new parts."""
    seed: int = 0
    """Seed of all random numbers."""
    out: str | None = None
    """Folder to write to; null: outputs/<command>."""
    checkpoint: str | None = None
    """The weights: a file, a name such as street-tiny, or hf://OWNER/NAME."""
    precision: str = "float32"
    """Of evaluate, predict, label, live and audit: float32; bf16 (16-bit matrix products); auto: bf16 if the device
    computes products faster in it."""
    recording: str | None = None
    """Source of events: a file, a folder, - (standard input), tcp://HOST:PORT or camera:."""
    filters: list[Any] = field(default_factory=list)
    """Filters of the events: background, hot_pixels, flicker, region and trailing_edge (docs/live.md)."""
    full: bool = False
    """Whether `inspect` reads all of a dataset and says what is wrong in which file."""
    resume: str | None = None
    """Checkpoint to resume from; auto: the last one in `out`, if any."""

    def __post_init__(self) -> None:
        check_choice("precision", self.precision, (*PRECISIONS, "auto"))
        if not 0 <= self.seed < 2**32:
            raise UserError("settings.seed", f"seed={self.seed} must be at least 0 and less than 2**32")


# Config groups whose choices are tables in the code, each with the section that a choice fills.
CHOICES: dict[str, tuple[str, Mapping[str, Any]]] = {
    "model": ("model", MODEL_SIZES),
}


def register_schema(settings: type[Config] = Config) -> None:
    """Register a class of settings with Hydra, so that it checks every key and type, and the choices of CHOICES."""
    store = ConfigStore.instance()
    schema = OmegaConf.structured(settings)
    # The class, not an instance: an instance has already filled in the defaults of its layer.
    schema.temporal = OmegaConf.structured(TemporalConfig)
    store.store("schema", schema)
    for group, (section, choices) in CHOICES.items():
        for name, choice in _differing(choices).items():
            store.store(name, choice, group=group, package=section)


def _differing(choices: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return each choice of a table, reduced to the keys whose value differs between choices."""
    settings = {name: asdict(choice) for name, choice in choices.items()}
    first = next(iter(settings.values()))
    differing = set()
    for setting in settings.values():
        differing |= {key for key in first if setting[key] != first[key]}
    for name, setting in settings.items():
        settings[name] = {key: setting[key] for key in first if key in differing}
    return settings


@functools.cache
def configs_dir() -> Path:
    """Return the folder of YAML files: at the top of a checkout, or inside the package of an installed wheel."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "configs", package.parent / "configs"):
        if (folder / "config.yaml").is_file():
            return folder
    raise UserError("install.no_configs", f"no configs/ beside or in {package}; install rvtssm again")
