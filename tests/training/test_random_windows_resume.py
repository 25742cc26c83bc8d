"""Training with random windows, from raw events: a run that dies goes on to the same weights."""

import pytest
import torch

from rvtssm.commands.train import train
from rvtssm.models.checkpoint import load_file
from rvtssm.training.checkpoints import last_checkpoint

SETTINGS = (
    "training.steps=9",
    "training.validate_every=20",
    "training.checkpoint_every=3",
    "dataset.source=raw",
    "augment.window_ms=[5,20,50]",
    "augment.hz=[20,40]",
    "augment.draws=all",
    "optim.name=muon",
    "training.average=0.9",
)


def test_random_windows_and_averaged_weights_resume_exactly(toy_config, tmp_path, train_until_death, logged):
    train(toy_config(tmp_path / "whole", *SETTINGS))
    train_until_death(toy_config(tmp_path / "cut", *SETTINGS))
    assert load_file(last_checkpoint(tmp_path / "cut"))["global_step"] == 6
    train(toy_config(tmp_path / "cut", *SETTINGS, "resume=auto"))
    found, wanted = (load_file(last_checkpoint(tmp_path / name))["state_dict"] for name in ("cut", "whole"))
    assert all(torch.equal(found[key], wanted[key]) for key in wanted)
    assert logged(tmp_path / "cut") == logged(tmp_path / "whole")


def test_prepared_recordings_are_refused_before_anything_is_read(toy_config, tmp_path):
    with pytest.raises(ValueError, match=r"augment.window_ms=\[20.0\] .* dataset.source=prepared"):
        train(toy_config(tmp_path, "augment.window_ms=[20]", "dataset.source=prepared"))
    assert not any(tmp_path.iterdir())
