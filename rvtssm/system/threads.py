"""How the threads of PyTorch wait for each other. OpenMP reads this when PyTorch is imported, so it is set before."""

import os
import sys

_WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
_FEW_PROCESSORS = 2


def share_processors(may_use_one: bool = False) -> None:
    """Let the threads of a detector sleep while they wait, because a machine with a camera does other work as well.

    Threads that wait actively take processors from the programs that they wait for: a recording took ten times as long
    beside other programs (docs/live.md). What the user has set stays. Training does not call this, because on an idle
    machine it is faster with threads that wait actively.

    Args:
        may_use_one: Use one thread on a machine with at most two processors, unless the user has set a number.
    """
    if "torch" in sys.modules:
        return
    if not any(name in os.environ for name in _WAITING):
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    if may_use_one and (os.cpu_count() or 1) <= _FEW_PROCESSORS:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
