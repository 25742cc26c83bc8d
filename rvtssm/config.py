"""The typed tree of everything a command can be told, and where its YAML files are."""

import functools
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from rvtssm.datasets import DatasetConfig
from rvtssm.datasets.loading_config import AugmentConfig, DataConfig, SamplingConfig
from rvtssm.evaluation.audit_config import AuditConfig
from rvtssm.evaluation.study_config import StudyConfig
from rvtssm.events.windows import WindowsConfig
from rvtssm.models.model_config import MODEL_SIZES, PRECISIONS, ModelConfig, PostprocessConfig
from rvtssm.prediction.inference_config import TRACKERS, ExportConfig, LabelConfig, LiveConfig, PredictConfig
from rvtssm.preparation.preparation_config import PreprocessConfig
from rvtssm.records import STILL_US
from rvtssm.serve.serve_config import ServeConfig
from rvtssm.simulation.simulation_config import CAMERAS, SimulateConfig, SyntheticConfig
from rvtssm.ssm.temporal_config import TemporalConfig
from rvtssm.system.limits import check_at_least, check_choice, check_positive
from rvtssm.system.user_error import UserError
from rvtssm.training.training_config import OptimConfig, TrainingConfig


@dataclass
class EvaluationConfig:
    """One run of `rvtssm evaluate`."""

    hz: list[float] | None = None  # inference rates, null: the rate of training
    grid: str = "labels"  # a window ends at every label; or free: at the exact rate, labels scored at the next end
    window: str = "both"  # at other rates: slide, as long as in training; shrink, as long as the stride; or both
    step_scale: float | None = None  # of the temporal layers, null: the stride over that of training; 1: no rescaling
    memory: str | None = None  # carried: weights that forget after every chunk carry their state; null: as they do
    checkpoints: list[str] | None = None  # several weights in one report, instead of `checkpoint`
    split: str = "test"  # whose recordings are scored: train, val or test
    source: str | None = None  # raw or prepared; null: raw where the recordings are, which any rate needs
    label_hz: float | None = None  # interpolate labels along tracks to this rate, with grid=free or streaming=true
    streaming: bool = False  # score at each label the newest output whose computation had finished
    latency_ms: float | None = None  # of a step, for streaming; null: measured on this machine
    latency_from: str | None = None  # file that tells it: prediction.json, or the JSON of benchmarks.streaming
    when_late: str = "skip"  # windows that end during a step, all but the newest; or queue: every window in order
    time_shifts_ms: list[float] | None = None  # AP with outputs of other times; null: with streaming -200 to 200
    track: str | None = None  # number the objects, and score that where labels have tracks; one of TRACKERS
    track_memory_s: float = 1.0  # for how long an object that is not found keeps its number, in seconds
    bootstrap: int = 1000  # replicates of the confidence intervals, 0: none
    # processes that share the batches of recordings, null: one per GPU, or one per four cores; torchrun starts its own
    processes: int | None = 1
    ablate_memory: bool = False  # score the training rate once more, the state reset at every step
    still_ms: float = STILL_US / 1000  # objects that have not moved for so long are scored apart, where labels tell

    def __post_init__(self) -> None:
        check_choice("evaluation.grid", self.grid, ("labels", "free"))
        check_choice("evaluation.when_late", self.when_late, ("skip", "queue"))
        check_choice("evaluation.track", self.track, (*TRACKERS, None))
        check_choice("evaluation.window", self.window, ("both", "slide", "shrink"))
        check_choice("evaluation.source", self.source, ("raw", "prepared", None))
        check_choice("evaluation.memory", self.memory, ("carried", None))
        check_positive("evaluation", self, "step_scale", "label_hz")
        check_at_least("evaluation", self, 0, "still_ms", "bootstrap", "latency_ms", "track_memory_s")
        check_at_least("evaluation", self, 1, "processes")
        if self.latency_ms is not None and self.latency_from is not None:
            raise UserError("evaluation.latency_ms and evaluation.latency_from are both set; leave one of them out")
        usual = {"latency_ms": None, "latency_from": None, "when_late": "skip"}
        for key, value in usual.items():
            if not self.streaming and getattr(self, key) != value:
                raise UserError(
                    f"evaluation.{key}={getattr(self, key)} concerns streaming; set evaluation.streaming=true"
                )
        if self.label_hz is not None and self.grid == "labels" and not self.streaming:
            raise UserError(
                f"evaluation.label_hz={self.label_hz:g} makes labels between window ends; set evaluation.grid=free or "
                "evaluation.streaming=true"
            )
        if self.label_hz is not None and self.track is not None:
            raise UserError(
                f"evaluation.track={self.track} compares with annotated labels, not with those of evaluation.label_hz="
                f"{self.label_hz:g}; leave one of them out"
            )
        shifts = self.time_shifts_ms
        if shifts is not None and (not all(map(math.isfinite, shifts)) or len(set(shifts)) != len(shifts)):
            raise UserError(f"evaluation.time_shifts_ms={shifts}; name different finite times, such as [-50,0,50]")
        rates = self.hz
        if rates is not None and not (rates and all(0 < hz < math.inf for hz in rates)):
            raise UserError(f"evaluation.hz={rates}; name positive rates, such as [20,200]")
        if rates is not None and len({f"{hz:g}" for hz in rates}) != len(rates):
            raise UserError(f"evaluation.hz={rates} names a rate twice; name each once")
        if self.checkpoints is not None and len(set(self.checkpoints)) != len(self.checkpoints):
            raise UserError(f"evaluation.checkpoints={self.checkpoints} names weights twice; name each once")


@dataclass
class Config:
    """Everything; a verb reads the sections that concern it."""

    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    temporal: TemporalConfig = field(default_factory=TemporalConfig)
    synthetic: SyntheticConfig = field(default_factory=SyntheticConfig)
    simulate: SimulateConfig = field(default_factory=SimulateConfig)
    windows: WindowsConfig = field(default_factory=WindowsConfig)
    preprocess: PreprocessConfig = field(default_factory=PreprocessConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    postprocess: PostprocessConfig = field(default_factory=PostprocessConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    study: StudyConfig = field(default_factory=StudyConfig)
    predict: PredictConfig = field(default_factory=PredictConfig)
    label: LabelConfig = field(default_factory=LabelConfig)
    live: LiveConfig = field(default_factory=LiveConfig)
    serve: ServeConfig = field(default_factory=ServeConfig)
    export: ExportConfig = field(default_factory=ExportConfig)
    audit: AuditConfig = field(default_factory=AuditConfig)
    plugins: list[str] = field(default_factory=list)  # Python files that add parts to the tables, imported first
    seed: int = 0  # of everything that is drawn at random
    out: str | None = None  # folder to write to, null: outputs/<verb>
    checkpoint: str | None = None  # weights to use: a file, a name such as street-tiny, or hf://OWNER/NAME
    # of evaluate, predict, label, live and audit: float32, bf16 (products in 16 bits), or auto: bf16 if the device has
    # units for it
    precision: str = "float32"
    recording: str | None = None  # the events: a file, a folder, - (standard input), tcp://HOST:PORT or camera:
    resume: str | None = None  # checkpoint to go on from; auto: the last one in `out`, where there is one

    def __post_init__(self) -> None:
        check_choice("precision", self.precision, (*PRECISIONS, "auto"))
        if not 0 <= self.seed < 2**32:
            raise UserError(f"seed={self.seed} must be at least 0 and less than 2**32")


# groups whose choices are tables of the code, with the section that a choice fills
CHOICES: dict[str, tuple[str, Mapping[str, Any]]] = {
    "model": ("model", MODEL_SIZES),
    "sensor": ("synthetic.camera", CAMERAS),
}


@functools.cache
def register_schema() -> None:
    """Let Hydra check every key and type against `Config`, and offer the entries of CHOICES."""
    store = ConfigStore.instance()
    schema = OmegaConf.structured(Config)
    # of the class, because an instance has chosen already what its layer is by default
    schema.temporal = OmegaConf.structured(TemporalConfig)
    store.store("schema", schema)
    for group, (section, choices) in CHOICES.items():
        for name, choice in _differing(choices).items():
            store.store(name, choice, group=group, package=section)


def _differing(choices: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the choices of a table as the keys in which they differ: those that a choice names."""
    settings = {name: asdict(choice) for name, choice in choices.items()}
    first = next(iter(settings.values()))
    keys = [key for key in first if any(each[key] != first[key] for each in settings.values())]
    return {name: {key: each[key] for key in keys} for name, each in settings.items()}


@functools.cache
def configs_dir() -> Path:
    """The folder of YAML files: at the top of a checkout, inside the package in an installed wheel."""
    package = Path(__file__).resolve().parent
    for folder in (package / "configs", package.parent / "configs"):
        if (folder / "config.yaml").is_file():
            return folder
    raise UserError(f"no configs/ beside or in {package}; install rvtssm again")
