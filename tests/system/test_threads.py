"""What is set for the threads of PyTorch, and that a setting of the user stays."""

import os
import subprocess
import sys

import pytest

from rvtssm.system.machine import share_processors


@pytest.mark.parametrize("given", [{}, {"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": "9"}])
@pytest.mark.parametrize("num_processors", [1, 2, 16])
def test_threads_sleep_while_they_wait_unless_the_user_says_otherwise(monkeypatch, given, num_processors):
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "cpu_count", lambda: num_processors)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    share_processors()
    assert "OMP_NUM_THREADS" not in os.environ
    share_processors(may_use_one=True)
    assert os.environ.get("OMP_WAIT_POLICY") == (given.get("OMP_WAIT_POLICY") if given else "PASSIVE")
    assert os.environ.pop("OMP_NUM_THREADS", None) == ("1" if num_processors <= 2 else None)
    os.environ.pop("OMP_WAIT_POLICY", None)


def test_it_is_too_late_once_torch_is_there(monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setitem(sys.modules, "torch", object())
    share_processors(may_use_one=True)
    assert "OMP_WAIT_POLICY" not in os.environ


@pytest.mark.parametrize("verb", ["demo", "train", "evaluate", "predict", "live", "serve"])
def test_a_verb_sets_its_threads_before_a_plugin_imports_torch(tmp_path, verb):
    plugin = tmp_path / "plugin.py"
    told = "('torch' in sys.modules, os.environ['OMP_WAIT_POLICY'], os.environ['OMP_NUM_THREADS'])"
    plugin.write_text(f"import os, sys; print(*{told}, flush=True); os._exit(0)")
    program = (
        "import os; from rvtssm.cli.main import main; os.cpu_count = lambda: 2; "
        f"main(['{verb}', 'plugins=[{plugin}]', '--config'])"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "False PASSIVE 1\n"


@pytest.mark.parametrize("use", ["rvtssm.load", "rvtssm.train", "rvtssm.evaluate", "import rvtssm.detection.engine"])
def test_in_python_threads_sleep_while_they_wait(use):
    program = f"import os, rvtssm; {use}; print(os.environ['OMP_WAIT_POLICY'], os.environ['OMP_NUM_THREADS'])"
    environment = {key: value for key, value in os.environ.items() if key not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    environment["OMP_NUM_THREADS"] = "3"
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "PASSIVE 3\n"
