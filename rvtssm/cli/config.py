"""All settings of all commands as typed dataclasses, and the folder that holds their YAML files."""

import functools
from dataclasses import asdict, dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from rvtssm.cli.verbs import verbs
from rvtssm.datasets.data_config import PreprocessConfig
from rvtssm.detection.inference_config import DetectionConfig, LiveConfig, PredictConfig
from rvtssm.evaluation.evaluation_config import EvaluationConfig
from rvtssm.export import ExportConfig
from rvtssm.models.model_config import MODEL_SIZES, PRECISIONS
from rvtssm.ssm.temporal_config import TemporalConfig
from rvtssm.system.limits import check_choice
from rvtssm.system.user_error import UserError
from rvtssm.training.training_config import TrainSections


@dataclass
class Config(TrainSections):
    """All settings of the core. Each verb reads some of the sections; verbs of contrib have subclasses of it."""

    preprocess: PreprocessConfig = field(default_factory=PreprocessConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    detection: DetectionConfig = field(default_factory=DetectionConfig)
    predict: PredictConfig = field(default_factory=PredictConfig)
    live: LiveConfig = field(default_factory=LiveConfig)
    export: ExportConfig = field(default_factory=ExportConfig)
    plugins: list[str] = field(default_factory=list)
    """Python files to import first; they can register new parts."""
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

    def __post_init__(self) -> None:
        check_choice("precision", self.precision, (*PRECISIONS, "auto"))
        if not 0 <= self.seed < 2**32:
            raise UserError("settings.seed", f"seed={self.seed} must be at least 0 and less than 2**32")


def usual(name: str, key: str) -> Any:
    """Return what a training on a named dataset sets if neither an experiment nor the command does, as in RVT."""
    if key == "reduce":
        return "nearest" if name == "onempx" else None
    return 21 if name in ("", "gen1") else 10


def register_schema(settings: type[Config] = Config) -> None:
    """Register a class of settings with Hydra, so that it checks every key and type, and the sizes of models."""
    OmegaConf.register_new_resolver("usual", usual, replace=True)
    store = ConfigStore.instance()
    store.store("schema", _schema(settings))  # type: ignore[arg-type]  # a class can be hashed
    sizes = {name: asdict(size) for name, size in MODEL_SIZES.items()}
    first = next(iter(sizes.values()))
    differing = {key for size in sizes.values() for key, value in size.items() if value != first[key]}
    for name, size in sizes.items():
        own = {key: value for key, value in size.items() if key in differing}
        store.store(name, own, group="model", package="model")


@functools.cache
def _schema(settings: type[Any]) -> DictConfig:
    """Return the keys and types of a class of settings; Hydra takes a copy of it."""
    schema: DictConfig = OmegaConf.structured(settings)
    # The class, not an instance: an instance has already filled in the defaults of its layer.
    schema.temporal = OmegaConf.structured(TemporalConfig)
    parts = (schema.model[f"{part}_options"] for part in ("backbone", "neck", "head", "mixer"))
    for free in (schema.dataset.columns, schema.temporal.options, *parts):
        OmegaConf.set_struct(free, False)  # its keys are given by the caller
    OmegaConf.set_struct(schema, False)
    for name in {name for verb in verbs().values() for name in verb.reads} - {*schema}:
        schema[name] = {}  # a recipe may hold settings of verbs that have other classes; `to_config` drops them
        OmegaConf.set_struct(schema[name], False)
    schema.sampling.chunk_length = "${usual:${dataset.name},chunk_length}"
    schema.windows.reduce = "${usual:${dataset.name},reduce}"
    return schema
