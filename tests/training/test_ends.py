"""Where a run begins and ends: weights it starts from are validated, patience ends it, and more steps extend it."""

import contextlib
import io
import math
import sys
from dataclasses import replace
from pathlib import Path

import lightning.pytorch as L
import pytest
import torch
from lightning.pytorch.strategies import SingleDeviceStrategy
from user_errors import raises

from rvtssm.cli.config import Config
from rvtssm.cli.train import train
from rvtssm.models.checkpoint import load_file, read_checkpoint
from rvtssm.training.checkpoints import best_checkpoint, last_checkpoint
from rvtssm.training.fit import build_trainer
from rvtssm.training.optim import build_optimizer
from rvtssm.training.training_config import OptimConfig, TrainingConfig
from tests.training.conftest import die
from tests.training.watched import become_rank, train_with

STILL = ("optim.learning_rate=1e-12", "training.freeze_batchnorm=true")  # weights that do not change


def same_weights(found, wanted) -> bool:
    first, second = (load_file(last_checkpoint(out))["state_dict"] for out in (found, wanted))
    return first.keys() == second.keys() and all(torch.equal(value, second[key]) for key, value in first.items())


def test_weights_that_a_run_starts_from_are_validated_before_the_first_step(
    toy_config, seven_steps, tmp_path, capsys, logged, train_until
):
    """The weights do not change, so the AP stays. A run that is resumed is the same, and not validated again."""
    words = (f"training.init_from='{last_checkpoint(seven_steps)}'", "training.steps=2", "training.checkpoint_every=1")
    config = toy_config(tmp_path / "whole", *words, *STILL)
    train(config)
    said = " ".join(capsys.readouterr().out.split())
    assert "step 0: validation AP" in said and "at the start, " in said
    assert f"tensorboard --logdir {tmp_path / 'whole'}" in said
    log = logged(tmp_path / "whole")
    assert {"val/AP", "train/total"} <= log[0].keys() and "val/AP" in log[1]
    assert float(log[0]["val/AP"]) == pytest.approx(float(log[1]["val/AP"]), abs=1e-6)
    config = replace(config, out=str(tmp_path / "resumed"), resume="auto")
    train_until(config, 2, die, MemoryError)
    assert load_file(last_checkpoint(tmp_path / "resumed"))["global_step"] == 1
    train(config)
    assert capsys.readouterr().out.count("step 0: validation AP") == 1
    assert same_weights(tmp_path / "resumed", tmp_path / "whole")
    assert logged(tmp_path / "resumed") == log


def test_a_run_from_nothing_is_not_validated_at_its_start(seven_steps, logged):
    assert "val/AP" not in logged(seven_steps)[0]
    assert load_file(last_checkpoint(seven_steps))["callbacks"]["Checkpoints"]["start_ap"] is None


def test_patience_ends_a_run(toy_config, tmp_path, capsys, train_until):
    """The weights do not change, so no validation after the first one has a higher AP, also after an interruption."""
    words = ("training.steps=50", "training.validate_every=1", "training.patience=2", *STILL)
    train_until(toy_config(tmp_path, *words), 3, die, MemoryError)
    train(toy_config(tmp_path, *words, "resume=auto"))
    assert load_file(last_checkpoint(tmp_path))["global_step"] == 3
    told = "ended before step 50: 2 validations in a row had no higher AP (training.patience=2)"
    assert told in " ".join(capsys.readouterr().out.split())
    assert train(toy_config(tmp_path, *words, "resume=auto")) == best_checkpoint(tmp_path)
    assert "3 steps, after which training.patience=2 ended the run" in " ".join(capsys.readouterr().out.split())
    train(toy_config(tmp_path, *words[:2], "training.patience=3", *STILL, "resume=auto"))
    assert load_file(last_checkpoint(tmp_path))["global_step"] == 4


def test_a_finished_run_is_extended_with_the_schedule_of_the_longer_run(
    toy_config, seven_steps, tmp_path, capsys, logged, train_until
):
    """A run that has not finished takes no more steps, and a finished one not fewer."""

    def resumed(name: str, steps: int) -> Config:
        words = ("model.drop_path=0.2", "training.checkpoint_every=1", "resume=auto")
        return toy_config(tmp_path / name, f"training.steps={steps}", *words)

    for name in ("whole", "resumed"):
        (tmp_path / name / "checkpoints").mkdir(parents=True)
        for path in (last_checkpoint, best_checkpoint):
            path(tmp_path / name).write_bytes(path(seven_steps).read_bytes())
    with raises("resume.other_settings"):
        train(resumed("whole", 6))
    train(resumed("whole", 9))
    said = " ".join(capsys.readouterr().out.split())
    assert "has all its 7 steps and goes on to 9: from now on its learning rate is that of a run of 9 steps" in said
    log = logged(tmp_path / "whole")
    optimizer, schedule = build_optimizer(torch.nn.Linear(1, 1), OptimConfig(), 9, 3)
    for step in range(9):
        rates = [float(value) for name, value in log[step].items() if name.startswith("lr-")] if step > 6 else []
        assert rates == pytest.approx([schedule.get_last_lr()[0]] * len(rates), rel=1e-6) and bool(rates) == (step > 6)
        optimizer.step()
        schedule.step()
    train_until(resumed("resumed", 9), 9, die, MemoryError)
    assert load_file(last_checkpoint(tmp_path / "resumed"))["global_step"] == 8
    with raises("resume.other_settings"):
        train(resumed("resumed", 10))
    train(resumed("resumed", 9))
    assert same_weights(tmp_path / "resumed", tmp_path / "whole") and not same_weights(tmp_path / "whole", seven_steps)
    state = load_file(last_checkpoint(tmp_path / "resumed"))
    assert (state["global_step"], state["extended_at"], state["decisive"]["training.steps"]) == (9, [7], 9)


# averaged weights


DECAYS = ("0.0", "0.6")


@pytest.fixture(scope="module")
def runs(toy_config, two_steps, tmp_path_factory):
    """The last checkpoints of a run without an average, and of the same with averages of decay 0 and 0.6.

    What the latter have printed is in `said.txt`.
    """
    out = tmp_path_factory.mktemp("runs")
    for decay in DECAYS:
        with contextlib.redirect_stdout(io.StringIO()) as said:
            train(toy_config(out / decay, "training.steps=2", f"training.average={decay}"))
        (out / decay / "said.txt").write_text(" ".join(said.getvalue().split()))
    found = {decay: load_file(last_checkpoint(out / decay)) for decay in DECAYS}
    return {"null": load_file(last_checkpoint(two_steps)), **found}, out


def test_with_decay_0_the_average_is_the_weights(runs, two_steps, logged):
    found, out = runs
    weights = found["null"]["state_dict"]
    assert all(torch.equal(found["0.0"]["state_dict"][name], value) for name, value in weights.items())
    assert logged(out / "0.0") == logged(two_steps)


def test_training_is_the_same_with_an_average_and_its_checkpoint_has_both(runs):
    found, out = runs
    weights, average = found["null"]["state_dict"], found["0.6"]["state_dict"]
    own = found["0.6"]["current_model_state"]
    assert all(torch.equal(own[name], value) for name, value in weights.items())
    moved = [name for name, value in weights.items() if not torch.equal(average[name], value)]
    assert len(moved) > len(weights) / 2
    kept = read_checkpoint(str(best_checkpoint(out / "0.6"))).detector.state_dict()
    assert all(torch.equal(kept[name.removeprefix("detector.")], average[name]) for name in moved)


def test_the_average_lies_on_the_device_of_the_training(tmp_path, monkeypatch):
    monkeypatch.setattr(SingleDeviceStrategy, "root_device", torch.device("meta"))  # in place of a GPU
    trainer = build_trainer(TrainingConfig(accelerator="cpu", average=0.5), tmp_path, 1.0)
    module = L.LightningModule()
    module.layer = torch.nn.Linear(1, 1)  # Lightning moves it later
    trainer.callbacks[0].setup(trainer, module, "fit")
    assert {weight.device.type for weight in trainer.callbacks[0]._average_model.parameters()} == {"meta"}


def test_a_training_that_is_too_short_for_its_average_is_told(runs):
    _, out = runs
    told = "training.average=0.6 is too slow for 2 steps: 36% of the average would be the weights of the first step"
    for decay in DECAYS:
        assert (told in (out / decay / "said.txt").read_text()) == (decay == "0.6")


# numbers that are not finite


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
