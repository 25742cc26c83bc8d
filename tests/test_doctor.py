"""`rvtssm doctor` finds what is broken, says so in one line, and never falls over it."""

from __future__ import annotations

import importlib
import importlib.metadata
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from rvtssm.run import installation as doctor

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def checks(folder) -> dict[str, doctor.Check]:
    return {check.name: check for check in doctor.examine(folder)}


def test_a_working_installation_passes_every_check(checks):
    assert {name: check.detail for name, check in checks.items() if not check.ok} == {}


def test_every_declared_dependency_is_examined(checks):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for line in project["dependencies"]:
        name = Requirement(line).name
        assert checks[name].detail == importlib.metadata.version(name)


def test_what_a_run_needs_is_examined(checks):
    assert {"python", "gpu", "HDF5 filters", "event kernels", "write access", "video", "forward pass"} <= checks.keys()


def test_nothing_is_left_where_a_run_would_write(checks, folder):
    assert checks["write access"].ok
    assert list(folder.iterdir()) == []


def test_every_answer_is_one_line(checks):
    assert all(check.detail and "\n" not in check.detail for check in checks.values())


def test_a_check_that_fails_names_what_is_wrong_and_does_not_raise(tmp_path):
    check = doctor._check("write access", lambda: doctor._write_access(tmp_path / "missing"))
    assert not check.ok
    assert "missing" in check.detail


def test_a_package_that_does_not_import_fails_its_own_check_only(monkeypatch):
    whole = importlib.import_module

    def without_timm(name):
        if name == "timm":
            raise OSError("libsomething.so: cannot open shared object file\nsecond line")
        return whole(name)

    monkeypatch.setattr(importlib, "import_module", without_timm)
    broken = [check for check in doctor._packages() if not check.ok]
    assert [check.name for check in broken] == ["timm"]
    assert broken[0].detail == "OSError: libsomething.so: cannot open shared object file second line"


def test_a_version_that_is_too_old_is_reported_with_the_one_needed(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.0.1")
    with pytest.raises(RuntimeError, match=r"found 0\.0\.1, needed is >=2\.11"):
        doctor._package(Requirement("torch>=2.11"))


def test_a_package_that_is_not_installed_says_how_to_install_it(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", missing)
    (check,) = doctor._packages()
    assert not check.ok
    assert "scripts/install.sh" in check.detail
