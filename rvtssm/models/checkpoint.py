"""Checkpoints in our own format: weights, and a description from which the detector can be built again.

A checkpoint is a file written by torch.save, or a safetensors file with the description as JSON in its metadata.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from rvtssm.models.checkpoint_meta import CheckpointMeta, LoadedCheckpoint
from rvtssm.models.detector import Detector
from rvtssm.models.weight_files import DIGEST_KEY, NO_DIGEST_YET, add_digest, check_digest, local_weights, weights_names
from rvtssm.ssm.init import without_values
from rvtssm.system.files import CONTENT_ERRORS, atomic_file, did_you_mean, file_errors, written_by
from rvtssm.system.user_error import UserError

SAFETENSORS = ".safetensors"
_META_KEY = "rvtssm"
WRITTEN_BY = "written_by"  # the key of `made_by`
_DETECTOR_PREFIX = "detector."  # starts the keys in a checkpoint of our training module
_ANY_SIZE = 1024  # sizes up to here are accepted, because a detector of that size is cheap to build
_LARGEST_FRAME = 1 << 14  # pixels per side
_FEW = 1024  # tensors with at most this many numbers keep full precision in every file
_COPY_AGAIN = "copy it again if it was cut, and name a file that rvtssm wrote"
_IS_FOLDER = 0x10  # a flag among the attributes of MS-DOS in an archive
OFFICIAL_PREFIX = "mdl."  # starts the keys in a checkpoint of RVT or of the official SSM release


def write_checkpoint(path: str | Path, detector: Detector, meta: CheckpointMeta, precision: str = "float32") -> None:
    """Write a checkpoint. The file is replaced at once, so it is never half-written.

    Args:
        path: The file. The suffix `.safetensors` selects that format; otherwise torch.save is used.
        detector: The detector whose weights are stored.
        meta: Its description.
        precision: `float32`, or `bf16`, for safetensors only, which halves the file. Weights are float32 again once
            loaded. Tensors of at most 1024 numbers stay float32 in the file as well, because eigenvalues and time steps
            need their digits.
    """
    if Path(path).suffix != SAFETENSORS:
        assert precision == "float32"
        weights = detector.state_dict()
        save_file(path, {_META_KEY: meta.to_dict(), "state_dict": weights, WRITTEN_BY: made_by(weights)})
        return
    # Weights of lower precision are stored only where a tensor is large enough to matter.
    stored = {}
    read = {}
    for name, weight in detector.state_dict().items():
        stored[name] = weight.detach().clone().contiguous()
        if precision == "bf16" and weight.numel() > _FEW and weight.is_floating_point():
            stored[name] = stored[name].to(torch.bfloat16)
        read[name] = stored[name].to(weight.dtype)
    # The digest is over the file in which its own place is empty.
    described = {_META_KEY: json.dumps(meta.to_dict()), WRITTEN_BY: json.dumps(made_by(read))}
    packed = save(stored, {**described, DIGEST_KEY: NO_DIGEST_YET})
    with atomic_file(path) as staged:
        staged.write_bytes(packed)
        add_digest(staged)


def made_by(weights: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the provenance that a checkpoint stores: version, commit, date, and `weights_digest`.

    Args:
        weights: The weights by name.
    """
    return {**written_by(), "weights_sha256": weights_digest(weights)}


def weights_digest(weights: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of the names, dtypes, shapes and bytes of weights, which does not depend on the file.

    Args:
        weights: The weights by name.
    """
    digest = hashlib.sha256()
    for name, weight in sorted(weights.items()):
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}\n".encode())
        digest.update(weight.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def save_file(path: str | Path, content: dict[str, Any]) -> None:
    """Write a dict that `load_file` reads. If the disk is full, raise an OSError and leave the old file as it was.

    Args:
        path: The file.
        content: Plain data and tensors.
    """
    packed = io.BytesIO()  # on a full disk, torch.save to a file would raise an error that is no OSError
    torch.save(content, packed)
    with atomic_file(path) as staged:
        staged.write_bytes(packed.getbuffer())


def read_checkpoint(path: str | Path, device: torch.device | str = "cpu") -> LoadedCheckpoint:
    """Read a checkpoint of `write_checkpoint` or of our training.

    Args:
        path: A file, a name or an address, as in `load_file`.
        device: Where to put the detector.

    Raises:
        UserError: If the file is damaged or is not such a checkpoint.
    """
    content = load_file(path)
    weights = content.get("state_dict")
    if not isinstance(weights, dict) or not all(map(_is_named_tensor, weights.items())):
        raise UserError("weights.not_a_checkpoint", name=path, found="it holds no weights (state_dict)")
    # A file of torch that somebody else wrote.
    if "rvtssm" not in content:
        if any(key.startswith(OFFICIAL_PREFIX) for key in weights):
            raise UserError(
                "weights.official",
                name=path,
                advice=f"convert it first: python scripts/convert_checkpoint.py {path} OUT --dataset NAME --size SIZE",
            )
        raise UserError("weights.not_a_checkpoint", name=path, found="it does not say which model it holds")
    with file_errors(path, " does not say which model it holds", "another rvtssm may have written it", CONTENT_ERRORS):
        meta = CheckpointMeta.from_dict(content["rvtssm"])
    # In a checkpoint of a training, the detector is one part of the module.
    weights = detector_weights(weights) or weights
    with file_errors(path, " cannot be used", "use the rvtssm that wrote it, or train again", CONTENT_ERRORS):
        try:
            return fill_detector(meta, weights, device)
        except UserError as error:
            if error.key != "setting.no_such_part":
                raise
            found = f"{error.text.partition(';')[0]} is no part of this package"
            advice = "it was trained with a plugin, so name that file as well: plugins=[FILE]"
            raise UserError(error.key, name=path, found=found, advice=advice) from None


def detector_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of the detector among those of our training module, by their names in the detector."""
    start = len(_DETECTOR_PREFIX)
    return {name[start:]: weight for name, weight in weights.items() if name.startswith(_DETECTOR_PREFIX)}


def _is_named_tensor(item: tuple[object, object]) -> bool:
    return isinstance(item[0], str) and isinstance(item[1], Tensor)


def load_file(path: str | Path, trust_pickle: bool = False) -> dict[str, Any]:
    """Return the dict in a file of torch.save or safetensors.

    Args:
        path: A file, the name of weights in the package, or `hf://OWNER/NAME`; see `models.weight_files.local_weights`.
        trust_pickle: Whether to unpickle any Python object, which lets the file run code. Otherwise only plain data is
            read.

    Raises:
        UserError: If there is no such file, if it differs from its digest, or if it cannot be read.
    """
    # The file is found, whole, and of a kind that can be read without running code.
    path = local_weights(path)
    if not Path(path).is_file():
        raise _missing(Path(path))
    check_digest(path)
    if Path(path).suffix == SAFETENSORS:
        return _load_safetensors(path)
    try:
        _check_archive(path)
        content = torch.load(path, map_location="cpu", weights_only=not trust_pickle)
    except pickle.UnpicklingError as error:
        if "GLOBAL" in str(error):  # torch names the class that it refuses to unpickle
            raise UserError("weights.pickle", name=path) from None
        raise UserError(
            "weights.not_a_checkpoint", name=path, found="torch cannot read it", advice=_COPY_AGAIN
        ) from None
    except (ImportError, AttributeError) as error:
        found = f"its Python objects cannot be unpickled here: {error}"
        raise UserError("weights.pickle", name=path, found=found, advice="install what it was written with") from None
    except Exception:  # for files of another kind, torch raises many kinds of errors
        raise UserError(
            "weights.not_a_checkpoint", name=path, found="torch cannot read it", advice=_COPY_AGAIN
        ) from None
    if not isinstance(content, dict):
        raise UserError(
            "weights.not_a_checkpoint", name=path, found=f"it holds a {type(content).__name__} instead of a dict"
        )
    return content


def _check_archive(path: str | Path) -> None:
    """Raise BadZipFile if a part of an archive is marked as a folder: torch would return memory that nobody has set."""
    if not zipfile.is_zipfile(path):  # torch.save wrote another form before torch 1.6
        return
    with zipfile.ZipFile(path) as archive:
        for part in archive.infolist():
            if part.external_attr & _IS_FOLDER:
                raise zipfile.BadZipFile(f"{part.filename} is marked as a folder")


def _missing(path: Path) -> UserError:
    """Return the error of a file that does not exist, with what the user may have meant."""
    found = "there is no such checkpoint"
    advice = did_you_mean(path).strip("; ")
    folder = path.parent
    if path.is_dir():
        found = "this is a folder, and no checkpoint"
        advice = ""
        folder = path
    best = folder / "checkpoints" / "best.ckpt"
    if best.is_file():
        advice = f"did you mean {best}?"
    known = ", ".join(weights_names()) or "none"
    advice = advice or f"give a file, or the name of bundled weights ({known})"
    return UserError("weights.missing", name=path, found=found, advice=advice)


def _check_sizes(meta: CheckpointMeta, weights: Mapping[str, Tensor]) -> None:
    """Raise a UserError if the description has numbers far larger than the weights allow, or weights lack storage.

    Each of these numbers counts parts that have weights, or is the side of a tensor or half of it. Only the number of
    steps after which the memory is reset may be arbitrarily large.
    """
    longest_side = 0
    for weight in weights.values():
        if weight.untyped_storage().nbytes() < weight.numel() * weight.element_size():
            raise UserError("weights.do_not_fit", found="some weights are larger than the data stored for them")
        longest_side = max([longest_side, *weight.shape])
    largest = max(_ANY_SIZE, len(weights), 2 * longest_side)
    model = meta.model_config
    spec = meta.spec
    numbers = {f"temporal.{name}": value for name, value in asdict(meta.temporal_config).items()} | asdict(model)
    numbers |= {"widest stage": model.embed_dim * max(model.dim_multiplier), "num_bins": meta.windows.num_bins}
    numbers["memory_chunk"] = None
    for name, value in numbers.items():
        _refuse_large(name, value, largest)
    _refuse_large("frame", (spec.frame_height, spec.frame_width), _LARGEST_FRAME)


def _refuse_large(name: str, value: Any, limit: int) -> None:
    """Raise a UserError if a number, or one of several, is larger than the limit."""
    if isinstance(value, (tuple, list)):
        for part in value:
            _refuse_large(name, part, limit)
    elif isinstance(value, (int, float)) and not value <= limit:
        raise UserError("weights.do_not_fit", found=f"{name}={value:g} is too large for them")


def _load_safetensors(path: str | Path) -> dict[str, Any]:
    try:
        with safe_open(path, "pt") as file:
            description = (file.metadata() or {}).get(_META_KEY)
            content = {"state_dict": {name: file.get_tensor(name) for name in file.keys()}}  # noqa: SIM118  no dict
        if description:
            content[_META_KEY] = json.loads(description)
        return content
    except (SafetensorError, ValueError) as error:
        raise UserError("weights.not_a_checkpoint", name=path, found=f"safetensors cannot read it ({error})") from None


def fill_detector(meta: CheckpointMeta, weights: Mapping[str, Tensor], device: torch.device | str) -> LoadedCheckpoint:
    """Build the detector of a description and load its weights.

    The shapes are compared before any memory of their size is allocated, so that a description cannot fill the memory.

    Args:
        meta: The description.
        weights: The weights by name.
        device: Where to put the detector.

    Raises:
        UserError: If names or shapes do not fit, or if a weight is not finite.
    """
    # The detector without values, to compare names and shapes.
    _check_sizes(meta, weights)
    with torch.device("meta"):
        detector = meta.build()
    own = detector.state_dict()
    unknown = sorted(weights.keys() - own.keys())
    missing = sorted(own.keys() - weights.keys())
    misfits = [key for key in own.keys() & weights.keys() if own[key].shape != weights[key].shape]
    problems = {"unknown": unknown, "missing": missing, "of another shape": sorted(misfits)}
    listed = [f"{len(keys)} keys {what}, such as {keys[0]}" for what, keys in problems.items() if keys]
    if listed:
        raise UserError("weights.do_not_fit", found="; ".join(listed))
    if broken := [key for key, weight in weights.items() if not weight.isfinite().all()]:
        raise UserError(
            "weights.not_finite", found=f"{len(broken)} of {len(weights)} weights are not finite, such as {broken[0]}"
        )
    # A part without values of its own, which most are, takes the weights as they are and is not built again.
    filled = {}
    for name, value in own.items():
        empty = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)  # laid out as when it is built
        filled[name] = empty.copy_(weights[name])
    detector.load_state_dict(filled, assign=True)
    # Tied weights, or tensors that are not stored, need a real detector.
    if _lacks_values(detector):
        with without_values():
            detector = meta.build()
        detector.load_state_dict(weights)
    return meta.with_detector(detector.to(device).eval())


def _lacks_values(detector: Detector) -> bool:
    """Return whether a detector that was built on the meta device needs more than its weights: tied ones, or tensors.

    Such tensors are buffers that are not stored, and attributes.
    """
    named = list(detector.named_parameters(remove_duplicate=False))
    if len(named) != len(list(detector.parameters())):
        return True
    for module in detector.modules():
        tensors = [*module.buffers(recurse=False), *vars(module).values()]
        if any(isinstance(tensor, Tensor) and tensor.is_meta for tensor in tensors):
            return True
    return False
