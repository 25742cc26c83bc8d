"""Compiled loops are kept somewhere even if neither the package nor the home can be written."""

import os
import subprocess
import sys

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
