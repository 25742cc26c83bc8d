"""The last weights of a training with averaged weights become a checkpoint that rvtssm reads."""

import pytest
import torch

from benchmarks.recipe.last_weights import main
from rvtssm.models.checkpoint import load_file, read_checkpoint, save_file, write_checkpoint


def test_the_last_weights_take_the_place_of_the_averaged_ones(live_checkpoint, tmp_path):
    checkpoint = live_checkpoint()
    write_checkpoint(tmp_path / "averaged.ckpt", checkpoint.detector, checkpoint)
    with pytest.raises(SystemExit, match="has no averaged weights"):
        main(str(tmp_path / "averaged.ckpt"), str(tmp_path / "last.ckpt"))
    content = load_file(tmp_path / "averaged.ckpt")
    last = {f"detector.{name}": weight + 1 for name, weight in content["state_dict"].items()}
    save_file(tmp_path / "averaged.ckpt", content | {"current_model_state": last})
    main(str(tmp_path / "averaged.ckpt"), str(tmp_path / "last.ckpt"))
    found = read_checkpoint(tmp_path / "last.ckpt").detector.state_dict()
    assert all(torch.equal(found[name], weight + 1) for name, weight in content["state_dict"].items())
