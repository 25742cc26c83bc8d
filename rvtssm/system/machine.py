"""What this process may use of the machine, and how it shares it: threads, pages, memory, copies to a device.

Containers and cluster jobs are control groups (cgroups): folders with one file per limit. A limit of any folder above
the own one holds as well. Version 1 has one tree per resource, version 2 a single tree, and a machine may have both.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rvtssm.system.user_error import UserError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

MEMBERSHIP = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")
MEMORY = Path("/proc/meminfo")
_WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
_FEW_PROCESSORS = 2
_SMALL = 1 << 27  # bytes; smaller amounts are not worth a check


def share_processors(may_use_one: bool = False, is_alone: bool = False) -> None:
    """Choose how the threads of PyTorch wait, and how its memory is laid out, before it is imported.

    Threads sleep while they wait, because the machine may do other work as well. Threads that wait actively take
    processors from the programs that they wait for: a recording took ten times as long beside other programs. On an
    idle machine, threads that wait actively for a moment are faster. Steps per second of the demo's training on two
    processors (EPYC with AVX-512):

    threads  waiting   idle  beside two busy programs
          1            2.08  1.30
          2  asleep    1.88  0.56
          2  a moment  2.80  0.76

    Large tensors lie in large pages where the system has them, since giving them small ones took a tenth of the time of
    the network. What the user has set stays.

    Args:
        may_use_one: Use one thread on a machine with at most two processors, unless the user has set a number.
        is_alone: Expect an otherwise idle machine: use all processors, and wait actively for a moment.
    """
    if "torch" in sys.modules:
        return
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    if not any(name in os.environ for name in _WAITING):
        if is_alone:
            os.environ.update({"GOMP_SPINCOUNT": "100000", "KMP_BLOCKTIME": "1"})  # of GCC; of LLVM, in ms
        else:
            os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    if may_use_one and not is_alone and num_usable_cores() <= _FEW_PROCESSORS:
        os.environ.setdefault("OMP_NUM_THREADS", "1")


def check_memory(num_bytes: int, what: str) -> None:
    """Raise UserError if not enough memory is free.

    Args:
        num_bytes: The memory that is needed.
        what: What needs the memory and what to make smaller, the start of the message.
    """
    if num_bytes > _SMALL and (free := free_bytes()) is not None and num_bytes > free:
        found = f"that takes {num_bytes / 1e9:.4g} GB of memory, but only {free / 1e9:.3g} GB are free"
        raise UserError("memory.too_little", name=what, found=found)


def return_freed_memory() -> None:
    """Return freed memory to the system, if the C library keeps it for the thread that used it (glibc)."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def on_device(values: Tensor, device: torch.device) -> Tensor:
    """Copy values from the CPU to a device without waiting for the device's computations.

    Only pinned memory can be copied in this way, so values are pinned first if the device is a GPU.
    """
    if device.type == "cuda" and values.device.type == "cpu":
        values = values.pin_memory()
    return values.to(device, non_blocking=True)


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
    free = []
    if available := re.search(r"MemAvailable:\s*(\d+) kB", _text(MEMORY)):
        free.append(int(available[1]) << 10)
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
        root = next(filter(Path.is_dir, roots), roots[0])
        own = root / path.lstrip("/")  # in a container it may be missing; then only the root can be seen
        for folder in (own, *own.parents):
            if folder.is_relative_to(root):
                yield folder


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    """Return the number in a file; None without one, as where nothing is limited ("max", -1)."""
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None
