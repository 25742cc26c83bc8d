"""Trains variants of the temporal layers on squares that stop: `python -m benchmarks.memory --json FILE [--seeds 3]
[--only NAME;...]`.

The rows go to FILE, the table to a page of the same name beside it. An interrupted run goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from rich.console import Console

from benchmarks.measuring import write_json
from benchmarks.memory.study import GROUPS_S, VARIANTS, Variant, train_and_score
from benchmarks.sequence.study import spread
from rvtssm.evaluation.result import markdown_table
from rvtssm.system.files import atomic_file

Row = dict[str, Any]
_HEADER = """# Which layers remember objects that stand still

    python -m benchmarks.memory --json benchmarks/memory/rows.json

Average precision in percent of the cells that a square covers, by how long it has stood still; mean and standard
deviation over seeds. A variant is the layer as in the demo, except for what its name says. Variants without a line here
were not trained; `--seeds` and `--only` choose.

"""


def run(
    variants: dict[str, Variant],
    num_seeds: int,
    path: Path,
    train: Callable[[Variant, int], Row] = train_and_score,
    say: Callable[[str], None] = lambda text: None,
) -> list[Row]:
    """Train what `path` does not hold yet, seed by seed, and write it after every network; return the rows.

    Raise ValueError if the file holds a variant of the same name that was something else.
    """
    rows: list[Row] = json.loads(path.read_text())["rows"] if path.exists() else []
    for row in rows:
        wanted = variants.get(row["name"])
        if wanted is not None and row["variant"] != wanted.changes:
            raise ValueError(
                f"{path} holds {row['name']} as {row['variant']}, now it is {wanted.changes}; give another --json"
            )
    done = {(row["name"], row["seed"]) for row in rows}
    for seed in range(num_seeds):
        for name, variant in variants.items():
            if (name, seed) in done:
                continue
            rows.append({"name": name, "seed": seed, "variant": variant.changes, **train(variant, seed)})
            write_json(path, {"torch": torch.__version__, "rows": rows})
            say(f"{name}, seed {seed}: {rows[-1]['AP']}")
    return rows


def markdown(rows: Sequence[Row]) -> str:
    """Return the page: the command and a table with one line per variant, means and spreads over its seeds."""
    cells = [["variant", *GROUPS_S, "seeds", "parameters", "CPU s"]]
    for name in dict.fromkeys(row["name"] for row in rows):
        chosen = [row for row in rows if row["name"] == name]
        scores = [spread([row["AP"][group] for row in chosen]) for group in GROUPS_S]
        cost = round(mean(row["cpu_seconds"] for row in chosen))
        cells.append([name, *scores, str(len(chosen)), str(chosen[0]["parameters"]), str(cost)])
    return _HEADER + "\n".join(markdown_table(cells, "|---|")) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("--json", type=Path, required=True, help="results; finished networks are not trained again")
    parser.add_argument("--seeds", type=int, default=3, help="networks of each variant")
    parser.add_argument("--only", help="names of variants, with a semicolon between them")
    chosen = parser.parse_args(arguments)
    names = chosen.only.split(";") if chosen.only else list(VARIANTS)
    if unknown := [name for name in names if name not in VARIANTS]:
        parser.error(f"--only {unknown[0]!r}: choose from {'; '.join(VARIANTS)}")
    torch.set_num_threads(1)
    console = Console()

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    try:
        rows = run({name: VARIANTS[name] for name in names}, chosen.seeds, chosen.json, say=say)
    except ValueError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    text = markdown(rows)
    with atomic_file(chosen.json.with_suffix(".md")) as staged:
        staged.write_text(text)
    say(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
