"""Averaged weights are validated and kept; the run itself goes on with its own."""

import contextlib
import io

import lightning.pytorch as L
import pytest
import torch
from lightning.pytorch.strategies import SingleDeviceStrategy

from rvtssm.cli.train import train
from rvtssm.models.checkpoint import load_file, read_checkpoint
from rvtssm.training.checkpoints import best_checkpoint, last_checkpoint
from rvtssm.training.fit import build_trainer
from rvtssm.training.training_config import TrainingConfig

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
