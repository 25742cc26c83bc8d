"""Training on random windows of recordings of several sizes: from events to weights, and a run that dies goes on."""

from dataclasses import replace

import pytest
import torch

from rvtssm.cli.config import Config
from rvtssm.cli.evaluate import _data_for
from rvtssm.cli.generate import generate
from rvtssm.cli.main import compose
from rvtssm.cli.preprocess import preprocess
from rvtssm.cli.train import train
from rvtssm.models.checkpoint import load_file, read_checkpoint
from rvtssm.training.checkpoints import last_checkpoint
from tests.training.conftest import OVERRIDES, RECORDINGS, die

SIZED = ("dataset.mixed_sizes=true", "synthetic.sizes=[[48,64],[64,96]]", *RECORDINGS, "synthetic.num_train=4")
SETTINGS = (
    "training.steps=9",
    "training.validate_every=20",
    "training.checkpoint_every=3",
    "augment.window_ms=[5,20,50]",
    "augment.hz=[20,40]",
    "augment.draws=all",
    "optim.name=muon",
    "training.average=0.9",
    "sampling.chunk_length=2",
)


def test_random_windows_of_two_sizes_and_averaged_weights_resume_exactly(tmp_path, train_until, logged):
    data = [*OVERRIDES, *SIZED, f"dataset.raw_dir={tmp_path / 'raw'}"]
    generate(compose(data))

    def configured(name: str, *more: str):
        return compose([*data, *SETTINGS, f"out={tmp_path / name}", *more])

    train(configured("whole"))
    train_until(configured("cut"), 8, die, MemoryError)
    stored = load_file(last_checkpoint(tmp_path / "cut"))
    assert stored["global_step"] == 6 and len(stored["processes"][0]["streams"]) == 2
    train(configured("cut", "resume=auto"))
    found, wanted = (load_file(last_checkpoint(tmp_path / name))["state_dict"] for name in ("cut", "whole"))
    assert all(torch.equal(found[key], wanted[key]) for key in wanted)
    assert logged(tmp_path / "cut") == logged(tmp_path / "whole")
    checkpoint = read_checkpoint(last_checkpoint(tmp_path / "whole"))
    checkpoint = replace(checkpoint, spec=replace(checkpoint.spec, repair=True))
    scored = _data_for(Config(), checkpoint)  # recordings are read as in the training
    assert len({sequence.frame_shape for sequence in scored.sequences("train", "raw")}) == 2 and scored.spec.repair
    with pytest.raises(ValueError, match="only raw recordings may differ in size"):
        train(configured("prepared", "dataset.source=prepared"))
    with pytest.raises(ValueError, match="recordings of several sizes cannot be prepared; train on them as they are"):
        preprocess(configured("prepared", f"dataset.prepared_dir={tmp_path / 'prepared'}"))


def test_random_windows_of_prepared_recordings_are_refused_before_anything_is_read(toy_config, tmp_path):
    with pytest.raises(ValueError, match=r"augment.window_ms=\[20.0\] .* dataset.source=prepared"):
        train(toy_config(tmp_path, "augment.window_ms=[20]", "dataset.source=prepared"))
    assert not any(tmp_path.iterdir())


def test_sizes_are_asked_for_where_they_are_read():
    with pytest.raises(ValueError, match="set both"):
        generate(compose([*OVERRIDES, "synthetic.sizes=[[48,64]]", "dataset.raw_dir=raw"]))
