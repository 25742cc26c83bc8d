"""Weights that are part of the package: `checkpoint=street-tiny` means `rvtssm/weights/street-tiny.safetensors`."""

from pathlib import Path

from rvtssm.system.user_error import UserError

FOLDER = Path(__file__).parents[1] / "weights"
DEFAULT_WEIGHTS = "street-tiny"  # for verbs to which no weights are given
MODEL_CARDS = {"street-tiny": "docs/weights_street.md"}  # paths in the repository
_SUFFIX = ".safetensors"
_OTHERS = (
    "a file (.ckpt, .safetensors, .onnx, .xml, or ./NAME without a suffix), or hf://OWNER/NAME for weights on the "
    "Hugging Face Hub"
)


def weights_names() -> list[str]:
    """Return the names of the weights in this installation."""
    return sorted(path.stem for path in FOLDER.glob(f"*{_SUFFIX}"))


def named_weights(path: str | Path) -> Path | None:
    """Return the file of weights that are given by name, or None if `path` is not a name.

    Args:
        path: A name or a path. A name has no suffix and no slash, and there is no local file or folder with that name.

    Raises:
        UserError: If `path` is a name, but there are no such weights. The message lists the names.
    """
    name = str(path)
    if not name or "/" in name or Path(name).suffix or Path(name).exists():
        return None
    known = weights_names()
    if name not in known:
        there = f"choose from {', '.join(known)}" if known else "this installation has none"
        raise UserError(
            "weights.no_such_name", f"there are no weights named {name!r}, and no such file; {there}, or give {_OTHERS}"
        )
    return FOLDER / f"{name}{_SUFFIX}"


def default_weights() -> str | None:
    """Return the name or path of the default weights, or None if this installation lacks them."""
    if DEFAULT_WEIGHTS not in weights_names():
        return None
    # A local file or folder of that name, such as the folder of a training, would hide the weights.
    return str(FOLDER / f"{DEFAULT_WEIGHTS}{_SUFFIX}") if Path(DEFAULT_WEIGHTS).exists() else DEFAULT_WEIGHTS


def card_of(path: str | Path) -> str | None:
    """Return the page that describes weights of this package, or None for other weights.

    Args:
        path: The name or the file of the weights.
    """
    file = named_weights(path) or Path(path)
    is_ours = file.suffix == _SUFFIX and file.absolute().parent == FOLDER
    return MODEL_CARDS.get(file.stem) if is_ours else None
