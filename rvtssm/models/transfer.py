"""Weights of one detector as the start of another: what fits is taken, what can be fitted is, the rest stays new.

Sources of weights: our checkpoints, those of RVT and of the official SSM release.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch.nn.functional as F
from torch import Tensor

from rvtssm.models.checkpoint import OFFICIAL_PREFIX, CheckpointMeta, load_file, read_checkpoint
from rvtssm.models.detector import Detector
from rvtssm.models.official import derive_configs, released_windows, rename_official
from rvtssm.records import CHANNELS_PER_BIN, WindowSettings
from rvtssm.ssm import TemporalConfig

_STEM = "backbone.stages.0.downsample.conv.weight"
# what decides how the numbers of a temporal layer are laid out and what they mean
_LAYOUT = ("name", "half_state", "bidirectional", "s7_mode")


@dataclass(frozen=True)
class TransferSource:
    """Weights by our names, and what is known of the model they come from; None where nothing is."""

    weights: Mapping[str, Tensor]
    temporal: TemporalConfig
    windows: WindowSettings
    class_names: tuple[str, ...] | None
    head_dim: int | None


@dataclass(frozen=True)
class Transferred:
    """What became of one tensor of the new detector: taken, resized or left, and why."""

    name: str
    outcome: str
    reason: str = ""


def read_source(path: str | Path) -> TransferSource:
    """The weights in a checkpoint of ours, of RVT or of the official SSM release. ValueError for another file."""
    weights = load_file(path).get("state_dict")
    if not isinstance(weights, dict) or not any(str(key).startswith(OFFICIAL_PREFIX) for key in weights):
        found = read_checkpoint(path)
        return TransferSource(
            found.detector.state_dict(),
            found.temporal_config,
            found.windows,
            found.spec.class_names,
            found.model_config.head_dim,
        )
    # channels per attention head are not in such weights; those of the new detector are taken for granted
    _, temporal, _, in_channels = derive_configs(weights, head_dim=1)
    return TransferSource(rename_official(weights), temporal, released_windows(in_channels), None, None)


def transfer(source: TransferSource, detector: Detector, meta: CheckpointMeta) -> list[Transferred]:
    """Fill a new detector, described by `meta`, from other weights; one row per tensor of it, in its order.

    ValueError where not one matrix of the backbone could be taken: these are no weights to start from.
    """
    report, filled = [], {}
    foreign = _foreign_stages(source, detector, meta)
    for name, own in detector.state_dict().items():
        value, row = _fit(name, own, source, meta, foreign)
        report.append(row)
        if value is not None:
            filled[name] = value
    if not any(name.startswith("backbone.") and value.ndim > 1 for name, value in filled.items()):
        width = f" (they have {source.weights[_STEM].shape[0]})" if _STEM in source.weights else ""
        raise ValueError(
            f"none of the weights fits the backbone of this model, model.embed_dim={meta.model_config.embed_dim} and "
            f"model.mixer={meta.model_config.mixer}; give the model=, model.embed_dim={width} and model.mixer that "
            "they were trained with, or start without weights"
        )
    detector.load_state_dict(filled, strict=False)
    return report


def _fit(
    name: str, own: Tensor, source: TransferSource, meta: CheckpointMeta, foreign: Mapping[str, str]
) -> tuple[Tensor | None, Transferred]:
    """The value for a tensor of the new detector, None where it stays as it is, and what is to be said of it."""
    if stage := next((prefix for prefix in foreign if name.startswith(prefix)), None):
        return None, Transferred(name, "left", foreign[stage])
    if ".attention." in name and source.head_dim not in (None, meta.model_config.head_dim):
        return None, Transferred(name, "left", f"made for model.head_dim={source.head_dim}")
    value = source.weights.get(name)
    if value is None:
        return None, Transferred(name, "left", "not among the weights")
    if ".class_out." in name:
        return _fit_classes(name, own, value, source.class_names, meta.spec.class_names)
    if name == _STEM and _bins(source.windows) != _bins(meta.windows):
        return _fit_channels(name, own, value, source.windows, meta.windows)
    if value.shape != own.shape:
        return None, Transferred(name, "left", f"{_size(value)} there, {_size(own)} here")
    ratio = meta.windows.stride_us / source.windows.stride_us
    if name.endswith(".log_step") and not math.isclose(ratio, 1):
        # the modes' own steps are counted in steps of training: the same memory in seconds
        return value + math.log(ratio), Transferred(name, "resized", f"for steps {ratio:g} times as long")
    return value, Transferred(name, "taken")


def _fit_classes(
    name: str, own: Tensor, value: Tensor, before: Sequence[str] | None, after: Sequence[str]
) -> tuple[Tensor | None, Transferred]:
    """The rows of classes with the same name; all of them, where the names are not known but the number is the same."""
    if value.shape[1:] != own.shape[1:]:
        return None, Transferred(name, "left", f"{_size(value)} there, {_size(own)} here")
    if before is None:
        if len(value) == len(own):
            return value, Transferred(name, "taken", "classes in their order")
        return None, Transferred(name, "left", f"{len(value)} classes there, {len(own)} here")
    known = [class_name for class_name in after if class_name in before]
    if not known:
        return None, Transferred(name, "left", "no class of the same name")
    if tuple(before) == tuple(after):
        return value, Transferred(name, "taken")
    filled = own.clone()
    for class_name in known:
        filled[after.index(class_name)] = value[before.index(class_name)]
    return filled, Transferred(name, "resized", f"rows of {', '.join(known)}, the others new")


def _fit_channels(
    name: str, own: Tensor, value: Tensor, before: WindowSettings, after: WindowSettings
) -> tuple[Tensor | None, Transferred]:
    """Filters over another number of bins, interpolated within each polarity.

    Fewer bins hold more events each, so the response to the same events stays nearly as it was.
    """
    if before.representation != after.representation:
        return None, Transferred(name, "left", f"made for windows.representation={before.representation}")
    if value.shape[0] != own.shape[0]:
        return None, Transferred(name, "left", f"{_size(value)} there, {_size(own)} here")
    per_bin, height_width = CHANNELS_PER_BIN[before.representation], own.shape[2:]
    by_bin = value.unflatten(1, (per_bin, before.num_bins)).permute(0, 1, 3, 4, 2).flatten(0, 3)[:, None]
    fitted = F.interpolate(by_bin, size=after.num_bins, mode="linear", align_corners=False)[:, 0]
    fitted = fitted.unflatten(0, (len(own), per_bin, *height_width)).permute(0, 1, 4, 2, 3).flatten(1, 2)
    return fitted, Transferred(name, "resized", f"{before.num_bins} to {after.num_bins} bins")


def _foreign_stages(source: TransferSource, detector: Detector, meta: CheckpointMeta) -> dict[str, str]:
    """Stages whose temporal layer cannot be taken as a whole, by the prefix of its names, and why.

    Layers of different kinds have parameters of the same name that mean different things, so it is all or nothing.
    """
    own, foreign = detector.state_dict(), {}
    differing = [key for key in _LAYOUT if getattr(source.temporal, key) != getattr(meta.temporal_config, key)]
    for number in range(len(detector.backbone.stages)):
        prefix = f"backbone.stages.{number}.temporal."
        shapes = {name: value.shape for name, value in own.items() if name.startswith(prefix)}
        if differing:
            made_for = ", ".join(f"temporal.{key}={getattr(source.temporal, key)}" for key in differing)
            foreign[prefix] = f"made for {made_for}"
        elif any(name not in source.weights or source.weights[name].shape != shape for name, shape in shapes.items()):
            foreign[prefix] = "a layer of other sizes"
    return foreign


def _bins(windows: WindowSettings) -> tuple[str, int]:
    return windows.representation, windows.num_bins


def _size(value: Tensor) -> str:
    return "x".join(str(length) for length in value.shape)
