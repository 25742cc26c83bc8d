"""What every training process stores besides the weights: the states of its streams and its random numbers.

The checkpoint holds those of the first process, and the names of files beside it for the other processes, each of which
writes its own. Together they can be gigabytes, which no process should have to collect.
"""

from pathlib import Path
from typing import Any

from rvtssm.models.checkpoint import load_file
from rvtssm.system.user_error import UserError


def file_names(step: int, num_processes: int) -> list[str]:
    """Return the file names of all processes except the first. They contain the optimiser step."""
    return [f"step_{step}_process_{rank}.pt" for rank in range(1, num_processes)]


def read_states(checkpoint: Path, stored: list[Any], rank: int) -> dict[str, Any]:
    """Return the states of a process from a checkpoint.

    Args:
        checkpoint: The checkpoint.
        stored: By rank, the states of a process or the name of its file, as in the checkpoint.
        rank: Rank of the process.

    Raises:
        UserError: The file of the process is missing.
    """
    states = stored[rank]
    if isinstance(states, str):
        path = checkpoint.parent / states
        if not path.is_file():
            raise UserError(
                "resume.lacks_process",
                f"{checkpoint} comes from {len(stored)} processes, but {path} is missing, in which process {rank} "
                f"stored its streams; copy the files {', '.join(stored[1:])} together with the checkpoint",
            )
        states = load_file(path)
    return states


def named_files(checkpoint: Path) -> set[str]:
    """Return the names of the files that belong to a checkpoint; empty if it does not exist."""
    if not checkpoint.is_file():
        return set()
    return {states for states in load_file(checkpoint)["processes"] if isinstance(states, str)}


def remove_other_files(folder: Path, kept: set[str]) -> None:
    """Delete all files of processes except those named in `kept`."""
    for path in folder.glob("step_*_process_*.pt"):
        if path.name not in kept:
            path.unlink(missing_ok=True)
