"""What this process may use of the machine: the memory and the processors that the system and its jobs leave to it.

Containers and cluster jobs are control groups (cgroups): folders with one file per limit. A limit of any folder above
the own one holds as well. Version 1 has one tree per resource, version 2 a single tree, and a machine may have both.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

MEMBERSHIP = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")
MEMORY = Path("/proc/meminfo")


def num_usable_cores() -> int:
    """Return the number of cores that this process may use, at least 1."""
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    for group in _groups("cpu"):
        quota_us = _number(group / "cpu.cfs_quota_us")
        period_us = _number(group / "cpu.cfs_period_us")
        if limit := re.match(r"(\d+) (\d+)", _text(group / "cpu.max")):
            quota_us = int(limit[1])
            period_us = int(limit[2])
        if quota_us and period_us:
            cores = min(cores, quota_us // period_us)
    return max(cores, 1)


def free_bytes() -> int | None:
    """Return the memory that the system and the job leave to this process; None if unknown (not Linux)."""
    free = [int(kilobytes) << 10 for kilobytes in re.findall(r"MemAvailable:\s*(\d+) kB", _text(MEMORY))]
    for group in _groups("memory"):
        version_2 = ("memory.max", "memory.current")
        version_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        for limit_name, used_name in (version_2, version_1):
            limit = _number(group / limit_name)
            if limit is not None:
                # Files that were read lie in memory too, and give way.
                cached = re.search(r"^(?:total_)?inactive_file (\d+)", _text(group / "memory.stat"), re.MULTILINE)
                used = (_number(group / used_name) or 0) - (int(cached[1]) if cached else 0)
                free.append(max(limit - max(used, 0), 0))
    return min(free, default=None)


def _groups(resource: str) -> Iterator[Path]:
    """Yield the folders of the control groups of this process that limit a resource, from its own to the root."""
    for line in _text(MEMBERSHIP).splitlines():
        _, controllers, path = line.split(":", 2)
        roots = [GROUPS / resource, GROUPS / controllers]
        if not controllers:  # version 2; `unified` beside version 1
            roots = [GROUPS / "unified", GROUPS]
        elif resource not in controllers.split(","):
            continue
        root = next((root for root in roots if root.is_dir()), roots[0])
        own = root / path.lstrip("/")  # in a container it may be missing; then only the root can be seen
        yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(root))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    """Return the number in a file; None without one, as where nothing is limited ("max", -1)."""
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None
