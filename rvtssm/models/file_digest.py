"""Digests of weight files, which show whether a file changed after it was written.

Checkpoints and exported programs are zip archives with a CRC-32 of each record, which torch writes but does not check.
ONNX, safetensors and OpenVINO files have a SHA-256 of all their bytes in their metadata; the digest of an .xml file
covers its .bin file as well.
"""

import hashlib
import re
import zipfile
from pathlib import Path

from rvtssm.system.user_error import UserError

DIGEST_KEY = "rvtssm_digest"  # key in the metadata
NO_DIGEST_YET = "sha256:" + 64 * "0"  # its value before `add_digest`
_DIGEST = re.compile(rb"sha256:[0-9a-f]{64}")


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
    if path.suffix in (".onnx", ".safetensors", ".xml"):
        data = path.read_bytes()
        found = _DIGEST.findall(data)
        if len(found) != 1:
            return False
        is_whole = _digest_of(data.replace(found[0], NO_DIGEST_YET.encode()) + _beside(path)) == found[0]
    else:
        try:
            if not zipfile.is_zipfile(path):  # before 2020, torch did not write zip archives
                return False
            with zipfile.ZipFile(path) as archive:
                is_whole = archive.testzip() is None
        except Exception:  # the errors of zipfile have no common class
            is_whole = False
    if not is_whole:
        raise UserError(
            "files.digest", f"{path} is damaged: it differs from its digest; copy it again from where it was written"
        )
    return True


def _digest_of(data: bytes) -> bytes:
    return f"sha256:{hashlib.sha256(data).hexdigest()}".encode()


def _beside(path: Path) -> bytes:
    """Return the bytes of the .bin file that belongs to an .xml file, or no bytes for other formats."""
    if path.suffix != ".xml":
        return b""
    weights = path.with_suffix(".bin")
    if not weights.is_file():
        raise UserError("exported.no_weights_beside", f"{path} needs {weights.name} in the same folder; copy both")
    return weights.read_bytes()
