"""The connection to an object store: list, read and upload files by URL, through the package fsspec.

Credentials, regions and endpoints come from the environment and from the configuration files of the store's own
package. They are never stored or shown. A failed operation is tried again, unless its error says that this is useless.
"""

import hashlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rvtssm.system.extras import check_extra
from rvtssm.system.user_error import UserError

PAUSES_S = (0.5, 1.0, 2.0, 4.0)  # before the second attempt, the third and so on
_TIMEOUT_S = 20.0  # limit for one attempt to connect, and for silence during a transfer
_URL = re.compile(r"([a-z][a-z0-9]*)://(.*)", re.DOTALL)
_MODULES = {"s3": "s3fs"}  # other stores are not part of the extra; fsspec says what they need
_OPTIONS: dict[str, dict[str, Any]] = {
    "s3": {
        "config_kwargs": {
            "connect_timeout": _TIMEOUT_S,
            "read_timeout": _TIMEOUT_S,
            "retries": {"total_max_attempts": 1},  # attempts are counted in `_tried`
        }
    }
}
# Properties that distinguish versions of a file, by the names that stores give them. The first that exists is used.
_VERSIONS = ("ETag", "etag", "md5Hash", "generation", "blob_id", "checksum", "LastModified", "mtime", "created")
_USELESS = (FileNotFoundError, PermissionError, NotImplementedError, TypeError)
_USELESS_NAMES = ("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "ParamValidationError")

Found = TypeVar("Found")


@dataclass(frozen=True)
class RemoteFile:
    """What a store reports about a file."""

    num_bytes: int
    version: bytes  # SHA-256 of the store's version property, which changes with the content


def is_url(where: Path | str) -> bool:
    """Return whether this is a URL of an object store, such as s3://BUCKET/FOLDER."""
    return _URL.fullmatch(str(where)) is not None


def parts_of(url: str) -> tuple[str, ...]:
    """Return the scheme, the bucket and the folders of a URL.

    Raises:
        UserError: The URL does not name a bucket, or may contain credentials.
    """
    found = _URL.fullmatch(url.rstrip("/"))
    scheme, rest = found.groups() if found else ("", "")
    bucket, *folders = rest.split("/")
    if "@" in bucket or set("?#") & set(rest):  # may contain a password or a key, so it is not repeated
        raise UserError(f"a {scheme}:// address has @ in its bucket, ? or #; pass credentials through the environment")
    if not bucket or not all(map(is_name, (bucket, *folders))):
        raise UserError(f"{url} is not of the form {scheme or 's3'}://BUCKET/FOLDER")
    return scheme, bucket, *folders


def is_name(part: str) -> bool:
    """Return whether this can be the name of a file or folder on this machine."""
    return part not in ("", ".", "..") and "\0" not in part


def list_files(url: str) -> dict[str, RemoteFile]:
    """Return the files below a URL by their relative paths. If the URL names a file, return it under "".

    The result is empty if nothing lies below the URL.

    Raises:
        UserError: The bucket cannot be listed.
    """
    files, root = connected(url)
    found = _tried(url, "listed", lambda: files.find(root, detail=True))
    names = {path: path.removeprefix(root).lstrip("/") for path, info in found.items() if info.get("type") == "file"}
    # A name that ends in a slash represents a folder, and one with `..` would lead out of it.
    kept = {path: name for path, name in names.items() if not name or all(map(is_name, name.split("/")))}
    return {name: _described(found[path]) for path, name in kept.items()}


def describe(url: str) -> RemoteFile:
    """Return size and version of a file. Raise UserError if it does not exist."""
    files, path = connected(url)
    return _described(_tried(url, "read", lambda: files.info(path)))


def read_range(url: str, start: int, stop: int) -> bytes:
    """Return the bytes [start, stop) of a file.

    Args:
        url: The file.
        start: The first byte.
        stop: The byte after the last.

    Raises:
        UserError: The file cannot be read, or has changed.
    """
    files, path = connected(url)
    content: bytes = _tried(url, "read", lambda: files.cat_file(path, start=start, end=stop))
    if len(content) != stop - start:
        raise UserError(f"{url} has changed since it was listed; run again")
    return content


def upload(path: Path, url: str) -> RemoteFile:
    """Copy a local file to a URL, and return the size and version that the store reports.

    Args:
        path: The local file.
        url: The file to write.

    Raises:
        UserError: The upload failed, or the store reports another size afterwards.
    """
    files, target = connected(url)
    _tried(url, "written", lambda: files.put_file(str(path), target))
    found, num_bytes = describe(url), path.stat().st_size
    if found.num_bytes != num_bytes:
        raise UserError(f"{url} has {found.num_bytes} bytes after an upload of {num_bytes}; delete it and run again")
    return found


def connected(url: str) -> tuple[Any, str]:
    """Return fsspec's file system for a URL, and the path inside it."""
    scheme, *parts = parts_of(url)
    check_extra(url, "remote", "fsspec", *([_MODULES[scheme]] if scheme in _MODULES else []))
    import fsspec

    try:
        files = fsspec.filesystem(scheme, use_listings_cache=False, **_OPTIONS.get(scheme, {}))
    except (ImportError, ValueError, TypeError) as error:  # TypeError: a store that needs more than a URL
        raise UserError(f"{url} cannot be opened ({_one_line(error)})") from None
    if scheme == "s3":
        files.retries = 1
    return files, "/".join(parts)


def _tried(url: str, done: str, attempt: Callable[[], Found]) -> Found:
    """Return the result of an attempt, made several times if necessary.

    Raise UserError, which says what could not be `done`, if no attempt succeeds.
    """
    begun_s = time.monotonic()
    for pause_s in (*PAUSES_S, None):
        try:
            return attempt()
        except Exception as error:  # stores raise errors of many packages
            if isinstance(error, FileNotFoundError):
                reason = ": it does not exist; check the bucket and the name"
            elif isinstance(error, _USELESS) or type(error).__name__ in _USELESS_NAMES:
                reason = f" ({_one_line(error)}); check the name and the credentials"
            elif pause_s is None:
                reason = (
                    f" ({_one_line(error)}): {len(PAUSES_S) + 1} attempts in {time.monotonic() - begun_s:.0f} s "
                    "failed; check the network and the endpoint, then run again"
                )
            else:
                time.sleep(pause_s)
                continue
            raise UserError(f"{url} cannot be {done}{reason}") from None
    raise AssertionError


def _described(info: dict[str, Any]) -> RemoteFile:
    version = next((str(info[key]) for key in _VERSIONS if info.get(key)), "")
    return RemoteFile(int(info["size"]), hashlib.sha256(version.encode()).digest())


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
