"""Trains at 20 Hz, scores at 20 to 200 Hz: `python -m benchmarks.any_rate --json FILE --folder DIR [--only NAME,...]`.

The raw rows go to FILE, the tables beside it as FILE.md, the plot as FILE.png. Interrupted, it goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from benchmarks.any_rate.study import VARIANTS, Study, run
from benchmarks.any_rate.tables import markdown, write_plot
from benchmarks.events.__main__ import facts
from rvtssm.atomic_files import atomic_file


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.any_rate", description=__doc__)
    parser.add_argument("--json", type=Path, required=True, help="file for the rows")
    parser.add_argument("--folder", type=Path, required=True, help="for recordings, weights and reports, about 3 GB")
    parser.add_argument("--only", default=",".join(VARIANTS), help=f"some of {','.join(VARIANTS)}")
    parser.add_argument("--seeds", type=int, default=2, help="trainings of each")
    parser.add_argument("--steps", type=int, default=1600, help="optimiser steps of each training")
    parser.add_argument("overrides", nargs="*", help="of the demo's recipe, for all trainings")
    chosen = parser.parse_args(arguments)
    variants = chosen.only.split(",")
    if unknown := sorted(set(variants) - set(VARIANTS)):
        parser.error(f"--only {','.join(unknown)}; choose from {','.join(VARIANTS)}")
    if min(chosen.seeds, chosen.steps) < 1:
        parser.error(f"--seeds {chosen.seeds} --steps {chosen.steps}: give at least 1 of each")
    machine = {name: value for name, value in facts().items() if name in ("cpu", "cores", "python", "torch", "commit")}
    study = Study(chosen.folder.resolve(), chosen.steps, tuple(chosen.overrides))
    try:
        result = run(study, variants, chosen.seeds, chosen.json, machine)
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
