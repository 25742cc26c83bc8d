"""The settings that decide the numbers of a run. A run is resumed only with the same ones."""

from dataclasses import asdict
from typing import Any

from rvtssm.datasets.datamodule import SequenceDataModule
from rvtssm.models.checkpoint_meta import CheckpointMeta
from rvtssm.training.sections import TrainSections

_OF_TRAINING = (
    *("steps", "init_from", "average", "class_map", "accumulate", "devices", "num_nodes", "precision"),
    *("sync_batchnorm", "freeze_batchnorm", "pseudo_weight"),
)
Decisive = dict[str, str | int | float | None]


def decisive_settings(sections: TrainSections, meta: CheckpointMeta, data: SequenceDataModule) -> Decisive:
    """Return the decisive settings of a run by key. Lists become text.

    Args:
        sections: All settings.
        meta: The description that its checkpoints carry.
        data: Its recordings.
    """
    found: dict[str, Any] = {
        name: asdict(getattr(sections, name)) for name in ("model", "temporal", "sampling", "augment", "optim")
    }
    del found["temporal"]["scan"]  # which code runs the recurrence
    found["training"] = {name: getattr(sections.training, name) for name in _OF_TRAINING}
    spec = asdict(meta.spec)
    del spec["ignored_classes"]
    found |= {"dataset": {**spec, **_counts(data)}, "windows": asdict(meta.windows), "seed": sections.seed}
    return {key: _comparable(value) for key, value in flat(found).items()}


def _counts(data: SequenceDataModule) -> dict[str, int]:
    """Return how many recordings and labels a run trains and validates on."""
    counts = {}
    for split in ("train", "val"):
        counts[f"{split}_recordings"] = len(data.sequences(split))
        counts[f"{split}_labels"] = sum(len(sequence.labels) for sequence in data.sequences(split))
    return counts


def _comparable(value: Any) -> Any:
    return str(list(value)) if isinstance(value, (list, tuple)) else value


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested dicts; keys are joined by dots."""
    leaves: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            leaves |= flat(value, f"{prefix}{name}.")
        else:
            leaves[prefix + name] = value
    return leaves
