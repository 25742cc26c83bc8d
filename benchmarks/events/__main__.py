"""Runs the measurements of this folder: `python -m benchmarks.events --json FILE [--only decoding,histogram,...]`."""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import time
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.measuring import some_of, take_turns, write_json
from rvtssm.evaluation.render import TerminalTable
from rvtssm.system.files import commit, processor
from rvtssm.system.machine import num_usable_cores

PARTS = ("decoding", "histogram", "preparation", "loading")  # modules here, each with rows() -> list of dicts
PACKAGES = ("numpy", "numba", "h5py", "hdf5plugin", "zstandard", "torch")
_COPY_BYTES = 1 << 28
_EXTENSIONS = {"avx2": "AVX2", "avx512f": "AVX-512", "amx_tile": "AMX"}  # by their flags in Linux
_TABLE_WIDTH = 200


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.events", description=__doc__)
    parser.add_argument("--json", type=Path, required=True, help="file for the rows and the facts about the machine")
    parser.add_argument("--only", type=some_of(PARTS), default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    arguments = parser.parse_args()
    console = Console()
    console.width = max(console.width, _TABLE_WIDTH)  # a table that is folded cannot be read, nor copied
    machine = facts()
    console.print(", ".join(f"{key}: {value}" for key, value in machine.items()), highlight=False)
    result: dict[str, Any] = {"machine": machine, "rows": {}}
    for part in arguments.only:
        began = time.perf_counter()
        rows = importlib.import_module(f"benchmarks.events.{part}").rows()
        result["rows"][part] = rows
        console.print(table(f"{part} ({time.perf_counter() - began:.0f} s)", rows))
        write_json(arguments.json, result)  # after every part: the rest may be interrupted


def facts() -> dict[str, Any]:
    """Return what the numbers depend on besides the code."""
    return {
        "cpu": processor(),
        "cores": num_usable_cores(),
        "threads": os.environ.get("OMP_NUM_THREADS", "not set"),
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
        "copy_gb_per_s": round(copy_bandwidth() / 1e9, 1),
        "load": round(os.getloadavg()[0], 1),
        "commit": commit() or "unknown",
    }


def cpu_extensions() -> list[str]:
    """Return which wide instructions the processor has, of AVX2, AVX-512 and AMX; none where this is unknown."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    return [name for flag, name in _EXTENSIONS.items() if flag in flags]


def copy_bandwidth() -> float:
    """Return the bytes read and written per second by one thread that copies memory."""
    source, target = np.ones(_COPY_BYTES, np.uint8), np.ones(_COPY_BYTES, np.uint8)
    return 2 * _COPY_BYTES / median(take_turns({"copy": lambda: np.copyto(target, source)}, 5)["copy"])


def table(title: str, rows: list[dict[str, Any]]) -> TerminalTable:
    """Return a table with one column per key, in the order of the rows."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    cells = [keys]
    for row in rows:
        cells.append([_shown(row.get(key)) for key in keys])
    return TerminalTable(title, cells)


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.3e}"
    return str(value)


if __name__ == "__main__":
    main()
