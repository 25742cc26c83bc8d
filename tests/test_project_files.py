"""Versions that stand in two places agree, and a tag that is not the version is refused."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import rvtssm
from rvtssm.models.weight_files import FOLDER

ROOT = Path(__file__).parents[1]


def test_versions_agree():
    assert str(yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"]) == rvtssm.__version__
    sections = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert rvtssm.__version__ in sections[:2]


def test_a_tag_that_is_not_the_version_is_not_built(tmp_path):
    for name in ("scripts", "rvtssm", ".venv/bin"):
        (tmp_path / name).mkdir(parents=True)
    nothing_to_install = 'cd "$(dirname "${BASH_SOURCE[0]}")/.."\ninstall_package() { :; }\n'
    (tmp_path / "scripts/install.sh").write_text(nothing_to_install)
    (tmp_path / "rvtssm/__init__.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    (tmp_path / "scripts/build.sh").write_text((ROOT / "scripts/build.sh").read_text())
    command = ["bash", "scripts/build.sh", "v1.2.4"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env={}, check=False)
    assert done.returncode == 2 and "v1.2.4" in done.stderr and "tag it v1.2.3" in done.stderr


# ways to install


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# where conda-forge has another name
NAMES = {"torch": "pytorch", "opencv-python-headless": "py-opencv", "matplotlib": "matplotlib-base"}


def test_the_recipe_for_conda_needs_what_the_package_needs():
    recipe = yaml.safe_load((ROOT / "conda/recipe.yaml").read_text())
    needed = {f"python {PROJECT['requires-python']}"}
    for line in PROJECT["dependencies"]:
        requirement = Requirement(line)
        needed.add(f"{NAMES.get(requirement.name, requirement.name)} {requirement.specifier}")
    assert set(recipe["requirements"]["run"]) == needed
    assert recipe["context"]["version"] == rvtssm.__version__
    assert recipe["build"]["python"]["entry_points"] == [f"rvtssm = {PROJECT['scripts']['rvtssm']}"]
    assert "hatchling" in recipe["requirements"]["host"] and (ROOT / recipe["about"]["license_file"]).is_file()
    assert recipe["about"]["summary"] == PROJECT["description"]


# what is packed


def configs_under(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*.yaml")}


def build_wheel(project: Path, built: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(built)]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr
    (file,) = built.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel built from the checkout, unpacked."""
    file = build_wheel(ROOT, tmp_path_factory.mktemp("built"))
    unpacked = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(file) as archive:
        archive.extractall(unpacked)
    return unpacked


def test_the_wheel_carries_the_configs_of_the_checkout(wheel):
    configs = configs_under(ROOT / "configs")
    assert "config.yaml" in configs
    assert configs_under(wheel / "rvtssm" / "configs") == configs


def test_the_wheel_carries_every_module_and_nothing_beside_the_package(wheel):
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "rvtssm").rglob("*.py")}
    assert {path.relative_to(wheel).as_posix() for path in wheel.rglob("*.py")} == modules
    assert {path.name for path in wheel.iterdir() if not path.name.endswith(".dist-info")} == {"rvtssm"}


def test_the_wheel_carries_the_templates_of_pages(wheel):
    templates = {path.relative_to(ROOT).as_posix() for path in (ROOT / "rvtssm").glob("**/templates/*")}
    assert {path.relative_to(wheel).as_posix() for path in wheel.glob("rvtssm/**/templates/*")} == templates
    assert "rvtssm/evaluation/templates/page.html" in templates


def test_the_wheel_carries_the_weights_of_the_checkout(wheel, tmp_path):
    weights = {path.name for path in FOLDER.glob("*")}
    assert {path.name for path in wheel.glob("rvtssm/weights/*")} == weights
    assert sum(path.stat().st_size for path in wheel.glob("rvtssm/weights/*")) <= 12e6
    project = tmp_path / "project"  # in which weights are certain to lie
    (project / "rvtssm/weights").mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore", "rvtssm/__init__.py"):
        shutil.copy(ROOT / name, project / name)
    shutil.copytree(ROOT / "configs", project / "configs")
    (project / "rvtssm/weights/some.safetensors").write_bytes(b"weights")
    with zipfile.ZipFile(build_wheel(project, tmp_path / "built")) as archive:
        assert archive.read("rvtssm/weights/some.safetensors") == b"weights"


def test_the_wheel_brings_the_command(wheel):
    (entry_points,) = wheel.glob("*.dist-info/entry_points.txt")
    assert "rvtssm = rvtssm.cli.main:main" in entry_points.read_text()


def test_the_configs_are_found_in_the_wheel(wheel, monkeypatch):
    spec = spec_from_file_location("files_of_the_wheel", wheel / "rvtssm" / "system" / "files.py")
    installed = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, installed)  # as dataclasses need
    spec.loader.exec_module(installed)
    assert installed.configs_dir() == (wheel / "rvtssm" / "configs").resolve()


def test_every_dependency_is_pinned_to_a_version_that_is_allowed():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    pins = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pins.items()}
    assert pins["torch"].startswith("2.15")
    extras = [line for extra in PROJECT["optional-dependencies"].values() for line in extra]
    for line in [*PROJECT["dependencies"], *extras]:
        requirement = Requirement(line)
        if requirement.name == "rvtssm":  # one extra takes in others
            continue
        assert pins[requirement.name] in requirement.specifier, line
