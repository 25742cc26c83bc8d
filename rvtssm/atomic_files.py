"""Files that appear whole or not at all: written under a temporary name in the same folder, then renamed."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

_ABANDONED_AFTER_S = 3600.0  # no writer of ours leaves its file untouched for this long
_HOST = socket.gethostname().replace(".", "-")


@contextlib.contextmanager
def atomic_file(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path beside `path`; it becomes `path` when the block ends without an error.

    The name carries host, process and the start of that process, so that writers do not meet and leftovers can be
    told from work in progress, also where a later process has been given the same number.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f".{path.name}.{_writer()}")
    try:
        yield staged
        with open(staged, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(staged, path)
    finally:
        staged.unlink(missing_ok=True)


@contextlib.contextmanager
def staging_folder(folder: Path | str, name: str) -> Iterator[Path]:
    """Yield a new hidden folder in `folder`, for what is moved from there once all is done; at the end it is removed.

    Those of the same name that killed processes have left in `folder` are removed, too.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(f".{name}-*.*.*.tmp"):
        if _is_orphan(left):
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=f".{name}-", suffix=f".{_writer()}") as staged:
        yield Path(staged)


def write_together(folder: Path | str, content: Mapping[str, bytes]) -> list[Path]:
    """Write files by name into a folder; all are written before the first of them appears. Return their paths."""
    paths = [Path(folder) / name for name in content]
    with contextlib.ExitStack() as stack:
        for path, data in zip(paths, content.values(), strict=True):
            stack.enter_context(atomic_file(path)).write_bytes(data)
    return paths


def remove_abandoned(folder: Path | str) -> int:
    """Delete temporary files in `folder` and below it whose writer is gone, return how many there were."""
    removed = 0
    for staged in Path(folder).rglob(".*.*.*.tmp"):
        with contextlib.suppress(OSError):  # its writer finished meanwhile, or the folder is read-only
            if _is_orphan(staged) or time.time() - staged.stat().st_mtime > _ABANDONED_AFTER_S:
                staged.unlink()
                removed += 1
    return removed


def _writer() -> str:
    """How the name of what this process writes staged ends."""
    return f"{_HOST}.{os.getpid()}-{_started(os.getpid())}.tmp"


def _is_orphan(staged: Path) -> bool:
    """Whether its writer was on this machine and is gone."""
    _, host, writer, _ = staged.name.rsplit(".", 3)
    pid, _, started = writer.partition("-")
    return host == _HOST and pid.isdigit() and not _is_running(int(pid), started)


def _is_running(pid: int, started: str) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    with contextlib.suppress(OSError):
        state = _process_state(pid)
        return state[0] != "Z" and started in ("", "0", state[19])  # Z: dead, but not yet collected by its parent
    return True


@functools.cache
def _started(pid: int) -> str:
    """When a process began, in ticks since the machine did; 0 where the system does not tell."""
    try:
        return _process_state(pid)[19]
    except OSError:
        return "0"


def _process_state(pid: int) -> list[str]:
    """The fields of /proc/PID/stat (Linux) from the third on: the second, a name, can hold anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
