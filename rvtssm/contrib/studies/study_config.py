"""The settings of `rvtssm study`. This file does not import anything that computes."""

from dataclasses import dataclass, field

from rvtssm.cli.config import Config
from rvtssm.cli.inputs import check_training
from rvtssm.contrib.demo.demo_config import DemoSettings
from rvtssm.system.user_error import UserError

# sections of which a study that scores given weights reads nothing
NOT_READ_WITH_WEIGHTS = ("training", "optim", "sampling", "augment", "temporal", "windows", "synthetic", "preprocess")
READ_BY_EVALUATION = ("dataset", "data", "postprocess", "evaluation", "precision")


@dataclass
class StudyConfig:
    """Which trainings and conditions a study compares."""

    variants: list[str] = field(default_factory=list)
    """trainings, each as "NAME: key=value ..."; settings are optional."""
    axes: list[str] = field(default_factory=list)
    """Settings to vary, as `key=value,value` like on the command line."""
    beside: list[str] = field(default_factory=list)
    """Published numbers for the tables: "NAME: 20=47.7 40=46.4", AP by Hz."""

    def __post_init__(self) -> None:
        names = [name for name, _ in self.named_variants()]
        if len(set(names)) != len(names):
            raise UserError("setting.conflict", name="study.variants", found=", ".join(names), advice="name each once")
        self.numbers_beside()

    def numbers_beside(self) -> dict[str, dict[float, float]]:
        """Return the numbers in `beside`, AP in percent, by name and rate. Raise UserError if one cannot be read."""
        numbers: dict[str, dict[float, float]] = {}
        for line in self.beside:
            name, _, words = line.rpartition(":")
            if not name.strip() or name in numbers:
                needed = "each line has a name of its own, as in 'NAME: HZ=AP HZ=AP'"
                raise UserError("setting.form", name="study.beside", found=line, needed=needed)
            pairs = [word.partition("=")[::2] for word in words.split()]
            try:
                numbers[name] = {float(hz): float(ap) for hz, ap in pairs}
            except ValueError:
                raise UserError(
                    "setting.form", name="study.beside", found=line, needed="write 'NAME: HZ=AP HZ=AP'"
                ) from None
        return numbers

    def named_variants(self) -> list[tuple[str, list[str]]]:
        """Return the variants by name. Raise UserError if one has no name."""
        named = []
        for variant in self.variants:
            name, colon, words = variant.partition(":")
            if not colon or not name.strip() or "=" in name:
                needed = "each variant has a name, as in 'NAME: key=value key=value'"
                raise UserError("setting.form", name="study.variants", found=variant, needed=needed)
            named.append((name.strip(), words.split()))
        return named


@dataclass
class StudySettings(DemoSettings):
    """All settings, with those of simulated recordings and of `study`."""

    study: StudyConfig = field(default_factory=StudyConfig)


def given_weights(config: Config) -> list[str]:
    """Return the weights that a study scores instead of training its own; empty if it trains."""
    return [config.checkpoint] if config.checkpoint else list(config.evaluation.checkpoints or [])


def makes_recordings(config: Config) -> bool:
    """Return whether a study makes its recordings itself: those of the synthetic dataset, if no folder is named."""
    return config.dataset.name == "synthetic" and not any(config.folders.values())


def check_study(config: StudySettings) -> None:
    """Raise UserError if the settings of a study do not fit together."""
    is_given = bool(given_weights(config))
    if config.checkpoint and config.evaluation.checkpoints is not None:
        advice = "give checkpoint=FILE or evaluation.checkpoints=[FILE,FILE], and not both"
        raise UserError("setting.conflict", name="checkpoint", found=config.checkpoint, advice=advice)
    if config.evaluation.class_map is not None and not is_given:
        found = config.evaluation.class_map
        needed = "it is for weights of other data (checkpoint=FILE), and this study trains its own"
        advice = "write training.class_map for the classes of training.init_from"
        raise UserError("setting.needs", name="evaluation.class_map", found=found, needed=needed, advice=advice)
    if is_given and not any(config.folders.values()):
        name = "dataset.raw_dir=DIR or dataset.prepared_dir=DIR is needed"
        raise UserError("setting.missing", name=name, needed="what to score the weights on")
    if not makes_recordings(config):
        check_training(config)
