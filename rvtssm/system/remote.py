"""Read recordings and prepared files from object stores and web servers, through whole copies in the cache folder.

The copy of `s3://BUCKET/NAME` is `remote/s3/BUCKET/NAME` in the cache folder. It is made by fsspec, so every store that
fsspec reads will do. A copy has the modification time that belongs to its version in the store, so a file that changed
there is copied again. Nothing is ever written to a URL.
"""

import fcntl
import hashlib
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rvtssm.system.extras import check_extra
from rvtssm.system.files import atomic_file, cache_folder, remove_abandoned
from rvtssm.system.user_error import UserError, in_one_line

_URL = re.compile(r"([a-z][a-z0-9]*)://([^@?#]+)")  # an address with a password or a key does not match
_COPIES_AT_ONCE = 16
_SILENCE_S = 60.0  # longest silence of a web server during a transfer
_VERSIONS = ("ETag", "etag", "md5Hash", "generation", "blob_id", "LastModified", "Last-Modified", "mtime", "created")


def is_url(where: Path | str | None) -> bool:
    """Return whether this is a URL, such as s3://BUCKET/FOLDER."""
    return re.match("[a-z][a-z0-9]*://", str(where)) is not None


def check_local(key: str, where: str | None) -> None:
    """Raise UserError for a URL in place of a folder to write to."""
    if is_url(where):
        needed = "this is a URL, which can only be read"
        advice = (
            "name a folder of this machine, and copy it with the tool of the store afterwards, such as `aws s3 sync`"
        )
        raise UserError("setting.form", name=key, found=where, needed=needed, advice=advice)


def absolute_path(where: str) -> str:
    """Return the absolute path on this machine. A URL is returned unchanged."""
    if is_url(where):
        return where
    return str(Path(where).resolve())


def local_path(where: Path | str, *parts: str) -> Path:
    """Return the path of a file or folder on this machine. A URL is copied first, and the copy brought up to date.

    Args:
        where: A path or a URL. If nothing lies there, nothing lies at the returned path.
        parts: Files or folders inside `where`; only these are copied. Without any, everything is copied.

    Raises:
        UserError: The address is not valid, or the store cannot be read.
    """
    if not is_url(where):
        return Path(where)
    url = str(where).rstrip("/")
    # Credentials and ways out of the folder have no place in a URL.
    match = _URL.fullmatch(url)
    if match is None or not all(map(_is_name, match[2].split("/"))):
        found = "the URL has @, ?, #, // or .. in its path"
        raise UserError("remote.address", found=found, advice="write s3://BUCKET/FOLDER, credentials elsewhere")
    check_extra(url, "remote", "fsspec", *(["s3fs"] if match[1] == "s3" else []))
    root = cache_folder() / "remote" / match[1] / match[2]
    try:
        for part in parts or ("",):
            _update(f"{url}/{part}".rstrip("/"), root / part)
    except Exception as error:  # stores raise errors of many packages
        reason = in_one_line(error)[:300]
        raise UserError("remote.not_copied", name=url, found=f"it cannot be copied to {root} ({reason})") from None
    return root


def _update(url: str, copy: Path) -> None:
    """Make a copy equal to a file or folder of a store. One process at a time does this."""
    import fsspec

    options: dict[str, Any] = {"use_listings_cache": False}
    if url.startswith("http"):
        import aiohttp

        options["client_kwargs"] = {"timeout": aiohttp.ClientTimeout(total=None, sock_read=_SILENCE_S)}
    store, root = fsspec.core.url_to_fs(url, **options)
    copy.parent.mkdir(parents=True, exist_ok=True)
    # One process copies; the others wait and find the files.
    with open(copy.with_name(f".{copy.name}.lock"), "w") as lock, ThreadPoolExecutor(_COPIES_AT_ONCE) as threads:
        fcntl.flock(lock, fcntl.LOCK_EX)
        remove_abandoned(copy)
        listed = _listed(store, root)
        names = {copy / name.removeprefix(root).lstrip("/"): name for name in listed}
        for old in [copy, *copy.rglob("[!.]*")]:
            if old.is_file() and old not in names:
                old.unlink()
        list(threads.map(lambda path: _copy(store, names[path], listed[names[path]], path), names))


def _listed(store: Any, root: str) -> dict[str, dict[str, Any]]:
    """Return what a store says of a file, or of the files in a folder, by their addresses."""
    try:
        found = store.info(root)
    except FileNotFoundError:
        return {}
    if found["type"] == "file" and not found.get("mimetype", "").startswith("text/html"):  # a web server lists in HTML
        return {root: found}
    files = {}
    for name, file in store.find(root, detail=True).items():
        is_visible = all(map(_is_name, name[len(root) + 1 :].split("/")))
        if file["type"] == "file" and is_visible:
            files[name] = file
    return files


def _copy(store: Any, address: str, file: dict[str, Any], path: Path) -> None:
    if file.get("size") is None:
        file = store.info(address)
    version = next((str(file[key]) for key in _VERSIONS if file.get(key)), "")
    age_ns = int.from_bytes(hashlib.sha256(f"{file['size']} {version}".encode()).digest()[:7], "little")
    if path.is_file() and path.stat().st_mtime_ns == age_ns:
        return
    with atomic_file(path) as staged:
        store.get_file(address, str(staged))
        os.utime(staged, ns=(age_ns, age_ns))


def _is_name(part: str) -> bool:
    """Return whether this can be the name of a visible file on this machine."""
    return not part.startswith(".") and part != "" and "\0" not in part
