"""One process of `rvtssm train` under watch: notes what it reads and ends with, and may be struck by a signal.

python watched.py NOTES BLOW key=value ...    BLOW is - or RANK:STEP:SIGNAL, in the middle of the step after STEP
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import lightning as L
import torch

from rvtssm.cli import main
from rvtssm.datasets.chunks import ChunkDataset
from rvtssm.run import train as verb
from rvtssm.training import fit


class Watch(L.Callback):
    """Writes `rank<r>.pt`: the requests of every training batch, and the weights at the end."""

    def __init__(self, notes: Path, blow: str) -> None:
        self.notes, self.blow = notes, blow
        self.read: list = []  # requests since the last batch
        self.requests: list[list] = []
        read = ChunkDataset.__getitem__

        def noted(dataset, request):
            self.read.append(request)
            return read(dataset, request)

        ChunkDataset.__getitem__ = noted

    def on_train_batch_start(self, *rest) -> None:
        self.requests.append(self.read[:])
        self.read.clear()

    def on_validation_batch_start(self, *rest) -> None:
        self.read.clear()

    def on_after_backward(self, trainer, pl_module) -> None:
        if self.blow != "-":
            rank, step, number = map(int, self.blow.split(":"))
            if (rank, step) == (trainer.global_rank, trainer.global_step):
                os.kill(os.getpid(), number)

    def on_train_end(self, trainer, pl_module) -> None:
        found = {"weights": pl_module.state_dict(), "requests": self.requests}
        torch.save(found, self.notes / f"rank{trainer.global_rank}.pt")


if __name__ == "__main__":
    watch = Watch(Path(sys.argv[1]), sys.argv[2])
    build_trainer = fit.build_trainer

    def watched(*arguments):
        trainer = build_trainer(*arguments)
        trainer.callbacks.insert(0, watch)
        return trainer

    verb.build_trainer = watched
    sys.exit(main(["train", *sys.argv[3:]]))
