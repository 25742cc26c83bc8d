"""The windows of prepared frames are those of a training on them, and others are refused."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from rvtssm.commands.cli import main
from rvtssm.commands.composition import compose
from rvtssm.commands.preprocess import preprocess
from rvtssm.events.labels import read_boxes, write_boxes
from rvtssm.models.checkpoint import read_checkpoint
from rvtssm.records import WindowSettings
from rvtssm.training.checkpoints import best_checkpoint


@pytest.fixture(scope="module")
def words(toy_data, tmp_path_factory) -> list[str]:
    """Words of a training on frames of 25 ms with five bins."""
    found = [*toy_data, f"dataset.prepared_dir={tmp_path_factory.mktemp('prepared')}", "dataset.source=prepared"]
    counted = ["windows.stride_ms=25", "windows.num_bins=5", "preprocess.splits=[train,val]", "preprocess.workers=1"]
    assert preprocess(compose([*found, *counted])) == 0
    return [*found, "training.steps=1"]


def test_windows_that_are_not_named_are_those_of_the_frames(words, tmp_path, capsys):
    assert main(["train", *words, f"out={tmp_path}"]) == 0
    assert "step 1: validation AP" in capsys.readouterr().out  # also with progress=false
    kept = yaml.safe_load((tmp_path / "overrides.yaml").read_text())
    assert {word for word in kept if word.startswith("windows")} == {"windows.stride_ms=25.0", "windows.num_bins=5"}
    assert read_checkpoint(best_checkpoint(tmp_path)).windows == WindowSettings(25_000, num_bins=5)
    assert main(["info", *(word for word in words if word.startswith("dataset")), "model=tiny", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["stride_us"] == 25_000


def test_labels_that_changed_after_the_preparation_are_told(words, toy_data, tmp_path, capsys):
    raw = Path(next(word for word in toy_data if word.startswith("dataset.raw_dir")).partition("=")[2])
    shutil.copytree(raw, tmp_path / "raw")
    train = ["train", *words, f"dataset.raw_dir={tmp_path / 'raw'}", f"out={tmp_path / 'run'}"]
    assert main(train) == 0
    assert "were made from other" not in capsys.readouterr().out
    path = next((tmp_path / "raw" / "train").glob("*_bbox.npy"))
    boxes = read_boxes(path)
    boxes["x"] += 1
    write_boxes(path, boxes)
    assert main([*train, "resume=auto"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "1 prepared recordings, such as train/train_0000, were made from other recordings or labels" in said


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        (["train", "stride_ms=50"], "stride_us=25000 but the run asks for 50000"),  # a default that is named
        (
            ["train", "window_ms=10", "num_bins=4"],
            "length_us=None but the run asks for 10000, and with num_bins=5 but the run asks for 4",
        ),
        (["study", "windows.window_ms=25,10"], "windows.window_ms=25/evaluation: train_0000 was prepared with length"),
    ],
    ids=str,
)
def test_other_windows_are_refused_before_a_training(words, command, answer, tmp_path, capsys):
    assert main([command[0], *words, *command[1:], f"out={tmp_path}"]) == 2
    assert answer in capsys.readouterr().err and not list(tmp_path.rglob("*.ckpt"))
