"""How the benchmarks measure: runs that take turns, ratios of pairs, and the memory of one run."""

from __future__ import annotations

import ctypes
import gc
import json
import time
from argparse import ArgumentTypeError
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import torch

from rvtssm.system.files import atomic_file

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


def write_json(path: Path | None, content: Any) -> None:
    """Write a file of results, which appears when it is complete, if one is asked for."""
    if path:
        with atomic_file(path) as staged:
            staged.write_text(json.dumps(content, indent=1) + "\n")


def usable_device(text: str) -> str:
    """Return an option of argparse that names a device; a GPU must be there."""
    if text == "cuda" and not torch.cuda.is_available():
        raise ArgumentTypeError("PyTorch finds no CUDA device here; leave it out to measure the CPU")
    return text


def at_least_1(text: str) -> int:
    """Return an option of argparse that is a whole number of at least 1."""
    if (number := int(text)) < 1:
        raise ArgumentTypeError(f"{number}: needed is at least 1")
    return number


def some_of(choices: Collection[str]) -> Callable[[str], list[str]]:
    """Return a type of argparse for some of these names, with commas between them."""

    def names(text: str) -> list[str]:
        if unknown := [one for one in text.split(",") if one not in choices]:
            raise ArgumentTypeError(f"{unknown[0]}: choose from {', '.join(choices)}")
        return text.split(",")

    return names
