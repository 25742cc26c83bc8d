"""Whoever runs a command or calls the package for the first time is told why it waits."""

import os
import subprocess
import sys

import numba
import pytest
from numba.core import event

from rvtssm.system.jit import Compilations


@pytest.fixture
def compilations():
    listener = Compilations()
    event.register("numba:compile", listener)
    yield listener
    event.unregister("numba:compile", listener)


def ours(function):
    function.__module__ = "rvtssm.example"
    return numba.njit(function)


def test_a_person_at_a_terminal_is_told_once(compilations, capsys, monkeypatch):
    numba.njit(lambda x: x + 3)(1)  # not ours
    assert not compilations.is_told
    ours(lambda x: x + 1)(1)
    assert capsys.readouterr().err == ""  # no terminal
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    compilations.is_told = False
    for number in (1, 1.5):
        ours(lambda x: x + 2)(number)
    line = "rvtssm: compiling loops for this machine; this happens once, and takes seconds"
    assert capsys.readouterr().err.splitlines().count(line) == 1


# where compiled code is kept


PROGRAM = """
from rvtssm.system.jit import jit
namespace = {"__name__": "rvtssm"}
exec(compile("def add(a, b): return a + b", "/proc/self/status", "exec"), namespace)
print(jit(namespace["add"])(1, 2))
"""


def test_compiled_code_goes_to_a_temporary_folder_if_nothing_else_can_be_written(tmp_path):
    nowhere = {"HOME": "/dev/null/home", "XDG_CACHE_HOME": "/dev/null/cache", "TMPDIR": str(tmp_path)}
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"} | nowhere
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    (folder,) = tmp_path.glob("rvtssm-compiled-*")
    assert done.stdout == "3\n" and done.stderr.count("\n") == 1 and str(folder) in done.stderr
    assert any(folder.rglob("*.nbi"))
