"""The scripts run their verbs, and the package is installed again only after a change or an interruption."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
VERBS = {
    "scripts/train.py": "train",
    "scripts/evaluate.py": "evaluate",
    "scripts/predict.py": "predict",
    "data_prep/preprocess.py": "preprocess",
}

# stands for .venv/bin/python: notes what is installed, hands everything else to a real interpreter
STAND_IN = f"""#!/bin/sh
case "$*" in
    "-m pip --version") exit 0 ;;
    "-m pip install"* | "-m uv pip install"*) echo "$*" >>installed.txt; exit ${{PIP_FAILS:-0}} ;;
    *) exec "{sys.executable}" "$@" ;;
esac
"""


@pytest.mark.parametrize("script", VERBS)
def test_a_script_runs_its_verb(script, monkeypatch):
    calls = []
    monkeypatch.setattr("rvtssm.commands.cli.main", lambda argv: calls.append(argv) or 3)
    monkeypatch.setattr(sys, "argv", [script, "dataset=gen1", "--config"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / script), run_name="__main__")
    assert calls == [[VERBS[script], "dataset=gen1", "--config"]]
    assert ended.value.code == 3


SHELL_SCRIPTS = [*(str(path.relative_to(ROOT)) for path in sorted((ROOT / "scripts").glob("*.sh"))), ".ci/run"]


@pytest.mark.parametrize("path", SHELL_SCRIPTS)
def test_a_script_is_valid_bash(path):
    subprocess.run(["bash", "-n", str(ROOT / path)], check=True)


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A checkout with what installing reads, and an environment whose installer only takes notes."""
    for name in ("pyproject.toml", "constraints.txt", "scripts/install.sh"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(STAND_IN)
    python.chmod(0o755)
    return tmp_path


def install(checkout: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(checkout / "scripts" / "install.sh")]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)


def num_installs(checkout: Path) -> int:
    notes = checkout / "installed.txt"
    return len(notes.read_text().splitlines()) if notes.exists() else 0


def test_a_second_run_does_not_install_again(checkout):
    assert install(checkout).returncode == 0
    assert (checkout / "installed.txt").read_text().strip().endswith("-c constraints.txt -e .[dev]")
    assert install(checkout).returncode == 0
    assert num_installs(checkout) == 1


def test_pytorch_for_the_cpu_only(checkout):
    """The installer of that choice comes first. The choice changes an environment, and a later run keeps it."""
    assert install(checkout).returncode == 0
    assert install(checkout, RVTSSM_TORCH="cpu").returncode == 0
    assert install(checkout).returncode == 0
    _, first, second = (checkout / "installed.txt").read_text().splitlines()
    assert first.startswith("-m pip install ") and first.endswith(" uv")
    assert "--torch-backend=cpu --reinstall-package torch " in second
    assert second.endswith("-c constraints.txt -e .[dev]")
    with (checkout / "constraints.txt").open("a") as file:
        file.write("# changed\n")
    assert install(checkout).returncode == 0
    assert "--torch-backend=cpu" in (checkout / "installed.txt").read_text().splitlines()[-1]


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_a_change_of_what_is_wanted_installs_again(checkout, name):
    install(checkout)
    with (checkout / name).open("a") as file:
        file.write("# changed\n")
    install(checkout)
    install(checkout)
    assert num_installs(checkout) == 2


def test_an_install_that_failed_is_done_again(checkout):
    assert install(checkout, PIP_FAILS="1").returncode != 0
    assert install(checkout).returncode == 0
    assert num_installs(checkout) == 2


def test_a_failed_update_does_not_leave_the_old_install_looking_complete(checkout):
    install(checkout)
    unchanged = (checkout / "constraints.txt").read_text()
    (checkout / "constraints.txt").write_text(unchanged + "# changed\n")
    install(checkout, PIP_FAILS="1")
    (checkout / "constraints.txt").write_text(unchanged)
    install(checkout)
    assert num_installs(checkout) == 3


def test_a_checkout_that_was_moved_installs_again(checkout):
    install(checkout)
    moved = checkout.rename(checkout.with_name("moved"))
    install(moved)
    assert num_installs(moved) == 2


def test_a_machine_without_a_new_python_is_told_so(checkout, tmp_path):
    shutil.rmtree(checkout / ".venv")
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("bash", "dirname"):
        (tools / tool).symlink_to(shutil.which(tool))
    old = tools / "python3"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.9.1" && exit 0\nexit 1\n')
    old.chmod(0o755)
    done = install(checkout, PATH=str(tools))
    assert done.returncode != 0
    assert "no Python of version 3.11 or newer" in done.stderr
    assert "Python 3.9.1" in done.stderr
    assert not (checkout / ".venv").exists()
