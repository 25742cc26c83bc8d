"""Folders that commands write to: one process at a time, and sets of files that replace the set before.

The lock is a file `.rvtssm.lock`. The system releases it when its process ends, even if the process is killed.
"""

import contextlib
import errno
import glob
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from rvtssm.system.files import (
    CONTENT_ERRORS,
    atomic_file,
    file_errors,
    named_if_full,
    replace_file,
    staging_folder,
)
from rvtssm.system.user_error import UserError

log = logging.getLogger(__name__)

_LOCK = ".rvtssm.lock"
_WRITTEN = ".rvtssm.files.json"  # by the name of a set, the stamps of the files that its last run has written
_ELSEWHERE = "move it, or choose another place"
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
    # A set within a set of the same thread: the folder is locked already.
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
        holder = ""
        with contextlib.suppress(OSError):
            holder = path.read_text()
        advice = (
            "wait for it or choose another folder. If its machine was lost, a network disk may keep the lock; "
            f"then delete {path}"
        )
        found = f"it is in use by {holder or 'another process'}"
        raise UserError("run.in_use", name=folder, found=found, advice=advice) from None
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


def claim(
    path: Path,
    settings: Mapping[str, object],
    has_files: bool,
    completed: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> None:
    """Write the settings that decide the files of a folder, or compare them with those of the files that are there.

    Args:
        path: The file of the settings, in the folder.
        settings: The settings.
        has_files: Whether the folder holds files which these settings must have decided.
        completed: Adds what files of earlier versions lack.

    Raises:
        UserError: The settings are others, or there are files without settings.
    """
    folder, advice = path.parent, "choose another folder"
    if path.exists():
        with file_errors(path, advice=advice, errors=CONTENT_ERRORS):
            earlier = completed(json.loads(path.read_text()))
        if different := changed_keys(earlier, settings):
            listed = ", ".join(f"{key}={earlier.get(key)} instead of {settings.get(key)}" for key in different)
            advice = "delete it, or choose another folder"
            raise UserError("run.other_settings", name=folder, found=f"made with {listed}", advice=advice)
    elif has_files:
        raise UserError("file.exists", name=folder, found=f"files, but no {path.name}", advice=advice)
    else:
        with atomic_file(path) as staged:
            staged.write_text(json.dumps(settings, indent=2) + "\n")


def changed_keys(earlier: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    """Return the keys that have different values in two tables of settings."""
    return [key for key in {**earlier, **now} if earlier.get(key) != now.get(key)]


@contextlib.contextmanager
def result_set(folder: Path | str, name: str, patterns: Sequence[str], kept: Collection[str] = ()) -> Iterator[Path]:
    """Yield an empty folder. If the block ends without an error, its files replace those of the set before.

    A file that no earlier run of the set has written is neither replaced nor deleted: it is refused at the start. A
    hidden file of the folder lists what every set has written. After an error, `folder` is as before. If the process is
    killed while files are moved, each file is whole or absent.

    Args:
        folder: The folder of the results.
        name: Name of the set.
        patterns: Patterns, as in `fnmatch`; the names of all files that the block may write match one of them.
        kept: Names of files of the set before that stay in the set.

    Raises:
        UserError: Another process uses the folder, or a file has the name of one of the set.
    """
    folder = Path(folder)
    with locked(folder), staging_folder(folder, name) as staged:
        written = _read_written(folder)
        own = set(written.get(name, []))
        _refuse_others(folder, own, patterns)
        # All files reach the disk before the first one is moved.
        with named_if_full(folder):
            yield staged
            files = sorted(staged.iterdir())
            for path in files:
                with open(path, "rb+") as file:
                    os.fsync(file.fileno())
        _refuse_others(folder, own, [*map(glob.escape, os.listdir(staged))])
        written = _read_written(folder)  # again, because the block may have written another set
        listed = own.union(map(_stamp, files))
        # Old and new files are listed until all are moved, so that a killed run leaves none that nobody owns.
        _write_written(folder, staged, {**written, name: sorted(listed)})
        # Files of the set that are not written any more go, and others stay.
        for path in folder.iterdir():
            stays = path.name in kept or (staged / path.name).exists()
            if path.is_file() and _stamp(path) in own and not stays:
                path.unlink()
        for path in files:
            os.replace(path, folder / path.name)
        _write_written(folder, staged, {**written, name: sorted(listed.intersection(map(_stamp, folder.iterdir())))})


@contextlib.contextmanager
def result_file(path: Path | str) -> Iterator[Path]:
    """Yield a place for a file that the user names, which is a `result_set` of its own.

    The folder is locked only while the file is moved, so that other processes may write other files meanwhile.
    """
    path = Path(path)
    patterns = [glob.escape(path.name)]
    check_replaceable(path.parent, path.name, patterns)
    with staging_folder(path.parent, path.name) as made:
        yield made / path.name
        with result_set(path.parent, path.name, patterns) as staged:
            (made / path.name).rename(staged / path.name)


def check_replaceable(folder: Path, name: str, patterns: Sequence[str], advice: str = _ELSEWHERE) -> None:
    """Raise UserError, before long work, if `result_set` of the same arguments could not replace files at its end."""
    if folder.is_dir():
        _refuse_others(folder, set(_read_written(folder).get(name, [])), patterns, advice)


def free_number(folder: Path, names: Sequence[str]) -> int:
    """Return the first number from 1 on with which no file of `numbered_name` exists in a folder."""
    number = 1
    while any((folder / numbered_name(name, number)).exists() for name in names):
        number += 1
    return number


def numbered_name(name: str, number: int) -> str:
    """Return the name of a file of the n-th run in a folder: live.json, live_2.json, live_3.json."""
    if number == 1 or not name:
        return name
    stem, dot, suffix = name.rpartition(".")
    return f"{stem}_{number}{dot}{suffix}"


def _stamp(path: Path) -> str:
    """Return what tells a file that was written from one that someone else has put in its place."""
    status = path.lstat()  # a link is not what was written
    return f"{path.name}:{status.st_size}:{status.st_mtime_ns}"


def _read_written(folder: Path) -> dict[str, list[str]]:
    try:
        return dict(json.loads((folder / _WRITTEN).read_text()))
    except (OSError, ValueError):
        return {}


def _write_written(folder: Path, staged: Path, written: Mapping[str, list[str]]) -> None:
    lists = {name: stamps for name, stamps in written.items() if stamps}
    if not lists:
        (folder / _WRITTEN).unlink(missing_ok=True)
        return
    (staged / _WRITTEN).write_text(json.dumps(lists, indent=1))
    replace_file(staged / _WRITTEN, folder / _WRITTEN)


def _refuse_others(folder: Path, own: set[str], patterns: Sequence[str], advice: str = _ELSEWHERE) -> None:
    """Raise UserError if a file that matches a pattern was not written by the set that owns these stamps."""
    for path in sorted(folder.iterdir()):
        if any(fnmatchcase(path.name, pattern) for pattern in patterns) and _stamp(path) not in own:
            raise UserError("file.exists", name=path, found="written, or changed, by someone else", advice=advice)


def write_files(folder: Path, content: Mapping[str, bytes]) -> None:
    """Write files into a folder, which is created if missing.

    Args:
        folder: The folder.
        content: The content of each file by its name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in content.items():
        (folder / name).write_bytes(data)
