"""Averaged weights are validated and kept; the run itself goes on with its own."""

import pytest
import torch

from rvtssm.commands.train import train
from rvtssm.models.checkpoint import load_file, read_checkpoint
from rvtssm.training.checkpoints import best_checkpoint, last_checkpoint
from rvtssm.training.training_config import TrainingConfig

STEPS = ("training.steps=5", "training.validate_every=5")


@pytest.fixture(scope="module")
def runs(toy_config, tmp_path_factory):
    """The last checkpoints of a run without an average, and of the same with averages of decay 0 and 0.5."""
    out = tmp_path_factory.mktemp("runs")
    for decay in ("null", "0.0", "0.5"):
        train(toy_config(out / decay, *STEPS, f"training.average={decay}"))
    return {decay: load_file(last_checkpoint(out / decay)) for decay in ("null", "0.0", "0.5")}, out


def test_with_decay_0_the_average_is_the_weights(runs, logged):
    found, out = runs
    weights = found["null"]["state_dict"]
    assert all(torch.equal(found["0.0"]["state_dict"][name], value) for name, value in weights.items())
    assert logged(out / "0.0") == logged(out / "null")


def test_training_is_the_same_with_an_average_and_its_checkpoint_has_both(runs):
    found, out = runs
    weights, average = found["null"]["state_dict"], found["0.5"]["state_dict"]
    own = found["0.5"]["current_model_state"]
    assert all(torch.equal(own[name], value) for name, value in weights.items())
    moved = [name for name, value in weights.items() if not torch.equal(average[name], value)]
    assert len(moved) > len(weights) / 2
    kept = read_checkpoint(str(best_checkpoint(out / "0.5"))).detector.state_dict()
    assert all(torch.equal(kept[name.removeprefix("detector.")], average[name]) for name in moved)


@pytest.mark.parametrize("decay", [1.0, -0.1])
def test_a_decay_is_a_share(decay):
    with pytest.raises(ValueError, match=rf"training.average={decay:g} is a decay"):
        TrainingConfig(average=decay)


@pytest.mark.parametrize("decay", ["0.5", "0.6"])
def test_a_training_that_is_too_short_for_its_average_is_told(toy_config, tmp_path, capsys, decay):
    train(toy_config(tmp_path, *STEPS, f"training.average={decay}"))
    told = "training.average=0.6 is too slow for 5 steps: 8% of the average would be the weights of the first step"
    assert (told in " ".join(capsys.readouterr().out.split())) == (decay == "0.6")
