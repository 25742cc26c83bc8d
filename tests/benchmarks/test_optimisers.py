"""The table of optimisers: scores of trainings are gathered, kept, and stand in the README as they are in the file."""

import json
from pathlib import Path

from benchmarks.recipe.optimisers import main, table

RECIPE = Path(__file__).parents[2] / "benchmarks" / "recipe"


def add_training(folder: Path, name: str, averaged: float, last: float) -> None:
    for scores, ap in (("scores_last", averaged), ("scores_last_weights", last)):
        (folder / name / scores).mkdir(parents=True)
        found = {"rates": {"20": {"AP": ap}}, "still_objects": {"carried": ap / 2}}
        (folder / name / scores / "evaluation.json").write_text(json.dumps(found))
    (folder / name / "config.yaml").write_text("training:\n  precision: bf16\n")
    (folder / name / "environment.json").write_text(json.dumps({"commit": "abc", "processor": "one"}))


def test_a_row_is_the_mean_over_seeds_and_earlier_trainings_are_kept(tmp_path, capsys):
    add_training(tmp_path / "first", "muon-5e-3-800-0", 0.40, 0.30)
    main([str(tmp_path / "first"), "--json", str(tmp_path / "scores.json")])
    add_training(tmp_path / "second", "muon-5e-3-800-1", 0.42, 0.34)
    add_training(tmp_path / "second", "adamw-3e-3-400-0", 0.20, 0.10)
    main([str(tmp_path / "second"), "--json", str(tmp_path / "scores.json")])
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "| AdamW | 3e-3 | 400 | 1 | 20.0 | 10.0 | 10.0 | 5.0 |",
        "| Muon | 5e-3 | 800 | 2 | 41.0 ± 1.4 | 20.5 ± 0.7 | 32.0 ± 2.8 | 16.0 ± 1.4 |",
    ]


def test_the_readme_has_the_table_of_the_file():
    rows = json.loads((RECIPE / "optimisers.json").read_text())
    assert "\n".join(table(rows)) in (RECIPE / "README.md").read_text()
