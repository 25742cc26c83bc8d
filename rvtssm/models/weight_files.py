"""Weight files: by name, or from the Hugging Face Hub, and digests that show damage.

`checkpoint=street-tiny` means `rvtssm/weights/street-tiny.safetensors`. `hf://OWNER/NAME` means the file
`model.safetensors` of a repository, `hf://OWNER/NAME@REVISION/FILE.safetensors` another file. Only safetensors are
downloaded, so that nothing can run code. The optional package huggingface_hub caches downloads and provides the token
of the user.

A digest shows whether a file changed after it was written. Checkpoints and exported programs are zip archives with a
CRC-32 of each record, which torch writes but does not check. ONNX, safetensors and OpenVINO files have a SHA-256 of all
their bytes in their metadata; the digest of an .xml file covers its .bin file as well.
"""

from __future__ import annotations

import hashlib
import re
import zipfile
from pathlib import Path

from rvtssm.system.extras import check_extra
from rvtssm.system.files import file_errors
from rvtssm.system.user_error import UserError

FOLDER = Path(__file__).parents[1] / "weights"
DEFAULT_WEIGHTS = "street-tiny"  # for verbs to which no weights are given
MODEL_CARDS = {"street-tiny": "docs/weights_street.md"}  # paths in the repository
_SUFFIX = ".safetensors"
_OTHERS = (
    "a file (.ckpt, .safetensors, .onnx, .xml, or ./NAME without a suffix), or hf://OWNER/NAME for weights on the "
    "Hugging Face Hub"
)
WEIGHTS_FILE = "model.safetensors"  # of a repository, if its address names none
_PREFIX = re.compile("hf:/{1,2}")  # pathlib collapses two slashes into one
_ADDRESS = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[\w.-]+))?(/(?P<file>[\w./-]+\.safetensors))?")
DIGEST_KEY = "rvtssm_digest"  # key in the metadata
NO_DIGEST_YET = "sha256:" + 64 * "0"  # its value before `add_digest`
_DIGEST = re.compile(rb"sha256:[0-9a-f]{64}")


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
        found = "there are no such weights, and there is no such file"
        raise UserError("weights.missing", name=name, found=found, needed=known, advice=f"or give {_OTHERS}")
    return FOLDER / f"{name}{_SUFFIX}"


def default_weights() -> str | None:
    """Return the name or path of the default weights, or None if this installation lacks them."""
    if DEFAULT_WEIGHTS not in weights_names():
        return None
    if Path(DEFAULT_WEIGHTS).exists():  # a file or folder of that name, such as that of a training, hides the weights
        return str(FOLDER / f"{DEFAULT_WEIGHTS}{_SUFFIX}")
    return DEFAULT_WEIGHTS


def card_of(path: str | Path) -> str | None:
    """Return the page that describes weights of this package, or None for other weights.

    Args:
        path: The name or the file of the weights.
    """
    file = named_weights(path) or Path(path)
    if file.suffix != _SUFFIX or file.absolute().parent != FOLDER:
        return None
    return MODEL_CARDS.get(file.stem)


def local_weights(path: str | Path) -> str | Path:
    """Return the local file of weights.

    Args:
        path: An address `hf://...`, which is downloaded if it is not in the cache; a name from `named_weights`; or a
            path, which is returned unchanged.

    Raises:
        UserError: If the address or name is wrong, if the download fails, or if huggingface_hub is not installed.
    """
    prefix = _PREFIX.match(str(path))
    if prefix is None:
        return named_weights(path) or path
    address = f"hf://{str(path)[prefix.end() :]}"
    parts = _ADDRESS.fullmatch(address.removeprefix("hf://"))
    if parts is None:
        found = "this is not of the form hf://OWNER/NAME, hf://OWNER/NAME@REVISION or hf://OWNER/NAME/FILE.safetensors"
        needed = "other formats are not downloaded, because reading them can run code"
        raise UserError("remote.address", name=address, found=found, needed=needed)
    check_extra(address, "hub", "huggingface_hub")
    from huggingface_hub import HfApi  # an optional package
    from huggingface_hub.utils import logging

    logging.set_verbosity_error()  # the error that is raised gives the reason
    with file_errors(address, " cannot be downloaded", "check name, network and token", errors=(Exception,)):
        return Path(HfApi().hf_hub_download(parts["repo"], parts["file"] or WEIGHTS_FILE, revision=parts["revision"]))


def add_digest(path: Path | str) -> None:
    """Replace the placeholder NO_DIGEST_YET, which the file contains once, by the digest of the file.

    Args:
        path: An .onnx, .safetensors or .xml file.
    """
    data = Path(path).read_bytes()
    assert data.count(NO_DIGEST_YET.encode()) == 1
    Path(path).write_bytes(data.replace(NO_DIGEST_YET.encode(), _digest_of(data + _beside(Path(path)))))


def check_digest(path: Path | str) -> bool:
    """Return whether the file has a digest.

    Args:
        path: A weight file of any format.

    Raises:
        UserError: If the file differs from its digest, or if the .bin file of an .xml file is missing.
    """
    path = Path(path)
    # The digest is a text in the file itself; torch writes sums into its zip archive.
    if path.suffix in (".onnx", ".safetensors", ".xml"):
        data = path.read_bytes()
        digests = _DIGEST.findall(data)
        if len(digests) != 1:
            return False
        is_whole = _digest_of(data.replace(digests[0], NO_DIGEST_YET.encode()) + _beside(path)) == digests[0]
    else:
        try:
            if not zipfile.is_zipfile(path):  # before 2020, torch did not write zip archives
                return False
            with zipfile.ZipFile(path) as archive:
                is_whole = archive.testzip() is None
        except Exception:  # the errors of zipfile have no common class
            is_whole = False
    if not is_whole:
        found = "it differs from its digest"
        raise UserError("file.damaged", name=path, found=found, advice="copy it again from where it was written")
    return True


def _digest_of(data: bytes) -> bytes:
    return f"sha256:{hashlib.sha256(data).hexdigest()}".encode()


def _beside(path: Path) -> bytes:
    """Return the bytes of the .bin file that belongs to an .xml file, or no bytes for other formats."""
    if path.suffix != ".xml":
        return b""
    weights = path.with_suffix(".bin")
    if not weights.is_file():
        raise UserError(
            "file.missing", name=path, found=f"it needs {weights.name} in the same folder", advice="copy both"
        )
    return weights.read_bytes()
