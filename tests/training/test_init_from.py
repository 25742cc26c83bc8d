"""`rvtssm train init_from=FILE`: a run that starts from other weights, and says which."""

from __future__ import annotations

import csv
import shutil

import pytest
import torch

from rvtssm.commands.train import train
from rvtssm.datasets.datamodule import SequenceDataModule
from rvtssm.models.checkpoint import load_file
from rvtssm.training.checkpoints import last_checkpoint


@pytest.fixture(scope="module")
def trained(toy_config, tmp_path_factory):
    """The last checkpoint of a toy run."""
    out = tmp_path_factory.mktemp("trained")
    train(toy_config(out, "training.steps=1"))
    return last_checkpoint(out)


def weights(path) -> dict[str, torch.Tensor]:
    return load_file(path)["state_dict"]


def test_a_run_starts_from_weights_and_lists_them(toy_config, tmp_path, trained, capsys):
    still = ("optim.learning_rate=1e-12", "training.freeze_batchnorm=true")
    train(toy_config(tmp_path, "training.steps=1", f"training.init_from='{trained}'", "temporal=lstm", *still))
    shown = capsys.readouterr().out
    assert "temporal at stride 4" in shown and "made for" in shown
    with open(tmp_path / "init_from.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["reason"] for row in rows if row["outcome"] == "left"} == {"made for temporal.name=s5"}
    before, after = weights(trained), weights(last_checkpoint(tmp_path))
    assert [f"detector.{row['tensor']}" for row in rows] == list(after)
    for row in rows:
        assert row["outcome"] == ("left" if ".temporal." in row["tensor"] else "taken")
        if row["outcome"] == "taken" and "num_batches" not in row["tensor"]:
            key = f"detector.{row['tensor']}"
            torch.testing.assert_close(after[key], before[key], rtol=1e-5, atol=1e-6)


def test_a_run_that_goes_on_does_not_start_again(toy_config, tmp_path, trained):
    start = shutil.copy(trained, tmp_path / "start.ckpt")
    words = "training.steps=1", f"training.init_from='{start}'"
    train(toy_config(tmp_path, *words))
    first = weights(last_checkpoint(tmp_path))
    (tmp_path / "init_from.csv").unlink()
    start.unlink()
    train(toy_config(tmp_path, *words, "resume=auto"))
    assert not (tmp_path / "init_from.csv").exists()
    assert all(torch.equal(value, first[key]) for key, value in weights(last_checkpoint(tmp_path)).items())


def test_a_run_that_goes_on_does_not_start_from_other_weights(toy_config, tmp_path, trained):
    train(toy_config(tmp_path, "training.steps=1"))
    with pytest.raises(ValueError, match=r"training\.init_from=None, now .*trained"):
        train(toy_config(tmp_path, "training.steps=1", "training.init_from=/trained.ckpt", "resume=auto"))


def test_weights_that_are_none_are_refused_before_data_are_read(toy_config, tmp_path, monkeypatch):
    monkeypatch.setattr("rvtssm.commands.train.SequenceDataModule", lambda *arguments: pytest.fail("data were touched"))
    with pytest.raises(ValueError, match=r"training\.init_from: there is no checkpoint at .*missing\.ckpt"):
        train(toy_config(tmp_path, f"training.init_from={tmp_path / 'missing.ckpt'}"))


def test_weights_that_do_not_fit_are_refused_before_data_are_read(toy_config, tmp_path, trained, monkeypatch):
    monkeypatch.setattr(SequenceDataModule, "sequences", lambda *arguments: pytest.fail("data were touched"))
    with pytest.raises(ValueError, match=r"training\.init_from=.*none of the weights fits"):
        train(toy_config(tmp_path, f"training.init_from='{trained}'", "model.embed_dim=16"))
