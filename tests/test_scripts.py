"""The scripts run their verbs, and the package is installed again only after a change or an interruption."""

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
    "-m pip --version" | "-m compileall"*) exit 0 ;;
    "-m pip config list") echo "$PIP_CONFIG_LIST" ;;
    "-m pip install"*) echo "$*" >>fetched.txt ;;
    "-m uv pip install"*" --dry-run "*) echo "$UV_DRY_RUN"; [ -z "$UV_DRY_RUN" ] ;;
    "-m uv pip install"*) echo "$UV_DEFAULT_INDEX $*" >>installed.txt; exit ${{UV_FAILS:-0}} ;;
    *) exec "{sys.executable}" "$@" ;;
esac
"""


def test_a_notebook_that_does_not_exist_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["notebook_pages.py", "first_vide"])
    with pytest.raises(SystemExit, match=r"there is no example first_vide; choose from .*first_video"):
        runpy.run_path(str(ROOT / "scripts/notebook_pages.py"), run_name="__main__")


@pytest.mark.parametrize("script", VERBS)
def test_a_script_runs_its_verb(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / script), run_name="__main__")
    assert ended.value.code == 0 and f"Example: rvtssm {VERBS[script]}" in capsys.readouterr().out


def test_the_scripts_are_valid_bash():
    for path in (ROOT / "scripts").glob("*.sh"):
        subprocess.run(["bash", "-n", str(path)], check=True)


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


def install(checkout: Path, *extras: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(checkout / "scripts" / "install.sh"), *extras]
    unset = {"UV_DEFAULT_INDEX": "", "UV_INDEX_URL": "", "RVTSSM_TORCH": ""}
    whole = {**os.environ, **unset, **environment}
    return subprocess.run(command, env=whole, capture_output=True, text=True, check=False)


def installs(checkout: Path) -> list[str]:
    notes = checkout / "installed.txt"
    return notes.read_text().splitlines() if notes.exists() else []


def test_an_installation_is_fast_pinned_and_says_what_comes_next(checkout):
    done = install(checkout)
    assert done.stdout.endswith("activate with `source .venv/bin/activate`, then try `rvtssm doctor`\n")
    (line,) = installs(checkout)
    assert "--compile-bytecode" in line and line.endswith(" -c constraints.txt -e .")  # by uv, which pip fetched
    assert (checkout / "fetched.txt").read_text().endswith(" uv\n")


CHANGE = "change "  # a file, before the run
FAILS = {"UV_FAILS": "1"}
# Runs in their order, each with the words and variables of the call, and what is installed in them all.
RUNS = {
    "a second run does nothing": ([((), {}), ((), {})], ["."]),
    # the tests need more than the demo, and the demo after the tests needs nothing
    "extras are added and kept": (
        [((), {}), (("dev",), {}), ((), {}), (("export", "dev"), {}), (("dev",), {})],
        [".", ".[dev]", ".[dev,export]"],
    ),
    "extras stay after a change": ([(("dev",), {}), ((CHANGE + "constraints.txt",), {})], [".[dev]", ".[dev]"]),
    "an extra that failed is not kept": ([(("web",), FAILS), ((), {})], [".[web]", "."]),
    "another project": ([((), {}), ((CHANGE + "pyproject.toml",), {}), ((), {})], [".", "."]),
    "other constraints": ([((), {}), ((CHANGE + "constraints.txt",), {}), ((), {})], [".", "."]),
    "a run that failed is done again": ([((), FAILS), ((), {})], [".", "."]),
    # also if the change that failed is taken back
    "a failed update does not look complete": (
        [((), {}), ((CHANGE + "constraints.txt",), FAILS), (("restore constraints.txt",), {})],
        [".", ".", "."],
    ),
}


@pytest.mark.parametrize("case", RUNS)
def test_what_is_there_is_not_installed_again(checkout, case):
    runs, wanted = RUNS[case]
    before = (checkout / "constraints.txt").read_text()
    for words, environment in runs:
        extras = [word for word in words if " " not in word]
        for word in words:
            if word.startswith(CHANGE):
                with (checkout / word.removeprefix(CHANGE)).open("a") as file:
                    file.write("# changed\n")
            elif word.startswith("restore"):
                (checkout / "constraints.txt").write_text(before)
        done = install(checkout, *extras, **environment)
        assert (done.returncode == 0, "install: done" in done.stdout) == 2 * (not environment,), done.stderr
    assert [line.rpartition(" ")[2] for line in installs(checkout)] == wanted


def test_a_checkout_that_was_moved_installs_again(checkout):
    install(checkout)
    moved = checkout.rename(checkout.with_name("moved"))
    install(moved)
    assert len(installs(moved)) == 2


def test_the_choice_of_pytorch(checkout):
    """It is made for the machine unless it is named. Another choice changes an environment, and later runs keep it."""
    for chosen in ({}, {"RVTSSM_TORCH": "cpu"}, {}):
        assert install(checkout, **chosen).returncode == 0
    first, second = installs(checkout)
    assert "--torch-backend=auto " in first and "--torch-backend=cpu --reinstall-package torch " in second
    assert install(checkout, "dev").returncode == 0
    assert "--torch-backend=cpu " in installs(checkout)[-1] and "--reinstall" not in installs(checkout)[-1]


@pytest.mark.parametrize("choice", ["", "cpu"])
def test_where_the_index_of_pytorch_cannot_be_reached_the_ordinary_one_serves(checkout, choice):
    done = install(checkout, RVTSSM_TORCH=choice, UV_DRY_RUN="error: Failed to fetch: https://pytorch.example/torch/")
    assert done.returncode == 0
    assert "torch" not in installs(checkout)[0]
    assert f"PyTorch's own index cannot be reached (RVTSSM_TORCH={choice or 'auto'}), so" in done.stderr


def test_the_registry_of_pip_is_that_of_uv(checkout):
    """uv does not read the settings of pip; its own come first."""
    settings = "global.cert='a.crt'\nglobal.index-url='https://mirror.example/simple'"
    assert install(checkout, PIP_CONFIG_LIST=settings).returncode == 0
    assert install(checkout, "web", PIP_CONFIG_LIST=settings, UV_DEFAULT_INDEX="https://own.example").returncode == 0
    assert [line.split(" ")[0] for line in installs(checkout)] == [
        "https://mirror.example/simple",
        "https://own.example",
    ]


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
