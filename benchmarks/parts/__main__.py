"""Trains each combination of backbone and head once on the demo's data: `python -m benchmarks.parts --folder DIR
--json FILE [--only NAME,...] [--steps N] [key=value ...]`.

The rows go to FILE, the table to parts.md beside it. An interrupted run goes on where it was.
"""

from __future__ import annotations

import sys

from rich.console import Console

from benchmarks.any_rate.__main__ import chosen_variants, machine_facts, study_parser
from benchmarks.any_rate.study import Study
from benchmarks.events.__main__ import cpu_extensions
from benchmarks.parts.study import COMBINATIONS, PRECISION, run
from benchmarks.parts.tables import markdown
from rvtssm.atomic_files import atomic_file


def main(arguments: list[str] | None = None) -> int:
    parser = study_parser("python -m benchmarks.parts", __doc__, COMBINATIONS)
    chosen = parser.parse_args(arguments)
    names = chosen_variants(parser, chosen.only, COMBINATIONS)
    study = Study(chosen.folder.resolve(), chosen.steps, tuple(chosen.overrides), COMBINATIONS, PRECISION)
    try:
        result = run(study, names, chosen.json, {**machine_facts(), "cpu_extensions": cpu_extensions()})
    except ValueError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    text = markdown(result)
    with atomic_file(chosen.json.with_name("parts.md")) as staged:
        staged.write_text(text)
    Console().print(text, markup=False, highlight=False, soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
