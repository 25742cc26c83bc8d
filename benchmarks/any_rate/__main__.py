"""Trains at 20 Hz, scores at 20 to 200 Hz: `python -m benchmarks.any_rate --json FILE --folder DIR [--only NAME,...]`.

The raw rows go to FILE, the tables beside it as FILE.md, the plot as FILE.png. Interrupted, it goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.any_rate.study import VARIANTS, Study, run
from benchmarks.any_rate.tables import markdown, write_plot
from benchmarks.events.__main__ import facts
from rvtssm.atomic_files import atomic_file


def study_parser(prog: str, description: str | None, variants: Iterable[str]) -> argparse.ArgumentParser:
    """Return a parser of the arguments that every study of trainings has."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("--json", type=Path, required=True, help="file for the rows")
    parser.add_argument("--folder", type=Path, required=True, help="for recordings, weights and reports, about 3 GB")
    parser.add_argument("--only", default=",".join(variants), help=f"some of {','.join(variants)}")
    parser.add_argument("--steps", type=int, default=1600, help="optimiser steps of each training")
    parser.add_argument("overrides", nargs="*", help="of the demo's recipe, for all trainings")
    return parser


def chosen_variants(parser: argparse.ArgumentParser, only: str, variants: Iterable[str]) -> list[str]:
    """Return the names in `--only`; exit with an error that lists the known names if one of them is unknown."""
    chosen = only.split(",")
    if unknown := sorted(set(chosen) - set(variants)):
        parser.error(f"--only {','.join(unknown)}; choose from {','.join(variants)}")
    return chosen


def machine_facts() -> dict[str, Any]:
    """Return the facts that stand with every training."""
    return {name: value for name, value in facts().items() if name in ("cpu", "cores", "python", "torch", "commit")}


def main(arguments: list[str] | None = None) -> int:
    parser = study_parser("python -m benchmarks.any_rate", __doc__, VARIANTS)
    parser.add_argument("--seeds", type=int, default=2, help="trainings of each")
    chosen = parser.parse_args(arguments)
    variants = chosen_variants(parser, chosen.only, VARIANTS)
    if min(chosen.seeds, chosen.steps) < 1:
        parser.error(f"--seeds {chosen.seeds} --steps {chosen.steps}: give at least 1 of each")
    study = Study(chosen.folder.resolve(), chosen.steps, tuple(chosen.overrides))
    try:
        result = run(study, variants, chosen.seeds, chosen.json, machine_facts())
    except ValueError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    text = markdown(result)
    with atomic_file(chosen.json.with_suffix(".md")) as staged:
        staged.write_text(text)
    write_plot(result, chosen.json.with_suffix(".png"))
    Console().print(text, markup=False, highlight=False, soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
