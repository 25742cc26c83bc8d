"""What is set for the threads of PyTorch, and that a setting of the user stays."""

import os
import platform
import runpy
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest
from numba.core import event
from user_errors import raises

from rvtssm.cli.main import compose
from rvtssm.events.cells import frame_pixels
from rvtssm.events.frame_counter import FrameCounter
from rvtssm.records import WindowSettings
from rvtssm.system import machine
from rvtssm.system.jit import Compilations
from rvtssm.system.machine import check_memory, return_freed_memory, share_processors
from rvtssm.training.preflight import check


@pytest.mark.parametrize("given", [{}, {"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": "9"}])
@pytest.mark.parametrize("num_processors", [1, 2, 16])
def test_threads_sleep_while_they_wait_unless_the_user_says_otherwise(monkeypatch, given, num_processors):
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(machine, "num_usable_cores", lambda: num_processors)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    share_processors()
    assert "OMP_NUM_THREADS" not in os.environ
    share_processors(may_use_one=True)
    assert os.environ.get("OMP_WAIT_POLICY") == (given.get("OMP_WAIT_POLICY") if given else "PASSIVE")
    assert os.environ.pop("OMP_NUM_THREADS", None) == ("1" if num_processors <= 2 else None)
    os.environ.pop("OMP_WAIT_POLICY", None)


def test_a_verb_that_is_alone_on_the_machine_uses_all_of_it(monkeypatch):
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "")  # what is set here ends with the test
        monkeypatch.delenv(name)
    monkeypatch.setattr(machine, "num_usable_cores", lambda: 2)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    share_processors(may_use_one=True, is_alone=True)
    assert int(os.environ["GOMP_SPINCOUNT"]) > 0
    assert not {"OMP_WAIT_POLICY", "OMP_NUM_THREADS"} & {*os.environ}


def test_it_is_too_late_once_torch_is_there(monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setitem(sys.modules, "torch", object())
    share_processors(may_use_one=True)
    assert "OMP_WAIT_POLICY" not in os.environ


PROGRAM = """
import os, sys
import rvtssm
from rvtssm.cli.main import main

def tell():
    given = (os.environ.get(name, "-") for name in ("OMP_WAIT_POLICY", "OMP_NUM_THREADS"))
    print(*given, flush=True)
    os._exit(0)

class TellAtTorch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            tell()

sys.meta_path.insert(0, TellAtTorch())
os.sched_getaffinity = lambda process: {0, 1}
for use in sys.argv[1:]:
    if not os.fork():
        exec(use)
        tell()
    os.wait()
"""


def told_before_torch(uses: list[str], **variables: str) -> list[str]:
    """The variables of OpenMP when torch is imported, or else after the use, which each has a process of its own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}
    words = [sys.executable, "-c", PROGRAM, *uses]
    done = subprocess.run(words, env={**environment, **variables}, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_a_verb_sets_its_threads_before_a_plugin_imports_torch(tmp_path):
    (tmp_path / "plugin.py").write_text("import torch")
    verbs = ("train", "evaluate", "predict", "live", "serve", "demo")
    words = [[verb, f"plugins=[{tmp_path / 'plugin.py'}]", "--config"] for verb in verbs]
    assert told_before_torch([f"main({each})" for each in words]) == ["PASSIVE 1"] * 5 + ["- -"]


def test_in_python_threads_sleep_while_they_wait():
    uses = ["rvtssm.load", "rvtssm.train", "rvtssm.evaluate", "import rvtssm.detection.engine"]
    assert told_before_torch(uses, OMP_NUM_THREADS="3") == ["PASSIVE 3"] * 4


# memory


def test_only_what_is_free_is_given():
    check_memory(1 << 20, "little")
    with raises("memory.too_little"):
        check_memory(10**18, "1 exabyte")


def test_a_hundred_million_bins_are_refused_at_once():
    with raises("memory.too_little"):
        FrameCounter(WindowSettings(num_bins=100_000_000), frame_pixels(240, 304, 1))
    with raises("memory.too_little"):
        check(compose(["windows.num_bins=100000000", "model=base"]))


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library of Linux is the one that keeps memory")
def test_freed_memory_goes_back_to_the_system():
    blocks = [np.ones(1 << 13) for _ in range(2_000)]  # 128 MiB in parts that are too small to be mapped
    filled = resident_bytes()
    del blocks[:-1]
    return_freed_memory()
    assert resident_bytes() < filled - (100 << 20)


# compiled code


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


LOOP = """
from rvtssm.system.jit import jit
namespace = {"__name__": "rvtssm"}
exec(compile("def add(a, b): return a + b", "/proc/self/status", "exec"), namespace)
print(jit(namespace["add"])(1, 2))
"""


def test_compiled_code_goes_to_a_temporary_folder_if_nothing_else_can_be_written(tmp_path):
    nowhere = {"HOME": "/dev/null/home", "XDG_CACHE_HOME": "/dev/null/cache", "TMPDIR": str(tmp_path)}
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"} | nowhere
    done = subprocess.run([sys.executable, "-c", LOOP], env=environment, capture_output=True, text=True, check=True)
    (folder,) = tmp_path.glob("rvtssm-compiled-*")
    assert done.stdout == "3\n" and done.stderr.count("\n") == 1 and str(folder) in done.stderr
    assert any(folder.rglob("*.nbi"))


@pytest.mark.parametrize("kind", ["nbi", "nbc"])
@pytest.mark.parametrize("share", [0, 0.5])
def test_a_cut_file_of_compiled_code_is_compiled_again_once(tmp_path, monkeypatch, capsys, kind, share):
    """As a process finds it that starts after the disk was full, or after another was killed while it was writing."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    script = tmp_path / "loop.py"
    script.write_text("from rvtssm.system.jit import jit\n@jit\ndef add(a, b):\n    return a + b\n")

    def told() -> str:
        assert runpy.run_path(str(script))["add"](1, 2) == 3
        return capsys.readouterr().err

    told()
    (path,) = (tmp_path / "cache").rglob(f"*.{kind}")
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    assert told().count("compiled again") == 1
    assert told() == ""
