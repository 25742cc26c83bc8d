"""Files that appear whole or not at all: written under a temporary name in the same folder, then renamed."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

_ABANDONED_AFTER_S = 3600.0  # no writer of ours leaves its file untouched for this long
_HOST = socket.gethostname().replace(".", "-")


@contextlib.contextmanager
def written_aside(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path beside `path`; it becomes `path` when the block ends without an error.

    The name carries host and process, so that writers do not meet and leftovers can be told from work in progress.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{_HOST}.{os.getpid()}.tmp")
    try:
        yield aside
        with open(aside, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def remove_abandoned(folder: Path | str) -> int:
    """Delete temporary files whose writer is gone, return how many there were."""
    removed = 0
    for aside in Path(folder).glob(".*.*.*.tmp"):
        _, host, pid, _ = aside.name.rsplit(".", 3)
        is_orphan = host == _HOST and pid.isdigit() and not _is_running(int(pid))
        with contextlib.suppress(FileNotFoundError):  # its writer finished meanwhile
            if is_orphan or time.time() - aside.stat().st_mtime > _ABANDONED_AFTER_S:
                aside.unlink()
                removed += 1
    return removed


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    with contextlib.suppress(OSError):  # dead, but not yet collected by its parent (Linux)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return True
