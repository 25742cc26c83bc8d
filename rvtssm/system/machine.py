"""Share the machine: how threads wait, pages and checks of memory, copies to a device."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from typing import TYPE_CHECKING

from rvtssm.system.job_limits import free_bytes, num_usable_cores
from rvtssm.system.user_error import UserError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

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
        raise UserError(
            "memory.too_little",
            name=what,
            found=f"that takes {num_bytes / 1e9:.4g} GB of memory, but only {free / 1e9:.3g} GB are free",
        )


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
