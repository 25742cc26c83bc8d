"""How a run goes on: the checkpoint it continues from, and the settings that decide its numbers and stay the same."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rvtssm.datasets import AugmentConfig
from rvtssm.datasets.datamodule import SequenceDataModule
from rvtssm.models.checkpoint import load_file
from rvtssm.models.checkpoint_meta import CheckpointMeta
from rvtssm.system.limits import values_of
from rvtssm.system.output_folder import changed_keys
from rvtssm.system.user_error import UserError
from rvtssm.training import OptimConfig, TrainSections
from rvtssm.training.checkpoints import best_checkpoint, is_whole, last_checkpoint, latest_checkpoint, step_of

_OF_TRAINING = (
    *("steps", "init_from", "average", "class_map", "accumulate", "devices", "num_nodes", "precision"),
    *("sync_batchnorm", "freeze_batchnorm", "pseudo_weight"),
)
_RATE = "optim.learning_rate"
Decisive = dict[str, str | int | float | None]


def decisive_settings(sections: TrainSections, meta: CheckpointMeta, data: SequenceDataModule) -> Decisive:
    """Return the decisive settings of a run by key. Lists become text.

    Args:
        sections: All settings.
        meta: The description that its checkpoints carry.
        data: Its recordings.
    """
    settings: dict[str, Any] = {}
    for name in ("model", "temporal", "sampling", "augment", "optim"):
        settings[name] = asdict(getattr(sections, name))
    del settings["temporal"]["scan"]  # which code runs the recurrence
    settings["training"] = values_of(sections.training, _OF_TRAINING)
    spec = asdict(meta.spec)
    del spec["ignored_classes"]
    for name in ("label_names", "label_columns", "key"):  # which older runs do not know
        if not spec[name]:
            del spec[name]
    settings |= {"dataset": {**spec, **_counts(data)}, "windows": asdict(meta.windows), "seed": sections.seed}
    return _comparable(flat(settings))


def _counts(data: SequenceDataModule) -> dict[str, int]:
    """Return how many recordings and labels a run trains and validates on."""
    counts = {}
    for split in ("train", "val"):
        counts[f"{split}_recordings"] = len(data.sequences(split))
        counts[f"{split}_labels"] = sum(map(len, data.labels(split)))
    return counts


def _comparable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with sequences as text, so that a list equals a tuple."""
    return {key: str(list(value)) if isinstance(value, (list, tuple)) else value for key, value in settings.items()}


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested dicts; keys are joined by dots."""
    leaves: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            leaves |= flat(value, f"{prefix}{name}.")
        else:
            leaves[prefix + name] = value
    return leaves


def find_resume(resume: str | None, out_dir: Path) -> Path | None:
    """Return the checkpoint to resume from, or None.

    Args:
        resume: A checkpoint; `auto` for the latest one in `out_dir`, if any; None to start anew.
        out_dir: Folder of the run.

    Raises:
        UserError: The file is not a checkpoint of a run, or `out_dir` holds a run that would be overwritten.
    """
    own = (last_checkpoint(out_dir), best_checkpoint(out_dir))
    # Where the run goes on: the latest of this folder, a file, or nowhere.
    path = None
    if resume == "auto":
        path = latest_checkpoint(out_dir)
        if not path.is_file():
            return None
    elif resume:
        path = Path(resume)
        if not path.is_file():
            raise UserError(
                "file.missing", name=f"resume={resume}", advice="give a .ckpt file of `rvtssm train`, or resume=auto"
            )
    # A run in this folder is never overwritten by another one.
    is_of_folder = path is not None and path.resolve().parent == own[0].resolve().parent
    if not is_of_folder and any(map(Path.exists, own)):
        raise UserError(
            "run.exists",
            name=out_dir,
            found="holds a run, which this one would overwrite",
            advice="continue it with resume=auto, or set another out",
        )
    if path is None:
        return None
    # The file must be whole, and of a run.
    if not is_whole(path):
        best = path.with_name(own[1].name)
        advice = "start the run anew in another folder"
        if is_whole(best):
            advice = f"go on with resume={best}, which has step {step_of(best)}"
        raise UserError("file.cut", name=path, found="is not whole, so the run cannot go on from it", advice=advice)
    if "decisive" not in load_file(path):
        raise UserError(
            "file.kind",
            name=f"resume={resume}",
            found=f"{path} holds weights only",
            advice="give a .ckpt file of `rvtssm train`; training.init_from starts a new run from weights",
        )
    return path


def check_same_run(state: dict[str, Any], decisive: Decisive) -> None:
    """Check that a checkpoint is of a run with the same decisive settings.

    A finished run may now have more steps, and any run a lower learning rate.

    Args:
        state: The content of the checkpoint.
        decisive: The decisive settings of the run that is to go on.

    Raises:
        UserError: The settings differ.
    """
    # Keys that an older version did not know had the values that are the defaults now.
    usual = flat({"augment": asdict(AugmentConfig()), "optim": asdict(OptimConfig())})
    stored = _comparable(usual) | state["decisive"]
    differing = changed_keys(stored, decisive)
    if is_extension(state, decisive):
        differing.remove("training.steps")
    if has_lower_rate(state, decisive):
        differing.remove(_RATE)
    if differing:
        differences = "; ".join(f"{name}={stored.get(name)}, now {decisive.get(name)}" for name in differing)
        raise UserError(
            "run.other_settings",
            found=f"the run to resume had other settings ({differences})",
            advice="resume with the same ones, for which `rvtssm train` needs only out=DIR and resume=auto; lower "
            f"{_RATE}; give training.steps=MORE once the run has all its steps; or start from its weights in another "
            "folder with training.init_from",
        )


def is_extension(state: dict[str, Any], decisive: Decisive) -> bool:
    """Return whether a checkpoint is of a run that has all its steps, and that is to take more of them."""
    num_steps = state["decisive"]["training.steps"]
    return state["global_step"] == num_steps and int(decisive["training.steps"] or 0) > num_steps


def has_lower_rate(state: dict[str, Any], decisive: Decisive) -> bool:
    """Return whether a run that goes on from a checkpoint has a lower learning rate from now on."""
    return float(decisive[_RATE] or 0) < state["decisive"][_RATE]
