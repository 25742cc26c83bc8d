"""The ways to install agree with pyproject.toml: the recipe for conda, the image, and the lowest versions."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import rvtssm

ROOT = Path(__file__).parents[1]
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


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile, lines that are continued joined."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [tuple(line.split(maxsplit=1)) for line in lines]


def test_the_image_is_made_by_the_scripts():
    found = instructions()
    runs = [what for name, what in found if name == "RUN" and "apt-get" not in what]
    assert runs == ["bash scripts/install.sh dev", "bash scripts/test.sh"]
    copied = [word for name, what in found if name == "COPY" for word in what.split()[:-1]]
    assert [path for path in copied if not (ROOT / path).exists()] == []
    before = found[: found.index(("RUN", runs[0]))]
    installed = {word for name, what in before if name == "COPY" for word in what.split()[:-1]}
    read = {"pyproject.toml", "constraints.txt", "README.md", "LICENSE", "configs", "rvtssm/__init__.py"}
    assert installed == {*read, "scripts/install.sh"}


def test_both_images_that_the_pages_build_have_their_arguments():
    """An argument before FROM holds for FROM only, and one that the installer reads stands after it."""
    found = instructions()
    start = next(number for number, (name, _) in enumerate(found) if name == "FROM")
    known = {what.split("=")[0]: number > start for number, (name, what) in enumerate(found) if name == "ARG"}
    assert known == {"BASE": False, "RVTSSM_TORCH": True} and found[start][1] == "$BASE"
    assert "RVTSSM_TORCH" in (ROOT / "scripts/install.sh").read_text()
    for page in ("Dockerfile", "docs/index.md"):
        builds = re.findall(r"docker build .*", (ROOT / page).read_text())
        assert len(builds) == 2
        assert {name for build in builds for name in re.findall(r"--build-arg (\w+)=", build)} == set(known)


@pytest.mark.parametrize("line", [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["export"]])
def test_the_lowest_version_is_named(line):
    """Otherwise scripts/test_lowest.sh takes the first version that there ever was."""
    assert [part.operator for part in Requirement(line).specifier] == [">="]
