"""What every process of a training stores beside the weights: the states of its streams, and its random numbers.

The checkpoint holds those of the first process, and the names of files beside it for the others, each of which writes
its own: together they can be gigabytes, which no process should have to collect.
"""

from pathlib import Path
from typing import Any

import torch

from rvtssm.models.checkpoint import load_file
from rvtssm.system.atomic_files import atomic_file
from rvtssm.system.user_error import UserError

Stored = list[Any]  # by rank: what a process stores, or the name of its file


def file_names(step: int, num_processes: int) -> list[str]:
    """Return the names of the files of all processes but the first, after this step."""
    return [f"step_{step}_process_{rank}.pt" for rank in range(1, num_processes)]


def write_states(path: Path, states: dict[str, Any]) -> None:
    with atomic_file(path) as staged:
        torch.save(states, staged)


def read_states(checkpoint: Path, stored: Stored, rank: int) -> dict[str, Any]:
    """Return the states of a process from a checkpoint; `stored` is what the checkpoint holds.

    Raise ValueError if its file is missing.
    """
    states = stored[rank]
    if isinstance(states, str):
        path = checkpoint.parent / states
        if not path.is_file():
            raise UserError(
                f"{checkpoint} is of a training in {len(stored)} processes and {path} is missing, where process {rank} "
                f"stored its streams; copy the files {', '.join(stored[1:])} together with the checkpoint"
            )
        states = load_file(path)
    found: dict[str, Any] = states
    return found


def named_files(checkpoint: Path) -> set[str]:
    """Return the names of the files that belong to a checkpoint, if there is one."""
    if not checkpoint.is_file():
        return set()
    return {states for states in load_file(checkpoint)["processes"] if isinstance(states, str)}


def remove_other_files(folder: Path, kept: set[str]) -> None:
    for path in folder.glob("step_*_process_*.pt"):
        if path.name not in kept:
            path.unlink(missing_ok=True)
