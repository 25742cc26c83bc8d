"""Refuse work that does not fit in memory before it fills the machine, and return freed memory to the system."""

import contextlib
import ctypes
import re
from pathlib import Path

from rvtssm.system.user_error import UserError

_SMALL = 1 << 27  # bytes; smaller amounts are not worth a check


def check_memory(num_bytes: int, what: str) -> None:
    """Raise UserError if not enough memory is free.

    Args:
        num_bytes: The memory that is needed.
        what: What needs the memory and what to make smaller, the start of the message.
    """
    if num_bytes > _SMALL and (free := free_bytes()) is not None and num_bytes > free:
        raise UserError(f"{what}: that takes {num_bytes / 1e9:.4g} GB of memory, but only {free / 1e9:.3g} GB are free")


def return_freed_memory() -> None:
    """Return freed memory to the system, if the C library keeps it for the thread that used it (glibc)."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def free_bytes() -> int | None:
    """Return the memory that the system and the container leave to this process; None if unknown (not Linux)."""
    try:
        found = re.search(r"MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text())
        free = [int(found[1]) << 10] if found else []
        limit = Path("/sys/fs/cgroup/memory.max")
        if limit.exists() and (most := limit.read_text().strip()).isdecimal():
            free.append(int(most))
        return min(free, default=None)
    except OSError:
        return None
