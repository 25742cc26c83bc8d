"""A run that meets a loss or a gradient that is not finite stops before it takes the step, and tells why."""

import math
import sys
from pathlib import Path

import lightning as L
import pytest
from user_errors import raises

from rvtssm.cli.train import train
from rvtssm.models.checkpoint import load_file
from rvtssm.training.checkpoints import last_checkpoint
from tests.training.watched import become_rank, train_with

SETTINGS = ("training.steps=4", "training.validate_every=2", "model.drop_path=0.2")


class Poison(L.Callback):
    """Before the third step: a weight, frames or a gradient that are not numbers."""

    def __init__(self, what: str) -> None:
        self.what = what

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step == 2 and self.what == "weight":
            first_parameter(pl_module).data.view(-1)[0] = math.nan
        if trainer.global_step == 2 and self.what == "batch":
            object.__setattr__(batch, "hist", batch.hist.float().fill_(math.nan))  # as from broken voxel grids

    def on_after_backward(self, trainer, pl_module):
        if trainer.global_step == 2 and self.what == "gradient":
            first_parameter(pl_module).grad.view(-1)[0] = math.inf


def first_parameter(module):
    return next(module.detector.neck.parameters())


@pytest.fixture
def poisoned(toy_config):
    """A function: trains until the poison works; returns the message."""

    def run(out: Path, what: str, *overrides: str) -> str:
        with raises("training.not_finite", "before step 3") as stopped:
            train(toy_config(out, *SETTINGS, *overrides), callbacks=[Poison(what)])
        last = load_file(last_checkpoint(out))  # what was saved before is as it was
        assert last["global_step"] == 2
        assert all(value.isfinite().all() for value in last["state_dict"].values())
        return str(stopped.value)

    return run


@pytest.mark.parametrize(("what", "accumulate"), [("weight", 1), ("batch", 2)])
def test_a_loss_that_is_not_finite_ends_the_run_and_names_its_recordings(poisoned, tmp_path, what, accumulate):
    message = poisoned(tmp_path, what, f"training.accumulate={accumulate}")
    assert "\n" not in message and "total nan" in message and "train_000" in message
    assert ("; weights neck." in message) == (what == "weight")


def test_a_gradient_alone_ends_the_run(poisoned, tmp_path):
    options = ("optim.h2_weight=0.1", "training.precision=float64", "training.freeze_batchnorm=true")
    message = poisoned(tmp_path, "gradient", *options)
    assert "nan" not in message and "; gradients neck." in message


class PoisonSecond(Poison):
    """Works in the second of two processes alone."""

    def on_train_batch_start(self, trainer, *rest):
        if trainer.global_rank == 1:
            super().on_train_batch_start(trainer, *rest)


def train_poisoned(out: Path, _, overrides: list[str], environment: dict) -> None:
    become_rank(out, environment)
    sys.exit(train_with(PoisonSecond("batch"), overrides))


@pytest.mark.distributed
def test_all_processes_stop(ranks, toy_data, tmp_path):
    settings = [*toy_data, *SETTINGS, "training.validate_every=10"]
    assert ranks(tmp_path, *settings, train=train_poisoned) == [2, 2]
    for rank in (0, 1):
        told = (tmp_path / f"rank{rank}.txt").read_text()
        assert "Traceback" not in told
        assert "which is not finite" in told, told
    assert "which is not finite: loss " in told and "total nan" in told, told
