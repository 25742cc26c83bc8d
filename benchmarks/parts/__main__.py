"""Compares the combinations of backbone and head on the demo's data: `python -m benchmarks.parts --folder DIR
--json FILE [key=value ...]`.

It runs `rvtssm study experiment=part_study`, which goes on where it was interrupted, and times live steps. The rows go
to FILE, the table to parts.md beside it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console

from benchmarks.parts.live_steps import rows_of
from benchmarks.parts.tables import markdown
from rvtssm.cli import main as cli
from rvtssm.contrib.studies.grid import compose_study
from rvtssm.system.files import atomic_file


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parts", description=__doc__)
    parser.add_argument("--json", type=Path, required=True, help="file for the rows")
    parser.add_argument("--folder", type=Path, required=True, help="for recordings, weights and reports, about 3 GB")
    parser.add_argument("overrides", nargs="*", help="of the recipe part_study, for all trainings")
    chosen = parser.parse_args(arguments)
    words = ["experiment=part_study", *chosen.overrides]
    if axes := [axis for axis in compose_study(words)[1][0][0] if axis != "variant"]:
        parser.error(f"a row is one training, but {axes[0]} has several values; choose one of them")
    code = cli.main(["study", *words, f"out={chosen.folder.resolve()}"])
    if code:
        return code
    result = {"overrides": chosen.overrides, "rows": rows_of(chosen.folder)}
    text = markdown(result)
    for path, content in (
        (chosen.json, json.dumps(result, indent=1) + "\n"),
        (chosen.json.with_name("parts.md"), text),
    ):
        with atomic_file(path) as staged:
            staged.write_text(content)
    Console().print(text, markup=False, highlight=False, soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
