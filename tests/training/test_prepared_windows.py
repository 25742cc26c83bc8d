"""The windows of prepared frames are those of a training on them, and others are refused."""

import contextlib
import io
import json
import shutil
from pathlib import Path

import pytest
import yaml

from rvtssm.cli.composition import compose
from rvtssm.cli.main import main
from rvtssm.cli.preprocess import preprocess
from rvtssm.events.labels import read_boxes, write_boxes
from rvtssm.models.checkpoint import read_checkpoint
from rvtssm.records import WindowSettings
from rvtssm.training.checkpoints import best_checkpoint


@pytest.fixture(scope="module")
def raw(toy_data, tmp_path_factory) -> Path:
    """A copy of the recordings, whose labels a test may change."""
    given = next(word for word in toy_data if word.startswith("dataset.raw_dir")).partition("=")[2]
    return shutil.copytree(given, tmp_path_factory.mktemp("data") / "raw")


@pytest.fixture(scope="module")
def words(toy_data, raw, tmp_path_factory) -> list[str]:
    """Words of a training on frames of 25 ms with five bins."""
    prepared = tmp_path_factory.mktemp("prepared")
    found = [*toy_data, f"dataset.raw_dir={raw}", f"dataset.prepared_dir={prepared}", "dataset.source=prepared"]
    counted = ["windows.stride_ms=25", "windows.num_bins=5", "preprocess.splits=[train,val]", "preprocess.workers=1"]
    assert preprocess(compose([*found, *counted])) == 0
    return [*found, "training.steps=1"]


@pytest.fixture(scope="module")
def run(words, tmp_path_factory) -> tuple[Path, str]:
    """The folder of such a training, and what it has printed."""
    out = tmp_path_factory.mktemp("run")
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert main(["train", *words, f"out={out}"]) == 0
    return out, said.getvalue()


def test_windows_that_are_not_named_are_those_of_the_frames(words, run, capsys):
    out, said = run
    assert "step 1: validation AP" in said
    kept = yaml.safe_load((out / "overrides.yaml").read_text())
    assert {word for word in kept if word.startswith("windows")} == {"windows.stride_ms=25.0", "windows.num_bins=5"}
    assert read_checkpoint(best_checkpoint(out)).windows == WindowSettings(25_000, num_bins=5, reduce="sum")
    assert main(["info", *(word for word in words if word.startswith("dataset")), "model=tiny", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["stride_us"] == 25_000


def test_labels_that_changed_after_the_preparation_are_told(words, raw, run, tmp_path, capsys):
    _, said_before = run
    assert "were made from other" not in said_before
    path = next((raw / "train").glob("*_bbox.npy"))
    boxes = read_boxes(path)
    boxes["x"] += 1
    write_boxes(path, boxes)
    assert main(["train", *words, f"out={tmp_path}"]) == 0
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
