"""What the whole detector costs on a processor, beside other forms of it and beside the limit of the processor.

    python -m benchmarks.whole --json FILE [--only live,growth,forward,training] [--threads T] [--sizes tiny,small,base]
        [--forms eager,...] [--models DIR] [--quick]

Frames of Gen1 (240 x 304), batch 1, S5, random weights and counts. `limit` is the speed of a product of matrices of
2048 x 2048 in each precision; it is always measured. `forward` is that of an evaluation over 21 steps and `training`
a whole step on 10 (forward, loss, backward, clipping, AdamW), in float32 and in bf16, beside the same detector with
the textbook form of the layer (`benchmarks.textbook`) and beside RVT, whose whole backbone with its LSTM is run step by
step (`benchmarks.training`). `live` has the forms of `benchmarks.streaming`, and the share of the limit of its
precision that a step reaches: its products by PyTorch's count over its time. All forms of a size take turns within each
round, in one process and on the same threads; a ratio is the median over rounds. As in the other benchmarks, freed
memory is kept by the process in `forward` and `training`, which come last.

`growth` varies one thing at a time, with the tiny detector in float32: lines of the frame, cameras in a batch, steps
of a training chunk, events per second, and processes. Memory is the peak above what there was before, in a process of
its own; for processes it is all they have. An exponent is the slope of a line through the logarithms, so 1 means in
proportion.

The file is written after each part.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks import streaming
from benchmarks.measuring import at_least_1, some_of, write_json
from benchmarks.scan import machine, print_bars
from benchmarks.whole.detectors import measure_limits, measure_live_steps, measure_passes, met_bars
from benchmarks.whole.growth import measure_growth
from rvtssm.evaluation.terminal_table import TerminalTable

LENGTHS = {"forward": 21, "training": 10}
_TABLE_WIDTH = 160
PARTS = ("live", "growth", *LENGTHS)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write the file if one is given."""
    options = _options(arguments)
    torch.set_num_threads(options.threads)
    console, say = Console(), Console(stderr=True).print
    console.width = max(console.width, _TABLE_WIDTH)  # a table that is folded cannot be read
    rounds, live_rounds = (1, 3) if options.quick else (5, streaming.ROUNDS)
    found: dict[str, Any] = {**machine("cpu"), "rounds": rounds, "limit": measure_limits()}
    where = f"{found['device']}, {found['threads']} threads"
    console.print("limit, GFLOP/s: " + ", ".join(f"{name} {speed:.0f}" for name, speed in found["limit"].items()))
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.models or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        measures: dict[str, Callable[[], list[dict[str, Any]]]] = {
            **{part: partial(measure_passes, part, options.sizes, LENGTHS[part], rounds, say) for part in LENGTHS},
            "live": lambda: measure_live_steps(options.sizes, options.forms, folder, live_rounds, found["limit"], say),
            "growth": lambda: measure_growth(rounds, say),
        }
        for part in (part for part in PARTS if part in options.only):
            found[part] = measures[part]()
            console.print(_table(found[part], f"{part}: {where}"))
            found["bars"] = met_bars(found)
            write_json(options.json, found)
    print_bars(found["bars"], console)


def _table(rows: Sequence[dict[str, Any]], title: str) -> TerminalTable:
    head = [column.replace("_", " ") for column in rows[0]]
    return TerminalTable(title, [head, *([_shown(column, value) for column, value in row.items()] for row in rows)])


def _shown(column: str, value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_shown(column, each) for each in value)
    if column == "bytes":
        return f"{value / 2**20:.0f} MiB"
    if column == "share":
        return f"{value:.0%}"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.whole", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="file to write")
    parser.add_argument("--only", type=some_of(PARTS), default=",".join(PARTS), help="some of the parts")
    parser.add_argument("--threads", type=at_least_1, default=1)
    sizes = streaming.SIZES
    parser.add_argument("--sizes", type=some_of(sizes), default=",".join(sizes), help="of the detector")
    parser.add_argument("--forms", help="of the live step; default: all")
    parser.add_argument("--models", type=Path, help="folder to keep exported files in; default: thrown away")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    options = parser.parse_args(arguments)
    options.forms = streaming.forms_of(parser, options.forms, "cpu")
    return options


if __name__ == "__main__":
    main()
