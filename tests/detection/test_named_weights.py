"""Weights by name: they are packed in bf16, found wherever weights are named, and say how they were trained."""

import hashlib
import json
import runpy
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hub_server import hub_server
from huggingface_hub import constants
from PIL import Image
from safetensors import safe_open
from user_errors import raises

import rvtssm
from rvtssm.cli import main as cli
from rvtssm.cli.chosen_weights import read_weights
from rvtssm.cli.inputs import with_default_weights
from rvtssm.cli.main import compose
from rvtssm.contrib.labeling.label import _check_settings
from rvtssm.drawing.draw import draw_frame
from rvtssm.evaluation.detector_run import WeightsFile
from rvtssm.export.checked_export import write_weights
from rvtssm.models import weight_files as names
from rvtssm.models.checkpoint import read_checkpoint, weights_digest, write_checkpoint
from rvtssm.models.checkpoint_meta import CheckpointMeta
from rvtssm.models.transfer import read_source
from rvtssm.models.weight_files import FOLDER, MODEL_CARDS, check_digest, local_weights, weights_names
from rvtssm.readers.dat import write_dat
from rvtssm.records import Detections

NOTE = "trained on simulation only"


@pytest.fixture(scope="module")
def trained(live_checkpoint, tmp_path_factory):
    """A checkpoint as a training leaves it, with the paths of its machine."""
    checkpoint = live_checkpoint(embed_dim=16)
    checkpoint.raw_dir, checkpoint.prepared_dir = "/home/someone/raw", "/home/someone/prepared"
    path = tmp_path_factory.mktemp("trained") / "best.ckpt"
    write_checkpoint(path, checkpoint.detector, checkpoint)
    return path, checkpoint


@pytest.fixture(scope="module")
def packed(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    out = folder / "street-tiny.safetensors"
    assert cli.main(["export", f"checkpoint={trained[0]}", f"out={out}", "precision=bf16", f"note={NOTE}"]) == 0
    return folder


@pytest.fixture
def shipped(trained, packed, tmp_path, monkeypatch):
    """The folder of a package that comes with `street-tiny`, and the checkpoint that was packed."""
    shutil.copytree(packed, tmp_path / "weights")
    monkeypatch.setattr(names, "FOLDER", tmp_path / "weights")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "weights", trained[1]


@pytest.fixture
def recording(draw_events, tmp_path):
    write_dat(tmp_path / "a_td.dat", draw_events(2_000, 1_000_000, 130_000), 48, 64)
    return tmp_path / "a_td.dat"


def words(capsys) -> str:
    return " ".join(capsys.readouterr().out.split())


# the file


def test_packed_weights_are_bf16_in_the_file_and_float32_in_memory(shipped):
    folder, checkpoint = shipped
    path, before = folder / "street-tiny.safetensors", checkpoint.detector.state_dict()
    assert check_digest(path) and b"/home/" not in path.read_bytes()
    with safe_open(path, "pt") as file:
        stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  it is not a dict
        written_by = json.loads(file.metadata()["written_by"])
    large = {name for name, weight in before.items() if weight.numel() > 1024}
    assert large and {name for name, weight in stored.items() if weight.dtype == torch.bfloat16} == large
    assert sum(before[name].numel() for name in large) > 0.8 * sum(weight.numel() for weight in before.values())
    found = read_checkpoint(path)
    assert (found.raw_dir, found.prepared_dir, found.note) == (None, None, NOTE)
    for name, weight in found.detector.state_dict().items():
        assert weight.dtype == before[name].dtype
        wanted = before[name].bfloat16().float() if name in large else before[name]
        assert torch.equal(weight, wanted), name
    sha256 = weights_digest(found.detector.state_dict())
    assert written_by["weights_sha256"] == sha256 == WeightsFile("street-tiny", "float32").read_with_digest()[1]


def test_a_changed_file_is_damaged(shipped):
    path = shipped[0] / "street-tiny.safetensors"
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)
    with raises("file.damaged"):
        rvtssm.load("street-tiny")


def test_packing_again_keeps_the_note_and_another_file_has_none(shipped, trained, tmp_path):
    again = tmp_path / "again.safetensors"
    assert cli.main(["export", "checkpoint=street-tiny", f"out={again}", "precision=bf16"]) == 0
    assert read_checkpoint(again).note == NOTE
    assert read_checkpoint(trained[0]).note is None


@pytest.mark.parametrize("note", ["", " ", 7, "two\nlines", "\x1b[31mred", "\u03b1", 61 * "a"])
def test_a_note_is_one_line_that_can_be_shown(trained, note):
    with raises("setting.form"):
        CheckpointMeta.from_dict({**trained[1].to_dict(), "note": note})


# the name


def test_loading_without_a_name_takes_the_weights_in_the_box(shipped, monkeypatch):
    assert repr(rvtssm.load()) == repr(rvtssm.load("street-tiny"))
    with raises("weights.missing"):
        rvtssm.load("best.ckpt")
    monkeypatch.setattr(names, "FOLDER", shipped[0] / "none")
    with raises("weights.missing"):
        rvtssm.load()


def test_a_name_is_a_file_of_the_package(shipped):
    path = shipped[0] / "street-tiny.safetensors"
    assert names.weights_names() == ["street-tiny"]
    assert local_weights("street-tiny") == local_weights(Path("street-tiny")) == path
    for other in ("best.ckpt", "./street-tiny", "runs/street-tiny", str(path), "street-tiny.safetensors"):
        assert local_weights(other) == other
    assert names.card_of("street-tiny") == names.card_of(path) == "docs/weights_street.md"
    assert names.card_of("best.ckpt") is None


def test_predict_needs_the_recording_only(shipped, capsys):
    Path("a.csv").write_text("t,x,y,p\n" + "".join(f"{5 * k},{k % 100},{k % 77},{k % 2}\n" for k in range(20_000)))
    assert cli.main(["predict", "recording=a.csv"]) == 0
    said = words(capsys)
    assert "sensor 240 x 180 pixels (assumed: DAVIS240)" in said and NOTE in said
    assert "replaces" not in said
    assert Path("outputs/predict/a/video.mp4").stat().st_size
    Path("dataset.yaml").write_text("classes: [cat]\nheight: 90\nwidth: 100\n")
    assert cli.main(["predict", "recording=a.csv"]) == 0
    said = words(capsys)
    assert "assumed" not in said and "replaces the results of" in said
    assert json.loads(Path("outputs/predict/a/prediction.json").read_text())["sensor_hw"] == [90, 100]


@pytest.mark.parametrize("is_folder", [False, True])
def test_what_is_here_counts_first(shipped, trained, is_folder):
    if is_folder:
        Path("street-tiny").mkdir()
    else:
        shutil.copy(trained[0], "street-tiny")
        assert rvtssm.load("street-tiny").checkpoint.note is None
    assert local_weights("street-tiny") == "street-tiny" and names.card_of("street-tiny") is None
    default = with_default_weights(compose([])).checkpoint
    assert default == str(shipped[0] / "street-tiny.safetensors")  # what is here was not asked for


def test_an_unknown_name_lists_those_that_exist(shipped, tmp_path, monkeypatch, refused):
    with raises("weights.missing"):
        rvtssm.load("stret")
    line = refused("train", "dataset=gen1", f"dataset.raw_dir={tmp_path}", "init_from=stret")
    assert "training.init_from: stret: there are no such weights" in line
    assert "stret: there are no such weights" in refused("evaluate", "checkpoints=[street-tiny,stret]")
    for folder in (tmp_path / "empty", tmp_path / "missing"):
        monkeypatch.setattr(names, "FOLDER", folder)
        with raises("weights.missing"):
            local_weights("street-tiny")
        assert names.default_weights() is None


def test_every_place_for_weights_takes_the_name(shipped, printed_by):
    wanted = read_checkpoint(shipped[0] / "street-tiny.safetensors").detector.state_dict()
    config = compose(["checkpoint=street-tiny"])
    for found in (
        rvtssm.load("street-tiny").checkpoint.detector,
        rvtssm.load(Path("street-tiny")).checkpoint.detector,
        read_weights(config).detector,  # evaluate, predict, live, audit and label
    ):
        assert all(torch.equal(value, wanted[name]) for name, value in found.state_dict().items())
    source = read_source("street-tiny").weights  # training.init_from
    assert all(torch.equal(source[name], value) for name, value in wanted.items())
    assert NOTE in repr(rvtssm.load("street-tiny"))
    described = json.loads(printed_by("info", "checkpoint=street-tiny", "--json"))
    assert described["note"] == NOTE and described["has_digest"]


# what verbs do without weights, and what they say


def test_a_prediction_takes_them_if_none_are_named(shipped, recording, tmp_path, capsys):
    out = tmp_path / "out"
    assert cli.main(["predict", f"recording={recording}", f"out={out}", "scale=4", "formats=[png,mp4,jsonl]"]) == 0
    said = words(capsys)
    assert "weights street-tiny," in said
    assert said.count(f"street-tiny: {NOTE}; its model card is docs/weights_street.md") == 1
    picture = Image.open(next(out.glob("still_*.png")))
    assert picture.height == 4 * 48 + 3 * 30  # caption, legend and the note
    result = rvtssm.load("street-tiny").predict(recording)
    assert result[0].draw(rvtssm.open(recording).between(0, 1 << 40)).height == 15 * 48 + 3 * 30
    assert {frame.note for frame in result} == {NOTE}


@pytest.mark.parametrize("words_", [["predict", "recording=a.raw"], ["live", "recording=a.raw"], ["serve"]])
def test_without_the_file_the_key_is_needed(tmp_path, monkeypatch, refused, words_):
    monkeypatch.setattr(names, "FOLDER", tmp_path)
    assert f"rvtssm {words_[0]}: checkpoint=FILE is needed" in refused(*words_)


def test_live_detection_takes_them_and_its_lines_stay_json(shipped, recording, tmp_path, printed_by, capsys):
    arguments = ["live", f"recording={recording}", f"out={tmp_path / 'live'}"]
    assert cli.main(arguments) == 0
    assert f"street-tiny: {NOTE}; its model card is" in words(capsys)
    lines = printed_by(*arguments, "--json").splitlines()
    assert lines and all("detections" in json.loads(line) for line in lines)


@pytest.mark.parametrize(
    ("width", "note", "num_bars"), [(100, NOTE, 3), (160, NOTE, 2), (640, NOTE, 1), (640, 60 * "M", 1)]
)
def test_the_note_is_below_the_picture_and_whole(width, note, num_bars):
    nothing = Detections(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64), 0)
    hist = np.zeros((20, 30, width), np.uint8)
    plain, noted = (draw_frame(hist, nothing, scale=1, note=each) for each in (None, note))
    assert (noted[: len(plain)] == plain).all()
    bars = noted[len(plain) :].reshape(-1, 30, width, 3)
    assert len(bars) == num_bars
    for bar in bars:
        columns = np.flatnonzero((bar != bar[0, 0]).any(axis=(0, 2)))
        assert columns[0] > 5 and columns[-1] < width - 5


# those that are shipped


ROOT = Path(__file__).parents[2]
SMALL = ROOT / "weights" / "street-small.safetensors"


def test_every_model_card_is_of_weights_that_are_there():
    assert sorted(MODEL_CARDS) == weights_names()


@pytest.mark.parametrize(
    ("name", "file", "most_mb"), [("street-tiny", FOLDER / "street-tiny.safetensors", 12), (SMALL, SMALL, 25)]
)
def test_weights_are_those_of_their_card(name, file, most_mb):
    content, card = file.read_bytes(), ROOT / MODEL_CARDS["street-tiny"]
    assert hashlib.sha256(content).hexdigest()[:16] in card.read_text()  # the scores are of these weights
    assert len(content) < most_mb * 10**6
    checkpoint = rvtssm.load(name).checkpoint
    assert checkpoint.note == "trained on simulated events only"
    assert set(checkpoint.spec.class_names) == {"person", "vehicle", "two-wheeler"}
    state = checkpoint.detector.state_dict()
    assert all(torch.isfinite(tensor).all() for tensor in state.values() if tensor.is_floating_point())


# means


save_mean = runpy.run_path(str(Path(__file__).parents[2] / "scripts/mean_weights.py"))["main"]


def test_the_mean_of_three_checkpoints(live_checkpoint, tmp_path, capsys):
    checkpoint, files = live_checkpoint(), [tmp_path / f"{number}.ckpt" for number in range(3)]
    state = {name: value.clone() for name, value in checkpoint.detector.state_dict().items()}
    checkpoint.window_lengths_us = (5_000, 50_000)
    for file, offset in zip(files, (-1, 0, 4), strict=True):
        moved = {name: value + offset if value.is_floating_point() else value for name, value in state.items()}
        checkpoint.detector.load_state_dict(moved)
        write_checkpoint(file, checkpoint.detector, checkpoint)
    save_mean([str(tmp_path / "mean.ckpt"), *map(str, files)])
    assert read_checkpoint(tmp_path / "mean.ckpt").may_shrink_windows
    before = files[0].read_bytes()
    with pytest.raises(SystemExit):  # as without a target, where the first source would be lost
        save_mean(list(map(str, files)))
    assert "0.ckpt exists already" in capsys.readouterr().err
    assert files[0].read_bytes() == before
    (tmp_path / "mean.ckpt").unlink()
    save_mean([str(tmp_path / "mean.ckpt"), *map(str, files), "--slide"])
    assert not read_checkpoint(tmp_path / "mean.ckpt").may_shrink_windows
    mean = read_checkpoint(tmp_path / "mean.ckpt").detector.state_dict()
    for name, value in state.items():
        torch.testing.assert_close(mean[name], value + 1 if value.is_floating_point() else value)
    checkpoint.spec = replace(checkpoint.spec, class_names=("bus", *checkpoint.spec.class_names[1:]))
    write_checkpoint(files[2], checkpoint.detector, checkpoint)
    with pytest.raises(SystemExit):
        save_mean([str(tmp_path / "other.ckpt"), *map(str, files)])
    assert "2.ckpt knows ('bus'," in capsys.readouterr().err
    with pytest.raises(SystemExit):
        save_mean([str(tmp_path / "other.ckpt"), str(tmp_path / "none.ckpt")])
    assert "none.ckpt" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        save_mean([str(files[0] / "mean.ckpt"), str(files[0])])
    assert "cannot be written" in capsys.readouterr().err


# a hub


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with hub_server() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.address)
        template = hub.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub_cache"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", "hf_test")
        yield hub


@pytest.fixture(scope="module")
def exported_weights(live_checkpoint, tmp_path_factory):
    """Weights, and the file that `rvtssm export` wrote of them."""
    weights, path = live_checkpoint(), tmp_path_factory.mktemp("weights") / "model.safetensors"
    weights.raw_dir = "/home/someone/data"
    write_weights(weights, path, "float32")
    return weights, path


@pytest.fixture
def shared(hub, exported_weights):
    """The address of the weights, and the weights."""
    weights, path = exported_weights
    hub.files["someone/street-tiny"] = {"model.safetensors": path.read_bytes()}
    return "hf://someone/street-tiny", weights


def test_weights_come_back_as_they_went(hub, shared, printed_by):
    address, weights = shared
    loaded = rvtssm.load(address)
    stored = weights.detector.state_dict()
    assert all(torch.equal(value, stored[name]) for name, value in loaded.checkpoint.detector.state_dict().items())
    assert loaded.checkpoint.windows == weights.windows and weights.raw_dir == "/home/someone/data"
    num_downloads = hub.num_downloads
    assert rvtssm.load(f"{address}@main/model.safetensors").class_names == loaded.class_names
    assert json.loads(printed_by("info", f"checkpoint={address}", "--json"))["classes"] == ["car", "pedestrian"]
    assert hub.num_downloads == num_downloads == 1  # then from the cache
    assert read_source(address).model == weights.model_config  # training.init_from


def test_no_folder_of_this_machine_is_in_the_file(exported_weights):
    _, path = exported_weights
    with safe_open(path, "pt") as content:
        described = json.loads(content.metadata()["rvtssm"])
    assert described["raw_dir"] is None and b"/home/" not in path.read_bytes()


def test_labels_and_evaluations_take_the_address(hub, shared, tmp_path, refused):
    address, _ = shared
    config = compose([f"checkpoint={address}", f"dataset.raw_dir={tmp_path}"], "label")
    (tmp_path / "out").mkdir()
    _check_settings(tmp_path / "out", config)
    local = hashlib.sha256(Path(local_weights(address)).read_bytes()).hexdigest()
    assert json.loads((tmp_path / "out/label.json").read_text())["weights_file"] == local
    assert "there is no checkpoint at missing.ckpt" in refused("evaluate", f"checkpoints=[{address},missing.ckpt]")


@pytest.mark.parametrize(
    ("address", "key"),
    [
        ("hf://someone/nothing", "file.damaged"),
        ("hf://someone/street-tiny/model.ckpt", "remote.address"),
        ("hf://../etc/passwd.safetensors/../x", "remote.address"),
    ],
)
def test_what_is_not_there_is_one_line_and_exit_code_2(hub, shared, address, key, refused):
    with raises(key):
        local_weights(address)
    assert refused("info", f"checkpoint={address}").startswith("rvtssm info: ")


def test_without_the_library_a_line_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with raises("install.extra", "hub"):
        local_weights("hf://someone/x")
    assert local_weights("best.ckpt") == "best.ckpt"
