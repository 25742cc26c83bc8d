"""All settings of all commands as typed dataclasses, and the folder that holds their YAML files."""

import functools
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf

from rvtssm.cli.verbs import all_sections
from rvtssm.datasets import PreprocessConfig
from rvtssm.detection import DetectionConfig, LiveConfig, PredictConfig
from rvtssm.evaluation.evaluation_config import EvaluationConfig
from rvtssm.events.windows import WindowsConfig
from rvtssm.export import ExportConfig
from rvtssm.models import PRECISIONS, PRESETS, ModelConfig
from rvtssm.ssm import TemporalConfig
from rvtssm.system.limits import Settings, setting
from rvtssm.training import TrainSections

# The sections that weights or prepared frames decide where a command does not.
DECIDED: dict[str, type[Settings]] = {"model": ModelConfig, "temporal": TemporalConfig, "windows": WindowsConfig}


@dataclass
class Config(TrainSections):
    """All settings of the core. Each verb reads some of the sections; verbs of contrib have subclasses of it."""

    preprocess: PreprocessConfig = field(default_factory=PreprocessConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    detection: DetectionConfig = field(default_factory=DetectionConfig)
    predict: PredictConfig = field(default_factory=PredictConfig)
    live: LiveConfig = field(default_factory=LiveConfig)
    export: ExportConfig = field(default_factory=ExportConfig)
    plugins: list[str] = setting([], is_path=True)
    """Python files to import first; they can register new parts."""
    checkpoint: str | None = setting(None, is_path=True)
    """The weights: a file, a name such as street-tiny, or hf://OWNER/NAME."""
    precision: str = setting("float32", choices=(*PRECISIONS, "auto"))
    """Of evaluate, predict, label, live and audit: float32; bf16 (16-bit matrix products); auto: bf16 if the device
    computes products faster in it."""
    recording: str | None = setting(None, is_path=True)
    """Source of events: a file, a folder, - (standard input), tcp://HOST:PORT or camera:."""
    filters: list[Any] = setting([])
    """Filters of the events: background, hot_pixels, flicker, refractory, region and trailing_edge (docs/live.md)."""
    full: bool = False
    """Whether `inspect` reads all of a dataset and says what is wrong in which file."""


def usual(name: str, key: str) -> Any:
    """Return what a training on a named dataset sets if neither an experiment nor the command does, as in RVT."""
    if key == "reduce":
        return "nearest" if name == "onempx" else None
    return 21 if name in ("", "gen1") else 10


OmegaConf.register_new_resolver("usual", usual, replace=True)


def register_schema(settings: type[Config] = Config) -> None:
    """Register a class of settings with Hydra, so that it checks every key and type, and the presets of models."""
    store = ConfigStore.instance()
    store.store("schema", _schema(settings))  # type: ignore[arg-type]  # a class can be hashed
    for name in PRESETS:
        store.store(name, {"size": name}, group="model", package="model")


@functools.cache
def _schema(settings: type[Any]) -> DictConfig:
    """Return the keys and types of a class of settings; Hydra takes a copy of it."""
    schema: DictConfig = OmegaConf.structured(settings)
    for name, kind in DECIDED.items():  # what is still missing after the composition was not named
        schema[name] = OmegaConf.structured(kind)
        for key in schema[name]:
            if not OmegaConf.is_dict(schema[name][key]):  # of these, what is empty was not named
                schema[name][key] = MISSING
    # The names of these dicts are given by the caller.
    parts = (schema.model[f"{part}_options"] for part in ("backbone", "neck", "head", "mixer"))
    for free in (schema.dataset.columns, schema.temporal.options, *parts):
        OmegaConf.set_struct(free, False)
    OmegaConf.set_struct(schema, False)
    # A recipe may hold settings of verbs that have other classes; `to_config` drops them.
    for name in all_sections() - {*schema}:
        schema[name] = {}
        OmegaConf.set_struct(schema[name], False)
    schema.sampling.chunk_length = "${usual:${dataset.name},chunk_length}"
    schema.windows.reduce = "${usual:${dataset.name},reduce}"
    return schema
