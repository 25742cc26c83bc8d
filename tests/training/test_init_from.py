"""`rvtssm train init_from=FILE`: a run that starts from other weights, and says which."""

import contextlib
import csv
import io
import json
import re
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
import yaml
from user_errors import raises

from rvtssm.cli.composition import compose
from rvtssm.cli.main import main
from rvtssm.cli.preprocess import preprocess
from rvtssm.cli.train import report_transfer, train
from rvtssm.cli.words import overrides as config_words
from rvtssm.datasets import DATASETS, build_spec
from rvtssm.datasets.datamodule import SequenceDataModule
from rvtssm.events.labels import read_boxes, write_boxes
from rvtssm.models import ModelConfig
from rvtssm.models.checkpoint import load_file, read_checkpoint, write_checkpoint
from rvtssm.models.checkpoint_meta import CheckpointMeta
from rvtssm.models.transfer import mapped_classes, transfer
from rvtssm.records import WindowSettings
from rvtssm.ssm import TemporalConfig
from rvtssm.training import loop
from rvtssm.training.checkpoints import best_checkpoint, last_checkpoint
from rvtssm.training.loop import read_start
from rvtssm.training.module import Start
from rvtssm.training.resume import flat


@pytest.fixture(scope="module")
def trained(seven_steps):
    """The last checkpoint of a toy run."""
    return last_checkpoint(seven_steps)


def weights(path) -> dict[str, torch.Tensor]:
    return load_file(path)["state_dict"]


def test_a_run_starts_once_from_weights_and_says_what_it_takes_and_what_to_type(toy_config, tmp_path, trained, capsys):
    start, out = shutil.copy(trained, tmp_path / "start.ckpt"), tmp_path / "run"
    still = ("optim.learning_rate=1e-12", "training.freeze_batchnorm=true")
    words = ("training.steps=1", f"training.init_from={start}", "temporal=selective_s5", "model.fpn_blocks=1")
    config = toy_config(out, *words, *still)
    train(config)
    said = " ".join(capsys.readouterr().out.split())
    assert f"settings from {start}: model=tiny model.embed_dim=8" in said
    named = "model.fpn_blocks=1 temporal=selective_s5"
    assert f"settings from the command line, its experiment or prepared frames: {named} tensors taken" in said
    assert "temporal at stride 4" in said and "new: the weights have" in said
    assert "start a new training with model.fpn_blocks=0 temporal=s5" in said
    with open(out / "init_from.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    before, after = weights(trained), weights(last_checkpoint(out))
    assert [f"detector.{row['tensor']}" for row in rows] == list(after)
    for row in rows:
        is_new = ".temporal." in row["tensor"] or re.match(r"neck\..*\.blocks\.", row["tensor"])
        assert row["outcome"] == ("left" if is_new else "taken")
        assert ("the weights have temporal.name=s5" in row["reason"]) == (".temporal." in row["tensor"])
        if row["outcome"] == "taken" and "num_batches" not in row["tensor"]:
            key = f"detector.{row['tensor']}"
            torch.testing.assert_close(after[key], before[key], rtol=1e-5, atol=1e-6)
    # a run that goes on does not start again, and not from other weights
    (out / "init_from.csv").unlink()
    start.unlink()
    train(toy_config(out, *words, *still, "resume=auto"))
    assert not (out / "init_from.csv").exists()
    assert all(torch.equal(value, after[key]) for key, value in weights(last_checkpoint(out)).items())
    other = replace(config.training, init_from="/trained.ckpt")
    with raises("run.other_settings"):
        train(replace(config, training=other, resume="auto"))


def test_the_settings_of_weights_are_the_defaults_of_a_run_from_them(toy_config, tmp_path, capsys):
    small = ("model=tiny", "model.embed_dim=8", "model.head_dim=8", "model.num_blocks=[1,0,0,0]")
    described = compose(["temporal=selective_s5", "temporal.block=gated", *small])
    config = toy_config(tmp_path / "any")
    meta = CheckpointMeta(build_spec(config.dataset), described.model, described.temporal, WindowSettings(40_000))
    write_checkpoint(start := tmp_path / "start.ckpt", meta.build(), meta)
    named = [word for word in config_words(config) if not word.startswith(("model", "temporal", "windows"))]
    found = compose([*named, f"training.init_from={start}", "dataset.source=raw"], "train")
    assert (found.model, found.temporal) == (described.model, meta.temporal_config)
    assert found.windows.settings == meta.windows
    of_frames = compose([*named, f"training.init_from={start}"], "train")  # which no setting of weights changes
    assert of_frames.windows == config.windows and of_frames.temporal == meta.temporal_config
    train(replace(found, out=str(tmp_path / "run"), training=replace(found.training, steps=1)))
    with open(tmp_path / "run/init_from.csv", newline="") as file:
        assert {row["outcome"] for row in csv.DictReader(file)} <= {"taken", "resized"}
    assert "more tensors" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ([], {"temporal.name": "selective_s5", "temporal.dt_max": 0.4, "model.size": "tiny", "model.layer_scale": 0.1}),
        (
            ["temporal.dt_max=0.2", "mixer=convnext", "windows.num_bins=5"],
            {
                **{"temporal.name": "selective_s5", "temporal.block": "gated", "temporal.dt_max": 0.2},
                **{"model.size": "tiny", "model.mixer": "convnext", "windows.num_bins": 5},
            },
        ),
        # another layer than that of the weights has its own defaults
        (
            ["temporal=s5", "model=small"],
            {
                **{"temporal.name": "s5", "temporal.dt_max": 0.1, "temporal.num_blocks": 1},
                **{"model.size": "small", "model.embed_dim": 48, "model.layer_scale": 0.1},
            },
        ),
        (["experiment=gen1_lstm_small"], {"temporal.name": "lstm", "temporal.num_blocks": 1, "model.size": "small"}),
    ],
)
def test_what_the_command_line_names_is_not_taken_from_the_weights(words, wanted):
    found = flat(asdict(compose(["training.init_from=street-tiny", *words])))
    assert {key: found[key] for key in wanted} == wanted


def test_classes_of_other_names_are_mapped():
    names = read_start("street-tiny").class_names
    given = mapped_classes("key", {"vehicle": "bus"}, names, ("tram", "bus"))
    assert given == ("person", "bus", "two-wheeler")
    for pairs, key in (
        ({"bus": "tram"}, "setting.choice"),
        ({"vehicle": "van"}, "setting.choice"),
        ({"vehicle": "bus", "person": "bus"}, "setting.form"),
    ):
        with raises(key):
            mapped_classes("key", pairs, names, ("tram", "bus"))


@pytest.mark.parametrize(("name", "is_told"), [("lstm", True), ("s5", False)])
def test_a_layer_without_a_step_to_rescale_is_told_at_another_stride(tmp_path, capsys, name, is_told):
    model = ModelConfig(embed_dim=8, head_dim=4, num_blocks=(1, 1, 1, 1), fpn_blocks=0)
    meta = CheckpointMeta(DATASETS["synthetic"], model, TemporalConfig(name=name), WindowSettings())
    write_checkpoint(tmp_path / "a.ckpt", meta.build(), meta)
    slower = replace(meta, windows=replace(meta.windows, stride_us=100_000))
    source = read_start(str(tmp_path / "a.ckpt"))
    report_transfer(Start("a.ckpt", source, slower, transfer(source, slower.build(), slower)), tmp_path)
    said = " ".join(capsys.readouterr().out.split())
    told = f"temporal.name={name} has no step to rescale from 50 ms, the stride of the weights, to 100 ms"
    assert (told in said and "its memory lasts 2 times as long" in said) == is_told
    other = replace(slower, temporal_config=TemporalConfig(name="s4d"))  # this layer starts anew
    source = read_start(str(tmp_path / "a.ckpt"))
    report_transfer(Start("a.ckpt", source, other, transfer(source, other.build(), other)), tmp_path)
    assert "no step to rescale" not in capsys.readouterr().out


def test_the_map_of_classes_is_read_from_words_and_written_as_such():
    words = ["training.init_from=street-tiny", "training.class_map={two-wheeler: bicycle, person: pedestrian}"]
    config = compose(words)
    assert config.training.class_map == {"two-wheeler": "bicycle", "person": "pedestrian"}
    again = compose(config_words(config))
    assert again == config
    with raises("setting.needs", "training.class_map"):
        compose(words[1:])


def test_weights_that_are_none_are_refused_before_data_are_read(toy_config, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "data_of", lambda sections: pytest.fail("data were touched"))
    with raises("weights.missing"):
        train(toy_config(tmp_path, f"training.init_from={tmp_path / 'missing.ckpt'}"))


def test_weights_that_do_not_fit_are_refused_before_data_are_read(toy_config, tmp_path, trained, monkeypatch):
    monkeypatch.setattr(SequenceDataModule, "sequences", lambda *arguments: pytest.fail("data were touched"))
    with raises("weights.do_not_fit"):
        train(toy_config(tmp_path, f"training.init_from={trained}", "model.embed_dim=16"))


# windows of prepared frames


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


def test_windows_that_are_not_named_are_those_of_the_frames(words, run, printed_by):
    out, said = run
    assert "step 1: validation AP" in said
    kept = yaml.safe_load((out / "overrides.yaml").read_text())
    assert {word for word in kept if word.startswith("windows")} == {"windows.stride_ms=25.0", "windows.num_bins=5"}
    assert read_checkpoint(best_checkpoint(out)).windows == WindowSettings(25_000, num_bins=5, reduce="sum")
    assert (
        json.loads(printed_by("info", *(word for word in words if word.startswith("dataset")), "model=tiny", "--json"))[
            "stride_us"
        ]
        == 25_000
    )


def test_labels_that_changed_after_the_preparation_are_told(words, raw, run, tmp_path, printed_by):
    _, said_before = run
    assert "were made from other" not in said_before
    path = next((raw / "train").glob("*_bbox.npy"))
    boxes = read_boxes(path)
    boxes["x"] += 1
    write_boxes(path, boxes)
    told = "1 prepared recordings, such as train/train_0000, were made from other recordings or labels"
    assert told in " ".join(printed_by("train", *words, f"out={tmp_path}").split())


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        (["train", "stride_ms=50"], "stride_us=25000 but the run asks for 50000"),  # a default that is named
        (
            ["train", "window_ms=10", "num_bins=4"],
            "length_us=None but the run asks for 10000, and with num_bins=5 but the run asks for 4",
        ),
        (
            ["study", "windows.window_ms=25,10"],
            "window_ms=25/evaluation: train_0000: it was prepared with",
        ),
    ],
    ids=str,
)
def test_other_windows_are_refused_before_a_training(words, command, answer, tmp_path, refused):
    assert answer in refused(command[0], *words, *command[1:], f"out={tmp_path}") and not list(tmp_path.rglob("*.ckpt"))
