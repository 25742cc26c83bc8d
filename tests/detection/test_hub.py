"""Weights go to a hub and come back the same; everything else is one line. The hub is a stand-in on this machine."""

import hashlib
import json
import sys
from pathlib import Path

import pytest
import torch
from hub_server import hub_server
from huggingface_hub import constants
from safetensors import safe_open
from user_errors import raises

import rvtssm
from rvtssm.cli.main import compose, main
from rvtssm.contrib.labeling.label import _check_settings
from rvtssm.detection.predictor import Predictor
from rvtssm.models.transfer import read_source
from rvtssm.models.weights import local_weights


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


@pytest.fixture
def shared(hub, live_checkpoint):
    """The address of weights that were pushed, and the weights."""
    weights = live_checkpoint()
    weights.raw_dir = "/home/someone/data"
    return Predictor(weights).push_to_hub("someone/street-tiny", private=True), weights


def test_weights_come_back_as_they_went(hub, shared, capsys):
    address, weights = shared
    assert address == "hf://someone/street-tiny" and hub.private == {"someone/street-tiny": True}
    assert set(hub.files["someone/street-tiny"]) >= {"model.safetensors", "README.md"}
    found = rvtssm.load(address)
    wanted = weights.detector.state_dict()
    assert all(torch.equal(value, wanted[name]) for name, value in found.checkpoint.detector.state_dict().items())
    assert found.checkpoint.windows == weights.windows and weights.raw_dir == "/home/someone/data"
    num_downloads = hub.num_downloads
    assert rvtssm.load(f"{address}@main/model.safetensors").class_names == found.class_names
    assert main(["info", f"checkpoint={address}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["classes"] == ["car", "pedestrian"]
    assert hub.num_downloads == num_downloads == 1  # then from the cache
    assert read_source(address).model == weights.model_config  # training.init_from


def test_nothing_private_is_shared_and_the_card_says_what_there_is(hub, shared, tmp_path):
    files = hub.files["someone/street-tiny"]
    (tmp_path / "a.safetensors").write_bytes(files["model.safetensors"])
    with safe_open(tmp_path / "a.safetensors", "pt") as content:
        described = json.loads(content.metadata()["rvtssm"])
    assert described["raw_dir"] is None and b"/home/" not in b"".join(files.values())
    card = files["README.md"].decode()
    assert card.startswith("---\nlibrary_name: rvtssm\npipeline_tag: object-detection\n")
    for words in (
        "| classes | car, pedestrian |",
        'rvtssm.load("hf://someone/street-tiny")',
        "| rate of the training |",
    ):
        assert words in card


def test_labels_and_evaluations_take_the_address(hub, shared, tmp_path, capsys):
    address, _ = shared
    config = compose([f"checkpoint={address}", f"dataset.raw_dir={tmp_path}"], "label")
    (tmp_path / "out").mkdir()
    _check_settings(tmp_path / "out", config)
    local = hashlib.sha256(Path(local_weights(address)).read_bytes()).hexdigest()
    assert json.loads((tmp_path / "out/label.json").read_text())["weights_file"] == local
    assert main(["evaluate", f"checkpoints=[{address},missing.ckpt]"]) == 2
    assert "there is no checkpoint at missing.ckpt" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("address", "key"),
    [
        ("hf://someone/nothing", "files.content"),
        ("hf://someone/street-tiny/other.safetensors", "files.content"),
        ("hf://someone/street-tiny/model.ckpt", "hub.address"),
        ("hf://someone", "hub.address"),
        ("hf://../etc/passwd.safetensors/../x", "hub.address"),
    ],
)
def test_what_is_not_there_is_one_line_and_exit_code_2(hub, shared, address, key, capsys):
    with raises(key):
        local_weights(address)
    assert main(["info", f"checkpoint={address}"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_an_upload_that_fails_is_one_line(hub, live_checkpoint, monkeypatch):
    predictor = Predictor(live_checkpoint())
    with raises("hub.repository"):
        predictor.push_to_hub("street")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with raises("files.content", "someone/x") as error:
        predictor.push_to_hub("someone/x")
    assert len(str(error.value).splitlines()) == 1 and not hub.files


def test_a_repository_that_exists_keeps_its_card_and_is_not_private_by_wish(hub, live_checkpoint):
    predictor = Predictor(live_checkpoint())
    hub.files["someone/x"] = {"README.md": b"mine"}
    with raises("hub.is_public"):
        predictor.push_to_hub("someone/x", private=True)
    assert set(hub.files["someone/x"]) == {"README.md"}
    predictor.push_to_hub("someone/x")
    assert hub.files["someone/x"]["README.md"] == b"mine" and "model.safetensors" in hub.files["someone/x"]


def test_without_the_library_a_line_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with raises("extras.missing", "hub"):
        local_weights("hf://someone/x")
    assert local_weights("best.ckpt") == "best.ckpt"
