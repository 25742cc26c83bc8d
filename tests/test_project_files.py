"""Versions that stand in two places agree, and a tag that is not the version is refused."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement

import rvtssm

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
