"""The mean of weights is that of every number, and only of trainings of the same model."""

import runpy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rvtssm.models.checkpoint import read_checkpoint, write_checkpoint

main = runpy.run_path(str(Path(__file__).parents[2] / "scripts/mean_weights.py"))["main"]


def test_the_mean_of_three_checkpoints(live_checkpoint, tmp_path, capsys):
    checkpoint, files = live_checkpoint(), [tmp_path / f"{number}.ckpt" for number in range(3)]
    state = {name: value.clone() for name, value in checkpoint.detector.state_dict().items()}
    checkpoint.window_lengths_us = (5_000, 50_000)
    for file, offset in zip(files, (-1, 0, 4), strict=True):
        moved = {name: value + offset if value.is_floating_point() else value for name, value in state.items()}
        checkpoint.detector.load_state_dict(moved)
        write_checkpoint(file, checkpoint.detector, checkpoint)
    main([str(tmp_path / "mean.ckpt"), *map(str, files)])
    assert read_checkpoint(tmp_path / "mean.ckpt").may_shrink_windows
    main([str(tmp_path / "mean.ckpt"), *map(str, files), "--slide"])
    assert not read_checkpoint(tmp_path / "mean.ckpt").may_shrink_windows
    mean = read_checkpoint(tmp_path / "mean.ckpt").detector.state_dict()
    for name, value in state.items():
        torch.testing.assert_close(mean[name], value + 1 if value.is_floating_point() else value)
    checkpoint.spec = replace(checkpoint.spec, class_names=("bus", *checkpoint.spec.class_names[1:]))
    write_checkpoint(files[2], checkpoint.detector, checkpoint)
    with pytest.raises(SystemExit):
        main([str(tmp_path / "mean.ckpt"), *map(str, files)])
    assert "2.ckpt knows ('bus'," in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([str(tmp_path / "mean.ckpt"), str(tmp_path / "none.ckpt")])
    assert "none.ckpt" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([str(tmp_path), str(files[0])])
    assert "cannot be written" in capsys.readouterr().err
