"""Starts a detector from the weights of another one: takes what fits, resizes what can be resized, leaves the rest new.

The weights can be a checkpoint of ours, of RVT or of the official SSM release.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch.nn.functional as F
from torch import Tensor

from rvtssm.models import ModelConfig
from rvtssm.models.checkpoint import OFFICIAL_PREFIX, load_file, read_checkpoint
from rvtssm.models.checkpoint_meta import CheckpointMeta
from rvtssm.models.detector import Detector
from rvtssm.models.official import derive_configs, released_windows, rename_official
from rvtssm.records import WindowSettings
from rvtssm.records.settings import CHANNELS_PER_BIN
from rvtssm.ssm import TemporalConfig
from rvtssm.system.user_error import UserError

# Settings that decide the layout and the meaning of the parameters of a temporal layer.
_LAYOUT = ("name", "half_state", "bidirectional", "block", "discretization")

NO_CLASS = "no class of the same name"  # a reason in `Transferred`
CLASS_MAP_FORM = "'{}.class_map={{NAME_IN_WEIGHTS: NAME_IN_DATA}}'"  # quoted, for a shell; with a section


@dataclass(frozen=True)
class TransferSource:
    """Weights by our names, and what is known of their model; None for what is not known."""

    weights: Mapping[str, Tensor]
    temporal: TemporalConfig
    windows: WindowSettings
    class_names: tuple[str, ...] | None
    model: ModelConfig | None


@dataclass(frozen=True)
class Transferred:
    """The outcome for one tensor of the new detector."""

    name: str
    part: str  # part of the detector, such as `temporal at stride 8`
    outcome: str  # taken, resized or left
    reason: str = ""


def read_source(path: str | Path) -> TransferSource:
    """Read the weights in a checkpoint of ours, of RVT or of the official SSM release.

    Args:
        path: A file, a name or an address, as in `load_file`.

    Raises:
        UserError: If the file is not such a checkpoint.
    """
    weights = load_file(path).get("state_dict")
    if not isinstance(weights, dict) or not any(str(key).startswith(OFFICIAL_PREFIX) for key in weights):
        ours = read_checkpoint(path)
        own = ours.detector.state_dict()
        names = ours.spec.class_names
        return TransferSource(own, ours.temporal_config, ours.windows, names, ours.model_config)
    # The channels per attention head are not in such weights. We assume the number of the new detector.
    _, temporal, _, in_channels = derive_configs(weights, head_dim=1)
    return TransferSource(rename_official(weights), temporal, released_windows(in_channels), None, None)


def mapped_classes(key: str, class_map: dict[str, str], names: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """Return the classes of weights by the names that the data have for them.

    Args:
        key: The key of `class_map`, for messages.
        class_map: Names of classes of the weights, each with its name in the data. Other names stay.
        names: The classes of the weights.
        known: The classes of the data.

    Raises:
        UserError: The weights or the data have no such class, or two classes would become one.
    """
    for what, asked, all_names in (("the weights", class_map.keys(), names), ("the data", class_map.values(), known)):
        for name in asked:
            if name not in all_names:
                raise UserError(
                    "setting.choice", name=key, found=name, needed=all_names, advice=f"{what} have no such class"
                )
    mapped = tuple(class_map.get(name, name) for name in names)
    if len(set(mapped)) < len(mapped):
        needed = "it makes two classes of the weights one"
        raise UserError("setting.form", name=key, found=class_map, needed=needed, advice="map one of them")
    return mapped


def transfer(source: TransferSource, detector: Detector, meta: CheckpointMeta) -> list[Transferred]:
    """Fill a new detector from other weights.

    Args:
        source: The weights.
        detector: The new detector, which is changed.
        meta: Its description.

    Returns:
        One row per tensor of the new detector, in its order.

    Raises:
        UserError: If no matrix of the backbone could be taken, since a training would then not start from the weights.
    """
    report = []
    filled = {}
    # Temporal layers of another kind share names with ours, but not their meaning.
    layers = _temporal_prefixes(detector)
    foreign = _foreign_layers(source, detector, meta, layers)
    stem = f"backbone.{detector.backbone.input_weight}"
    # Each tensor is taken, resized or left, and the report says why.
    for name, own in detector.state_dict().items():
        value, outcome, reason = _fit(name, own, source, detector, meta, stem, layers, foreign)
        report.append(Transferred(name, _part(name, detector, layers), outcome, reason))
        if value is not None:
            filled[name] = value
    if not any(name.startswith("backbone.") and value.ndim > 1 for name, value in filled.items()):
        model = meta.model_config
        raise UserError(
            "weights.do_not_fit",
            found=f"none of the weights fits the backbone of this model, which has model.backbone={model.backbone}, "
            f"model.embed_dim={model.embed_dim} and model.mixer={model.mixer}",
            advice="give the model=, model.backbone, model.embed_dim and model.mixer with which they were trained, or "
            "start without weights",
        )
    detector.load_state_dict(filled, strict=False)
    return report


def _part(name: str, detector: Detector, layers: Mapping[str, int]) -> str:
    """Return in words which part of the detector a tensor belongs to."""
    for prefix, stride in layers.items():
        if name.startswith(prefix):
            return f"temporal at stride {stride}"
    if _has_row_per_class(name, detector):
        return "head classes"
    room = name.split(".")[0]
    if room == "backbone":
        return "spatial"
    return room


def _has_row_per_class(name: str, detector: Detector) -> bool:
    return any(f".{layer}." in name for layer in detector.head.class_layers)


_Fitted = tuple[Tensor | None, str, str]  # value, or None to leave the tensor as it is; outcome; reason


def _fit(
    name: str,
    own: Tensor,
    source: TransferSource,
    detector: Detector,
    meta: CheckpointMeta,
    stem: str,
    layers: Mapping[str, int],
    foreign: Mapping[str, str],
) -> _Fitted:
    """Return the value for a tensor of the new detector, the outcome, and the reason."""
    if layer := next(filter(name.startswith, foreign), None):
        return None, "left", foreign[layer]
    for part, key in detector.backbone.layouts.items():
        # If the source does not know its setting, we assume the setting of the new detector.
        if part in name and source.model and getattr(source.model, key) != getattr(meta.model_config, key):
            return None, "left", f"the weights have model.{key}={getattr(source.model, key)}"
    value = source.weights.get(name)
    if value is None:
        return None, "left", "not among the weights"
    if _has_row_per_class(name, detector):
        return _fit_classes(own, value, source.class_names, meta.spec.class_names)
    if name == stem and _bins(source.windows) != _bins(meta.windows):
        return _fit_channels(own, value, source.windows, meta.windows)
    if value.shape != own.shape:
        return None, "left", _sizes(value, own)
    ratio = meta.windows.stride_us / source.windows.stride_us
    stride = next((stride for prefix, stride in layers.items() if name.startswith(prefix)), None)
    if math.isclose(ratio, 1) or stride is None:
        return value, "taken", ""
    # The layer says how its parameters change, so that its memory stays the same in seconds.
    rule = detector.backbone.temporal_layers()[stride].rescaled.get(name.rsplit(".", 1)[-1])
    if rule is None:
        return value, "taken", ""
    return rule(value, ratio), "resized", f"for steps {ratio:g} times as long"


def _fit_classes(own: Tensor, value: Tensor, before: Sequence[str] | None, after: Sequence[str]) -> _Fitted:
    """Take the rows of classes with the same name, or all rows if the names are unknown and the number is the same."""
    if value.shape[1:] != own.shape[1:]:
        return None, "left", _sizes(value, own)
    # Weights that do not name their classes: only the number can be compared.
    if before is None:
        if len(value) == len(own):
            return value, "taken", "classes in their order"
        return None, "left", f"{len(value)} classes in the weights, {len(own)} in the data"
    known = [class_name for class_name in after if class_name in before]
    if not known:
        return None, "left", NO_CLASS
    if tuple(before) == tuple(after):
        return value, "taken", ""
    # Rows of shared classes move to their new places; the others keep new values.
    filled = own.clone()
    for class_name in known:
        filled[after.index(class_name)] = value[before.index(class_name)]
    return filled, "resized", f"of {', '.join(after)}, the weights have {', '.join(known)}"


def _fit_channels(own: Tensor, value: Tensor, before: WindowSettings, after: WindowSettings) -> _Fitted:
    """Interpolate filters to another number of bins, within each polarity.

    Fewer bins hold more events each, so the response to the same events stays nearly the same.
    """
    if before.representation != after.representation:
        return None, "left", f"the weights have windows.representation={before.representation}"
    if after.representation == "surfaces":
        return None, "left", f"the weights have the time constants {before.time_constants_us} us"
    if value.shape[0] != own.shape[0]:
        return None, "left", _sizes(value, own)
    per_bin = CHANNELS_PER_BIN[before.representation]
    height_width = own.shape[2:]
    by_bin = value.unflatten(1, (per_bin, before.num_bins)).permute(0, 1, 3, 4, 2).flatten(0, 3)[:, None]
    fitted = F.interpolate(by_bin, size=after.num_bins, mode="linear", align_corners=False)[:, 0]
    fitted = fitted.unflatten(0, (len(own), per_bin, *height_width)).permute(0, 1, 4, 2, 3).flatten(1, 2)
    return fitted, "resized", f"{before.num_bins} to {after.num_bins} bins"


def _temporal_prefixes(detector: Detector) -> dict[str, int]:
    """Return the prefix of the names of each temporal layer, with the stride of the layer."""
    strides = {id(layer): stride for stride, layer in detector.backbone.temporal_layers().items()}
    return {f"{name}.": strides[id(part)] for name, part in detector.named_modules() if id(part) in strides}


def _foreign_layers(
    source: TransferSource, detector: Detector, meta: CheckpointMeta, prefixes: Iterable[str]
) -> dict[str, str]:
    """Return the prefixes of temporal layers that cannot be taken, with the reason.

    Parameters of the same name mean different things in layers of different kinds, so a layer is taken as a whole or
    not at all.
    """
    own = detector.state_dict()
    foreign = {}
    differing = [key for key in _LAYOUT if getattr(source.temporal, key) != getattr(meta.temporal_config, key)]
    if "name" in differing:
        differing = ["name"]  # it decides the other settings
    for prefix in prefixes:
        shapes = {name: value.shape for name, value in own.items() if name.startswith(prefix)}
        if differing:
            made_for = ", ".join(f"temporal.{key}={getattr(source.temporal, key)}" for key in differing)
            foreign[prefix] = f"the weights have {made_for}"
        elif any(name not in source.weights or source.weights[name].shape != shape for name, shape in shapes.items()):
            foreign[prefix] = "a layer of other sizes"
    return foreign


def _bins(windows: WindowSettings) -> tuple[str, int | tuple[int, ...]]:
    if windows.representation == "surfaces":
        return windows.representation, windows.time_constants_us
    return windows.representation, windows.num_bins


def _sizes(value: Tensor, own: Tensor) -> str:
    return f"{_size(value)} in the weights, {_size(own)} in this detector"


def _size(value: Tensor) -> str:
    return "x".join(map(str, value.shape))
