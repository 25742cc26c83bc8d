"""Bring weights and data together: settings that are not given, classes, scoring rules, and whether both fit."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace

from rvtssm.datasets import DataConfig, DatasetConfig, with_training
from rvtssm.datasets.datamodule import SequenceDataModule
from rvtssm.models import PostprocessConfig
from rvtssm.models.checkpoint_meta import LoadedCheckpoint, detector_for_frame
from rvtssm.models.transfer import CLASS_MAP_FORM, mapped_classes
from rvtssm.records import DatasetSpec
from rvtssm.system.limits import values_of
from rvtssm.system.output_folder import changed_keys
from rvtssm.system.user_error import UserError

_RULES = ("min_side_px", "min_diagonal_px", "skip_us", "scores_empty_images")


def data_for(
    path: str,
    checkpoint: LoadedCheckpoint,
    dataset: DatasetConfig,
    data: DataConfig,
    class_map: dict[str, str] | None,
) -> SequenceDataModule:
    """Return the data to score weights on; settings that are not given are those of the training.

    Args:
        path: Name of the weights, for messages.
        checkpoint: The weights.
        dataset: Which dataset, and where its files are.
        data: Loading of batches.
        class_map: See `class_indices`.

    Raises:
        UserError: The weights were trained for another dataset, other classes or other frames, without a class map.
    """
    dataset = with_training(dataset, checkpoint.spec)
    if not dataset.raw_dir and not dataset.prepared_dir:
        dataset = replace(dataset, raw_dir=checkpoint.raw_dir, prepared_dir=checkpoint.prepared_dir)
    module = SequenceDataModule(dataset, data=data)
    if class_indices(class_map, checkpoint.spec, module.spec) is None:
        _check_fit(path, checkpoint.spec, module.spec)
    return module


def class_indices(class_map: dict[str, str] | None, trained: DatasetSpec, data: DatasetSpec) -> tuple[int, ...] | None:
    """Return the class of the data for each class of the weights, -1 for none; None without a class map.

    Args:
        class_map: Names of classes of the data by those of the weights. Equal names need no entry.
        trained: The dataset of the weights.
        data: The dataset to score them on.
    """
    if class_map is None:
        return None
    known = data.class_names
    mapped = mapped_classes("evaluation.class_map", class_map, trained.class_names, known)
    return tuple(known.index(name) if name in known else -1 for name in mapped)


def class_maps(
    class_map: Mapping[str, str], names_by_weights: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, str] | None]:
    """Return, for each of several weights, the part of a class map that is about its classes.

    Args:
        class_map: See `class_indices`; an entry may be about some of the weights only.
        names_by_weights: The classes of each of the weights.

    Raises:
        UserError: None of the weights has a class of the map.
    """
    known = set().union(*names_by_weights.values())
    for name in class_map:
        if name not in known:
            found = f"{name!r}, which is a class of none of the weights"
            raise UserError("setting.choice", name="evaluation.class_map", found=found, needed=sorted(known))
    maps: dict[str, dict[str, str] | None] = {}
    for weights, names in names_by_weights.items():
        maps[weights] = {name: other for name, other in class_map.items() if name in names}
    return maps


def for_data(
    checkpoint: LoadedCheckpoint, spec: DatasetSpec, has_class_map: bool, say: Callable[[str], object]
) -> LoadedCheckpoint:
    """Return the weights for the classes, the frames and the scoring rules of the data; say which rules differ.

    Args:
        checkpoint: The weights.
        spec: The data.
        has_class_map: Whether the classes of the weights are mapped to those of the data.
        say: Called with what a user should know.
    """
    # The network for these frames; with a class map, everything else is that of the data.
    detector = detector_for_frame(checkpoint, spec.frame_height, spec.frame_width)
    if has_class_map:
        return replace(checkpoint, spec=spec, detector=detector)
    # Without one, only the scoring rules are, in pixels of the sensor of the training.
    trained = checkpoint.spec
    per_px = trained.downsample / spec.downsample  # frames have the same size, sensors perhaps not
    rules = values_of(spec, _RULES)
    for name in ("min_side_px", "min_diagonal_px"):
        rules[name] *= per_px
    changed = [f"{name} {getattr(spec, name)}" for name in _RULES if rules[name] != getattr(trained, name)]
    if changed:
        say(f"scored by the rules of the data, which are not those of the training: {', '.join(changed)}")
    return replace(checkpoint, spec=replace(trained, **rules), detector=detector)


def differences_in_scoring(postprocess: PostprocessConfig, scored_as: PostprocessConfig) -> list[str]:
    """Return a line for each setting with which detections are scored in another way than after the training.

    Args:
        postprocess: The settings, whose score is not None.
        scored_as: Those of the training.
    """
    now = asdict(postprocess)
    before = asdict(scored_as)
    lines = []
    for name in changed_keys(before, now):
        text = f"after the training these weights were scored with {before[name]}"
        lines.append(f"scored with postprocess.{name}={now[name]}; {text}")
    return lines


def _check_fit(path: str, trained: DatasetSpec, data: DatasetSpec) -> None:
    """Raise UserError if the dataset, the classes or the frames of the data are not those of the training."""
    ours = _described(trained)
    theirs = _described(data)
    differences = [f"{key} {ours[key]}, not {theirs[key]}" for key in ours if ours[key] != theirs[key]]
    if not differences:
        return
    # What else can be done with these weights depends on what differs.
    class_map = ""
    as_it_is = "'evaluation.class_map={}'"
    if trained.class_names != data.class_names:
        class_map = f" {CLASS_MAP_FORM.format('training')}"
        as_it_is = CLASS_MAP_FORM.format("evaluation")
    raise UserError(
        "weights.other_data",
        name=path,
        found=f"it cannot be scored on these data, because it was trained on {'; '.join(differences)}",
        advice=f"fine-tune it on them (`rvtssm train training.init_from={path}{class_map}` with the same dataset) and "
        f"evaluate the new weights, score it as it is with {as_it_is}, or only look at its boxes with `rvtssm predict`",
    )


def _described(spec: DatasetSpec) -> dict[str, str]:
    """Describe what must be equal for a model and the data on which it is scored."""
    return {
        "the dataset": spec.name,
        "the classes": f"({', '.join(spec.class_names)})",
        "frames of": f"{spec.frame_width} x {spec.frame_height} pixels",
    }
