"""The ways to install agree with pyproject.toml: the recipe for conda, the image, and the lowest versions."""

import tomllib
from pathlib import Path

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
