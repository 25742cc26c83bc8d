"""One process of `rvtssm train` under watch: notes what it reads and ends with, and may be struck by a signal.

python watched.py NOTES key=value ...
"""

import fcntl
import os
import sys
from functools import partial
from pathlib import Path

import lightning as L
import torch

from rvtssm.cli import train as verb
from rvtssm.cli.main import main
from rvtssm.datasets.loader import Collate


class Watch(L.Callback):
    """Writes `rank<r>.pt`: the requests of every training batch, and the weights at the end."""

    def __init__(self, notes: Path, blow: tuple[int, int, int] | None = None) -> None:
        self.notes = notes
        self.blow = blow  # rank, step and number of a signal, in the middle of the step after that one
        self.read: list[list] = []  # the requests of training batches that were not used yet; the next is read ahead
        self.requests: list[list] = []
        put_together = Collate.__call__

        def noted(collate, chunks):
            if collate.num_steps is not None:  # not for validation
                self.read.append([chunk.request for chunk in chunks])
            return put_together(collate, chunks)

        Collate.__call__ = noted

    def on_train_batch_start(self, *rest) -> None:
        self.requests.append(self.read.pop(0))

    def on_after_backward(self, trainer, pl_module) -> None:
        if self.blow is not None and self.blow[:2] == (trainer.global_rank, trainer.global_step):
            os.kill(os.getpid(), self.blow[2])

    def on_train_end(self, trainer, pl_module) -> None:
        found = {"weights": pl_module.state_dict(), "requests": self.requests}
        torch.save(found, self.notes / f"rank{trainer.global_rank}.pt")


def train_with(callback: L.Callback, overrides: list[str]) -> int:
    """The exit code of `rvtssm train` in a process that ends with it."""
    verb.train = partial(verb.train, callbacks=[callback])
    return main(["train", *overrides])


def become_rank(notes: Path, environment: dict) -> None:
    """Make this process one that torchrun or srun has started; what it prints goes to `rank<r>.txt`."""
    os.setsid()
    torch.set_num_threads(1)
    os.environ.update(environment)
    rank = environment.get("RANK") or environment["SLURM_PROCID"]
    print_to(notes / f"rank{rank}.txt")


def print_to(path: Path) -> None:
    """Let this process and those that it starts print to a file, and lock it until all of them have ended."""
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)


def train_as_rank(notes: Path, blow: tuple[int, int, int] | None, overrides: list[str], environment: dict) -> None:
    """Train in a process of its own, as torchrun or srun would start it."""
    become_rank(notes, environment)
    sys.exit(train_with(Watch(notes, blow), overrides))


def train_as_script(notes: Path, overrides: list[str]) -> None:
    """Train in a process of its own, as if somebody had started this file, which Lightning starts once more.

    What both print goes to `script.txt`.
    """
    os.setsid()
    torch.set_num_threads(1)
    os.environ.update({"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"})
    print_to(notes / "script.txt")
    sys.argv = [__file__, str(notes), *overrides]
    sys.exit(train_with(Watch(notes), overrides))


if __name__ == "__main__":
    sys.exit(train_with(Watch(Path(sys.argv[1])), sys.argv[2:]))
