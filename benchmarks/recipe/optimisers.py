"""Gathers the scores of trainings by optimiser, learning rate, number of steps and seed, and prints their table.

    python -m benchmarks.recipe.optimisers FOLDER --json FILE

FOLDER holds trainings named OPTIMISER-RATE-STEPS-SEED, each with `scores_last` (averaged weights) and
`scores_last_weights`, as the commands in README.md write them. FILE keeps what it holds of other trainings.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import yaml

from benchmarks.measuring import write_json
from rvtssm.evaluation.result import markdown_table

WEIGHTS = {"averaged": "scores_last", "last": "scores_last_weights"}

Rows = list[dict[str, Any]]


def main(arguments: Sequence[str] | None = None) -> None:
    """Add the scores below FOLDER to FILE, and print the table of FILE."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recipe.optimisers", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args(arguments)
    rows = json.loads(options.json.read_text()) if options.json.exists() else []
    new = read_scores(options.folder)
    names = [(row["training"], row["weights"]) for row in new]
    rows = [row for row in rows if (row["training"], row["weights"]) not in names] + new
    write_json(options.json, sorted(rows, key=_place))
    print("\n".join(table(rows)))


def read_scores(folder: Path) -> Rows:
    """Return a row per training and kind of weights that has been scored at 20 Hz, in percent."""
    rows = []
    for weights, scores in WEIGHTS.items():
        for path in sorted(folder.glob(f"*/{scores}/evaluation.json")):
            found = json.loads(path.read_text())
            made = json.loads((path.parents[1] / "environment.json").read_text())
            settings = yaml.safe_load((path.parents[1] / "config.yaml").read_text())
            rows.append(
                {
                    "training": path.parents[1].name,
                    "weights": weights,
                    "ap": round(100 * found["rates"]["20"]["AP"], 2),
                    "ap_still": round(100 * found["still_objects"]["carried"], 2),
                    "commit": made["commit"],
                    "processor": made["processor"],
                    "precision": settings["training"]["precision"],
                }
            )
    return rows


def table(rows: Rows) -> list[str]:
    """Return the lines of a table: means over seeds, with standard deviations where there are several."""
    head = ["optimiser", "learning rate", "steps", "seeds", "averaged weights", "still", "last weights", "still"]
    lines = [head]
    groups: dict[tuple[str, str, str], Rows] = {}
    for row in sorted(rows, key=_place):
        name, rate, steps = _parts(row["training"])[:3]
        groups.setdefault((name, rate, steps), []).append(row)
    for (name, rate, steps), mine in groups.items():
        cells = [
            _spread([row[key] for row in mine if row["weights"] == weights])
            for weights in WEIGHTS
            for key in ("ap", "ap_still")
        ]
        seeds = len({row["training"] for row in mine})
        lines.append([{"adamw": "AdamW", "muon": "Muon"}[name], rate, f"{int(steps):,}", str(seeds), *cells])
    return markdown_table(lines, "|---|")


def _spread(values: Sequence[float]) -> str:
    if not values:
        return ""
    return f"{mean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")


def _parts(training: str) -> tuple[str, str, str, str]:
    """Return optimiser, learning rate, steps and seed; the rate may hold a minus sign, as in 3e-3."""
    name, rest = training.split("-", 1)
    rate, steps, seed = rest.rsplit("-", 2)
    return name, rate, steps, seed


def _place(row: dict[str, Any]) -> tuple[str, float, int, int, str]:
    name, rate, steps, seed = _parts(row["training"])
    return name, float(rate), int(steps), int(seed), row["weights"]


if __name__ == "__main__":
    main()
