"""Digests of files of weights, which show whether a file changed after it was written.

Checkpoints and exported programs are archives with a CRC-32 of each record, which torch writes but does not check.
ONNX, safetensors and OpenVINO files have a SHA-256 of all their bytes in their metadata; an .xml includes its .bin.
"""

import hashlib
import re
import zipfile
from pathlib import Path

from rvtssm.system.user_error import UserError

DIGEST_KEY = "rvtssm_digest"  # of the metadata
NO_DIGEST_YET = "sha256:" + 64 * "0"  # its value before `add_digest`
_DIGEST = re.compile(rb"sha256:[0-9a-f]{64}")


def add_digest(path: Path | str) -> None:
    """Replace NO_DIGEST_YET, which the file contains once, by the digest of the file as it is now."""
    data = Path(path).read_bytes()
    assert data.count(NO_DIGEST_YET.encode()) == 1
    Path(path).write_bytes(data.replace(NO_DIGEST_YET.encode(), _digest_of(data + _beside(Path(path)))))


def check_digest(path: Path | str) -> bool:
    """Return whether the file has a digest. Raise ValueError if the digest is not that of the file."""
    path = Path(path)
    if path.suffix in (".onnx", ".safetensors", ".xml"):
        data = path.read_bytes()
        found = _DIGEST.findall(data)
        if len(found) != 1:
            return False
        is_whole = _digest_of(data.replace(found[0], NO_DIGEST_YET.encode()) + _beside(path)) == found[0]
    else:
        try:
            if not zipfile.is_zipfile(path):  # torch wrote no archives before 2020
                return False
            with zipfile.ZipFile(path) as archive:
                is_whole = archive.testzip() is None
        except Exception:  # its errors have no common class
            is_whole = False
    if not is_whole:
        raise UserError(f"{path} is damaged: it differs from its digest; copy it again from where it was written")
    return True


def _digest_of(data: bytes) -> bytes:
    return f"sha256:{hashlib.sha256(data).hexdigest()}".encode()


def _beside(path: Path) -> bytes:
    """Return the weights that belong to an .xml; a ValueError names their file if it is missing."""
    if path.suffix != ".xml":
        return b""
    weights = path.with_suffix(".bin")
    if not weights.is_file():
        raise UserError(f"{path} needs {weights.name} in the same folder; copy both")
    return weights.read_bytes()
