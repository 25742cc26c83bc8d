"""Checkpoints in our own format: weights, and a description from which the detector can be built again.

A file of torch.save, or one of safetensors with the description as JSON in its metadata.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import pickle
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from rvtssm.models.detector import Detector, build_detector
from rvtssm.models.file_digest import DIGEST_KEY, NO_DIGEST_YET, add_digest, check_digest
from rvtssm.models.hub import local_weights
from rvtssm.models.model_config import ModelConfig
from rvtssm.records import DatasetSpec, WindowSettings
from rvtssm.ssm.temporal_config import TemporalConfig
from rvtssm.ssm.temporal_layers import without_values
from rvtssm.system.atomic_files import atomic_file
from rvtssm.system.file_errors import CONTENT_ERRORS, file_errors
from rvtssm.system.limits import check_choice, check_note, check_number
from rvtssm.system.provenance import written_by
from rvtssm.system.user_error import UserError

FORMAT_VERSION = 1
SAFETENSORS = ".safetensors"
_META_KEY = "rvtssm"
WRITTEN_BY = "written_by"  # the key of `made_by`
DETECTOR_PREFIX = "detector."  # of the keys in a checkpoint of our training module
_ANY_SIZE = 1024  # numbers up to here are cheap to try
_LARGEST_FRAME = 1 << 14  # pixels of a side
_FEW = 1024  # numbers of a tensor that has its full precision in every file
OFFICIAL_PREFIX = "mdl."  # of the keys in a checkpoint of RVT or of the official SSM release


@dataclass
class CheckpointMeta:
    """The description in a checkpoint; `to_dict` gives its plain form, which stands under the key `rvtssm`."""

    spec: DatasetSpec
    model_config: ModelConfig
    temporal_config: TemporalConfig
    windows: WindowSettings
    raw_dir: str | None = None  # of training; an evaluation that names no folder takes it
    prepared_dir: str | None = None
    note: str | None = None  # what everyone who sees their boxes should know, such as "trained on simulation only"
    window_lengths_us: tuple[int, ...] = ()  # lengths of training windows, ascending; (): that of `windows` only

    def __post_init__(self) -> None:
        self.window_lengths_us = tuple(sorted(set(self.window_lengths_us))) or (self.windows.nominal_length_us,)
        if self.window_lengths_us[0] < 1:
            raise UserError(f"window_lengths_us={list(self.window_lengths_us)} must be at least 1 us each")

    @property
    def may_shrink_windows(self) -> bool:
        """Whether windows may be as short as the stride when these weights run at a higher rate.

        True if training used windows of a fifth of their usual length or shorter, and for surfaces, which depend on
        the end of a window only.
        """
        return self.windows.warmup_us > 0 or 5 * self.window_lengths_us[0] <= self.windows.nominal_length_us

    def windows_at(self, hz: float | None = None, window: str | None = None) -> WindowSettings:
        """Return how events become frames at a rate. At that of the training, and for None, they do as in training.

        At another rate, `window` says how long windows are: as long as in training (`slide`) or as the stride
        (`shrink`). None chooses `shrink` where these weights may shrink their windows and training had windows as short
        as the stride, and `slide` otherwise.
        """
        check_choice("window", window, ("slide", "shrink", None))
        if hz is not None:
            check_number("hz", hz, 1e-3, 1e6)
        if hz is None or math.isclose(hz, self.windows.hz):
            return self.windows
        shrunk = self.windows.at_rate(hz, "shrink")
        if window is None:
            window = "shrink" if self.may_shrink_windows and self._has_trained(shrunk) else "slide"
        return shrunk if window == "shrink" else self.windows.at_rate(hz, window)

    def _has_trained(self, settings: WindowSettings) -> bool:
        """Return whether windows are no shorter and no longer than those of the training."""
        shortest_us, longest_us = self.window_lengths_us[0], self.window_lengths_us[-1]
        return settings.warmup_us > 0 or shortest_us <= settings.nominal_length_us <= longest_us

    def warn_of_windows(self, settings: WindowSettings) -> str | None:
        """Return a sentence if windows are shorter or longer than all of the training, which costs accuracy."""
        if self._has_trained(settings):
            return None
        trained_ms = ", ".join(f"{us / 1000:g}" for us in self.window_lengths_us)
        return (
            f"windows of {settings.nominal_length_us / 1000:g} ms, but these weights were trained with windows of "
            f"{trained_ms} ms and are less accurate with others; window=slide keeps their length"
        )

    def to_dict(self) -> dict[str, Any]:
        temporal = asdict(self.temporal_config)
        del temporal["scan"]  # how the recurrence runs is a matter of the machine
        return {
            "format_version": FORMAT_VERSION,
            "spec": asdict(self.spec),
            "model": asdict(self.model_config),
            "temporal": temporal,
            "windows": asdict(self.windows),
            "raw_dir": self.raw_dir,
            "prepared_dir": self.prepared_dir,
            "note": self.note,
            "window_lengths_us": list(self.window_lengths_us),
        }

    @classmethod
    def from_dict(cls, meta: Mapping[str, Any]) -> CheckpointMeta:
        if meta["format_version"] != FORMAT_VERSION:
            raise UserError(
                f"the checkpoint has format version {meta['format_version']}, this rvtssm reads {FORMAT_VERSION}; "
                "use the version of rvtssm that wrote it"
            )
        note = meta.get("note")
        check_note("note", note)  # a line of the terminal, from a file that may be anyone's
        return cls(
            DatasetSpec(**{name: _tuples(value) for name, value in meta["spec"].items()}),
            ModelConfig(**meta["model"]),
            TemporalConfig.from_stored(meta["temporal"]),
            WindowSettings(**meta["windows"]),
            meta["raw_dir"],
            meta["prepared_dir"],
            note,
            tuple(map(int, meta.get("window_lengths_us", ()))),  # older checkpoints were trained with one length
        )

    def build(self, frame_hw: tuple[int, int] | None = None) -> Detector:
        """Return the detector that is described, with fresh weights; `frame_hw` in pixels, None: as in training."""
        height, width = frame_hw or (self.spec.frame_height, self.spec.frame_width)
        return build_detector(
            self.model_config,
            self.temporal_config,
            height,
            width,
            self.spec.num_classes,
            in_channels=self.windows.num_channels,
        )

    def without_folders(self) -> CheckpointMeta:
        """Return the description for files that go to other machines."""
        described = {field.name: getattr(self, field.name) for field in fields(CheckpointMeta)}
        return CheckpointMeta(**{**described, "raw_dir": None, "prepared_dir": None})

    def with_detector(self, detector: Detector) -> LoadedCheckpoint:
        """Return a checkpoint in memory: this description and a detector."""
        described = {field.name: getattr(self, field.name) for field in fields(CheckpointMeta)}
        return LoadedCheckpoint(**described, detector=detector)


@dataclass(kw_only=True)
class LoadedCheckpoint(CheckpointMeta):
    """A checkpoint in memory: its description and the detector, in evaluation mode."""

    detector: Detector


def write_checkpoint(path: str | Path, detector: Detector, meta: CheckpointMeta, precision: str = "float32") -> None:
    """Write a checkpoint of the detector through a temporary file, so that `path` is complete at any time.

    The suffix `.safetensors` chooses that format, in which the precision `bf16` halves the file. In memory, its tensors
    are float32 again. Those of few numbers stay float32 in the file: eigenvalues and time steps need their digits.
    """
    if Path(path).suffix != SAFETENSORS:
        assert precision == "float32"
        weights = detector.state_dict()
        save_file(path, {_META_KEY: meta.to_dict(), "state_dict": weights, WRITTEN_BY: made_by(weights)})
        return
    weights = {name: weight.detach().clone().contiguous() for name, weight in detector.state_dict().items()}
    stored = {name: _rounded(weight) for name, weight in weights.items()} if precision == "bf16" else weights
    read = {name: weight.to(weights[name].dtype) for name, weight in stored.items()}
    described = {_META_KEY: json.dumps(meta.to_dict()), WRITTEN_BY: json.dumps(made_by(read))}
    packed = save(stored, {**described, DIGEST_KEY: NO_DIGEST_YET})
    with atomic_file(path) as staged:
        staged.write_bytes(packed)
        add_digest(staged)


def _rounded(weight: Tensor) -> Tensor:
    return weight.to(torch.bfloat16) if weight.numel() > _FEW and weight.is_floating_point() else weight


def made_by(weights: Mapping[str, Tensor]) -> dict[str, str]:
    """Return what a checkpoint says of its making: version, commit, date, and `weights_digest`."""
    return {**written_by(), "weights_sha256": weights_digest(weights)}


def weights_digest(weights: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of the weights of a detector, whatever the file: names, types, shapes and bytes."""
    digest = hashlib.sha256()
    for name, weight in sorted(weights.items()):
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}\n".encode())
        digest.update(weight.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def save_file(path: str | Path, content: dict[str, Any]) -> None:
    """Write a dict that `load_file` reads. OSError if the disk is full; then `path` is as it was."""
    packed = io.BytesIO()  # because on a full disk torch.save raises another kind of error
    torch.save(content, packed)
    with atomic_file(path) as staged:
        staged.write_bytes(packed.getbuffer())


def read_checkpoint(path: str | Path, device: torch.device | str = "cpu") -> LoadedCheckpoint:
    """Read a checkpoint of `write_checkpoint` or of our training. ValueError if the file is something else."""
    content = load_file(path)
    weights = content.get("state_dict")
    if not isinstance(weights, dict) or not all(map(_is_named_tensor, weights.items())):
        raise UserError(f"{path} is not a checkpoint of rvtssm: it holds no weights (state_dict)")
    if "rvtssm" not in content:
        if any(key.startswith(OFFICIAL_PREFIX) for key in weights):
            raise UserError(
                f"{path} is a checkpoint of RVT or of the official SSM release; convert it first: "
                f"python scripts/convert_checkpoint.py {path} OUT --dataset NAME --size SIZE"
            )
        raise UserError(f"{path} is not a checkpoint of rvtssm: it does not say which model it holds")
    with file_errors(path, " does not say which model it holds", "another rvtssm may have written it", CONTENT_ERRORS):
        meta = CheckpointMeta.from_dict(content["rvtssm"])
    if any(key.startswith(DETECTOR_PREFIX) for key in weights):
        start = len(DETECTOR_PREFIX)
        weights = {key[start:]: value for key, value in weights.items() if key.startswith(DETECTOR_PREFIX)}
    with file_errors(path, " cannot be used", "use the rvtssm that wrote it, or train again", CONTENT_ERRORS):
        return fill_detector(meta, weights, device)


def _is_named_tensor(item: tuple[object, object]) -> bool:
    return isinstance(item[0], str) and isinstance(item[1], Tensor)


def load_file(path: str | Path, trust_pickle: bool = False) -> dict[str, Any]:
    """Return the dict in a file of torch.save or safetensors. Raise ValueError if the file differs from its digest.

    `path` may be a name or `hf://OWNER/NAME`, as `local_weights` takes it. It reads plain data only, unless
    `trust_pickle` lets the file run code.
    """
    path = local_weights(path)
    if not Path(path).is_file():
        raise UserError(f"there is no checkpoint at {path}")
    check_digest(path)
    if Path(path).suffix == SAFETENSORS:
        return _load_safetensors(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=not trust_pickle)
    except pickle.UnpicklingError as error:
        if "GLOBAL" in str(error):  # torch names the class it refuses to make
            raise UserError(
                f"{path} holds pickled Python objects, and reading those runs code from the file; "
                "if you trust its source, convert it with --trust-pickle"
            ) from None
        raise UserError(f"{path} is not a checkpoint: torch cannot read it") from None
    except (ImportError, AttributeError) as error:
        raise UserError(f"{path} holds objects that cannot be made here: {error}") from None
    except Exception:  # torch raises errors of many kinds for other files
        raise UserError(f"{path} is not a checkpoint: torch cannot read it, it may be incomplete") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a checkpoint: it holds a {type(content).__name__} where a dict is expected")
    return content


def _check_sizes(meta: CheckpointMeta, weights: Mapping[str, Tensor]) -> None:
    """Raise ValueError if a number of the description is far beyond the weights, or these are not really there.

    Every such number counts parts, each of which has weights, or sides of tensors, or half of one. Only the steps after
    which a memory forgets may be any number.
    """
    if any(weight.untyped_storage().nbytes() < weight.numel() * weight.element_size() for weight in weights.values()):
        raise UserError("the weights do not fit the model they claim to be: some are larger than what is stored")
    largest = max([_ANY_SIZE, len(weights), *(2 * side for weight in weights.values() for side in weight.shape)])
    model, spec = meta.model_config, meta.spec
    numbers = {f"temporal.{name}": value for name, value in asdict(meta.temporal_config).items()} | asdict(model)
    numbers |= {"widest stage": model.embed_dim * max(model.dim_multiplier), "num_bins": meta.windows.num_bins}
    numbers |= {"frame": (spec.frame_height, spec.frame_width), "memory_chunk": None}
    for name, value in numbers.items():
        limit = _LARGEST_FRAME if name == "frame" else largest
        for number in value if isinstance(value, (tuple, list)) else [value]:
            if isinstance(number, (int, float)) and not number <= limit:
                raise UserError(f"the weights do not fit the model they claim to be: {name}={number:g} is too large")


def _load_safetensors(path: str | Path) -> dict[str, Any]:
    try:
        with safe_open(path, "pt") as file:
            description = (file.metadata() or {}).get(_META_KEY)
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  it is not a dict
        return {"state_dict": weights, **({_META_KEY: json.loads(description)} if description else {})}
    except (SafetensorError, ValueError) as error:
        raise UserError(f"{path} is not a checkpoint: safetensors cannot read it ({error})") from None


def _tuples(value: Any) -> Any:
    """Turn the lists of JSON into the tuples of records."""
    if isinstance(value, dict):
        return {name: _tuples(each) for name, each in value.items()}
    return tuple(value) if isinstance(value, list) else value


def fill_detector(meta: CheckpointMeta, weights: Mapping[str, Tensor], device: torch.device | str) -> LoadedCheckpoint:
    """Build the described detector and load the weights; ValueError names keys and shapes that do not fit.

    The shapes are compared before anything of their size is made, so that a description cannot fill the memory.
    """
    _check_sizes(meta, weights)
    with torch.device("meta"):
        own = meta.build().state_dict()
    unknown, missing = sorted(weights.keys() - own.keys()), sorted(own.keys() - weights.keys())
    misfits = [key for key in own.keys() & weights.keys() if own[key].shape != weights[key].shape]
    problems = {"unknown": unknown, "missing": missing, "of another shape": sorted(misfits)}
    listed = [f"{len(keys)} keys {what}, such as {keys[0]}" for what, keys in problems.items() if keys]
    if listed:
        raise UserError(f"the weights do not fit the model they claim to be: {'; '.join(listed)}")
    if broken := [key for key, weight in weights.items() if not weight.isfinite().all()]:
        raise UserError(
            f"{len(broken)} of {len(weights)} weights are not finite, such as {broken[0]}: the training diverged; "
            "train again with a smaller optim.learning_rate"
        )
    with without_values():
        detector = meta.build()
    detector.load_state_dict(weights)
    return meta.with_detector(detector.to(device).eval())
