"""Runs a program in a process that has imported other packages, and imports this one again."""

import os
import sys
from pathlib import Path


def run(program: str, folder: Path, printed: Path, encoding: str) -> None:
    """Run a program in a folder, from which this package is imported if it is there; what it prints is a file.

    The process comes from `tests/forked.py`.
    """
    import torch

    for name in [name for name in sys.modules if name.partition(".")[0] == "rvtssm"]:
        del sys.modules[name]
    for library in [library for library in torch.library._keep_alive if library.ns == "rvtssm"]:
        library._destroy()  # or its operators could not be defined again
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    with open(printed, "w", encoding=encoding) as sys.stdout:
        exec(program, {})
