"""Weights come from a hub as they went there; every mistake is one line. The hub is a stand-in on this machine."""

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
from rvtssm.export.checked_export import write_weights
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


def test_weights_come_back_as_they_went(hub, shared, capsys):
    address, weights = shared
    loaded = rvtssm.load(address)
    stored = weights.detector.state_dict()
    assert all(torch.equal(value, stored[name]) for name, value in loaded.checkpoint.detector.state_dict().items())
    assert loaded.checkpoint.windows == weights.windows and weights.raw_dir == "/home/someone/data"
    num_downloads = hub.num_downloads
    assert rvtssm.load(f"{address}@main/model.safetensors").class_names == loaded.class_names
    assert main(["info", f"checkpoint={address}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["classes"] == ["car", "pedestrian"]
    assert hub.num_downloads == num_downloads == 1  # then from the cache
    assert read_source(address).model == weights.model_config  # training.init_from


def test_no_folder_of_this_machine_is_in_the_file(exported_weights):
    _, path = exported_weights
    with safe_open(path, "pt") as content:
        described = json.loads(content.metadata()["rvtssm"])
    assert described["raw_dir"] is None and b"/home/" not in path.read_bytes()


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
        ("hf://someone/street-tiny/model.ckpt", "hub.address"),
        ("hf://../etc/passwd.safetensors/../x", "hub.address"),
    ],
)
def test_what_is_not_there_is_one_line_and_exit_code_2(hub, shared, address, key, capsys):
    with raises(key):
        local_weights(address)
    assert main(["info", f"checkpoint={address}"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_without_the_library_a_line_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with raises("extras.missing", "hub"):
        local_weights("hf://someone/x")
    assert local_weights("best.ckpt") == "best.ckpt"
