"""A run that was killed, by any signal at any moment, goes on to the numbers of a run that nobody killed."""

import multiprocessing
import os
import signal
import sys
from pathlib import Path

import lightning as L
import pytest
import torch

from rvtssm.cli.train import train
from rvtssm.models.checkpoint import load_file
from rvtssm.training.checkpoints import best_checkpoint, last_checkpoint
from tests.training.conftest import SEVEN_STEPS
from tests.training.watched import train_with

NUM_STEPS = 7
# killed with workers in the middle of a step, and asked to end without them in a validation
CASES = [
    ("mixed", signal.SIGKILL, 2, 3, "on_after_backward"),
    ("random", signal.SIGTERM, 0, 3, "on_validation_batch_start"),
]
OF_MODE = {"mixed": SEVEN_STEPS, "random": (*SEVEN_STEPS, "sampling.mode=random", "dataset.source=raw")}


class Blow(L.Callback):
    """Sends a signal to all processes of the run at a moment of a step."""

    def __init__(self, number: int, step: int, moment: str) -> None:
        self.number, self.step = number, step
        setattr(self, moment, self.strike)

    def strike(self, trainer: L.Trainer, *rest: object) -> None:
        if trainer.global_step == self.step:
            self.step = -1
            if self.number == signal.SIGKILL:
                os.kill(os.getpid(), self.number)  # the workers find out for themselves
            else:
                os.killpg(0, self.number)


def train_until(overrides: list[str], num_threads: int, number: int, step: int, moment: str) -> None:
    """In a process of its own: `rvtssm train` until the signal comes."""
    os.setsid()
    multiprocessing.set_start_method("fork", force=True)  # of the workers, as where nobody chose another
    torch.set_num_threads(num_threads)
    sys.exit(train_with(Blow(number, step, moment), overrides))


@pytest.fixture
def whole(toy_config, seven_steps, tmp_path):
    """A function: mode -> the folder of a run that nobody killed."""

    def of(mode: str) -> Path:
        if mode == "mixed":
            return seven_steps
        train(toy_config(tmp_path / "whole", *OF_MODE[mode]))
        return tmp_path / "whole"

    return of


@pytest.mark.parametrize(("mode", "number", "num_workers", "step", "moment"), CASES)
def test_a_killed_run_goes_on_as_if_nothing_had_been(
    prepared, whole, toy_data, toy_config, tmp_path, logged, mode, number, num_workers, step, moment
):
    out, uncut = tmp_path / "killed", whole(mode)
    settings = (*OF_MODE[mode], "training.checkpoint_every=2", f"data.workers={num_workers}")
    overrides = [*toy_data, *settings, f"out={out}"]
    killed = prepared.Process(target=train_until, args=(overrides, torch.get_num_threads(), number, step, moment))
    killed.start()
    killed.join(timeout=120)
    assert killed.exitcode == (-signal.SIGKILL if number == signal.SIGKILL else 130)

    last = last_checkpoint(out)
    reached = load_file(last)["global_step"] if last.exists() else 0
    if number == signal.SIGKILL:
        assert step - 2 <= reached <= step
    else:
        assert reached == step
    train(toy_config(out, *settings, "resume=auto"))
    for name in (last_checkpoint, best_checkpoint):
        found, wanted = load_file(name(out))["state_dict"], load_file(name(uncut))["state_dict"]
        assert all(torch.equal(found[key], value) for key, value in wanted.items())
    log = logged(out)
    following = [row for row in logged(uncut) if row >= reached]
    assert [log[row] for row in following] == [logged(uncut)[row] for row in following]
    assert len({log[row]["train/total"] for row in following}) == NUM_STEPS - reached
    assert not list((out / "checkpoints").glob(".*"))
