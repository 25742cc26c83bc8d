"""Whoever lacks an optional package is told its name and the extra that brings it, for every extra there is."""

import re
import tomllib
from pathlib import Path

import pytest

from rvtssm.cli import main as cli
from rvtssm.cli.sweeps import _PLUGINS
from rvtssm.system import extras

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
FOR_DEVELOPERS = {"dev", "docs"}


def test_each_extra_has_a_line_that_names_it():
    calls = re.compile(r'check_extra\((?:[^()]|\([^()]*\))*?, "(\w+)", ')
    named = {extra for path in (ROOT / "rvtssm").rglob("*.py") for extra in calls.findall(path.read_text())}
    assert named | {extra for extra, _ in _PLUGINS.values()} == PROJECT.keys() - FOR_DEVELOPERS


def test_the_line_names_the_package_as_it_is_installed(monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda module: None)
    with pytest.raises(ValueError, match=r"^a bag needs the package rerun-sdk; run `bash scripts/install.sh rerun`"):
        extras.check_extra("a bag", "rerun", "rerun")
    with pytest.raises(ValueError, match="ONNX needs the packages onnx, onnxscript; run"):
        extras.check_extra("ONNX", "export", "onnx", "onnxscript")


def test_a_module_below_a_package_that_is_missing_is_missing():
    assert extras.is_installed("json") and not extras.is_installed("hydra_no_plugins.hydra_joblib_launcher")


@pytest.mark.parametrize("word", _PLUGINS)
def test_a_launcher_or_sweeper_that_is_missing_names_its_extra(word, monkeypatch, capsys):
    monkeypatch.setattr(extras, "find_spec", lambda module: None)
    assert cli.main(["train", "-m", word, "seed=0,1"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"{word} needs the package hydra-" in said and f"bash scripts/install.sh {_PLUGINS[word][0]}" in said
