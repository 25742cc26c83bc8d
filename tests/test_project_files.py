"""Workflows, hooks and templates name what exists, and versions that stand in two places agree."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import rvtssm

ROOT = Path(__file__).parents[1]
YAML_FILES = [*sorted((ROOT / ".github").rglob("*.yml")), ROOT / ".pre-commit-config.yaml", ROOT / "CITATION.cff"]
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in sorted((ROOT / ".github/workflows").glob("*.yml"))}


def strings(node: object) -> list[str]:
    """Every text in a tree of YAML."""
    if isinstance(node, dict | list):
        return [text for item in (node.values() if isinstance(node, dict) else node) for text in strings(item)]
    return [node] if isinstance(node, str) else []


@pytest.mark.parametrize("path", YAML_FILES, ids=lambda path: path.name)
def test_a_file_of_the_project_is_yaml(path):
    assert isinstance(yaml.safe_load(path.read_text()), dict)


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_runs_scripts_that_exist_and_may_do_no_more_than_it_needs(name):
    workflow = WORKFLOWS[name]
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    runs = [step["run"] for step in steps if "run" in step]
    assert runs and all(re.fullmatch(r'bash [\w./]+( "\$\w+")?', run) for run in runs), "a step runs one script"
    assert [run for run in runs if not (ROOT / run.split()[1]).is_file()] == []
    paths = [step.get("with", {}).get("cache-dependency-path") for step in steps]
    assert [path for path in paths if path and not (ROOT / path).is_file()] == []
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[\w./]+", step["uses"]) for step in steps if "uses" in step)
    assert workflow["permissions"] == {"contents": "read"}


def test_the_suite_runs_on_every_version_that_is_supported():
    matrix = WORKFLOWS["tests"]["jobs"]["suite"]["strategy"]["matrix"]
    assert matrix["python"] == ["3.11", "3.12", "3.13", "3.14"] and len(matrix["os"]) == 2
    assert 'requires-python = ">=3.11"' in (ROOT / "pyproject.toml").read_text()


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


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "SECURITY.md", ".github/pull_request_template.md"])
def test_files_that_a_page_names_exist(page):
    named = re.findall(r"`((?:\.?[\w-]+/)+[\w.-]+\.\w+|[A-Z]+\.\w+)`", (ROOT / page).read_text())
    named += re.findall(r"bash (scripts/\w+\.sh)", (ROOT / page).read_text())
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []
