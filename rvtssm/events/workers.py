"""Processes that share the work on many recordings, started fresh so that no thread of the parent is copied."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import threading
from concurrent.futures import ProcessPoolExecutor


def worker_pool(num_workers: int) -> ProcessPoolExecutor:
    """A pool whose processes end when their parent does, even if it is killed."""
    return ProcessPoolExecutor(num_workers, multiprocessing.get_context("spawn"), initializer=_end_with_parent)


def num_usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_after, args=(parent.sentinel,), daemon=True).start()


def _exit_after(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)
