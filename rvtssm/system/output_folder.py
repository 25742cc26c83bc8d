"""Folders that commands write to: one process at a time, complete sets of files, no foreign file replaced.

A set of results has a manifest `.NAME.manifest.json` with the names and sizes of its files. The manifest exists only
while all files of one set are complete. Other files in the folder are never replaced or removed. The lock is a file
`.rvtssm.lock`. The system releases it when its process ends, even if the process is killed.
"""

import contextlib
import errno
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from filelock import FileLock, Timeout

from rvtssm.system.atomic_files import named_if_full, staging_folder
from rvtssm.system.user_error import UserError

log = logging.getLogger(__name__)

_LOCK = ".rvtssm.lock"
_WAIT_S = 1.0  # wait for the lock; workers of a killed process may need a moment to end
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP}  # the errors of file systems without locks
_held: set[tuple[Path, int, int]] = set()  # locked folders, each with the process and the thread that locked it


@contextlib.contextmanager
def locked(folder: Path | str) -> Iterator[None]:
    """Keep other processes from writing to `folder` until the block ends. The folder is created if missing.

    Blocks may be nested. On a file system without locks, log a warning and continue.

    Raises:
        UserError: The folder is locked already. The message repeats what the lock file says about the other process.
    """
    folder = Path(folder)
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder.resolve() / _LOCK
    key = (path, os.getpid(), threading.get_ident())
    if key in _held:
        yield
        return
    lock = FileLock(path, timeout=_WAIT_S, fallback_to_soft=False)
    try:
        try:
            lock.acquire()
        except FileNotFoundError:  # another process, which has just ended, removed the empty folder
            folder.mkdir(parents=True, exist_ok=True)
            lock.acquire()
    except Timeout:
        raise UserError(
            f"{folder} is in use by {_content(path)}; wait for it or choose another folder. If its machine was lost, a "
            f"network disk may keep the lock; then delete {path}"
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        log.warning("%s cannot be locked (%s); do not start two runs in it", folder, error.strerror)
    _held.add(key)
    try:
        with contextlib.suppress(OSError):  # then the message of another process says less
            path.write_text(
                f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}"
            )
        yield
    finally:
        _held.remove(key)
        if lock.is_locked:
            path.unlink(missing_ok=True)  # while still locked, so that this is not the file of a later process
            lock.release()
        if is_new:
            with contextlib.suppress(OSError):  # the folder is not empty
                folder.rmdir()


@contextlib.contextmanager
def result_set(folder: Path | str, name: str, patterns: Sequence[str]) -> Iterator[Path]:
    """Yield an empty folder. Its files become the set `name` of `folder` if the block ends without an error.

    They replace the files of the previous set. If the process is killed, the folder holds either the old set or the new
    one: the next call moves a complete new set into place if that had not finished.

    Args:
        folder: The folder of the results.
        name: Name of the set.
        patterns: Patterns, as in `fnmatch`; the names of all files of the set match one of them.

    Raises:
        UserError: `folder` holds a file that matches a pattern and is not from an earlier set or has changed size, or
            another process uses the folder.
    """
    folder = Path(folder)
    with locked(folder):
        check_replaceable(folder, name, patterns)
        with staging_folder(folder, name) as staged:
            with named_if_full(folder):
                yield staged
                sizes = {path.name: path.stat().st_size for path in sorted(staged.iterdir())}
                assert all(_matches(file, patterns) for file in sizes), (sizes, patterns)
                if not sizes and not _manifest(folder, name).exists():
                    return
                (staged / _manifest(folder, name).name).write_text(json.dumps({"files": sizes}, indent=1) + "\n")
                for path in staged.iterdir():
                    with open(path, "rb+") as file:
                        os.fsync(file.fileno())
            _check_nothing_foreign(folder, name, patterns)
            os.rename(staged, _coming(folder, name))  # from here on, the new set is valid
            _complete(folder, name)


def check_replaceable(folder: Path | str, name: str, patterns: Sequence[str]) -> None:
    """Raise UserError now, before hours of work, if `result_set` would raise it later.

    A complete new set that is not in place yet is moved into place.

    Args:
        folder: The folder of the results.
        name: Name of the set.
        patterns: Patterns that the names of the set's files match.
    """
    folder = Path(folder)
    with locked(folder):
        _complete(folder, name)
        _check_nothing_foreign(folder, name, patterns)


def written_at(folder: Path | str, name: str) -> str:
    """Return when the set `name` of a folder was written, as text; empty if there is no such set."""
    manifest = _manifest(Path(folder), name)
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(manifest.stat().st_mtime)) if manifest.is_file() else ""


def write_files(folder: Path, content: Mapping[str, bytes]) -> list[Path]:
    """Write files into a folder, which is created if missing. Return their paths.

    Args:
        folder: The folder.
        content: The content of each file by its name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in content.items():
        (folder / name).write_bytes(data)
    return [folder / name for name in content]


def _complete(folder: Path, name: str) -> None:
    """Move a complete new set into place, if there is one. This may be interrupted at any point and repeated."""
    coming, manifest = _coming(folder, name), _manifest(folder, name)
    new_manifest, old_manifest = coming / manifest.name, coming / ".replaced.json"
    if new_manifest.exists():
        new = _sizes(new_manifest)
        if manifest.exists():
            os.replace(manifest, old_manifest)
        for file in _sizes(old_manifest).keys() - new.keys():
            (folder / file).unlink(missing_ok=True)
        for file in new:
            with contextlib.suppress(FileNotFoundError):  # it was moved before the interruption
                os.replace(coming / file, folder / file)
        os.replace(new_manifest, manifest)
    old_manifest.unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):
        coming.rmdir()


def _check_nothing_foreign(folder: Path, name: str, patterns: Sequence[str]) -> None:
    """Raise UserError if a file that the set would replace is not from the set, or has changed size."""
    sizes = _sizes(_manifest(folder, name))
    for path in sorted(folder.iterdir()):
        if _matches(path.name, patterns) and sizes.get(path.name) != path.lstat().st_size:
            raise UserError(
                f"{folder} holds {path.name}, which was not written by rvtssm or has changed since; "
                "move it elsewhere or choose another folder"
            )


def _matches(file: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(file, pattern) for pattern in patterns)


def _sizes(manifest: Path) -> dict[str, int]:
    """Return the file sizes in a manifest; empty if it does not exist. Raise UserError if it is not a manifest."""
    if not manifest.exists():
        return {}
    try:
        sizes: dict[str, int] = json.loads(manifest.read_text())["files"]
        if all(Path(file).name == file and file not in ("", "..") for file in sizes):  # never a file of another folder
            return dict(sizes)
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise UserError(f"{manifest} is not a manifest of rvtssm; delete it or choose another folder")


def _manifest(folder: Path, name: str) -> Path:
    return folder / f".{name}.manifest.json"


def _coming(folder: Path, name: str) -> Path:
    """Return the hidden folder that exists while a complete new set is moved into place."""
    return folder / f".{name}.new"


def _content(path: Path) -> str:
    try:
        return path.read_text() or "another process"
    except OSError:
        return "another process"
