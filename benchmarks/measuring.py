"""How the benchmarks measure: runs that take turns, ratios of pairs, and the memory of one run."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TypeVar

import torch

Key = TypeVar("Key")


def take_turns(
    runs: Mapping[Key, Callable[[], object]], rounds: int, device: str = "cpu", warm_up: int = 1, calls: int = 1
) -> dict[Key, list[float]]:
    """Return the seconds per call of each run in each round, after some rounds of warm-up."""
    taken: dict[Key, list[float]] = {key: [] for key in runs}
    for round_ in range(-warm_up, rounds):
        for key, run in runs.items():
            wait(device)
            start = time.perf_counter()
            for _ in range(calls):
                run()
            wait(device)
            if round_ >= 0:
                taken[key].append((time.perf_counter() - start) / calls)
    return taken


def times_faster(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the median over rounds of what theirs took divided by what ours took."""
    return median(their / our for our, their in zip(ours, theirs, strict=True))


def peak_of_run(run: Callable[[], object], device: str = "cpu") -> int:
    """Return the peak of the memory of a run in bytes, above what there was before it.

    On a GPU it is allocated memory, elsewhere resident memory, which needs Linux and a process of its own. What is
    loaded, compiled and allocated once does not count, since the run is done once before.
    """
    run()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return torch.cuda.max_memory_allocated() - before
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what has been freed does not help
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
    before = resident("VmRSS")
    run()
    return resident("VmHWM") - before


def resident(key: str, path: Path = Path("/proc/self/status")) -> int:
    """Return the memory of this process in bytes, by its name in such a file."""
    line = next(line for line in path.read_text().splitlines() if line.startswith(f"{key}:"))
    return int(line.split()[1]) * 1024


def wait(device: str) -> None:
    """Wait until a GPU has done what it was asked for."""
    if device == "cuda":
        torch.cuda.synchronize()
